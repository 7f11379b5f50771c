"""How fast the sm_100a machine runs: warp-instructions per second and the share of time per part. Needs no GPU.

    python -m benchmarks.bench_sim                       # check-size problem, five schedules, then the shares
    python -m benchmarks.bench_sim --full                # 4352,3840,3072,128 without race checking, one core
    python -m benchmarks.bench_sim --shape 520,1056,520,128 --config "mma_tiler_mn=256x256"

Times are CPU seconds of this process (simulating says nothing about the time on a GPU).
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from kernel_space.build.build import CompiledKernel, build
from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Rejection, legalize
from kernel_space.machine.run.run import SimResult, run_compiled
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes

CHECK_SHAPE = "520,1056,520,128"
FULL_SHAPE = "4352,3840,3072,128"
PARTS = {
    "race checker": ("race", "shadow.py", "clocks.py"),
    "tensor core": ("tensor_pipe.py", "tensor_core.py", "formats.py"),
    "TMA and bulk copies": ("tma.py", "bulk.py"),
    "shared, global and tensor memory": ("smem.py", "global_memory.py", "tmem.py", "atomics.py"),
    "barriers": ("mbarrier.py", "barriers.py"),
    "arithmetic": ("lanes.py", "floats.py", "scalars.py", "conversions.py", "runtime_names.py"),
    "translated blocks": ("<ptx block",),
    "scheduling": ("machine.py", "schedules.py"),
}


class Case:
    """One kernel with its operands; ``run`` returns the result and CPU seconds."""

    def __init__(self, shape: str, config: str) -> None:
        self.problem = GemmProblem.parse(shape)
        legal = legalize(KernelConfigSm100a.parse(config), self.problem, SM100A)
        if isinstance(legal, Rejection):
            sys.exit(f"{legal.rule}: {legal.reason}")
        assert isinstance(legal.config, KernelConfigSm100a)
        self.config = legal.config
        self.compiled: CompiledKernel = build(self.config, self.problem.problem_class, SM100A)
        self.operands: Operands = make_operands(self.problem, 0, source="codes")

    def run(self, *, clusters: int, races: bool, schedule: str = "eager") -> tuple[SimResult, float]:
        problem = self.problem
        tensors = [item if item.numel() else 0 for item in self.operands.tensors().values()]
        workspace = torch.zeros(max(16, workspace_bytes(self.config, problem)), dtype=torch.uint8)
        started = time.process_time()
        result = run_compiled(
            self.compiled, *tensors, workspace, problem.m, problem.n, problem.k, clusters,
            sms=clusters * self.config.cluster_size, check_races=races, schedule=schedule,
        )  # fmt: skip
        seconds = time.process_time() - started
        if not result.ok:
            sys.exit(str(result))
        return result, seconds


def print_run(label: str, result: SimResult, seconds: float) -> None:
    rate = result.instructions / seconds / 1e6
    print(f"{label:28s} {result.instructions:9d} warp-instructions {seconds:7.2f} s {rate:6.2f} M/s")


def print_shares(case: Case, clusters: int, races: bool) -> None:
    """Share of self time per part, under Python's profiler (which makes small functions look bigger)."""
    profile = cProfile.Profile()
    profile.enable()
    case.run(clusters=clusters, races=races)
    profile.disable()
    rows = pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]  # not in the stub
    total = sum(row[2] for _, row in rows)
    left = total
    for part, names in PARTS.items():
        share = sum(
            row[2]
            for (file, _, _), row in rows
            if Path(file).name.startswith(names) or file.startswith(names)
        )
        left -= share
        print(f"  {part:34s} {share / total:6.1%}")
    print(f"  {'numpy and the rest':34s} {left / total:6.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default=None, help="M,K,N,R")
    parser.add_argument("--config", default="", help="knob=value ...")
    parser.add_argument("--full", action="store_true", help=f"{FULL_SHAPE} on all clusters, races off")
    arguments = parser.parse_args()
    case = Case(arguments.shape or (FULL_SHAPE if arguments.full else CHECK_SHAPE), arguments.config)
    print(f"{case.problem} {case.config}")
    if arguments.full:
        print_run("eager, races off", *case.run(clusters=148 // case.config.cluster_size, races=False))
        return
    case.run(clusters=2, races=True)  # translation and imports
    for schedule in SCHEDULES:
        print_run(f"{schedule}, races on", *case.run(clusters=2, races=True, schedule=schedule))
    print_run("eager, races off", *case.run(clusters=2, races=False))
    for races in (True, False):
        print(f"self time, races {'on' if races else 'off'}:")
        print_shares(case, 2, races)


if __name__ == "__main__":
    main()
