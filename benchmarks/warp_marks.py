"""Extra clocks of single warps in a clocked run: marks in the PTX of the stand-in, and what a clock makes of them.

A mark is a number of gpu fences in a row, another number for each warp: nothing else in a kernel without split-K costs
the clock's ``fence_gpu``, and a run of instructions costs that field times how many it holds. ``charged`` puts an
object in its place that answers the number with the clocks of that warp's mark.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import cast

import numpy as np

from kernel_space.core.errors import InputError
from kernel_space.machine.clock.clock import Clock, Times

FENCE = "\tfence.acq_rel.gpu;"
FENCES = {"mma": 1, "tma head": 2, "tma": 3, "epilogue": 4}
MMAS_PER_K_TILE, LOADS_PER_K_TILE, SUBTILES_PER_TILE = 4, 4, 4
MARKS = {"mma": MMAS_PER_K_TILE, "tma head": 1, "tma": LOADS_PER_K_TILE, "epilogue": SUBTILES_PER_TILE}
"""Marks that a warp passes: per k-tile, the epilogue per output tile. "tma head": in front of its wait for a slot."""
_MMA = re.compile(r"\btcgen05\.mma\S*kind::mxf4nvf4")
_TMEM_LOAD = re.compile(r"\btcgen05\.ld\b")
_LOAD = re.compile(r"\bcp\.async\.bulk\.tensor\.(\d)d\.shared::cluster\.global")
SCALE_FACTORS = "3"  # dimensions of their loads, the last two of a k-tile; no other load has as many


@dataclasses.dataclass(frozen=True)
class _Charges:
    """In the place of ``Clock.fence_gpu``: number of fences in a row -> clocks."""

    clocks: Mapping[int, Times]

    def __rmul__(self, fences: float) -> Times:
        return self.clocks[int(fences)]


def charged(clock: Clock, more: Mapping[str, Times | float]) -> Clock:
    """``clock`` under which each mark of a warp takes the clocks that ``more`` names, 0 for warps that it does not."""
    clocks = {
        number: np.broadcast_to(np.asarray(more.get(warp, 0.0), float), (clock.sets,))
        for warp, number in FENCES.items()
    }
    return dataclasses.replace(clock, fence_gpu=cast(Times, _Charges(clocks)))


def marked(ptx: str) -> str:
    """``ptx`` with marks behind each NVFP4 MMA, in front of each load of a k-tile, of the wait for its slot and of the
    load of a subtile.

    Raises ``InputError`` for numbers of them that the stand-in does not have, and for gpu fences of its own.
    """
    lines = ptx.splitlines()
    if any(FENCE.strip() in line for line in lines):
        raise InputError("the PTX has gpu fences of its own")
    mmas = [number for number, line in enumerate(lines) if _MMA.search(line)]
    loads = _k_tile_loads(lines)
    subtiles = [number for number, line in enumerate(lines) if _TMEM_LOAD.search(line)]
    found = (len(mmas), len(loads), len(subtiles))
    if found != (MMAS_PER_K_TILE, LOADS_PER_K_TILE, 1):
        raise InputError(
            f"the PTX has {found[0]} NVFP4 MMAs, {found[1]} loads of a k-tile and {found[2]} of a subtile, not "
            f"{MMAS_PER_K_TILE}, {LOADS_PER_K_TILE} and 1"
        )
    heads = {_wait_in_front(lines, loads[0]): "tma head"}
    fronts = heads | dict.fromkeys(loads, "tma") | dict.fromkeys(subtiles, "epilogue")
    out = []
    for number, line in enumerate(lines):
        if number in fronts:
            out += [FENCE] * FENCES[fronts[number]]
        out.append(line)
        if number in mmas:
            out += [FENCE] * FENCES["mma"]
    return "\n".join(out) + "\n"


def _k_tile_loads(lines: list[str]) -> list[int]:
    """Lines of the loads up to the last one of scale factors: those of LoRA stand behind them in the text."""
    found = [(number, load.group(1)) for number, line in enumerate(lines) if (load := _LOAD.search(line))]
    last = max((number for number, dims in found if dims == SCALE_FACTORS), default=-1)
    return [number for number, _ in found if number <= last]


def _wait_in_front(lines: list[str], load: int) -> int:
    """Where the assembler block of the last wait for a barrier in front of line ``load`` begins."""
    wait = max(number for number in range(load) if "mbarrier.try_wait" in lines[number])
    return max(number for number in range(wait) if "begin inline asm" in lines[number])
