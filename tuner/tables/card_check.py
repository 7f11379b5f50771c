"""What a card's check said of a bundled object: the evidence in its entry of the index."""

from __future__ import annotations

import dataclasses
from typing import Any, Self

from kernel_space.core.errors import InputError

_TEXTS = ("card", "driver", "date", "version")


@dataclasses.dataclass(frozen=True, kw_only=True)
class CardCheck:
    """``tuner/card/worker/check.py`` passed: on ``problems``, ``launches`` of each, all bitwise equal to the first.

    ``worst``: the largest error in units of its element's tolerance. ``version`` of the check; ``date`` in UTC.
    """

    card: str
    driver: str
    date: str
    version: str
    problems: tuple[str, ...]
    launches: int
    worst: float

    def __str__(self) -> str:
        return (
            f"checked on {self.card} (driver {self.driver}, {self.date}, {len(self.problems)} problems, "
            f"{self.launches} launches each, worst error {self.worst:.2g} x tolerance)"
        )

    def to_record(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "problems": list(self.problems)}

    @classmethod
    def from_record(cls, record: Any) -> Self | None:
        """None for an object that was not checked. Raises ``InputError`` when it is not what ``to_record`` writes."""
        if record is None:
            return None
        names = {field.name for field in dataclasses.fields(cls)}
        if not isinstance(record, dict) or record.keys() != names:
            raise InputError(f"checked must be null or hold {', '.join(sorted(names))}")
        problems = record["problems"]
        texts = [*(record[name] for name in _TEXTS), *(problems if isinstance(problems, list) else [None])]
        numbers = type(record["launches"]) is int and type(record["worst"]) in (int, float)
        if not numbers or not all(isinstance(text, str) for text in texts):
            raise InputError("checked must hold texts, a whole number of launches and the worst error")
        return cls(**{**record, "problems": tuple(problems)})
