"""SlicedConfig: one point of the space of the kernel ``sliced``, and the knobs that a kernel of its design has."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from kernel_space.core.config import flag, number, sizes, stages
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import Sm90aConfig
from kernel_space.operators.svdquant_linear_16bit.one_launch import OneLaunch

LOADING_WARPS, GROUP_WARPS = 4, 4
OCTET = 8
PACKED_BYTES, SCALES_BYTES = 64, 1024  # of a k-tile: of a column, of 128 columns
DOWN_BYTES = 256  # of a k-tile: of a column of lora_down
MOST_DOWN_ROUNDS = 4
PADDING = 4  # fp32 numbers behind a row of sums, for other banks
MOST_ROUNDS = 2  # slots of a warp or a pair that ``auto`` gives
LOADER_REGISTERS = 24
MOST_REGISTERS, REGISTER_STEP = 232, 8
FILE_REGISTERS = 512  # of an SM, for one thread of each of its warpgroups: 65,536 / 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicedKnobs(Sm90aConfig):
    """Knobs of kernels with sliced K: each multiplying warp of a CTA has all of its tile, and every so many-th k-tile.
    "Rows" are rows of x, "columns" rows of weights, hence of y, or columns of lora_down.

    ``tile_mnk``            rows, columns of a CTA tile, K elements of a slot of the ring
    ``consumer_warpgroups``  warpgroups that multiply
    ``slot_warps``          warps that share a k-tile, half of its K each; 1: a k-tile each
    ``num_ab_stage``        SMEM ring slots of x, packed weights, their scales and smooth, a k-tile each: as many for
                            each warp or pair of warps; ``auto`` = one or two
    ``split_k``             CTAs of a cluster that share one tile along K; reduced in a fixed order
    ``down_columns``        columns of lora_down of a CTA, fewer where R shared out evenly gives fewer
    ``ctas_per_sm``         CTAs that registers and shared memory of an SM are shared out to
    ``use_pdl``             programmatic dependent launch: prologue and loads of weights overlap the previous kernel
    """

    smooth_bytes: ClassVar[int] = 2 * 4  # of an element of K in a slot: smooth and its inverse

    tile_mnk: tuple[int, int, int] = sizes(16, 96, 128, form="RxCxK such as 16x96x128")
    consumer_warpgroups: int = number(2)
    slot_warps: int = number(2)
    num_ab_stage: int | str = stages()
    split_k: int = number(1)
    down_columns: int = number(16)
    ctas_per_sm: int = number(1)
    use_pdl: bool = flag()

    @property
    def warps(self) -> int:
        """Warps that multiply."""
        return GROUP_WARPS * self.consumer_warpgroups

    @property
    def sharers(self) -> int:
        """Warps, or pairs of them, that k-tiles are dealt out to: each has slots of its own in every ring."""
        return self.warps // self.slot_warps

    def down_stages(self, r: int) -> int:
        """Slots of lora_down where other CTAs have packed weights and their scales: as many rounds as there is room."""
        room = int(self.num_ab_stage) * (self.tile_mnk[1] * PACKED_BYTES + SCALES_BYTES)
        rounds = room // (self.down_tile(r) * DOWN_BYTES * self.sharers)
        return min(rounds, MOST_DOWN_ROUNDS) * self.sharers

    def sums_bytes(self, r: int) -> int:
        """Of all warps, fp32, in either kind of CTA; a row of x is padded by 16 bytes."""
        columns = max(self.tile_mnk[1], self.down_tile(r) if r else 0)
        return self.warps * self.tile_mnk[0] * (columns + PADDING) * 4

    @property
    def sums_room(self) -> int:
        """Bytes of the slots of x, packed weights, their scales, smooth and its inverse, which lie side by side."""
        rows, columns, step = self.tile_mnk
        each = rows * step * 2 + columns * PACKED_BYTES + SCALES_BYTES + self.smooth_bytes * step
        return int(self.num_ab_stage) * each

    def lacks_room(self, r: int) -> bool:
        """Whether lora_down or sums do not fit where the slots are."""
        return (r > 0 and not self.down_stages(r)) or self.sums_bytes(r) > self.sums_room

    @property
    def threads(self) -> int:
        return 32 * (LOADING_WARPS + self.warps)

    @property
    def registers(self) -> tuple[int, int]:
        """Of a thread that loads, that multiplies (``setmaxnreg``). A launch gives all threads the same; the first give
        some back, and the others take them.
        """
        groups = 1 + self.consumer_warpgroups
        launched = FILE_REGISTERS // self.ctas_per_sm // groups // REGISTER_STEP * REGISTER_STEP
        left = (launched * groups - LOADER_REGISTERS) // self.consumer_warpgroups
        return LOADER_REGISTERS, min(left // REGISTER_STEP * REGISTER_STEP, MOST_REGISTERS)

    @property
    def num_x_stage(self) -> int | str:
        """Slots of x are those of weights."""
        return self.num_ab_stage

    @property
    def partial_sums(self) -> int:
        return self.split_k * self.warps

    def down_tile(self, r: int) -> int:
        """Columns of lora_down of a CTA: R shared out as evenly as may be."""
        tiles = -(-r // self.down_columns)
        return -(-r // tiles // OCTET) * OCTET

    # Of kernels whose tiles are counted alike.

    @property
    def cluster_shape_mn(self) -> tuple[int, int]:
        """As far as tiles are counted: the cluster lies along K."""
        return (1, 1)

    @property
    def swap_ab(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlicedConfig(OneLaunch, SlicedKnobs, kernel="sliced"):
    """Knobs of ``sliced``, and what the links of the layer are asked."""
