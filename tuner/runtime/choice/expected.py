"""What a call is expected to take, by the row of what it launches."""

from __future__ import annotations

from kernel_space.composite.config import CompositeConfig
from tuner.devices.classes import DeviceClass
from tuner.runtime.choice.choice import Choice
from tuner.tables.gain import translated_us
from tuner.tables.order import efforts, nominal_us


def us_of(choice: Choice, device_class: DeviceClass) -> float:
    """Microseconds of what is launched, which has a row: that may be of other sizes. Then by bytes, operations and
    launches, but by its kernel's own formula where its tiles make more waves there, or fewer: of these bounds know
    nothing.
    """
    assert choice.row is not None
    known, config = choice.row.key.problem, choice.config
    counted = efforts(config, (choice.launched, known), device_class)
    if counted is not None:
        there, had = counted
        if there.turns != had.turns:
            return choice.row.time_us * nominal_us(there) / nominal_us(had)
    launches = len(config.links) if isinstance(config, CompositeConfig) else 1
    return translated_us(choice.row.time_us, known, choice.launched, device_class, launches=launches)
