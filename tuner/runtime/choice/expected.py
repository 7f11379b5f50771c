"""What a call is expected to take, by the row of what it launches."""

from __future__ import annotations

from collections.abc import Callable

from kernel_space.composite.config import CompositeConfig
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of
from kernel_space.core.traits import Effort, traits_of
from tuner.devices.classes import DeviceClass
from tuner.runtime.choice.choice import Choice
from tuner.tables.gain import translated_us
from tuner.tables.order import nominal_us


def effort_of(config: KernelConfig, problem: Problem) -> Callable[..., Effort] | None:
    """How the work of such a kernel is counted, if anybody has said it."""
    return traits_of(kernel_of(config, problem)).effort


def us_of(choice: Choice, device_class: DeviceClass) -> float:
    """Microseconds of what is launched, which has a row: that may be of other sizes. Then by bytes, operations and
    launches, but by its kernel's own formula where its tiles make more waves there, or fewer: of these bounds know
    nothing.
    """
    assert choice.row is not None
    known, config = choice.row.key.problem, choice.config
    links = len(config.links) if isinstance(config, CompositeConfig) else 1
    effort = None if isinstance(config, CompositeConfig) else effort_of(config, known)
    if effort is not None and device_class.dram_bytes_s is not None:
        there, had = (effort(config, one, device_class) for one in (choice.launched, known))
        if there.turns != had.turns:
            return choice.row.time_us * nominal_us(there) / nominal_us(had)
    return translated_us(choice.row.time_us, known, choice.launched, device_class, launches=links)
