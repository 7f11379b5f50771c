"""The limit of LoRA's cost, by hand, and what the comparison with NVIDIA's kernel says without its launches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.lora_cost import NVFP4, Cost
from benchmarks.parity import nvidia_options
from kernel_space.core.arch import SM100A
from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.simulated.constants.sets import admissible_sets
from tuner.simulated.time import SimulatedTime

PROBLEM = GemmProblem.parse("4352,3840,3072,96")  # 4R/K is a tenth


def time(us: float, nvfp4: float) -> SimulatedTime:
    sets = np.full(admissible_sets(SM100A).count, us)
    return SimulatedTime(sets_us=sets, discrepancy=0.0, about="", terms={NVFP4: nvfp4}, run=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("lora_us", "met"), [(21.79, True), (21.81, False)])
def test_limit_is_a_tenth_of_the_main_mmas_and_2_percent_of_the_time(lora_us: float, met: bool) -> None:
    cost = Cost(problem=PROBLEM, plain=time(20.0, nvfp4=14.0), lora=time(lora_us, nvfp4=14.0))
    assert cost.floor[0] == pytest.approx(1.4)
    assert cost.limit[0] == pytest.approx(1.4 + 0.4)
    assert f"| {'yes' if met else 'no'} |" in cost.line()


def test_floor_of_each_set_follows_its_clock_and_mma_rate() -> None:
    values = admissible_sets(SM100A).values
    floor = Cost(problem=PROBLEM, plain=time(20.0, nvfp4=14.0), lora=time(21.0, nvfp4=14.0)).floor
    slowest = int(np.argmin(values["clock_ghz"] / values["mma_scale"]))
    by_hand = 1.4 * values["clock_ghz"][0] / values["clock_ghz"][slowest]
    by_hand *= values["mma_scale"][slowest] / values["mma_scale"][0]
    assert floor.max() == pytest.approx(by_hand)


def test_no_launch_of_the_problem_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"holds no launch of 4352,3840,3072,96; run benchmarks\.nvidia_gemm --all"
    ):
        nvidia_options(tmp_path, PROBLEM, cold=True)
