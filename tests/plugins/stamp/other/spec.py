"""As ``stamp``, under another name."""

from __future__ import annotations

import dataclasses

from stamp.stamp.spec import KERNEL as STAMP
from stamp.stamp.spec import StampConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtherConfig(StampConfig, kernel="other"):
    """The knobs of ``stamp``."""


KERNEL = dataclasses.replace(STAMP, name="other", config_class=OtherConfig)
