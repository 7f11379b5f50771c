"""Layouts of ``svdquant_gemm_sm100a``: what the kernel allocates and what the budget reads back.

Both sides build a ``Layouts`` from the same config and class, so a budget cannot disagree with the kernel. Constructing
one needs an MLIR context (inside ``@cute.jit``/``@cute.kernel``, or a context of the caller's own).
"""

from typing import Any

import cutlass
import cutlass.memory as memory
import cutlass.utils.blackwell_helpers as sm100_utils
import cutlass.utils.blockscaled_layout as blockscaled_utils
from cutlass import cute
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05
from cutlass.tensor_utils import LayoutEnum

from kernel_space.core.config import ALL
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.activation import SWIGLU
from kernel_space.operators.svdquant_gemm.parts.allocations import (
    ACC_DTYPE,
    HALF_DTYPES,
    MBARRIER_BYTES,
    Allocation,
    smem_rows,
)
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

AB_DTYPE = cutlass.Float4E2M1FN
SF_DTYPE = cutlass.Float8E4M3FN
SF_VEC_SIZE = 16
LORA_MMA_K = 16  # K of one kind::f16 instruction
SWIZZLE_ALIGN = 1024  # a 128-byte swizzle pattern repeats every 1024 bytes
SF_ALIGN = 128  # TMA writes to 128-byte aligned shared memory
SF_ATOM_MN = 128  # rows of one scale-factor atom
VECTOR_ALIGN = 16
WORD_BYTES = 4


def lora_slice_k(config: KernelConfigSm100a, r: int) -> int:
    """Columns of R in one LoRA slice."""
    return r if config.lora_tile_k == ALL else int(config.lora_tile_k)


