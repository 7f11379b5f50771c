"""Constants of the clocked PTX machine: those of the chip, and what only a clocked run needs.

Value, bounds, unit, source and kind of every number, as in ``kernel_space.machine.clock.constants``; a number that
others use too exists once. ``make_clock`` turns one or many sets of values into what the machine computes with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from kernel_space.core.arch import Arch
from kernel_space.core.errors import InputError
from kernel_space.machine.clock.clock import Clock, Times
from kernel_space.machine.clock.constants import (
    MAINLOOP,
    MICROBENCH,
    MMA_CYCLES,
    MMA_LATENCY,
    Constant,
    constants_of,
    rate,
)

SHARED: Final = (
    "clock_ghz", "fill_narrow", "fill_wide", "l2_bytes_clk", "dram_tb_s", "sf_copy",
    "kind_switch", "store_latency", "drain", "launch_us", "pdl_gain_us", "split_sync", "partial_rate",
)  # fmt: skip


def _clk(
    value: float, low: float, high: float, kind: str, source: str, unit: str = "clk", group: str = "core"
) -> Constant:
    return Constant(value=value, low=low, high=high, unit=unit, kind=kind, source=source, group=group)


OWN: Final[dict[str, Constant]] = {
    "instruction_clk": _clk(
        3.5, 2.0, 5.0, "assumed", "scalar SASS instructions of one warp: dependent ones 4-6, independent ones 2",
        "clk/instruction",
    ),
    "multicast_delay": _clk(50.0, 0.0, 150.0, "assumed", "delivery to several CTAs, beyond their free slots"),
    "tma_latency": _clk(
        600.0, 400.0, 850.0, "derived",
        f"{MAINLOOP}, 1 SM: stages * time less fill, MMAs, commit and issue of one stage is 620-780; 450 from the "
        "profile of a published kernel of 2 stages", group="memory",
    ),
    "tma_latency_cold": _clk(
        1300.0, 1050.0, 1650.0, "derived", f"{MAINLOOP}: the same with 96 MB of operands is 1250-1370", group="memory"
    ),
    "store_share": _clk(0.5, 0.0, 1.0, "assumed", "stores and loads of an SM share its port", "1", "memory"),
    "vector_clk": _clk(2.0, 1.2, 3.0, "assumed", "dependent data instructions of one warp", "clk/instruction"),
    "spin_clk": _clk(20.0, 10.0, 40.0, "assumed", "SYNCS poll that succeeds, and its branch"),
    "wake": _clk(30.0, 10.0, 60.0, "assumed", "phase completes -> try_wait returns"),
    "remote_arrive": _clk(150.0, 80.0, 300.0, "assumed", "one way through the cluster network"),
    "named_barrier": _clk(30.0, 15.0, 50.0, "assumed", "bar.sync among warps of one SM"),
    "cluster_barrier": _clk(200.0, 100.0, 400.0, "assumed", "no measurement on B200 found"),
    "tmem_alloc": _clk(200.0, 60.0, 500.0, "assumed", "no measurement on B200 found"),
    "tensor_map": _clk(500.0, 300.0, 1000.0, "assumed", "first fetch of a descriptor, from L2 or DRAM"),
    "global_load": _clk(
        450.0, 280.0, 700.0, "derived", "L2 load latency: near 150 ns (Chips and Cheese), far partition 300 clk more"
    ),
    "shared_load": _clk(30.0, 23.0, 40.0, "assumed", "ld.shared latency; L1 is 39"),
    "fence_proxy": _clk(100.0, 40.0, 179.0, "derived", "Antoniomv7/gb300-microbench: 179 on B300, alone"),
    "tmem_latency": _clk(60.0, 30.0, 150.0, "assumed", "tcgen05.ld; one source says 420"),
    "tmem_column": _clk(2.25, 2.2, 3.0, "measured", "tcgen05.ld 57 B/clk/warp on B300", "clk/column"),
    "start": _clk(400.0, 200.0, 800.0, "assumed", "CTA begins -> first instruction"),
    "mma_scale": _clk(1.0, 0.99, 1.02, "measured", f"{MICROBENCH} umma_throughput, spread of repeated rows", "1"),
}  # fmt: skip

# What no published GEMM could decide. Drawn apart, so that the other constants of a set stay as they were chosen.
LATER: Final[dict[str, Constant]] = {
    "l1_load": _clk(39.0, 36.0, 45.0, "measured", "Chips and Cheese, B200: 19.6 ns of L1"),
    "l1_bytes_clk": rate(
        128.0, 64.0, 128.0, "B/clk/SM", "derived", "shared memory, which is the same array, reads 128 (SemiAnalysis)"
    ),
    "dram_mixed": rate(
        0.88, 0.75, 1.0, "1", "derived",
        "pytorch/ao pull request 4247 (2026-05), GB200: 117 MB more of a bf16 copy take 18.3 us, 6.4 TB/s",
    ),
}  # fmt: skip


def records_of(arch: Arch) -> dict[str, Constant]:
    """Every constant of a clocked run on ``arch``. Raises ``InputError`` where there is none."""
    known = constants_of(arch)
    return {name: known[name] for name in SHARED} | OWN | LATER


def make_clock(values: Mapping[str, Times]) -> Clock:
    """``values``: name -> float64 [sets] for every record. Raises ``InputError`` for a missing name."""
    missing = [name for name in (*SHARED, *OWN, *LATER) if name not in values]
    if missing:
        raise InputError(f"a set of constants needs {', '.join(missing)}")
    v = {name: np.asarray(item, np.float64) for name, item in values.items()}
    return Clock(
        issue=v["instruction_clk"], vector=v["vector_clk"], spin=v["spin_clk"], shared_load=v["shared_load"],
        global_load=v["global_load"], l1_load=v["l1_load"], l1_rate=v["l1_bytes_clk"], dram_mixed=v["dram_mixed"],
        fence_proxy=v["fence_proxy"],
        fence_gpu=v["split_sync"] / 3, wake=v["wake"], remote_arrive=v["remote_arrive"],
        named_barrier=v["named_barrier"], cluster_barrier=v["cluster_barrier"], tmem_alloc=v["tmem_alloc"],
        tensor_map=v["tensor_map"], tma_latency=v["tma_latency"], tma_latency_cold=v["tma_latency_cold"],
        fill_narrow=v["fill_narrow"], fill_wide=v["fill_wide"], l2_rate=v["l2_bytes_clk"],
        dram_rate=v["dram_tb_s"] * 1e3 / v["clock_ghz"], multicast_wait=v["multicast_delay"],
        store_latency=v["store_latency"], store_share=v["store_share"],
        mma_overhead={group: latency - v["wake"] for group, latency in MMA_LATENCY.items()},
        sf_copy=v["sf_copy"], kind_switch=v["kind_switch"] / 2, tmem_latency=v["tmem_latency"],
        tmem_column=v["tmem_column"], start=v["start"], drain=v["drain"],
        mma_cycles=lambda group, m, n: mma_cycles(group, m, n) * v["mma_scale"],
    )  # fmt: skip


def mma_cycles(group: int, m: int, n: int) -> float:
    """Cycles of one MMA with 32 bytes of K, operands in shared memory. ``m``: rows over the whole CTA group.

    Widths between measured ones are interpolated; half the rows of a 2-CTA MMA take half the cycles, half the rows
    of a 1-CTA MMA take N/2 all the same, as measured.
    """
    table = MMA_CYCLES[group]
    at = sorted(table)
    cycles = float(np.interp(n, at, [table[width] for width in at])) if n >= at[0] else table[at[0]]
    if m >= 128 * group:
        return cycles
    return cycles / 2 if group == 2 else max(n / 2, 32.0)
