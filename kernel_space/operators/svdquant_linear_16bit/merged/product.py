"""Roles of the second kernel of ``merged``: y.T = merged weights @ x.T, both operands from shared memory."""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.barriers import BarriersSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_parts.stream_k import StreamKSm90a
from kernel_space.operators.svdquant_linear_16bit.merged.config import MergingConfig
from kernel_space.operators.svdquant_linear_16bit.merged.layouts import ProductLayouts

K_BLOCKS = 4  # wgmma instructions along K in a slot: each takes 32 bytes of a row of 128


class Product(StreamKSm90a, BarriersSm90a):
    """Mixin with both roles; ``_load_affine`` and ``_store`` are an epilogue's, beside it."""

    config: MergingConfig

    @cute.jit
    def loading_warp(self, tiles: Any, atoms: Any, tensors: Any, buffers: Any):
        """Fill the ring for every tile of this CTA."""
        lay = self._layouts()
        weights, gathered = self._partition(atoms[0], buffers["weights"], tensors[0], (lay.rows, lay.k))
        slots, columns = self._partition(atoms[1], buffers["x"], tensors[1], (lay.columns, lay.k))
        full, empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_ab_stage)
        shape_m, shape_n = self.config.cluster_shape_mn
        # Weights come from the first kernel, x from the kernel before that, which the first one has waited for.
        cute.arch.griddepcontrol_wait()
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_launch_dependents()
        work, stop, stride, share = self.work_range(tiles)
        while work < stop:
            tile_m, tile_n, _, k_begin, k_count = self.segment(work, tiles, share)
            for kt in cutlass.range(k_begin, k_begin + k_count, unroll=1):
                slot = state.index
                barrier = full + slot
                cute.arch.mbarrier_wait(empty + slot, state.phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(barrier, lay.slot_bytes)
                # With 1x2 both CTAs have the same weights, with 2x1 the same x.
                self._load(
                    atoms[0], gathered[(None, tile_m, kt)], weights[(None, slot)], barrier, kt, shape_n
                )
                self._load(atoms[1], columns[(None, tile_n, kt)], slots[(None, slot)], barrier, kt, shape_m)
                state.advance()
            work += stride

    @cute.jit
    def _load(
        self, atom: Any, source: Any, target: Any, barrier: Any, piece: Int32, sharers: cutlass.Constexpr
    ):
        """A box into this CTA; one that both of a cluster want each loads every second time for both."""
        if cutlass.const_expr(sharers == 1):
            cute.copy(atom, source, target, tma_bar_ptr=barrier)
        else:
            if piece % sharers == self._rank():
                mask = cutlass.Int16((1 << sharers) - 1)
                cute.copy(atom, source, target, tma_bar_ptr=barrier, mcast_mask=mask)

    @staticmethod
    def _rank() -> Any:
        """Of this CTA in its cluster, which is one of a row or of a column."""
        row, column, _ = cute.arch.block_idx()
        return row + column

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
        accs = [cute.make_rmem_tensor(lay.acc_shape, ACC_DTYPE) for _ in range(config.row_blocks)]
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
            for b in cutlass.range_constexpr(config.row_blocks):
                accs[b].fill(0.0)
            for kt in cutlass.range(k_count, unroll=1):
                cute.arch.mbarrier_wait(full + ab.index, ab.phase)
                warpgroup.fence()
                for block in cutlass.range_constexpr(K_BLOCKS):
                    for b in cutlass.range_constexpr(config.row_blocks):
                        at = (None, None, block, ab.index)
                        cute.gemm(lay.tiled_mma, accs[b], rows[b][at], columns[at], accs[b])
                warpgroup.commit_group()
                # All but these are done: the slot before is nobody's.
                warpgroup.wait_group(1)
                if kt > 0:
                    self._release(empty + done.index)
                    done.advance()
                ab.advance()
            warpgroup.wait_group(0)
            self._release(empty + done.index)
            done.advance()
            self._finish_tile(
                lay, accs, buffers, store, workspace, tiles, share, (tile_m, tile_n, k_begin, k_count)
            )
            work += stride

    def _operands(self, lay: ProductLayouts, buffers: Any, group: Any) -> tuple[list[Any], Any]:
        """Merged weights of this warpgroup's blocks of 64 rows, and x, in every slot."""
        thread = lay.tiled_mma.get_slice(0)
        first = group * self.config.row_blocks
        blocks = [
            cute.local_tile(buffers["weights"], (MMA_ROWS, lay.k), (first + b, 0, None))
            for b in range(self.config.row_blocks)
        ]
        rows = [lay.tiled_mma.make_fragment_A(thread.partition_A(block)) for block in blocks]
        return rows, lay.tiled_mma.make_fragment_B(thread.partition_B(buffers["x"]))

    @cute.jit
    def _finish_tile(
        self,
        lay: ProductLayouts,
        accs: Any,
        buffers: Any,
        store: Any,
        workspace: cute.Pointer,
        tiles: Any,
        share: Any,
        where: Any,
    ):
        """Sums to the workspace, or with what is there to y."""
        tile_m, tile_n, k_begin, k_count = where
        tidx, _, _ = cute.arch.thread_idx()
        consumer = tidx - GROUP_THREADS
        thread = consumer % GROUP_THREADS
        group = cute.arch.make_warp_uniform(consumer // GROUP_THREADS)
        if cutlass.const_expr(self.stream_k):
            if k_begin + k_count < tiles[2]:
                self._publish_part(accs, workspace, consumer)
            else:
                if k_begin > 0:
                    self._add_parts(accs, workspace, tiles, share, consumer)
                self._store(lay, accs, buffers, store, tile_m, tile_n, thread, group)
        else:
            self._store(lay, accs, buffers, store, tile_m, tile_n, thread, group)

    @cute.jit
    def _release(self, barrier: Any):
        """Tell every CTA that loads for this one; lane r tells CTA r of the cluster."""
        if cutlass.const_expr(self.config.cluster_size == 1):
            self._arrive(barrier)
        else:
            cute.arch.sync_warp()
            lane = cute.arch.lane_idx()
            if lane < self.config.cluster_size:
                cute.arch.mbarrier_arrive(barrier, lane)

    def _arrivals(self, lay: Any) -> dict[str, int]:
        return {"ab_full": 1, "ab_empty": lay.num_reading_warps * self.config.cluster_size}

    def _lora_units(self) -> int:
        """What stream-K deals out is K alone: the low-rank branch is in the weights."""
        return 0

    def _cta(self, cluster: Any) -> Any:
        return cluster * self.config.cluster_size + self._rank()
