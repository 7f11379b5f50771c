"""Consumer role of the second kernel of ``merged_fp8``: products of FP8 summed in the tensor core, then in fp32.

An sm_90 tensor core keeps 13 bits behind the first of the largest of what it adds in one instruction, and cuts the rest
off: of 3840 products of one sign 6 % are lost, of 12288 19 % (measured, H100, docs/evidence/kernel_fp8.md). So it sums
``PROMOTED`` k-tiles at most, which are then added to sums in fp32 registers. The second warpgroup adds two k-tiles away
from the first one, so that the tensor core always has one of them.
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_linear_16bit.merged.product import K_BLOCKS, Product
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.layouts import ProductFp8Layouts
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.store import StoreFp8

PROMOTED = 4  # k-tiles of 128


class ProductFp8(StoreFp8, Product):
    """Mixin with both roles and the epilogue."""

    def _layouts(self) -> ProductFp8Layouts:
        return ProductFp8Layouts(self.config, self.problem_class)

    @cute.jit
    def consumer_warps(self, tiles: Any, store: Any, pointers: Any, n: Int32, buffers: Any):
        """Multiply and store every tile of this CTA; each warpgroup owns ``group_rows`` rows of it."""
        lay = self._layouts()
        config = self.config
        wcscale, bias, workspace = pointers
        tidx, _, _ = cute.arch.thread_idx()
        consumer = tidx - GROUP_THREADS
        thread = consumer % GROUP_THREADS
        group = cute.arch.make_warp_uniform(consumer // GROUP_THREADS)
        accs, parts = self._registers(lay), self._registers(lay)
        buffers = {**buffers, "affine": cute.make_rmem_tensor((2, 2 * config.row_blocks), Float32)}
        rows, columns = self._operands(lay, buffers, group)
        lay.tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        ab = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_ab_stage)
        done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_ab_stage)
        full, empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        work, stop, stride, share = self.work_range(tiles)
        while work < stop:
            tile_m, tile_n, split, k_begin, k_count = self.segment(work, tiles, share)
            self._load_affine(lay, (wcscale, bias), buffers, tile_m, tile_n, n, thread, group)
            for acc in accs:
                acc.fill(0.0)
            left = k_count
            most = PROMOTED - group * (PROMOTED // 2)
            while left > 0:
                count = cutlass.min(left, most)
                for part in parts:
                    part.fill(0.0)
                for i in cutlass.range(count, unroll=1):
                    cute.arch.mbarrier_wait(full + ab.index, ab.phase)
                    warpgroup.fence()
                    for block in cutlass.range_constexpr(K_BLOCKS):
                        for b in cutlass.range_constexpr(config.row_blocks):
                            at = (None, None, block, ab.index)
                            cute.gemm(lay.tiled_mma, parts[b], rows[b][at], columns[at], parts[b])
                    warpgroup.commit_group()
                    # All but these are done: the slot before is nobody's.
                    warpgroup.wait_group(1)
                    if i > 0:
                        self._release(empty + done.index)
                        done.advance()
                    ab.advance()
                warpgroup.wait_group(0)
                self._release(empty + done.index)
                done.advance()
                self._promote(accs, parts)
                left -= count
                most = Int32(PROMOTED)
            self._finish_tile(
                lay, accs, buffers, store, workspace, tiles, share, (tile_m, tile_n, k_begin, k_count)
            )
            work += stride

    def _registers(self, lay: ProductFp8Layouts) -> list[Any]:
        """Accumulators of each row block."""
        return [cute.make_rmem_tensor(lay.acc_shape, ACC_DTYPE) for _ in range(self.config.row_blocks)]

    @staticmethod
    def _promote(accs: list[Any], parts: list[Any]) -> None:
        for sums, more in zip(accs, parts, strict=True):
            for i in range(cute.size(sums)):
                sums[i] = sums[i] + more[i]
