"""Layouts of the kernel ``sliced``: what it allocates and what the budget reads back."""

import dataclasses
from typing import Any

import cutlass
from cutlass import cute

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.allocations import (
    HALF_DTYPES,
    MBARRIER_BYTES,
    Allocation,
    smem_rows,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    SF_BLOCK_BYTES,
    SF_BLOCK_K,
    SF_BLOCK_WORDS,
    SWIZZLE_ALIGN,
    TMA_ALIGN,
    LayoutsSm90a,
    sf_row_blocks,
)
from kernel_space.operators.svdquant_linear_16bit.sliced.config import (
    MOST_DOWN_ROUNDS,
    OCTET,
    PADDING,
    SlicedKnobs,
)
from kernel_space.operators.svdquant_linear_16bit.staged.config import HALF_K
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    AFFINE,
    HALVES,
    INVERSE,
    LINE,
    PACKED,
    SCALES,
    SMOOTH,
    WORD_BYTES,
    X,
    box_rows,
)

SUMS, ARRIVED, TAKEN = "sums of the cluster", "arrived", "taken"
QUAD = 4


@dataclasses.dataclass(frozen=True)
class Sums:
    """A CTA's tile as ``SmallMReduce`` knows it: its ``columns`` are rows of x, its ``rows`` columns of the tile. Each
    warp has sums of all of it.
    """

    columns: int
    rows: int
    warps_k: int
    splits: int
    threads: int
    out_bf16: bool
    activation: str
    r: int
    warps_n: int = 1
    stages: int = 1

    @property
    def quads(self) -> int:
        return self.rows // QUAD

    @property
    def warp_quads(self) -> int:
        return self.quads

    @property
    def owned(self) -> int:
        """Quads that one CTA of a cluster finishes."""
        return -(-self.columns * self.quads // self.splits)

    @property
    def sum_stride(self) -> int:
        """Bytes of a row of x."""
        return (self.rows + PADDING) * WORD_BYTES

    @property
    def slot_bytes(self) -> int:
        """Of a warp."""
        return self.columns * self.sum_stride

    @property
    def act_tiles(self) -> int:
        return self.columns // OCTET

    @property
    def octets(self) -> int:
        return self.rows // OCTET

    @property
    def blocks(self) -> int:
        """Of 16 columns; the last one may have 8."""
        return -(-self.octets // 2)

    @property
    def is_bf16(self) -> bool:
        return self.out_bf16


class SlicedLayouts:
    """Counts and staged SMEM layouts of a resolved config."""

    def __init__(self, config: SlicedKnobs, problem_class: ProblemClass):
        self.config = config
        self.r = problem_class.r
        self.half = HALF_DTYPES[problem_class.dtype]
        self.is_bf16 = problem_class.dtype == "bf16"
        self.counts = self.r > 0  # CTAs, in global memory, so that the last one leaves it as it was
        self.rows, self.columns, self.k = config.tile_mnk
        self.warps, self.threads = config.warps, config.threads
        self.down_tiles, down_columns = 0, OCTET
        if self.r:
            down_columns = config.down_tile(self.r)
            self.down_tiles = -(-self.r // down_columns)
        self.up, self.down = (
            Sums(
                columns=self.rows,
                rows=columns,
                warps_k=self.warps,
                splits=config.split_k,
                threads=32 * self.warps,
                out_bf16=self.is_bf16,
                activation=problem_class.activation,
                r=self.r,
            )
            for columns in (self.columns, down_columns)
        )
        # Of lora_down: slots, and bytes of 64 of K of one.
        self.down_columns, self.down_stages = down_columns, config.down_stages(self.r) if self.r else 0
        self.down_bytes = down_columns * LINE
        self._make_ring()

    def _make_ring(self) -> None:
        config, stages = self.config, self.config.num_ab_stage
        k_major, box = LayoutsSm90a._k_major, LayoutsSm90a.k_major_box
        packed_k = self.k // 2
        self.packed_box = box(cutlass.Uint8, "K_SW64", (self.columns, packed_k))
        self.packed = k_major(cutlass.Uint8, "K_SW64", (self.columns, packed_k), stages)
        self.x = k_major(self.half, "K_SW128", (self.rows, HALF_K), HALVES * stages)
        # The same slots in boxes of fewer rows.
        self.boxes = [
            (
                rows,
                box(self.half, "K_SW128", (rows, HALF_K)),
                k_major(self.half, "K_SW128", (rows, HALF_K), HALVES * stages * self.rows // rows),
            )
            for rows in box_rows(self.rows)
        ]
        self.sf_k_blocks = self.k // SF_BLOCK_K
        self.sf_row_blocks = sf_row_blocks(self.columns)
        shape = (self.sf_row_blocks, self.sf_k_blocks, SF_BLOCK_WORDS, stages)
        self.scales = cute.make_ordered_layout(shape, order=(2, 1, 0, 3))
        self.smooth = cute.make_layout((self.k, config.num_ab_stage))
        # Bytes of one slot.
        self.packed_bytes = self.columns * packed_k
        self.scales_bytes = self.sf_row_blocks * self.sf_k_blocks * SF_BLOCK_BYTES
        self.smooth_bytes = self.k * WORD_BYTES

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out. Sums of warps come over the slots in the end, of
        x and of what lies behind it (``SlicedKnobs.sums_room``).
        """
        regions = [
            Allocation(X, self.half, self.x, "ab", SWIZZLE_ALIGN),
            Allocation(PACKED, cutlass.Uint8, self.packed, "ab", SWIZZLE_ALIGN),
            Allocation(SCALES, cutlass.Int32, self.scales, "ab", TMA_ALIGN),
            Allocation(SMOOTH, cutlass.Float32, self.smooth, "ab", 16),
            Allocation(INVERSE, cutlass.Float32, self.smooth, "ab", 16),
            Allocation(AFFINE, cutlass.Float32, cute.make_layout((2, self.columns)), "one", 16),
        ]
        if self.config.split_k > 1:
            most = max(self.up.owned, self.down.owned)
            shape = cute.make_layout((4, most, self.config.split_k))
            regions.append(Allocation(SUMS, cutlass.Float32, shape, "one", 16))
            regions.append(Allocation(ARRIVED, cutlass.Int64, cute.make_layout(1), "one", MBARRIER_BYTES))
        if self.counts:
            regions.append(Allocation(TAKEN, cutlass.Int32, cute.make_layout(2), "one", MBARRIER_BYTES))
        return regions + [
            Allocation(name, cutlass.Int64, cute.make_layout(count), ring, MBARRIER_BYTES)
            for name, count, ring in self.barriers()
        ]

    def barriers(self) -> list[tuple[str, int, str]]:
        """mbarrier arrays (name, count, ring)."""
        stages = self.config.num_ab_stage
        found = [(name, stages, "ab") for name in ("ab_full", "x_full", "smooth_full", "ab_empty")]
        if self.r:
            most = MOST_DOWN_ROUNDS * self.config.sharers
            found += [(name, most, "one") for name in ("down_full", "down_empty")]
        return found

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint`` when the stage count is 1."""
        return {"smem": smem_rows(self.allocations())}
