"""This project's kernel at R = 0 against NVIDIA's persistent block-scaled GEMM, shape by shape, both simulated.

    python -m benchmarks.nvidia_gemm --example PATH/dense_blockscaled_gemm_persistent.py --out DIR --all
    python -m benchmarks.parity --nvidia DIR [--table results/b200] [--warm] [--shape M,K,N,0 ...]

NVIDIA's kernel, unmodified, runs at every tile and cluster that its own check allows, this project's with the config of
the dispatch table's row; both on the same clock, under the same sets of constants, without programmatic launch, which
the example does not offer. The best option is the one with the lowest nominal time. ``DIR`` is outside the repository.
"""

from __future__ import annotations

import argparse
import dataclasses
import pickle
from collections.abc import Iterator
from pathlib import Path

from benchmarks.nvidia_gemm import ALL_SHAPES
from kernel_space.build.build import build
from kernel_space.core.arch import SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, legalize
from kernel_space.machine.clock.constants import cluster_places
from kernel_space.machine.clock.estimate import simulate_launch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.devices.simulated import Chip
from tuner.simulated.constants.sets import admissible_sets
from tuner.simulated.time import SimulatedTime, agreement, simulate, time_of
from tuner.tables.dispatch import DispatchTable

CHIP = Chip(name="b200", arch=SM100A, sm_count=148)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Option:
    """NVIDIA's kernel with one tile and cluster: ``256x192-2x1``."""

    name: str
    time: SimulatedTime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nvidia", type=Path, required=True, help="what benchmarks.nvidia_gemm --all wrote")
    parser.add_argument("--table", type=Path, default=Path("results/b200"), help="dispatch table of the rows")
    parser.add_argument("--warm", action="store_true", help="operands are in L2 at the start")
    parser.add_argument("--shape", action="append", default=[], help="M,K,N,0; by default all of nvidia_gemm")
    args = parser.parse_args()
    problems = [GemmProblem.parse(text) for text in args.shape] or [
        GemmProblem(m=m, k=k, n=n, r=0) for m, k, n in ALL_SHAPES
    ]
    table = DispatchTable.load(args.table)
    print(
        "| M,K,N | NVIDIA | us | interval | this kernel | us | interval | ratio | faster in |\n"
        + "|---" * 9
        + "|"
    )
    for problem in problems:
        options = nvidia_options(args.nvidia, problem, cold=not args.warm)
        found = table.lookup(problem)
        if found.source != "exact":
            raise InputError(f"{args.table} has no row of {problem}; run tune.py --shape {problem}")
        assert isinstance(found.config, KernelConfigSm100a)
        print(
            line(problem, options, found.config, ours(found.config, problem, cold=not args.warm)), flush=True
        )


def nvidia_options(folder: Path, problem: GemmProblem, *, cold: bool) -> list[Option]:
    """Simulated times of every option in ``folder``, the fastest first. Raises ``InputError`` without any."""
    options = sorted(_times(folder, problem, cold=cold), key=lambda option: option.time.us)
    if not options:
        raise InputError(f"{folder} holds no launch of {problem}; run benchmarks.nvidia_gemm --all")
    return options


def _times(folder: Path, problem: GemmProblem, *, cold: bool) -> Iterator[Option]:
    sets = admissible_sets(SM100A)
    for path in sorted(folder.glob(f"*x*-*x*/{problem.m}_{problem.k}_{problem.n}.pkl")):
        launch = pickle.loads(path.read_bytes())
        places = cluster_places(CHIP.sm_count, launch.cluster[0] * launch.cluster[1])
        ptx = path.with_name("kernel.ptx").read_text()
        run = simulate_launch(launch, ptx, sets.clock, sm_count=CHIP.sm_count, places=places, cold=cold)
        yield Option(name=path.parent.name, time=time_of(run, sets))


def ours(config: KernelConfigSm100a, problem: GemmProblem, *, cold: bool) -> SimulatedTime:
    """Simulated time of ``config``, its programmatic launch switched off."""
    plain = KernelConfigSm100a.from_fields({**config.fields(), "use_pdl": "false"})
    legal = legalize(plain, problem, SM100A)
    if not isinstance(legal, Legal):
        raise InputError(f"the row of {problem} is not legal: {legal.reason}")
    assert isinstance(legal.config, KernelConfigSm100a)
    compiled = build(legal.config, problem.problem_class, SM100A)
    return simulate(compiled, legal.config, problem, CHIP, cold=cold)


def line(problem: GemmProblem, options: list[Option], config: KernelConfigSm100a, own: SimulatedTime) -> str:
    """One row of the table: the ratio is this kernel's time over NVIDIA's best."""
    best = options[0]
    tile, cluster = ("x".join(map(str, pair)) for pair in (config.mma_tiler_mn, config.cluster_shape_mn))
    swapped = " swapped" if config.swap_ab else ""
    split = f" split {config.split_k}" if config.split_k > 1 else ""
    return (
        f"| {problem.m},{problem.k},{problem.n} | {best.name} | {_us(best.time)} "
        f"| {tile}-{cluster}{swapped}{split} | {_us(own)} | {own.us / best.time.us:.3f} "
        f"| {agreement(own, best.time):.0%} |"
    )


def _us(time: SimulatedTime) -> str:
    return f"{time.us:.2f} | {time.low_us:.1f}-{time.high_us:.1f}"


if __name__ == "__main__":
    main()
