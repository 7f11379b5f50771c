"""Numbers of chips that times are computed from: each with bounds, unit, source and kind.

Kinds: ``measured`` on a B200 by the source, ``derived`` from measurements by arithmetic, ``fitted`` to the
published GEMM times that docs/timing_model.md lists (so agreement with those is no evidence for the number),
``assumed`` without data. Bounds end where a group at its bound would contradict the published times.
"clk" is one SM clock cycle.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Final

from kernel_space.core.arch import SM100A, SM103A, Arch
from kernel_space.core.errors import InputError

MICROBENCH: Final = "SemiAnalysisAI/microbench-blackwell"
MAINLOOP: Final = f"{MICROBENCH} cutlass_gemm_mainloop/results.csv"
PUBLISHED: Final = "published CUTLASS NVFP4 GEMM times, docs/timing_model.md"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Constant:
    """One number of the machine. ``more_is_faster`` tells which bound is the optimistic one."""

    value: float
    low: float
    high: float
    unit: str
    kind: str
    source: str
    group: str
    more_is_faster: bool = False

    @property
    def fast(self) -> float:
        return self.high if self.more_is_faster else self.low

    @property
    def slow(self) -> float:
        return self.low if self.more_is_faster else self.high


def rate(
    value: float, low: float, high: float, unit: str, kind: str, source: str, group: str = "memory"
) -> Constant:
    return Constant(
        value=value, low=low, high=high, unit=unit, kind=kind, source=source, group=group, more_is_faster=True
    )


def cost(
    value: float, low: float, high: float, unit: str, kind: str, source: str, group: str = "core"
) -> Constant:
    return Constant(value=value, low=low, high=high, unit=unit, kind=kind, source=source, group=group)


B200: Final[dict[str, Constant]] = {
    "clock_ghz": rate(
        1.85, 1.65, 1.965, "GHz", "measured", "sustained 1.845-1.85, maximum 1.965, profiler 1.65", "core"
    ),
    # Operand supply
    "fill_narrow": rate(
        80.0, 74.0, 88.0, "B/clk/SM", "measured", f"{MAINLOOP}: 78-79 with boxes of 128 rows or fewer, 1 SM"
    ),
    "fill_wide": rate(
        61.0, 55.0, 68.0, "B/clk/SM", "measured", f"{MAINLOOP}: 61.5 with a box of 256 rows, 1 SM"
    ),
    "l2_bytes_clk": rate(
        100.0,
        74.0,
        128.0,
        "B/clk/SM",
        "assumed",
        "74 is reached by the published 256x128 rows; no limit found",
    ),
    "dram_tb_s": rate(7.2, 7.0, 7.48, "TB/s", "measured", f"{MICROBENCH} tma2d_throughput: 7.1-7.3"),
    # MMA warp
    "sf_copy": cost(4.0, 0.0, 6.0, "clk/copy", "fitted", f"{PUBLISHED}; Thor copies 512 B in 12 clk"),
    "kind_switch": cost(
        40.0,
        0.0,
        140.0,
        "clk/slice",
        "assumed",
        "up to one MMA latency less N/2; profiles show none",
    ),
    # Epilogue
    "store_latency": cost(
        500.0, 300.0, 800.0, "clk", "assumed", "TMA store has read its SMEM, so that the C slot is free"
    ),
    "drain": cost(800.0, 400.0, 1500.0, "clk", "assumed", "last store lands, TMEM freed, CTA exits"),
    # Once per launch
    "launch_us": cost(2.2, 1.5, 3.5, "us", "fitted", f"{PUBLISHED}: M=256"),
    "pdl_gain_us": rate(
        0.44,
        0.2,
        0.6,
        "us",
        "measured",
        "TGV GEMM with PDL 6.54 -> 6.10 us",
        "core",
    ),
    # Split-K
    "split_sync": cost(
        1000.0, 500.0, 2000.0, "clk", "assumed", "gpu fence 292 and one atomic round trip to L2"
    ),
    "partial_rate": rate(
        40.0,
        24.0,
        64.0,
        "B/clk/SM",
        "assumed",
        "fp32 partials in 16-byte accesses; TMA has 79",
    ),
}

B300: Final[dict[str, Constant]] = B200 | {
    "clock_ghz": rate(
        1.85, 1.65, 1.92, "GHz", "measured", "Antoniomv7/gb300-microbench: 1.92 maximum", "core"
    )
}

# Cycles of one MMA instruction (32 bytes of K: 64 NVFP4 or 16 half-precision elements), operands in SMEM.
# Measured by MICROBENCH umma_throughput for 8- and 16-bit kinds; that NVFP4 is the same follows from a
# profile of an NVFP4 kernel. 192 is N/2, which every measured N >= 128 follows.
MMA_CYCLES: Final[dict[int, dict[int, float]]] = {
    1: {64: 48.2, 96: 56.2, 128: 64.2, 192: 96.2, 256: 128.2},
    2: {64: 43.2, 96: 49.5, 128: 64.2, 192: 96.2, 256: 128.2},
}
# Latency of one MMA with commit and barrier wait is this plus N/2 (umma_latency).
MMA_LATENCY: Final[dict[int, float]] = {1: 136.0, 2: 170.0}

# SMs that can form clusters together on one measured B200 (TPCs 10,10,10,9 / 9,9,9,5+3, two SMs each). Chips
# differ; a cluster of 4 finds 34 places here, not 37.
SM_GROUPS: Final = (20, 20, 20, 18, 18, 18, 18, 10, 6)

TYPICAL_GROUP: Final = 18  # for chips with more SMs than that one

# L2 that operands can count on: 126.5 MiB less room for the output stream (assumed half).
L2_OPERAND_BYTES: Final = 64 * 2**20

_BY_ARCH: Final = {SM100A.name: B200, SM103A.name: B300}


def has_constants(arch: Arch) -> bool:
    """Is there a table for chips of ``arch``?"""
    return arch.name in _BY_ARCH


def constants_of(arch: Arch) -> dict[str, Constant]:
    """The table of ``arch``. Raises ``InputError`` where there is none."""
    if arch.name not in _BY_ARCH:
        raise InputError(f"there are constants of {', '.join(_BY_ARCH)}, got {arch.name}")
    return _BY_ARCH[arch.name]


@functools.cache
def cluster_places(sm_count: int, size: int) -> int:
    """Clusters of ``size`` CTAs that run at once; a cluster stays within its group of SMs."""
    groups, left = [], sm_count
    for group in SM_GROUPS:
        groups.append(min(group, left))
        left -= groups[-1]
    full, rest = divmod(left, TYPICAL_GROUP)
    groups += [TYPICAL_GROUP] * full + [rest]
    return sum(group // size for group in groups)