class Layouts:
    """Tiled MMAs and staged SMEM/TMEM layouts of a resolved config."""

    def __init__(self, config: KernelConfigSm100a, problem_class: ProblemClass):
        self.config = config
        self.r = problem_class.r
        self.lora_dtype = HALF_DTYPES[problem_class.lora_dtype]
        self.c_dtype = HALF_DTYPES[problem_class.out_dtype]
        self.activation = problem_class.activation
        # TMEM loads that make one subtile of y: of 16 columns of the product gated y has 8.
        self.loads_per_subtile = 2 if self.activation == SWIGLU else 1
        self.cta_group = tcgen05.CtaGroup.TWO if config.cta_group == 2 else tcgen05.CtaGroup.ONE
        # y is row-major; under swap_ab the MMA computes y.T, which is then column-major.
        self.c_layout = LayoutEnum.COL_MAJOR if config.swap_ab else LayoutEnum.ROW_MAJOR
        self._make_tilers()
        self._make_cluster()
        self._make_ab()
        self._make_lora()
        self._make_epilogue()
        self._make_tmem()

    def _make_tilers(self) -> None:
        m, n = self.config.mma_tiler_mn
        self.mma_tiler = (m, n, self.config.mma_tiler_k)
        self.cta_tile_mnk = self.config.cta_tile_mnk
        # Scale factors of B come in atoms of 128 rows, and both CTAs of a pair need all of them.
        self.mma_tiler_sfb = (self.cta_tile_mnk[0], cute.round_up(n, SF_ATOM_MN), self.mma_tiler[2])
        self.tiled_mma = self._blockscaled_mma(self.cta_group, (m, n))
        self.tiled_mma_sfb = self._blockscaled_mma(tcgen05.CtaGroup.ONE, self.mma_tiler_sfb[:2])
        self.num_k_blocks = self.mma_tiler[2] // cute.size(self.tiled_mma.shape_mnk, mode=[2])

    @staticmethod
    def _blockscaled_mma(cta_group: Any, shape_mn: tuple[int, int]) -> Any:
        return sm100_utils.make_blockscaled_trivial_tiled_mma(
            AB_DTYPE,
            AB_DTYPE,
            OperandMajorMode.K,
            OperandMajorMode.K,
            SF_DTYPE,
            SF_VEC_SIZE,
            cta_group,
            shape_mn,
        )

    def _make_cluster(self) -> None:
        ctas = cute.make_layout((*self.config.cluster_shape_mn, 1))
        self.cluster_vmnk = cute.tiled_divide(ctas, (self.tiled_mma.thr_id.shape,))
        self.cluster_sfb_vmnk = cute.tiled_divide(ctas, (self.tiled_mma_sfb.thr_id.shape,))
        self.num_mcast_a = cute.size(self.cluster_vmnk.shape[2])
        self.num_mcast_b = cute.size(self.cluster_vmnk.shape[1])

    def _make_ab(self) -> None:
        stages = self.config.num_ab_stage
        mma, tiler = self.tiled_mma, self.mma_tiler
        self.a = sm100_utils.make_smem_layout_a(mma, tiler, AB_DTYPE, stages)
        self.b = sm100_utils.make_smem_layout_b(mma, tiler, AB_DTYPE, stages)
        self.sfa = blockscaled_utils.make_smem_layout_sfa(mma, tiler, SF_VEC_SIZE, stages)
        self.sfb = blockscaled_utils.make_smem_layout_sfb(mma, tiler, SF_VEC_SIZE, stages)

    def _make_lora(self) -> None:
        self.has_lora = self.r > 0
        if not self.has_lora:
            self.num_lora_slices = self.num_lora_units = 0
            return
        config = self.config
        self.lora_in_ab_stage = config.lora_buffer == "ab_stage"
        self.lora_slice_k = lora_slice_k(config, self.r)
        self.num_lora_slices = -(-self.r // self.lora_slice_k)
        self.lora_mma = sm100_utils.make_trivial_tiled_mma(
            self.lora_dtype,
            self.lora_dtype,
            OperandMajorMode.K,
            OperandMajorMode.K,
            ACC_DTYPE,
            self.cta_group,
            config.mma_tiler_mn,
        )
        self.lora_tiler = (*config.mma_tiler_mn, self.lora_slice_k)
        stages = config.num_ab_stage if self.lora_in_ab_stage else config.num_lora_stage
        self.lora_a = sm100_utils.make_smem_layout_a(self.lora_mma, self.lora_tiler, self.lora_dtype, stages)
        self.lora_b = sm100_utils.make_smem_layout_b(self.lora_mma, self.lora_tiler, self.lora_dtype, stages)
        self._make_lora_units()

    def _make_lora_units(self) -> None:
        """A unit is the group of LoRA MMAs issued together: at most 64 columns of one slice.

        Columns past R of a lone slice are zeros from out-of-bounds TMA; their MMAs are not issued.
        """
        used_k = min(self.lora_slice_k, self.r) if self.num_lora_slices == 1 else self.lora_slice_k
        blocks = used_k // LORA_MMA_K
        self.lora_blocks_per_unit = max(size for size in (4, 3, 2, 1) if blocks % size == 0)
        self.lora_units_per_slice = blocks // self.lora_blocks_per_unit
        self.num_lora_units = self.num_lora_slices * self.lora_units_per_slice

    def _make_epilogue(self) -> None:
        epi_n = self.config.epi_tile_n
        self.epi_tile = (cute.make_layout(self.cta_tile_mnk[0]), cute.make_layout(epi_n))
        self.num_epi_subtiles = self.cta_tile_mnk[1] // (epi_n * self.loads_per_subtile)
        self._make_store()
        # wcscale and bias run along N of y: columns of the tile, or its rows under swap_ab.
        extent = self.cta_tile_mnk[0] if self.config.swap_ab else self.cta_tile_mnk[1]
        self.affine = cute.make_layout(extent)

    def _make_store(self) -> None:
        """What a subtile becomes before it is stored, in elements of ``store_dtype``."""
        self.store_dtype, self.store_tile = self.c_dtype, self.epi_tile
        self.tiles_of_ctas = self.loads_per_subtile == 2  # tiles of the output by CTA, not by MMA
        self.c = sm100_utils.make_smem_layout_epi(
            self.store_dtype, self.c_layout, self.store_tile, self.config.num_c_stage
        )

    def _make_tmem(self) -> None:
        """Columns: accumulators from 0, then SFA, then SFB."""
        m, n = self.config.mma_tiler_mn
        self.overlapping_acc = n == 256 and self.config.num_acc_stage == 2
        self.acc_shape = self.tiled_mma.partition_shape_C((m, n))
        self.tmem_sfa = blockscaled_utils.make_tmem_layout_sfa(
            self.tiled_mma, self.mma_tiler, SF_VEC_SIZE, cute.slice_(self.sfa, (None, None, None, 0))
        )
        self.tmem_sfb = blockscaled_utils.make_tmem_layout_sfb(
            self.tiled_mma, self.mma_tiler, SF_VEC_SIZE, cute.slice_(self.sfb, (None, None, None, 0))
        )
        self.sfa_cols = memory.compute_tmem_cols_from_layout(self.tmem_sfa, SF_DTYPE)
        self.sfb_cols = memory.compute_tmem_cols_from_layout(self.tmem_sfb, SF_DTYPE)
        acc_one = self.tiled_mma.make_fragment_C(cute.append(self.acc_shape, 1))
        self.acc_cols_each = memory.compute_tmem_cols_from_layout(acc_one.layout, ACC_DTYPE)
        self.overlap_cols = self.sfa_cols + self.sfb_cols if self.overlapping_acc else 0
        self.acc_cols = self.acc_cols_each * self.config.num_acc_stage - self.overlap_cols
        self.tmem_cols_used = self.acc_cols + self.sfa_cols + self.sfb_cols

    @property
    def num_acc_barriers(self) -> int:
        """Overlapped accumulators share one full/empty barrier pair: the phase tells which one is meant."""
        return 1 if self.overlapping_acc else self.config.num_acc_stage

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out; alignment never leaves a gap."""
        regions = [
            Allocation("A", AB_DTYPE, self.a, "ab", SWIZZLE_ALIGN),
            Allocation("B", AB_DTYPE, self.b, "ab", SWIZZLE_ALIGN),
        ]
        if self.has_lora_ring:
            regions += [
                Allocation("LoRA act", self.lora_dtype, self.lora_a, "lora", SWIZZLE_ALIGN),
                Allocation("LoRA up", self.lora_dtype, self.lora_b, "lora", SWIZZLE_ALIGN),
            ]
        regions += [
            Allocation("C", self.store_dtype, self.c, "c", SWIZZLE_ALIGN),
            Allocation("SFA", SF_DTYPE, self.sfa, "ab", SF_ALIGN),
            Allocation("SFB", SF_DTYPE, self.sfb, "ab", SF_ALIGN),
            Allocation("wcscale", cutlass.Float32, self.affine, "one", VECTOR_ALIGN),
            Allocation("bias", cutlass.Float32, self.affine, "one", VECTOR_ALIGN),
        ]
        regions += [
            Allocation(name, cutlass.Int64, cute.make_layout(count), ring, MBARRIER_BYTES)
            for name, count, ring in self.barriers()
        ]
        regions.append(Allocation("TMEM pointer", cutlass.Int32, cute.make_layout(1), "one", WORD_BYTES))
        if self.config.split_k > 1:
            regions.append(Allocation("split-K flag", cutlass.Int32, cute.make_layout(1), "one", WORD_BYTES))
        return regions

    def footprint(self) -> dict[str, Any]:
        """Fields of ``FootprintSm100a`` when every stage count is 1."""
        return {
            "smem": smem_rows(self.allocations()),
            "acc_cols": int(self.acc_cols_each),
            "sfa_cols": int(self.sfa_cols),
            "sfb_cols": int(self.sfb_cols),
            "num_epi_subtiles": int(self.num_epi_subtiles),
        }

    @property
    def has_lora_ring(self) -> bool:
        return self.has_lora and not self.lora_in_ab_stage

    def barriers(self) -> list[tuple[str, int, str]]:
        """mbarrier arrays (name, count, ring); a full and an empty barrier per ring slot."""
        config = self.config
        rings = [("ab", config.num_ab_stage, "ab")]
        if self.has_lora_ring:
            rings.append(("lora", config.num_lora_stage, "lora"))
        # Overlapped accumulators share one pair of barriers, whatever their number.
        rings.append(("acc", self.num_acc_barriers, "one" if self.overlapping_acc else "acc"))
        arrays = [
            (f"{name}_{side}", count, ring) for name, count, ring in rings for side in ("full", "empty")
        ]
        return [*arrays, ("tmem_dealloc", 1, "one")] if config.cta_group == 2 else arrays
