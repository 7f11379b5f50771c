"""A stand-in for the published SVDQuant kernel of the timing evidence, with that kernel's order of loads and MMAs.

The published kernel is ``kernel_v2_fa4`` of https://github.com/ultism/svdquant-kernels. This is this project's
generator with two roles changed to the order that is described there; layouts, barriers and epilogue are its own.

| | published, and here | ``svdquant_gemm_sm100a`` |
|---|---|---|
| LoRA loads | all of R before a tile's first k-tile | where they are consumed |
| LoRA MMAs | one behind the first NVFP4 MMA and behind each ``stride``-th after it | four at a time, between k-tiles |
| wait for LoRA | before the tile's first LoRA MMA | the same |
| LoRA slot is free | when the tile's MMAs are complete | when its own MMAs are complete |
| accumulators, raster | one; along N (the config says so) | knobs |

``stride`` = NVFP4 MMAs of the tile // LoRA MMAs. The tile must have at least as many NVFP4 MMAs as LoRA MMAs, as there.
Left as they are here: the accumulator is free after its last TMEM load (there: after its last store), and scale and
bias come from shared memory (there: both off in the sweep of LoRA stages).

A generator like those of ``kernel_space.operators``: ``dataclasses.replace(SM100A, kernel=__name__)`` names it.
"""

from typing import Any

import cutlass
import cutlass.memory as memory
import cutlass.pipeline as pipeline
from cutlass import Boolean, Int32, cute
from cutlass.cute.nvgpu import tcgen05

from kernel_space.core.arch import Arch
from kernel_space.core.config import ALL
from kernel_space.core.errors import InputError
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm100a import kernel as own
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.epilogue import accumulators
from kernel_space.operators.svdquant_gemm.sm100a.layouts import LORA_MMA_K, SF_DTYPE


class LoraAhead(own.SvdquantGemmSm100a):
    """The load order: an empty first segment, so that the tile's LoRA comes before its first k-tile."""

    @cute.jit
    def segment_end(self, segment: Int32, k_begin: Int32, k_count: Int32, units: Int32):
        end = k_begin + k_count
        if cutlass.const_expr(self.has_lora):
            if segment == 0:
                end = k_begin
        return end


