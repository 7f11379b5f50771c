"""What a lookup in the dispatch table costs, measured on this CPU.

Run from the repository root: ``python -m benchmarks.bench_lookup [--rows 200] [--calls 100000]``.
"Ready key": the caller keeps the ``DispatchKey`` of its problem, as a layer does whose M repeats. "Key per call": a
``GemmProblem`` is made and checked anew from M, K, N, R each time. Warm: the same question was asked before. Cold: the
first question of a table. The median of several repetitions, and the fastest, which other work disturbs least.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable
from pathlib import Path

from kernel_space.core.arch import SM100A
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.tables.dispatch import DispatchTable, record
from tuner.tables.merge import Current
from tuner.tables.row import DispatchKey, Provenance, Row
from tuner.trials.outcome import Kind

REPEAT = 9
PROBLEM = GemmProblem(m=4352, k=3840, n=3072, r=128)
ELSEWHERE = GemmProblem(m=4000, k=3840, n=3072, r=128)  # answered by the nearest M
CONFIG = KernelConfigSm100a(num_ab_stage=4, num_lora_stage=2, num_acc_stage=2, num_c_stage=2)


def main() -> None:
    parser = argparse.ArgumentParser(description="cost of a lookup in the dispatch table")
    parser.add_argument("--rows", type=int, default=200, help="rows of the table (default 200)")
    parser.add_argument("--calls", type=int, default=100_000, help="calls per repetition (default 100000)")
    options = parser.parse_args()
    print(f"measured on this CPU ({os.cpu_count()} cores), table of {options.rows} rows, us per lookup")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dispatch.json"
        record(path, _rows(options.rows), Current(kernel_source=lambda row: "s", dsl_version="d"))
        start = time.perf_counter()
        table = DispatchTable.load(path)
        print(f"{'load the table':<34}{(time.perf_counter() - start) * 1e6:10.0f}")
    for name, problem in (("exact", PROBLEM), ("nearest M", ELSEWHERE)):
        start = time.perf_counter()
        answer = table.lookup(problem)
        print(f"{name + ', cold':<34}{(time.perf_counter() - start) * 1e6:10.0f}   ({answer.reason})")
    print(f"{'':<34}{'median':>10}{'fastest':>10}")
    for name, problem in (("exact", PROBLEM), ("nearest M", ELSEWHERE)):
        _measure_warm(table, name, problem, options.calls)


def _rows(count: int) -> list[Row]:
    """One row for the problem, the rest for other M of the same layer."""
    sizes = [PROBLEM.m, *range(16, 16 + 8 * (count - 1), 8)]
    return [
        Row(
            key=DispatchKey.of(GemmProblem(m=m, k=PROBLEM.k, n=PROBLEM.n, r=PROBLEM.r), SM100A.name),
            config=str(CONFIG),
            kind=Kind.MODELLED,
            time_us=20.0,
            low_us=19.0,
            high_us=21.0,
            provenance=Provenance(kernel_source="s", dsl_version="d"),
            protocol="invented for this benchmark",
            date="2025-01-01T00:00:00+00:00",
        )
        for m in dict.fromkeys(sizes)
    ]


def _measure_warm(table: DispatchTable, name: str, problem: GemmProblem, calls: int) -> None:
    key = DispatchKey.of(problem, table.arch.name)
    m, k, n, r = problem.m, problem.k, problem.n, problem.r
    _print(f"{name}, ready key", lambda: table.lookup_key(key), calls)
    _print(f"{name}, problem at hand", lambda: table.lookup(problem), calls)
    _print(f"{name}, key per call", lambda: table.lookup(GemmProblem(m=m, k=k, n=n, r=r)), calls)


def _print(name: str, call: Callable[[], object], calls: int) -> None:
    seconds = timeit.repeat(call, number=calls, repeat=REPEAT)
    print(f"{name:<34}{statistics.median(seconds) / calls * 1e6:10.3f}{min(seconds) / calls * 1e6:10.3f}")


if __name__ == "__main__":
    main()
