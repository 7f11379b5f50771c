"""A kernel whose module cannot be imported."""

from __future__ import annotations

import dataclasses

from stamp.stamp.spec import KERNEL as STAMP
from stamp.stamp.spec import StampConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokenConfig(StampConfig, kernel="broken"):
    """The knobs of ``stamp``."""


KERNEL = dataclasses.replace(STAMP, name="broken", config_class=BrokenConfig, source=f"{__package__}.kernel")
