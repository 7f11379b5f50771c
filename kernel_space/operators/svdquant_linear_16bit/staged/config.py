"""StagedConfig: one point of the space of the kernel ``staged``, and the knobs that a kernel of its design has."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import flag, number, sizes, stages
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS, Sm90aConfig
from kernel_space.operators.svdquant_linear_16bit.one_launch import ScaledWeights

OCTET = 8  # columns of a tile of which a thread has a vector of four sums in a block of 64 rows
PARTIAL_BYTES = 4
SLOT_BYTES, PACKED_SLOT_BYTES = 256, 64  # of a row of a slot of x or of dequantized weights, of packed ones
HALF_K = 64  # K elements of half a slot: 128 bytes a row of bf16, one swizzle span
MOST_DOWN_COLUMNS, DOWN_STEP = 128, 16  # of lora_down in a CTA
LOADER_REGISTERS = 24
MOST_REGISTERS, REGISTER_STEP = 232, 8
MOST_DEQUANT_REGISTERS = 104
FILE_REGISTERS = 512  # of an SM, for one thread of each of its warpgroups: 65,536 / 128


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedKnobs(Sm90aConfig):
    """Knobs of kernels whose weights are staged in shared memory. "Rows" are rows of x, "columns" rows of weights,
    hence of y, or columns of lora_down.

    ``tile_mnk``            rows, columns, K elements of one CTA tile and of one slot of each ring
    ``consumer_warpgroups``  warpgroups that multiply: they share the rows of a tile, a multiple of 64 each
    ``num_dequant_warpgroups``  warpgroups that dequantize
    ``num_ab_stage``        SMEM ring slots of packed weights, their scales and 1 / smooth; ``auto`` = the most that fit
    ``num_dq_stage``        SMEM ring slots of dequantized weights
    ``num_x_stage``         SMEM ring slots of x
    ``split_k``             CTAs of a cluster that share one tile along K; reduced in a fixed order
    ``down_columns``        columns of lora_down of a CTA, fewer where R shared out evenly gives fewer
    ``share``               tiles of columns in a cluster: their CTAs multiply the same x, which is multicast to them
    ``early_release``       slots are given back as soon as they are multiplied, not when the next ones are under way:
                            the tensor core rests in between, but rings are as good as one slot longer
    ``ctas_per_sm``         CTAs that registers and shared memory of an SM are shared out to
    ``use_pdl``             programmatic dependent launch: prologue, loads of weights and the first slots of
                            dequantized ones overlap the previous kernel
    """

    tile_mnk: tuple[int, int, int] = sizes(64, 104, 128, form="RxCxK such as 64x104x128")
    consumer_warpgroups: int = number(1)
    num_dequant_warpgroups: int = number(3)
    num_ab_stage: int | str = stages()
    num_dq_stage: int | str = stages()
    num_x_stage: int | str = stages()
    split_k: int = number(4)
    down_columns: int = number(32)
    share: int = number(1)
    early_release: bool = flag()
    ctas_per_sm: int = number(1)
    use_pdl: bool = flag()

    @property
    def row_blocks(self) -> int:
        """Blocks of 64 rows of a tile that one multiplying warpgroup owns."""
        return self.tile_mnk[0] // (MMA_ROWS * self.consumer_warpgroups)

    @property
    def accumulators(self) -> int:
        """fp32 accumulators of a multiplying thread."""
        return self.row_blocks * self.tile_mnk[1] // 2

    @property
    def launched_registers(self) -> int:
        """Of a thread when the kernel begins."""
        groups = 1 + self.num_dequant_warpgroups + self.consumer_warpgroups
        return FILE_REGISTERS // self.ctas_per_sm // groups // REGISTER_STEP * REGISTER_STEP

    @property
    def registers(self) -> tuple[int, int, int]:
        """Of a thread that loads, that dequantizes, that multiplies (``setmaxnreg``). A launch gives all
        threads the same; the first two give some back, and the third take them.
        """
        dequantizing, multiplying = self.num_dequant_warpgroups, self.consumer_warpgroups
        groups = 1 + dequantizing + multiplying
        launched = self.launched_registers
        dequant = min(launched - REGISTER_STEP, MOST_DEQUANT_REGISTERS)
        left = launched * groups - LOADER_REGISTERS - dequantizing * dequant
        multiply = left // multiplying // REGISTER_STEP * REGISTER_STEP
        return LOADER_REGISTERS, dequant, min(multiply, MOST_REGISTERS)

    def down_tile(self, r: int) -> int:
        """Columns of lora_down of a CTA: R shared out as evenly as may be."""
        tiles = -(-r // self.down_columns)
        return -(-r // tiles // DOWN_STEP) * DOWN_STEP

    @property
    def sums_bytes(self) -> int:
        """fp32 sums of a strip of the other CTAs of a cluster; a strip may be of pairs of octets, or of lora_down."""
        pairs = -(-max(self.tile_mnk[1], self.down_columns) // (2 * OCTET) // self.split_k)
        return self.tile_mnk[0] * pairs * 2 * OCTET * (self.split_k - 1) * PARTIAL_BYTES

    @property
    def sums_room(self) -> int:
        """Bytes of the slots of weights, dequantized and packed."""
        slots = SLOT_BYTES * int(self.num_dq_stage) + PACKED_SLOT_BYTES * int(self.num_ab_stage)
        return self.tile_mnk[1] * slots

    # Of kernels whose tiles are counted alike.

    @property
    def cluster_shape_mn(self) -> tuple[int, int]:
        """As far as tiles are counted: the cluster lies along K."""
        return (1, 1)

    @property
    def swap_ab(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagedConfig(ScaledWeights, StagedKnobs, kernel="staged"):
    """Knobs of ``staged``, and what the links of the layer are asked."""
