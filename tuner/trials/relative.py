"""A measured time beside the default's of the same rounds: what two cards agree on when their times do not.

Two cards of a kind differ by 5 to 6 % at the power limit, the ratio of winner and default by far less
(docs/evidence/cards.md).
So a final writes that ratio down, and rows of different cards are compared by it (``dispatch_merge``).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

DEFAULT: Final = "default_config"  # the default rule's config, resolved and printed
RATIO, LOW, HIGH = "default_ratio", "default_ratio_low", "default_ratio_high"
# One config on two visits: its ratios are within 0.7 % in 9 of 10 pairs of visits (measured), so 0.5 % a visit.
BETWEEN_VISITS: Final = 0.005
# The same kernel on two cards of a kind: 5 to 6 % apart at the power limit (docs/evidence/cards.md).
BETWEEN_CARDS: Final = 0.06


@dataclasses.dataclass(frozen=True, kw_only=True)
class Relative:
    """``ratio``: time over that of the config ``default``, paired round by round; ``low`` .. ``high`` its 95 %
    interval. The default itself has 1, exactly."""

    default: str
    ratio: float
    low: float
    high: float

    @classmethod
    def of_default(cls, default: str) -> Relative:
        return cls(default=default, ratio=1.0, low=1.0, high=1.0)

    @classmethod
    def from_evidence(cls, evidence: Mapping[str, Any]) -> Relative | None:
        """None where there is none, or what is there is none."""
        default, values = evidence.get(DEFAULT), [evidence.get(name) for name in (RATIO, LOW, HIGH)]
        numbers = [value for value in values if type(value) is int or type(value) is float]
        if not isinstance(default, str) or not default or len(numbers) != len(values):
            return None
        ratio, low, high = (float(value) for value in numbers)
        if not (0 < low <= ratio <= high and math.isfinite(high)):
            return None
        return cls(default=default, ratio=ratio, low=low, high=high)

    def evidence(self) -> dict[str, Any]:
        """``from_evidence`` gives the same back, to six digits."""
        short = {name: float(f"{value:.6g}") for name, value in ((RATIO, self.ratio), (LOW, self.low))}
        return {DEFAULT: self.default, **short, HIGH: float(f"{self.high:.6g}")}

    @property
    def between_visits(self) -> float:
        """By how much the ratio may differ on the next visit whatever the rounds say, as a share."""
        return 0.0 if self.low == self.high == 1 else BETWEEN_VISITS


def noise_of_ratios(old: Relative, new: Relative) -> float:
    """By which share ``new`` must be below ``old`` to be called faster: the parts of the intervals that face each
    other and what differs between visits, as independent errors."""
    return math.hypot(
        math.log(old.ratio / old.low), math.log(new.high / new.ratio), old.between_visits, new.between_visits
    )
