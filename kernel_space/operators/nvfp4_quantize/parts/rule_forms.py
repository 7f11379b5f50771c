"""Forms that rules of several kernels have."""

from __future__ import annotations

from collections.abc import Collection


def one_of(name: str, value: int, choices: Collection[int]) -> str | None:
    """The reason why knob ``name`` may not be ``value``, or None."""
    if value in choices:
        return None
    return f"{name} must be one of {', '.join(map(str, choices))}, got {value}"
