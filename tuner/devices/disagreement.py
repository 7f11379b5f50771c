"""What the simulator would have said of a kernel that was measured: kept beside the measured time, row by row."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kernel_space.core.problem import Problem
from tuner.devices.device import Device
from tuner.devices.select import has_simulator
from tuner.trials.disagreement import INTERVAL, NO_SIMULATION, SIMULATED_US, against
from tuner.trials.outcome import Kind, Timing

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.rules import Legal


def with_simulation(
    timing: Timing, compiled: CompiledKernel, legal: Legal, problem: Problem, device: Device
) -> Timing:
    """``timing`` with the simulated time of the same kernel in its evidence, if it was measured on a kind of device
    that has a simulator. A kernel that the clock cannot run has the reason there instead."""
    if timing.kind is not Kind.MEASURED or not has_simulator(device.arch):
        return timing
    from tuner.devices.simulated import Chip, outcome_in_a_worker

    chip = Chip(name=device.name, arch=device.arch, sm_count=device.sm_count)
    outcome = outcome_in_a_worker(compiled, legal, problem, chip)
    if outcome.timing is None:
        said: dict[str, Any] = {NO_SIMULATION: outcome.reason}
    else:
        there = outcome.timing
        low, high = (round(us, 4) for us in (there.low_us, there.high_us))
        said = {SIMULATED_US: round(there.us, 4), **dict(zip(INTERVAL, (low, high), strict=True))}
    return dataclasses.replace(timing, evidence={**timing.evidence, **against(said, timing.us)})
