"""CPU time of one simulated time: reduce and translate the PTX, run it with every admissible set of constants.

    python -m benchmarks.bench_timed

Prints, per case, the time of a first estimate (nothing kept) and of a second one; compilation is not included.
"""

from __future__ import annotations

import statistics
import time

from kernel_space.build.build import build
from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, legalize
from kernel_space.machine.clock.program import timed_program
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.devices.simulated import Chip
from tuner.simulated.constants.sets import admissible_sets
from tuner.simulated.time import simulate

SHAPES = (
    "256,3840,3072,128",
    "4352,3840,3072,128",
    "4352,10240,3072,32",
    "4352,15360,3840,128",
    "4352,3840,15360,128",
)
TILES = ("128x128", "128x256", "256x128", "256x256")
REPEATS = 3


def main() -> None:
    device = Chip(name="b200", arch=SM100A, sm_count=148)
    print(f"{admissible_sets().count} sets of constants; CPU time of one core, measured on this machine")
    firsts, seconds = [], []
    for shape in SHAPES:
        problem = GemmProblem.parse(shape)
        for tile in TILES:
            legal = legalize(KernelConfigSm100a.parse(f"mma_tiler_mn={tile}"), problem, SM100A)
            assert isinstance(legal, Legal), legal
            compiled = build(legal.config, problem.problem_class, SM100A)
            first: list[float] = []
            second: list[float] = []
            for _ in range(REPEATS):
                timed_program.cache_clear()
                for taken in (first, second):
                    started = time.process_time()
                    simulate(compiled, legal.config, problem, device)
                    taken.append(time.process_time() - started)
            firsts.append(statistics.median(first))
            seconds.append(statistics.median(second))
            print(f"{shape:<22}{tile:<9}first {firsts[-1] * 1e3:6.0f} ms, again {seconds[-1] * 1e3:6.0f} ms")
    print(
        f"median: first {statistics.median(firsts) * 1e3:.0f} ms, again {statistics.median(seconds) * 1e3:.0f} ms"
    )


if __name__ == "__main__":
    main()
