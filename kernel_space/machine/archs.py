"""Architectures whose kernels the machine runs and clocks."""

from __future__ import annotations

from typing import Final

from kernel_space.core.arch import SM100A, SM103A

SIMULATED: Final = (SM100A.name, SM103A.name)
