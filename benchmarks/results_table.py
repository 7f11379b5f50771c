"""A measured sweep against its peers, as a Markdown table with geometric means.

    python -m benchmarks.results_table [--device h200] [--out results]

Everything is read from ``results/<device>/``: the dispatch table, the trials (for the default rule's time) and
``peers.json`` of each problem. Ratios to peers divide times of one run where the peers' run timed the tuned config too;
where it timed another one, or none, they divide by the tune's time and are marked with a star.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import NamedTuple

from kernel_space.core.registry import parse_config
from kernel_space.operators.svdquant_gemm.on_card.peers import COMPILED, CUBLAS, DEQUANT, EAGER, FP8
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.classes import DEVICE_CLASSES
from tuner.report.data.peers import read_peers
from tuner.report.write import read_trials, report_folder
from tuner.tables.dispatch import DispatchTable
from tuner.tables.row import Row
from tuner.trials.outcome import Origin

PEERS = {"torch.compile": COMPILED, "dequant": DEQUANT, "eager": EAGER, "cuBLAS": CUBLAS, "FP8": FP8}


class Line(NamedTuple):
    """Microseconds; ``own`` is the tuned config's time in the run of the peers, None where that run had none."""

    problem: GemmProblem
    tuned: float
    default: float | None
    own: float | None
    peers: dict[str, float]

    def ratio(self, peer: str) -> float | None:
        """Time of ``peer`` over the tuned kernel's of the same run (of the tune, where that run had none)."""
        us = self.peers.get(peer)
        return None if us is None else us / (self.own or self.tuned)


def lines(results: Path, device: str) -> list[Line]:
    """One per row of the operator in the table, in its order."""
    table = DispatchTable.load(results / device, arch=DEVICE_CLASSES[device].arch)
    return [
        _line(results, device, key.problem, row)
        for key, row in table.rows.items()
        if isinstance(key.problem, GemmProblem)
    ]


def _line(results: Path, device: str, problem: GemmProblem, row: Row) -> Line:
    tuned = row.time_us
    folder = report_folder(results, device, problem)
    default = next(
        (trial.us for trial in read_trials(folder / "trials.parquet") if trial.origin is Origin.DEFAULT), None
    )
    peers = read_peers(folder, problem)
    if peers is None:
        return Line(problem, tuned, default, None, {})
    arch = DEVICE_CLASSES[device].arch
    # Parsed: a config printed before a knob came does not name it.
    same = peers.own and parse_config(GemmProblem.operator, arch, peers.own.config) == parse_config(
        GemmProblem.operator, arch, row.config
    )
    own = peers.own.us if peers.own and same else None
    return Line(problem, tuned, default, own, {peer.name: peer.us for peer in peers.rows})


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="h200", choices=sorted(DEVICE_CLASSES))
    parser.add_argument("--out", type=Path, default=Path("results"))
    args = parser.parse_args()
    found = lines(args.out, args.device)
    heads = ["M,K,N,R", "tuned", "default", "default / tuned", *PEERS, *(f"{name} / tuned" for name in PEERS)]
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for line in found:
        gain = line.default and line.default / line.tuned
        cells = [line.tuned, line.default, gain, *(line.peers.get(peer) for peer in PEERS.values())]
        star = "" if line.own else "*"
        texts = ["–" if cell is None else f"{cell:.2f}" for cell in cells]
        ratios = [line.ratio(peer) for peer in PEERS.values()]
        texts += ["–" if ratio is None else f"{ratio:.2f}{star}" for ratio in ratios]
        print(f"| {line.problem} | " + " | ".join(texts) + " |")
    print()
    for name, chosen in {
        "M = 4352": [line for line in found if line.problem.m == 4352],
        "M <= 64": [line for line in found if line.problem.m <= 64],
        "all": found,
    }.items():
        means = {"default": [line.default / line.tuned for line in chosen if line.default]}
        means |= {short: [r for one in chosen if (r := one.ratio(peer))] for short, peer in PEERS.items()}
        texts = [
            f"{short} {geometric_mean(ratios):.2f} ({len(ratios)})"
            for short, ratios in means.items()
            if ratios
        ]
        print(f"geometric means of time / tuned, {name}: " + ", ".join(texts))


if __name__ == "__main__":
    main()
