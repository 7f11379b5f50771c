"""Layouts of the kernel ``staged``: what it allocates and what the budget reads back."""

from typing import Any

import cutlass
import cutlass.utils.hopper_helpers as sm90_utils
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.activation import SWIGLU
from kernel_space.operators.svdquant_gemm.parts.allocations import (
    ACC_DTYPE,
    HALF_DTYPES,
    MBARRIER_BYTES,
    Allocation,
    smem_rows,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    MMA_ROWS,
    SF_BLOCK_BYTES,
    SF_BLOCK_K,
    SF_BLOCK_WORDS,
    SWIZZLE_ALIGN,
    TMA_ALIGN,
    WARPS_PER_GROUP,
    LayoutsSm90a,
    sf_row_blocks,
)
from kernel_space.operators.svdquant_linear_16bit.staged.config import DOWN_STEP, HALF_K, OCTET, StagedKnobs
from kernel_space.operators.svdquant_linear_16bit.staged.strips import Strips

HALF_BYTES, WORD_BYTES = 2, 4
HALVES = 2  # of a slot: tensors of shared memory hold one after the other
LINE = 128  # bytes of all banks of shared memory
DOWN_BARRIERS = 8  # of slots of lora_down, at most
X, PACKED, SCALES, WEIGHTS, SMOOTH, INVERSE, AFFINE = (
    "x",
    "packed",
    "scales",
    "dequantized",
    "smooth",
    "1 / smooth",
    "wcscale, bias",
)
LEAST_BOX = 16  # rows of x in a box: TMA takes five cycles for a row beyond a tensor's end
BRANCH_READY, SUMS_FULL, PEERS_DONE = "branch_ready", "sums_full", "peers_done"


