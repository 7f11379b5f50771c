"""What the compiler of the published tables' time added to the MMA warp's instructions.

The tables of the SVDQuant kernel were measured in April and May 2026. That compiler keeps the addresses of the MMAs in
uniform registers at every stage count of the table but one: with ``num_lora_stage`` = 1 (5 A/B stages) it computes them
in vector registers and moves them over before each tcgen05 instruction, 192 instructions per k-tile instead of 85.
Today's compiler does not. ``tests/data/svdquant_mma_warp_sass.csv`` holds what nvdisasm shows of both.

The clock counts instructions of today's PTX. ``padded`` adds the difference: as many scalar instructions in the MMA
warp as the older compiler added there, no cost of their own, no constant for them.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from pathlib import Path

from kernel_space.errors import InputError

COUNTS = Path(__file__).parents[1] / "tests" / "data" / "svdquant_mma_warp_sass.csv"
MAIN, LORA = "mxf4nvf4", "f16"
_MMA = re.compile(r"\btcgen05\.mma\S*kind::(\w+)")
_REGISTERS = "\t.reg .b32"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Added:
    """SASS instructions more than today's compiler makes: per k-tile, and per LoRA MMA."""

    per_k_tile: int
    per_lora_mma: int


def added(num_lora_stage: int) -> Added:
    """What the older compiler adds at so many LoRA stages of the published sweep, at least nothing.

    Raises ``InputError`` for a stage count that was not read off.
    """
    with COUNTS.open() as lines:
        rows = [
            row
            for row in csv.DictReader(line for line in lines if not line.startswith("#"))
            if int(row["num_lora_stage"]) == num_lora_stage
        ]
    counts = {row["compiler"]: row for row in rows}
    if counts.keys() != {"then", "now"}:
        raise InputError(f"{COUNTS.name} has no counts for num_lora_stage={num_lora_stage}")
    then, now = counts["then"], counts["now"]
    return Added(
        per_k_tile=max(0, int(then["per_k_tile"]) - int(now["per_k_tile"])),
        per_lora_mma=max(0, int(then["per_lora_mma"]) - int(now["per_lora_mma"])),
    )


def padded(ptx: str, extra: Added, *, mmas_per_k_tile: int) -> str:
    """``ptx`` with the extra instructions behind its MMAs, those of a k-tile spread over its ``mmas_per_k_tile``.

    For timing only: each is an addition whose result nobody reads. Raises ``InputError`` for PTX whose loop over
    k-tiles holds another number of NVFP4 MMAs.
    """
    lines = ptx.splitlines()
    kinds = [found.group(1) if (found := _MMA.search(line)) else "" for line in lines]
    if kinds.count(MAIN) != mmas_per_k_tile:
        raise InputError(
            f"the PTX has {kinds.count(MAIN)} NVFP4 MMAs, not the {mmas_per_k_tile} of one k-tile"
        )
    shares = [
        (number + 1) * extra.per_k_tile // mmas_per_k_tile - number * extra.per_k_tile // mmas_per_k_tile
        for number in range(mmas_per_k_tile)
    ]
    out = []
    for line, kind in zip(lines, kinds, strict=True):
        out.append(line)
        count = shares.pop(0) if kind == MAIN else extra.per_lora_mma if kind == LORA else 0
        out.extend(["\tadd.s32 \t%padding, %padding, 1;"] * count)
    first = next(number for number, line in enumerate(out) if line.startswith(_REGISTERS))
    out.insert(first + 1, f"{_REGISTERS} \t%padding;")
    return "\n".join(out) + "\n"
