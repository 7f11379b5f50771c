"""Numbers that only the formula for ``sm100a`` computes with, beside those of the chip; kinds as there."""

from __future__ import annotations

from typing import Final

from kernel_space.core.arch import SM100A, SM103A, Arch
from kernel_space.machine.clock import constants as chip
from kernel_space.machine.clock.constants import MAINLOOP, PUBLISHED, Constant, cost

MODELLED: Final = (SM100A.name, SM103A.name)

OWN: Final[dict[str, Constant]] = {
    "latency_l2": cost(
        1250.0, 1000.0, 1500.0, "clk", "derived", f"{MAINLOOP}: stages * time - fill, L2 resident", "memory"
    ),
    "latency_dram": cost(
        1850.0, 1600.0, 2300.0, "clk", "derived", f"{MAINLOOP}: the same with 96 MB of operands", "memory"
    ),
    "multicast_wait": cost(
        150.0,
        50.0,
        300.0,
        "clk",
        "assumed",
        "all receivers must have freed the slot",
        "memory",
    ),
    "tma_issue": cost(
        180.0, 100.0, 250.0, "clk/stage", "assumed", "about 40 SASS instructions of the TMA warp per stage"
    ),
    "prefetch_issue": cost(30.0, 10.0, 60.0, "clk/stage", "assumed", "two or four more TMA instructions"),
    "issue_clk": cost(
        4.5, 3.0, 5.0, "clk/instruction", "derived", "clocked PTX runs that meet published GEMM times"
    ),
    "affine_load": cost(
        700.0, 400.0, 1000.0, "clk", "assumed", "wcscale and bias of a tile: DRAM load latency and a barrier"
    ),
    "subtile_fixed": cost(
        170.0, 100.0, 300.0, "clk/subtile", "assumed", "tcgen05.ld latency, two barriers, proxy fence 179"
    ),
    "subtile_column": cost(
        5.0,
        3.0,
        7.0,
        "clk/column",
        "derived",
        "tcgen05.ld at 57 B/clk/warp is 2.2; scale, convert, store",
    ),
    "store_byte": cost(
        0.035,
        0.02,
        0.045,
        "clk/B",
        "fitted",
        f"{PUBLISHED}: time lost per byte of y",
        "memory",
    ),
    "setup": cost(1000.0, 600.0, 1500.0, "clk", "assumed", "barrier init, TMEM alloc, cluster barrier"),
}


def constants_of(arch: Arch) -> dict[str, Constant]:
    """Of the chip and of the formula. Raises ``InputError`` where there are none."""
    return chip.constants_of(arch) | OWN