def box_rows(rows: int) -> list[int]:
    """Rows of the boxes that x comes in: of a whole tile, its half, and so on. One of each, at most, makes any multiple
    of ``LEAST_BOX`` rows: many equal ones take longer than a tile that x fills.
    """
    return [rows] if rows <= LEAST_BOX else [rows, *box_rows(rows // 2)]


class StagedLayouts:
    """Tiled MMAs and staged SMEM layouts of a resolved config."""

    def __init__(self, config: StagedKnobs, problem_class: ProblemClass):
        self.config = config
        self.r = problem_class.r
        self.half = HALF_DTYPES[problem_class.dtype]
        self.is_bf16 = problem_class.dtype == "bf16"
        self.activation = problem_class.activation
        self.gated = self.activation == SWIGLU  # of 16 columns of the product y has 8
        self.rows, self.columns, self.k = config.tile_mnk
        self.multiplying_warps = WARPS_PER_GROUP * config.consumer_warpgroups
        unit = 2 if self.gated else 1
        self.strips = Strips(self.columns // OCTET, unit, config.split_k)
        self._of_branch()
        self._make_mma()
        self._make_rings()

    def _of_branch(self) -> None:
        """Tiles of lora_act_in; halves of the slots of the low-rank branch: 64s of R, dealt out to the CTAs that
        share a tile along K.
        """
        self.down_tiles, self.down_columns, pieces = 0, DOWN_STEP, 0
        if self.r:
            self.down_columns = self.config.down_tile(self.r)
            self.down_tiles = -(-self.r // self.down_columns)
            pieces = -(-self.r // HALF_K)
        each = -(-pieces // self.config.split_k)
        self.branch_halves = [min(HALVES, each - first) for first in range(0, each, HALVES)]
        self.down_strips = Strips(self.down_columns // OCTET, 1, self.config.split_k)

    def _make_mma(self) -> None:
        def make(columns: int) -> Any:
            return sm90_utils.make_trivial_tiled_mma(
                self.half,
                self.half,
                OperandMajorMode.K,
                OperandMajorMode.K,
                ACC_DTYPE,
                (1, 1, 1),
                (MMA_ROWS, columns),
                warpgroup.OperandSource.SMEM,
            )

        self.up_mma, self.down_mma = make(self.columns), make(self.down_columns)

    def _make_rings(self) -> None:
        config = self.config
        k_major, box = LayoutsSm90a._k_major, LayoutsSm90a.k_major_box
        packed_k = self.k // 2
        self.packed_box = box(cutlass.Uint8, "K_SW64", (self.columns, packed_k))
        self.packed = k_major(cutlass.Uint8, "K_SW64", (self.columns, packed_k), config.num_ab_stage)
        self.x = k_major(self.half, "K_SW128", (self.rows, HALF_K), HALVES * config.num_x_stage)
        # The same slots in boxes of fewer rows.
        self.boxes = [
            (
                rows,
                box(self.half, "K_SW128", (rows, HALF_K)),
                k_major(
                    self.half, "K_SW128", (rows, HALF_K), HALVES * config.num_x_stage * self.rows // rows
                ),
            )
            for rows in box_rows(self.rows)
        ]
        self.up_box = box(self.half, "K_SW128", (self.columns, HALF_K))
        self.weights = k_major(self.half, "K_SW128", (self.columns, HALF_K), HALVES * config.num_dq_stage)
        self.down_stages = min(max(1, config.num_dq_stage * self.columns // self.down_columns), DOWN_BARRIERS)
        self.down = k_major(self.half, "K_SW128", (self.down_columns, HALF_K), HALVES * self.down_stages)
        self.sf_k_blocks = self.k // SF_BLOCK_K
        self.sf_row_blocks = sf_row_blocks(self.columns)
        shape = (self.sf_row_blocks, self.sf_k_blocks, SF_BLOCK_WORDS, config.num_ab_stage)
        self.scales = cute.make_ordered_layout(shape, order=(2, 1, 0, 3))
        # Bytes of one slot of each ring; of weights and lora_down of half a slot.
        self.packed_bytes = self.columns * packed_k
        self.scales_bytes = self.sf_row_blocks * self.sf_k_blocks * SF_BLOCK_BYTES
        self.weights_bytes = self.columns * LINE
        self.down_bytes = self.down_columns * LINE
        self.smooth = cute.make_layout((self.k, config.num_ab_stage))
        self.smooth_bytes = self.k * WORD_BYTES
        self.inverse = cute.make_layout((self.k // 2, config.num_ab_stage))
        self.inverse_bytes = self.k * HALF_BYTES

    @property
    def sums(self) -> Any:
        """fp32 sums of a strip that other CTAs of the cluster send, where weights have been, dequantized and packed:
        (value, thread, row block, octet of the strip, how many ranks behind the owner).
        """
        config = self.config
        threads = 32 * self.multiplying_warps
        most = max(self.strips.most, self.down_strips.most)
        return cute.make_layout((4, threads, config.row_blocks, most, max(config.split_k - 1, 1)))

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        words = cute.make_layout((2, self.columns))
        regions = [
            Allocation(X, self.half, self.x, "x", SWIZZLE_ALIGN),
            Allocation(WEIGHTS, self.half, self.weights, "dq", SWIZZLE_ALIGN),
            Allocation(PACKED, cutlass.Uint8, self.packed, "ab", SWIZZLE_ALIGN),
            Allocation(SCALES, cutlass.Int32, self.scales, "ab", TMA_ALIGN),
            Allocation(SMOOTH, cutlass.Float32, self.smooth, "ab", 16),
            Allocation(INVERSE, cutlass.Uint32, self.inverse, "ab", 16),
            Allocation(AFFINE, cutlass.Float32, words, "one", 16),
        ]
        return regions + [
            Allocation(name, cutlass.Int64, cute.make_layout(count), ring, MBARRIER_BYTES)
            for name, count, ring in self.barriers()
        ]

    def barriers(self) -> list[tuple[str, int, str]]:
        """mbarrier arrays (name, count, ring); a full and an empty barrier per ring slot."""
        config = self.config
        rings = [
            ("ab", config.num_ab_stage, "ab"),
            ("x", config.num_x_stage, "x"),
            ("dq", config.num_dq_stage, "dq"),
        ]
        found = [(f"{name}_{side}", count, ring) for name, count, ring in rings for side in ("full", "empty")]
        found.append(("smooth_full", config.num_ab_stage, "ab"))
        if self.r:
            found += [(f"down_{side}", DOWN_BARRIERS, "one") for side in ("full", "empty")]
            found.append((BRANCH_READY, 1, "one"))
        return [*found, (SUMS_FULL, 1, "one"), (PEERS_DONE, 1, "one")]

    def footprint(self) -> dict[str, Any]:
        """Fields of ``budget.Footprint`` when every stage count is 1."""
        return {"smem": smem_rows(self.allocations())}
