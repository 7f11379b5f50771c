"""What a call is expected to take, by the row of what it launches."""

from __future__ import annotations

from kernel_space.composite.config import CompositeConfig
from tuner.devices.classes import DeviceClass
from tuner.runtime.choice.choice import Choice
from tuner.tables.gain import translated_us


def us_of(choice: Choice, device_class: DeviceClass) -> float:
    """Microseconds of what is launched, which has a row: that may be of other sizes."""
    assert choice.row is not None
    launches = len(choice.config.links) if isinstance(choice.config, CompositeConfig) else 1
    known = choice.row.key.problem
    return translated_us(choice.row.time_us, known, choice.launched, device_class, launches=launches)