class PublishedKernel(own.SvdquantGemmSm100a):
    """``SvdquantGemmSm100a`` with the TMA and MMA roles of the published kernel."""

    def tma_warp(self, *arguments: Any) -> None:
        LoraAhead(self.config, self.problem_class).tma_warp(*arguments)

    @cute.jit
    def mma_warp(
        self,
        tiles: Any,
        ab_pipeline: pipeline.PipelineTmaUmma,
        lora_pipeline: Any,
        acc_pipeline: pipeline.PipelineUmmaAsync,
        tmem: memory.TmemAllocator,
        buffers: Any,
    ):
        """NVFP4 MMAs of a tile with its LoRA MMAs sprinkled in; every slot is released by a commit behind them."""
        lay = self._layouts()
        tmem.wait_for_alloc()
        tmem_ptr = tmem.retrieve_ptr(ACC_DTYPE)
        bidx, _, bidz = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        if bidx % self.cta_group_size == 0:
            tiled_mma = lay.tiled_mma
            tCrA = tiled_mma.make_fragment_A(buffers["A"])
            tCrB = tiled_mma.make_fragment_B(buffers["B"])
            tCtAcc = accumulators(lay, tmem_ptr)[(None, None, None, 0)]
            sfb_col = lay.acc_cols + lay.sfa_cols
            tCtSFA = cute.make_tensor(cute.recast_ptr(tmem_ptr + lay.acc_cols, dtype=SF_DTYPE), lay.tmem_sfa)
            tCtSFB = cute.make_tensor(cute.recast_ptr(tmem_ptr + sfb_col, dtype=SF_DTYPE), lay.tmem_sfb)
            copy_sfa, tCsSFA, tCtSFA_dst = self._s2t_partition(lay, buffers["SFA"], tCtSFA)
            copy_sfb, tCsSFB, tCtSFB_dst = self._s2t_partition(lay, buffers["SFB"], tCtSFB)
            lora_mmas = 0
            if cutlass.const_expr(self.has_lora):
                lora_mma = lay.lora_mma
                sLA, sLB = self._lora_smem(lay, buffers)
                tCrLA = lora_mma.make_fragment_A(sLA)
                tCrLB = lora_mma.make_fragment_B(sLB)
                lora_mma.set(tcgen05.Field.ACCUMULATE, True)
                lora_mmas = self.problem_class.r // LORA_MMA_K

            ab_state = pipeline.make_pipeline_state(
                pipeline.PipelineUserType.Consumer, self.config.num_ab_stage
            )
            lora_state = pipeline.make_pipeline_state(
                pipeline.PipelineUserType.Consumer, max(1, self.config.num_lora_stage)
            )
            acc_state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
            work = bidz
            while work < tiles[0] * tiles[1]:
                acc_pipeline.producer_acquire(acc_state)
                accumulate = Boolean(False)
                issued, lora_next, lora_at, stride = Int32(0), Int32(0), Int32(0), Int32(0)
                if cutlass.const_expr(self.has_lora):
                    stride = tiles[2] * lay.num_k_blocks // lora_mmas
                for _ in cutlass.range(0, tiles[2], unroll=1):
                    ab_pipeline.consumer_wait(ab_state)
                    slot = (None, None, None, None, ab_state.index)
                    cute.copy(copy_sfa, tCsSFA[slot], tCtSFA_dst)
                    cute.copy(copy_sfb, tCsSFB[slot], tCtSFB_dst)
                    for k_block in cutlass.range_constexpr(lay.num_k_blocks):
                        ab_block = (None, None, k_block, ab_state.index)
                        tiled_mma.set(tcgen05.Field.ACCUMULATE, accumulate)
                        tiled_mma.set(tcgen05.Field.SFA, tCtSFA[(None, None, k_block)].iterator)
                        tiled_mma.set(tcgen05.Field.SFB, tCtSFB[(None, None, k_block)].iterator)
                        cute.gemm(tiled_mma, tCtAcc, tCrA[ab_block], tCrB[ab_block], tCtAcc)
                        accumulate = Boolean(True)
                        if cutlass.const_expr(self.has_lora):
                            if lora_next < lora_mmas and issued == lora_at:
                                if lora_next == 0:
                                    lora_pipeline.consumer_wait(lora_state)
                                lora_block = (None, None, lora_next, lora_state.index)
                                cute.gemm(lora_mma, tCtAcc, tCrLA[lora_block], tCrLB[lora_block], tCtAcc)
                                lora_next += 1
                                lora_at += stride
                            issued += 1
                    ab_pipeline.consumer_release(ab_state)
                    ab_state.advance()
                if cutlass.const_expr(self.has_lora):
                    lora_pipeline.consumer_release(lora_state)
                    lora_state.advance()
                acc_pipeline.producer_commit(acc_state)
                acc_state.advance()
                work += num_clusters
            acc_pipeline.producer_tail(acc_state)


def host_function(
    config: KernelConfigSm100a, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """As ``svdquant_gemm_sm100a.host_function``. Raises ``InputError`` for what the published kernel is not."""
    wanted = {
        "mma_tiler_mn": (256, 128), "num_acc_stage": 1, "split_k": 1, "swap_ab": False, "raster_order": "n",
        "prefetch_dist": 0, "use_pdl": False,
    }  # fmt: skip
    if problem_class.r:
        wanted |= {"lora_buffer": "dedicated", "lora_tile_k": ALL}
    for name, value in wanted.items():
        if getattr(config, name) != value:
            raise InputError(f"the published kernel has {name}={value}, got {getattr(config, name)}")
    return PublishedKernel(config, problem_class), own._typed_arguments(problem_class)
