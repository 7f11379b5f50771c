"""What card and machine are known to disagree on, and what the machine is known not to model.

A test fails when a probe listed here agrees: then it is struck from the list.
"""

from __future__ import annotations

DIFFERENCES: dict[str, tuple[str, ...]] = {}
"""What the card does -> the probes in which the machine does something else."""

UNSUPPORTED: tuple[str, ...] = (
    "tma_load.swizzle_128_atom_32_flip_8",
    "tma_load.swizzle_128_atom_64",
)
"""Probes that the machine refuses by name of opcode and modifier."""


def reason_of(name: str) -> str:
    """What is known about the difference of a probe; '' if nothing is."""
    return next((reason for reason, names in DIFFERENCES.items() if name in names), "")
