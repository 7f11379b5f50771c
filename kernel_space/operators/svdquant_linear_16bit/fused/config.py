"""FusedConfig: one point of the space of the kernel ``fused``."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import flag, number, sizes, stages
from kernel_space.operators.svdquant_gemm.partials import PARTIAL_BYTES
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import RingsConfig
from kernel_space.operators.svdquant_linear_16bit.one_launch import ScaledWeights

USUAL_EPI_TILE_N = 32
REGISTERS = {1: (24, 240), 2: (24, 232)}  # CTAs on an SM: of a thread that loads, and of one that multiplies
OCTET = 8  # columns of a tile of which a thread has a vector of four sums in a block of 64 rows
SLOT_K, X_BYTES = 64, 2  # of a slot of x: elements along K, bytes of one


@dataclasses.dataclass(frozen=True, kw_only=True)
class FusedConfig(ScaledWeights, RingsConfig, kernel="fused"):
    """Knobs of ``fused``. "Rows" are rows of weights or columns of lora_down, "columns" rows of x: it computes y.T.

    ``tile_mnk``            rows, columns, K elements of one CTA tile and of one slot of packed weights
    ``consumer_warpgroups``  warpgroups that share the rows of a tile; each owns a multiple of 64
    ``num_ab_stage``        SMEM ring slots of packed weights, their scales and 1 / smooth; ``auto`` = the most that fit
    ``num_dq_stage``        SMEM ring slots of x, 64 K elements each, and in the end the sums of the cluster
    ``num_lora_stage``      SMEM ring slots of one LoRA slice of lora_up; 0 without LoRA
    ``epi_tile_n``          columns of the tile that a consumer warp stages at a time of its 16 rows, on their way from
                            registers to y; 0 is 32
    ``ctas_per_sm``         CTAs that registers and shared memory of an SM are shared out to
    ``split_k``             CTAs of a cluster that share one tile along K; reduced in a fixed order
    ``use_pdl``             programmatic dependent launch: prologue and loads of weights overlap the previous kernel
    """

    tile_mnk: tuple[int, int, int] = sizes(128, 64, 128, form="RxCxK such as 128x64x128")
    consumer_warpgroups: int = number(2)
    num_ab_stage: int | str = stages()
    num_dq_stage: int | str = stages()
    num_lora_stage: int | str = stages()
    epi_tile_n: int = number(0)
    ctas_per_sm: int = number(1)
    split_k: int = number(4)
    use_pdl: bool = flag()

    @property
    def strip_octets(self) -> int:
        """Blocks of 8 columns of the widest strip of a tile that one CTA of a cluster adds up."""
        return -(-(self.tile_mnk[1] // OCTET) // self.split_k)

    @property
    def strip_slots(self) -> int:
        """Slots of x that the sums of a strip take, of all CTAs of a cluster: they come where x has been."""
        rows, columns, _ = self.tile_mnk
        strips = self.split_k * self.strip_octets * OCTET * rows * PARTIAL_BYTES
        return -(-strips // (columns * SLOT_K * X_BYTES)) if self.split_k > 1 else 0

    # Knobs of other kernels whose loops, layouts and epilogue this one has.

    @property
    def cluster_shape_mn(self) -> tuple[int, int]:
        """As far as tiles are counted: the cluster lies along K."""
        return (1, 1)

    @property
    def swap_ab(self) -> bool:
        """The kernel computes y.T: its rows run over N of the problem."""
        return True

    @property
    def pingpong(self) -> bool:
        return False

    @property
    def stream_k(self) -> bool:
        return False

    @property
    def wgmma_k(self) -> int:
        """K elements between two waits for wgmma."""
        return 16

    @property
    def expands_act(self) -> bool:
        """For the layouts: columns come as they are multiplied."""
        return True

    @property
    def num_c_stage(self) -> int:
        """What a warp transposes of y leaves SMEM before the next piece."""
        return 1

    @property
    def num_dequant_warpgroups(self) -> int:
        """None: the layouts ask for one where columns are packed."""
        return 1

    @property
    def usual_epi_tile_n(self) -> int:
        """What ``epi_tile_n=0`` stands for."""
        return USUAL_EPI_TILE_N

    # What the links of the layer are asked.

    @property
    def tile_mk(self) -> tuple[int, int]:
        """Rows of x and K of a step, as ``lora_down`` names them."""
        return (self.tile_mnk[1], SLOT_K)
