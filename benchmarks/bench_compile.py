"""Candidates compiled per second and core, and the cost of a cache hit.

Run from the repository root: ``python -m benchmarks.bench_compile [--jobs 1,2] [--candidates 48]``.
One candidate = PTX, cubin, exported object and resource usage of the SVDQuant GEMM, stored in a fresh cache. The
clock starts when every worker has compiled something. ``per core`` divides by the CPU time that the workers used,
which other work on the machine does not stretch; ``per job`` by the wall time.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from kernel_space.build.build import build
from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.compile.pool import CompilePool
from tuner.trials.outcome import Status

PROBLEM = GemmProblem(m=4352, k=3840, n=3072, r=128)
TILES = (((128, 128), (1, 1)), ((128, 256), (1, 1)), ((256, 128), (2, 1)), ((256, 256), (2, 1)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description="candidates compiled per second and core; cost of a cache hit"
    )
    parser.add_argument("--jobs", default="1,2", help="numbers of workers, comma separated (default 1,2)")
    parser.add_argument("--candidates", type=int, default=48, help="candidates per number of workers")
    options = parser.parse_args()
    jobs = [int(number) for number in options.jobs.split(",")]
    configs = list(itertools.islice(_legal_configs(), options.candidates + max(jobs)))
    print(f"measured on {os.cpu_count()} cores; {len(configs)} different legal candidates of {PROBLEM}")
    with tempfile.TemporaryDirectory() as directory:
        for number in jobs:
            _measure(configs, number, Path(directory) / str(number))
        _measure_hits(configs, Path(directory) / str(jobs[0]))


def _legal_configs() -> Iterator[KernelConfigSm100a]:
    """Resolved, different candidates in a mixed order that is the same every time."""
    knobs = list(
        itertools.product(
            TILES,
            (2, 3, 4),
            ("interleave", "tail"),
            ("dedicated", "ab_stage"),
            (1, 2, 4),
            ("m", "n"),
            (16, 32),
        )
    )
    random.Random(0).shuffle(knobs)
    seen: set[str] = set()
    for (tile, cluster), stages, schedule, buffer, swizzle, raster, epi in knobs:
        asked = KernelConfigSm100a(
            mma_tiler_mn=tile,
            cluster_shape_mn=cluster,
            num_ab_stage=stages,
            lora_schedule=schedule,
            lora_buffer=buffer,
            swizzle_size=swizzle,
            raster_order=raster,
            epi_tile_n=epi,
        )
        legal = legalize(asked, PROBLEM, SM100A)
        if isinstance(legal, Legal) and str(legal.config) not in seen:
            seen.add(str(legal.config))
            assert isinstance(legal.config, KernelConfigSm100a)
            yield legal.config


def _measure(configs: list[KernelConfigSm100a], jobs: int, cache_dir: Path) -> None:
    with CompilePool(jobs, 120.0, cache_dir) as pool:
        for future in [pool.submit(config, PROBLEM.problem_class, SM100A) for config in configs[:jobs]]:
            future.result()
        cpu, wall = _children_cpu_seconds(), time.perf_counter()
        futures = [pool.submit(config, PROBLEM.problem_class, SM100A) for config in configs[jobs:]]
        results = [future.result() for future in futures]
        wall = time.perf_counter() - wall
        cpu = _children_cpu_seconds() - cpu
    done = sum(result.status is Status.OK for result in results)
    failed = next((result.reason for result in results if result.status is not Status.OK), "")
    print(
        f"{jobs} worker(s): {done} of {len(results)} compiled in {wall:.1f} s wall, {cpu:.1f} s CPU: "
        f"{done / wall:.2f} candidates/s, {done / wall / jobs:.2f} per job, {done / cpu:.2f} per core"
        + (f"; first failure: {failed}" if failed else "")
    )


def _children_cpu_seconds() -> float:
    """User and system time of living child processes and of theirs that ended."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == os.getpid():
                ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _measure_hits(configs: list[KernelConfigSm100a], cache_dir: Path) -> None:
    problem_class = PROBLEM.problem_class
    build(configs[0], problem_class, SM100A, cache_dir=cache_dir)  # hashes the kernel's sources once
    start = time.perf_counter()
    for config in configs:
        build(config, problem_class, SM100A, cache_dir=cache_dir)
    seconds = (time.perf_counter() - start) / len(configs)
    print(f"cache hit (every file's hash checked): {seconds * 1e3:.2f} ms")


if __name__ == "__main__":
    main()
