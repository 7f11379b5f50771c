"""The kernel of ``stamp`` under another operator: with its knobs, and a workspace."""

from __future__ import annotations

import dataclasses

from stamp.stamp.spec import KERNEL as STAMP
from stamp.stamp.spec import StampConfig

from kernel_space.core.kernel import Room


@dataclasses.dataclass(frozen=True, kw_only=True)
class TallConfig(StampConfig, kernel="tall"):
    """The knobs of ``stamp``."""


KERNEL = dataclasses.replace(
    STAMP,
    name="tall",
    operator="pair",
    config_class=TallConfig,
    rules=__name__,
    room=lambda config, problem: Room(size=16 * problem.batch, zeroed=16),
)
