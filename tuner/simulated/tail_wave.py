"""What the last, partly filled wave of a launch costs on average."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.simulated.model_work import count_work

if TYPE_CHECKING:
    from kernel_space.core.config import KernelConfig
    from tuner.simulated.time import SimulatedTime

FIXED = ("launch", "prologue", "epilogue exposed")


def tail_wave(
    time: SimulatedTime, config: KernelConfig, problem: GemmProblem, sm_count: int
) -> tuple[float, str]:
    """(microseconds of the last wave that the average cluster spends idle, what the waves are)."""
    schedule = count_work(config, problem, sm_count).schedule
    pieces, waves = schedule.clusters, schedule.waves
    filled = pieces / schedule.places
    fixed = sum(time.terms.get(name, 0.0) for name in FIXED)
    lost = (waves - filled) * (time.us - fixed) / waves
    return lost, f"{pieces} pieces on {schedule.places} clusters are {filled:.2f} waves, run as {waves}"
