"""What the last, partly filled wave of a launch costs on average."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.core.registry import kernel_of
from kernel_space.core.traits import Schedule, traits_of

if TYPE_CHECKING:
    from kernel_space.core.config import KernelConfig
    from kernel_space.core.problem import Problem
    from tuner.simulated.time import SimulatedTime

FIXED = ("launch", "prologue", "epilogue exposed")


def schedule_of(config: KernelConfig, problem: Problem, sm_count: int) -> Schedule | None:
    """How the kernel deals out its work; None where it does not say."""
    schedule = traits_of(kernel_of(config, problem)).schedule
    return schedule(config, problem, sm_count) if schedule else None


def tail_wave(
    time: SimulatedTime, config: KernelConfig, problem: Problem, sm_count: int
) -> tuple[float, str] | None:
    """(microseconds of the last wave that the average cluster spends idle, what the waves are); None for a kernel that
    does not say how it deals out its work.
    """
    if (schedule := schedule_of(config, problem, sm_count)) is None:
        return None
    pieces, waves = schedule.pieces, schedule.waves
    filled = pieces / schedule.places
    fixed = sum(time.terms.get(name, 0.0) for name in FIXED)
    lost = (waves - filled) * (time.us - fixed) / waves
    return lost, f"{pieces} pieces on {schedule.places} clusters are {filled:.2f} waves, run as {waves}"
