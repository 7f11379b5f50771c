"""Differences between card and machine that are known and not yet mended, each with what the card does.

A test fails when a probe listed here agrees: then it is struck from the list.
"""

from __future__ import annotations

DIFFERENCES: dict[str, tuple[str, ...]] = {}


def reason_of(name: str) -> str:
    """What is known about the difference of a probe; '' if nothing is."""
    return next((reason for reason, names in DIFFERENCES.items() if name in names), "")
