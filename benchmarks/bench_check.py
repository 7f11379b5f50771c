"""What a check in the sm_100a machine costs, measured on this CPU on one core.

    python -m benchmarks.bench_check [--configs 20] [--seed 0] [--shape 4352,3840,3072,128] [--no-full]

Random legal configs of the search space, each under all five schedules with race checking as a tune checks its
leaders; where the time goes, by part of the machine; then the full problem once with the default rule's config. CPU
seconds are of this process: on a busy machine they are what one free core would take, wall seconds are not.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import random
import statistics
import time
from collections import Counter
from pathlib import Path

import torch

from kernel_space.build.build import build
from kernel_space.check.validate import CheckResult, check_candidate, check_full
from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.space.space import SearchSpace

HERE = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shape", default="4352,3840,3072,128")
    parser.add_argument("--no-full", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    problem = GemmProblem.parse(args.shape)
    space = SearchSpace.load(GemmProblem.operator, SM100A)
    configs = random_configs(space, problem, args.configs, random.Random(args.seed))
    candidates(configs, problem)
    shares(configs[0], problem)
    if not args.no_full:
        default = space.default(problem)
        assert isinstance(default, KernelConfigSm100a)
        full(default, problem)


def random_configs(
    space: SearchSpace, problem: GemmProblem, count: int, source: random.Random
) -> list[KernelConfigSm100a]:
    """Resolved configs: every knob drawn evenly from its choices, illegal points drawn again."""
    found: list[KernelConfigSm100a] = []
    while len(found) < count:
        choices = {name: source.choice(knob.choices) for name, knob in space.knobs.items()}
        legal = legalize(KernelConfigSm100a.from_fields(choices), problem, SM100A)
        if isinstance(legal, Legal) and isinstance(legal.config, KernelConfigSm100a):
            found.append(legal.config)
    return found


def candidates(configs: list[KernelConfigSm100a], problem: GemmProblem) -> None:
    cpu, wall, rates, bad = [], [], [], 0
    for config in configs:
        compiled = build(config, problem.problem_class, SM100A)
        cpu_begun, begun = time.process_time(), time.perf_counter()
        result = check_candidate(compiled, config, problem)
        cpu.append(time.process_time() - cpu_begun)
        wall.append(time.perf_counter() - begun)
        rates.append(result.instructions / cpu[-1])
        bad += not result.ok
        tile, cluster = config.fields()["mma_tiler_mn"], config.fields()["cluster_shape_mn"]
        print(
            f"  {cpu[-1]:6.2f} s CPU {wall[-1]:6.2f} s wall  {result.status}  tile {tile} cluster {cluster} "
            f"split_k {config.split_k}: {result.problem} on {result.sms} SMs, {result.instructions} warp-instructions"
        )
    print(f"candidate check, {len(configs)} random legal configs, {bad} failed; measured on this CPU:")
    for name, values in (("CPU", cpu), ("wall", wall)):
        print(f"  {name:<5} median {statistics.median(values):.2f} s, p90 {percentile(values, 0.9):.2f} s")
    print(f"  {statistics.median(rates):,.0f} warp-instructions per CPU second (median, race checking on)")


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least ``share`` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def shares(config: KernelConfigSm100a, problem: GemmProblem) -> None:
    """Own time by file of the machine, under the profiler."""
    compiled = build(config, problem.problem_class, SM100A)
    profile = cProfile.Profile()
    profile.runcall(check_candidate, compiled, config, problem)
    spent: Counter[str] = Counter()
    for (path, _, _), (_, _, own, _, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]  # not in the stub
        spent[_part(path)] += own
    total = sum(spent.values())
    print(f"share of the time per part (profiled, {config.fields()['mma_tiler_mn']}):")
    for part, seconds in spent.most_common(12):
        print(f"  {part:<24}{seconds / total:6.1%}")


def _part(path: str) -> str:
    if path.startswith("<ptx block"):
        return "translated PTX"
    if path.startswith(str(HERE / "kernel_space")):
        return Path(path).stem
    return "numpy, torch and Python"


def full(config: KernelConfigSm100a, problem: GemmProblem) -> None:
    legal = legalize(config, problem, SM100A)
    assert isinstance(legal, Legal), legal
    compiled = build(legal.config, problem.problem_class, SM100A)
    begun = time.process_time()
    result: CheckResult = check_full(compiled, legal.config, problem, limit_s=float("inf"))
    cpu = time.process_time() - begun
    run = result.runs[0]
    print(
        f"full problem {problem}, default rule, races off: {result.status}, {cpu:.1f} s CPU on this CPU, operands and "
        f"float64 comparison of all {problem.m * problem.n} elements included ({run.instructions} warp-instructions)"
    )


if __name__ == "__main__":
    main()
