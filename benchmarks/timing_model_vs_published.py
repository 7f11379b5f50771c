"""Published against modelled times (docs/evidence/timing_model.md), and the constants (docs/timing_model.md).

Run from the repository root: ``python -m benchmarks.timing_model_vs_published``.
"""

from __future__ import annotations

import functools
import timeit

from scipy.stats import spearmanr

from kernel_space.core.arch import SM100A
from kernel_space.operators.svdquant_gemm.sm100a.model_constants import constants_of
from kernel_space.operators.svdquant_gemm.sm100a.model_time import model_time, model_us
from tests.published import B200, Published, cutlass_rows, svdquant_rows


def main() -> None:
    _print_comparison("CUTLASS, plain NVFP4 GEMM", cutlass_rows())
    _print_comparison("SVDQuant kernel, under the profiler", svdquant_rows())
    print("| constant | value | bounds | unit | kind | source |\n|---|---|---|---|---|---|")
    for name, one in constants_of(SM100A).items():
        print(f"| {name} | {one.value} | {one.low}-{one.high} | {one.unit} | {one.kind} | {one.source} |")
    row = cutlass_rows()[1]
    for label, function in (("with interval", model_time), ("nominal only", model_us)):
        evaluate = functools.partial(function, row.config, row.problem, B200())
        seconds = min(timeit.repeat(evaluate, number=500, repeat=3))
        print(f"\none evaluation, {label}: {seconds / 500 * 1e6:.0f} us of CPU time (measured)")


def _print_comparison(title: str, rows: list[Published]) -> None:
    print(f"\n{title}\n\n| M,K,N,R | tile | published us | modelled us | interval | error | bound |")
    print("|---|---|---|---|---|---|---|")
    modelled = [model_time(row.config, row.problem, B200()) for row in rows]
    for row, time in zip(rows, modelled, strict=True):
        print(
            f"| {row.problem} | {row.tile} ab={row.config.num_ab_stage} | {row.us:.1f} | {time.us:.1f} "
            f"| {time.low_us:.1f}-{time.high_us:.1f} | {time.us / row.us - 1:+.0%} | {time.bound} |"
        )
    published_rate = [row.problem.flops / row.us for row in rows]
    modelled_rate = [row.problem.flops / time.us for row, time in zip(rows, modelled, strict=True)]
    times = spearmanr([row.us for row in rows], [time.us for time in modelled]).statistic
    rates = spearmanr(published_rate, modelled_rate).statistic
    print(f"\nSpearman of times {times:.2f}, of TFLOP/s {rates:.2f}\n")


if __name__ == "__main__":
    main()
