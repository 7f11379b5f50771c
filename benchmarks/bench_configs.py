"""Configs that one names oneself, checked and timed on a card: for work on a kernel, where no search should choose.

    python -m benchmarks.bench_configs compile DIR < candidates      # lines "M,K,N,R | knob=value ..."
    python -m benchmarks.bench_configs measure DIR [--device cuda:0] [--rounds 24]

A line may name a dtype, "M,K,N,R bf16 | ...", and an operator, "lora_down 4352,3840,128 bf16 | ...".

``compile`` needs the DSL and no card; ``measure`` a card, torch and llvmlite, and no DSL. It uses the tuner's own
worker, check and timing protocol (docs/inside_a_tune.md): each candidate 21 times bitwise equal and within the
tolerance, then the right ones of a problem interleaved, a sample of each per round. ``tune.py peers`` times what else
computes the layer.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import Any

from kernel_space.build.build import CompileError, build
from kernel_space.core.arch import Arch, arch
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator, operator_of, parse_config
from kernel_space.core.rules import Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.card.card_worker import CandidateFault
from tuner.card.judging import Judging
from tuner.card.samples.samples import Samples
from tuner.card.worker.bench import FinalsOptions
from tuner.card.worker.candidate import Case, Loadable
from tuner.devices.card import CudaDevice
from tuner.devices.select import select_device

MANIFEST = "configs.json"
REPEATS, SEED = 20, 1
SETTLE_MS = 1500.0


@dataclasses.dataclass(frozen=True)
class Item:
    """One line of the input that compiled."""

    asked: str
    candidate: Loadable
    case: Case


def compile_all(folder: Path, target: Arch) -> None:
    """Objects and a manifest of every candidate on stdin that is legal and compiles."""
    folder.mkdir(parents=True, exist_ok=True)
    records = []
    for line in sys.stdin:
        if line.strip():
            problem, knobs = _parse(line)
            record = _compile(folder, target, problem, knobs)
            if isinstance(record, str):
                print(f"{line.strip()}: {record}")
            else:
                records.append(record)
                print(line.strip(), flush=True)
    (folder / MANIFEST).write_text(json.dumps(records, indent=1) + "\n")


def _parse(line: str) -> tuple[Problem, str]:
    words, _, knobs = line.partition("|")
    named = words.split()
    kind = operator(named.pop(0)).problem if named[0][0].isalpha() else GemmProblem
    sizes, dtype = (*named, "fp16")[:2]
    dtypes = {name: dtype for name in kind.forms() if name.endswith("dtype")}
    return kind.parse(sizes, **dtypes), knobs.strip()


def _compile(folder: Path, target: Arch, problem: Problem, knobs: str) -> dict[str, Any] | str:
    """The record of a candidate, or why there is none."""
    legal = legalize(parse_config(problem.operator, target, knobs), problem, target)
    if isinstance(legal, Rejection):
        return f"{legal.rule}: {legal.reason}"
    try:
        compiled = build(legal.config, problem.problem_class, target)
    except CompileError as error:
        return str(error)
    shutil.copy(compiled.object_path, folder / f"{compiled.prefix}.o")
    candidate = dataclasses.replace(Loadable.of(compiled, legal.config), object_path=f"{compiled.prefix}.o")
    return {
        "asked": knobs,
        "candidate": candidate.record(),
        "case": Case.of(legal.config, problem).record(),
    }


def measure_all(folder: Path, device: CudaDevice, rounds: int) -> None:
    """Prints one line per candidate, the fastest of each problem first."""
    groups: dict[Problem, list[Item]] = collections.defaultdict(list)
    for item in _load(folder):
        groups[item.case.problem].append(item)
    print(device.judge)
    for problem, items in groups.items():
        print(f"== {problem} {problem.problem_class}", flush=True)
        right = [item for item in items if _is_right(device.worker, item)]
        if right:
            options = FinalsOptions(rounds=rounds, settle_ms=SETTLE_MS)
            samples = device.worker.finals([(item.candidate, item.case) for item in right], options)
            _print(right, samples)


def _load(folder: Path) -> list[Item]:
    items = []
    for record in json.loads((folder / MANIFEST).read_text()):
        candidate = Loadable.from_record(record["candidate"])
        here = dataclasses.replace(candidate, object_path=str(folder / candidate.object_path))
        items.append(Item(record["asked"], here, Case.from_record(record["case"])))
    return items


def _is_right(worker: Judging, item: Item) -> bool:
    try:
        worker.check(item.candidate, [item.case], repeats=REPEATS, seed=SEED)
    except CandidateFault as fault:
        print(f"{fault.status}: {item.asked}: {fault}", flush=True)
        return False
    return True


def _print(items: list[Item], samples: list[Samples]) -> None:
    for item, one in sorted(zip(items, samples, strict=True), key=lambda pair: pair[1].interval.median):
        found, facts = one.interval, one.evidence()
        problem = item.case.problem
        rate = operator_of(problem).work(problem).total / found.median / 1e6
        print(
            f"{found.median:9.2f} us ({found.low:.2f} to {found.high:.2f}) {rate:6.1f} TFLOP/s "
            f"{facts['sm_mhz']} MHz {facts['watts']} W | {item.asked or 'the default of every knob'}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("compile", "measure"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=24)
    options = parser.parse_args()
    if options.command == "compile":
        compile_all(options.folder, arch(options.arch))
        return
    device = select_device(options.device)
    if not isinstance(device, CudaDevice):
        raise SystemExit(f"measure needs a card, {options.device} is {device.name} without one")
    measure_all(options.folder, device, options.rounds)


if __name__ == "__main__":
    main()
