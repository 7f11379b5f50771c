"""How far a card that holds its power moves the slow end of an interval: arithmetic by hand, and what was published."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kernel_space.core.arch import SM100A
from kernel_space.machine.clock.estimate import TimedRun
from kernel_space.machine.clock.power import POWER, slowdown, sustained_ghz
from kernel_space.operators.svdquant_gemm.sm100a.model_time import CORNERS, model_time, model_us
from tests.compiled_cases import resolved
from tests.published import B200
from tuner.simulated.constants.sets import ConstantSets, admissible_sets
from tuner.simulated.time import mma_duty, time_of

FIVE_QUARTERS = 0.63 / 0.64  # of the clock: (0.63 / duty) ** (1 / 2) is 0.8, 1.58 GHz become 1.264
LONG_US = 1125.3  # 1000 us beyond the longest time that chose the sets; 31 us of pause at least
BY_HAND = 1 + 1000 / 1156.3 * 0.25


def test_by_hand() -> None:
    assert sustained_ghz(0.63) == 1.58
    assert sustained_ghz(FIVE_QUARTERS) == pytest.approx(1.264)
    assert slowdown(LONG_US, FIVE_QUARTERS, 1.58) == pytest.approx(BY_HAND)
    assert slowdown(LONG_US, 0.63, 1.659) == pytest.approx(1 + 1000 / 1156.3 * 0.05)


@pytest.mark.parametrize(
    ("us", "duty", "ghz"), [(125.3, 1.0, 1.9), (20.0, 1.0, 1.9), (1e4, 0.0, 1.9), (1e4, 0.5, 1.65)]
)
def test_short_launches_and_those_that_draw_little_keep_their_interval(
    us: float, duty: float, ghz: float
) -> None:
    assert slowdown(us, duty, ghz) == 1.0


def test_what_nvidia_reaches_with_more_power_is_no_contradiction() -> None:
    """6787 FP4 TFLOP/s on a GB200 of 152 SMs and 1200 W: with a quarter more for its pipes, 200 W stay idle."""
    more = (1200 - 200) / (1000 - 200)
    held = sustained_ghz(1.0) * more ** (1 / POWER["power_exponent"].low)
    assert 152 * 32768 * held * 1e9 > 6787e12


def a_run(cycles: np.ndarray, mma: float) -> TimedRun:
    account = {
        "tensor: mma mxf4nvf4": mma,
        "tensor: kind switch": 1.0,
        "wait: issue": float(cycles[0]) - mma - 1.0,
    }
    return TimedRun(
        cycles=cycles, account=account, rounds=1, clusters=1, active_sms=1, filled=0, stored=0, plain=0, dram=0,
        share=1, record=None,
    )  # fmt: skip


def sets_at(ghz: float) -> ConstantSets:
    """Two sets of the stored ones with one clock, launches that take nothing, and nothing beyond their extremes."""
    two = admissible_sets(SM100A).take([0, 1])
    values = two.values | {"clock_ghz": np.full(2, ghz), "launch_us": np.zeros(2), "pdl_gain_us": np.zeros(2)}
    return dataclasses.replace(two, values=values, discrepancy=0.0)


def test_only_the_slow_end_of_an_interval_moves() -> None:
    cycles = LONG_US * 1580 * np.array([1.0, 1.1])
    run = a_run(cycles, FIVE_QUARTERS * float(cycles[0]))
    assert mma_duty(run) == pytest.approx(FIVE_QUARTERS)
    time = time_of(run, sets_at(1.58))
    assert (time.us, time.low_us) == pytest.approx((LONG_US, LONG_US))
    assert time.high_us == pytest.approx(1.1 * LONG_US * BY_HAND)
    assert time.sets_us == pytest.approx(LONG_US * np.array([1.0, 1.1]))  # so orders stay
    short = time_of(a_run(cycles / 10, FIVE_QUARTERS * float(cycles[0]) / 10), sets_at(1.58))
    assert short.high_us == pytest.approx(1.1 * LONG_US / 10)


@pytest.mark.parametrize(("shape", "wider"), [("37800,5120,15360,0", True), ("4352,3840,3072,128", False)])
def test_modelled_intervals_widen_alike(shape: str, wider: bool) -> None:
    config, problem = resolved("mma_tiler_mn=256x256", shape)
    time = model_time(config, problem, B200)
    corners = max(time.us, *(model_us(config, problem, B200, corner) for corner in CORNERS))
    share = (time.terms["mma"] + time.terms.get("lora_mma", 0.0)) / time.us
    by_hand = 1.58 * (0.63 / share) ** 0.5
    expected = 1 + (time.us - 125.3) / (time.us + 31) * (1.65 / by_hand - 1) if wider else 1.0
    assert time.high_us == pytest.approx(corners * expected) and (expected > 1.02) is wider
