"""Shared memory of the kernel ``whole``: that of ``narrow``, where a slot of a warp's packed weights also has

| bytes | what |
|---|---|
| 512 | smooth of the unit, fp32 |

CTAs of the low-rank branch have the same bytes. There each warp works by itself: the slots that hold a warp's packed
weights elsewhere are its ring of x, a unit of a tile each, and in the end its sums.
"""

from typing import Any

from kernel_space.operators.svdquant_gemm_16bit.narrow.config import WARP_ROWS
from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import (
    OCTETS,
    PIECE,
    SCALE_PIECES,
    SPANS,
    UNIT_K,
    NarrowLayouts,
)

SMOOTH_AT = OCTETS * PIECE + SPANS * SCALE_PIECES  # of a slot
SLOT_BYTES = SMOOTH_AT + 4 * UNIT_K
MOST_STAGES = 4  # of a warp's x: more units than that no warp has at few rows


class _Slots(NarrowLayouts):
    """Of both kinds of CTAs."""

    def __init__(self, config: Any, problem_class: Any):
        super().__init__(config, problem_class)
        self.slot_bytes = SLOT_BYTES


class DownLayouts(_Slots):
    """Of CTAs of the low-rank branch: 32 columns of lora_down for each, K over all of its warps."""

    def __init__(self, config: Any, problem_class: Any):
        _, columns, k = config.tile_mnk
        super().__init__(config.replace(tile_mnk=(WARP_ROWS, columns, k)), problem_class)
        self.xs_stages = min(self.stages * SLOT_BYTES // self.xs_slot_bytes, MOST_STAGES)
        self.tiles = -(-self.r // self.rows)
        self.ctas = self.tiles * self.splits  # of each tile of rows of x


class WholeLayouts(_Slots):
    """Counts and sizes of a resolved config. Constructing one needs an MLIR context."""

    def __init__(self, config: Any, problem_class: Any):
        super().__init__(config, problem_class)
        self.down = DownLayouts(config, problem_class)
