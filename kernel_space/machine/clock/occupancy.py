"""How many CTAs of a kernel an SM holds at once.

CUDA programming guide, table of technical specifications (9.0, 10.0, 10.3): 32 CTAs, 64 warps, 64 Ki registers and
228 KiB of shared memory per SM, of which each CTA takes 1 KiB for the system. Registers are given out to warps in
units of 256 (cuda_occupancy.h).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kernel_space.core.arch import Arch

CTAS: Final = 32
WARPS: Final = 64
REGISTERS: Final = 64 * 1024
REGISTER_UNIT: Final = 256
SYSTEM_SMEM: Final = 1024
L1_BYTES: Final = 256 * 1024
"""L1 and shared memory of an SM together (CUDA programming guide, compute capability 9.0, 10.0)."""
SECTOR: Final = 32
SCHEDULERS: Final = 4
"""Warp instructions that an SM issues per cycle: one by each (CUDA programming guide, compute capability 9.0, 10.0)."""


def ctas_per_sm(*, threads: int, smem_bytes: int, registers: int, arch: Arch) -> int:
    """At least 1: what launches at all fits.

    ``smem_bytes``: of a CTA without the system's; ``registers``: of a thread.
    """
    warps = -(-threads // 32)
    of_a_warp = -(-32 * max(registers, 1) // REGISTER_UNIT) * REGISTER_UNIT
    smem = arch.smem_capacity + SYSTEM_SMEM
    return max(
        1,
        min(CTAS, WARPS // warps, REGISTERS // of_a_warp // warps, smem // (smem_bytes + SYSTEM_SMEM)),
    )


def l1_sectors(smem_bytes: int, ctas: int) -> int:
    """Sectors of L1 for each of ``ctas`` on an SM: what their shared memory leaves. ``smem_bytes``: as above."""
    return max(0, L1_BYTES // ctas - smem_bytes - SYSTEM_SMEM) // SECTOR


def quarter_loads(of_warps: Sequence[float], ctas: int) -> list[float]:
    """What each of an SM's four schedulers has to do for ``ctas`` that do the same; warps go to them in turn."""
    loads = [0.0] * SCHEDULERS
    for cta in range(min(ctas, SCHEDULERS)):
        times = -(-(ctas - cta) // SCHEDULERS)
        for number, load in enumerate(of_warps):
            loads[(cta * len(of_warps) + number) % SCHEDULERS] += times * load
    return loads
