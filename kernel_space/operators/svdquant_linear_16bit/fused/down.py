"""CTAs of the low-rank branch: lora_act_in.T = lora_down.T @ x.T, both operands from shared memory.

They have the grid's first clusters and the x of every other CTA; lora_down comes in its own slots, in the place of
packed weights. What each CTA of a cluster has added up it rounds once, stores, and counts itself as ready.
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import prefetch_global_if
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import MMA_ROWS, SWIZZLE_ALIGN, WARP_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import ALL_BARRIER, GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import store_global_halves
from kernel_space.operators.svdquant_linear_16bit.fused.config import OCTET
from kernel_space.operators.svdquant_linear_16bit.fused.layouts import HALF_BYTES, FusedLayouts
from kernel_space.operators.svdquant_linear_16bit.fused.ptx import copy_bulk, fence_proxies
from kernel_space.operators.svdquant_linear_16bit.fused.sums import ClusterSums
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import round_pair

SLOTS = 2  # of 64 K in a k-tile
BLOCKS = 4  # of 16 K in a slot


class DownRoles(ClusterSums):
    """Mixin with the roles of such a CTA that other CTAs have not."""

    config: Any
    problem_class: Any

    @cute.jit
    def down_warp(self, place: Any, lora_down: Any, buffers: Any):
        """Chunks of 64 K of this CTA's columns of packed lora_down, in the order of K."""
        lay = self._layouts()
        full, empty = buffers["down_full"].iterator, buffers["down_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, lay.down_slots)
        row = place["row_tile"] * lay.rows
        row_bytes = lay.down_bytes // lay.rows
        size = cutlass.min(Int32(lay.r) - row, Int32(lay.rows)) * row_bytes
        first = place["k_begin"] * SLOTS
        # What the ring has no room for yet comes into the L2: it is a weight.
        lane = cute.arch.lane_idx()
        for i in cutlass.range(Int32(lay.down_slots), place["slots"], unroll=1):
            chunk = lora_down.toint() + (Int64(first + i) * lay.r + row) * row_bytes
            for line in cutlass.range_constexpr(0, lay.rows, 32):
                own = line + lane
                prefetch_global_if(chunk + Int64(own * row_bytes), Int32(own * row_bytes < size))
        for i in cutlass.range(place["slots"], unroll=1):
            slot = state.index
            cute.arch.mbarrier_wait(empty + slot, state.phase)
            chunk = first + i
            barrier = full + slot
            source = lora_down.toint() + (Int64(chunk) * lay.r + row) * row_bytes
            target = buffers["rows"].iterator.toint() + slot * lay.down_bytes
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, size)
                copy_bulk(target, source, size, barrier.toint())
            state.advance()

    @cute.jit
    def down_consumers(self, place: Any, pointers: Any, buffers: Any):
        """Multiply, add up, store and say so."""
        lay = self._layouts()
        lora_act_in, ready, m = pointers
        tidx, _, _ = cute.arch.thread_idx()
        consumer = tidx - GROUP_THREADS
        group = cute.arch.make_warp_uniform(consumer // GROUP_THREADS)
        accs = [cute.make_rmem_tensor(lay.acc_shape, ACC_DTYPE) for _ in range(self.config.row_blocks)]
        for b in cutlass.range_constexpr(self.config.row_blocks):
            accs[b].fill(0.0)
        self._multiply_down(lay, place, accs, buffers, group)
        strips = accs
        if cutlass.const_expr(self.split_k > 1):
            strips = self.make_strips()
            self.send_sums(lay, accs, buffers, place["rank"], consumer)
            self.add_sums(lay, strips, buffers, consumer)
        self._store_down(lay, place, strips, lora_act_in, m, consumer % GROUP_THREADS, group)
        # All of the CTA's stores are part of what one thread releases.
        if cutlass.const_expr(self.split_k == 1):
            # They are read by TMA.
            fence_proxies()
        threads = GROUP_THREADS * self.config.consumer_warpgroups
        cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=threads)
        if consumer == 0:
            cute.arch.atomic_add(ready, Int32(1), sem="release", scope="gpu")

    @cute.jit
    def _multiply_down(self, lay: FusedLayouts, place: Any, accs: Any, buffers: Any, group: Int32):
        config = self.config
        thread = lay.lora_mma.get_slice(0)
        slots = cute.recast_ptr(buffers["rows"].iterator.align(SWIZZLE_ALIGN), lay.down.inner, dtype=lay.half)
        rows_of_slots = cute.make_tensor(slots, lay.down.outer)
        first = group * (lay.group_rows // MMA_ROWS)
        rows = []
        for b in cutlass.range_constexpr(config.row_blocks):
            tile = cute.local_tile(rows_of_slots, (MMA_ROWS, BLOCKS * 16), (first + b, 0, None))
            rows.append(lay.lora_mma.make_fragment_A(thread.partition_A(tile)))
        columns = lay.lora_mma.make_fragment_B(thread.partition_B(buffers["dequantized"]))
        mma = lay.lora_mma
        mma.set(warpgroup.Field.ACCUMULATE, True)
        down = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.down_slots)
        dq = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_dq_stage)
        down_done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.down_slots)
        dq_done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_dq_stage)
        for i in cutlass.range(place["slots"], unroll=1):
            cute.arch.mbarrier_wait(buffers["down_full"].iterator + down.index, down.phase)
            cute.arch.mbarrier_wait(buffers["dq_full"].iterator + dq.index, dq.phase)
            warpgroup.fence()
            for block in cutlass.range_constexpr(BLOCKS):
                for b in cutlass.range_constexpr(config.row_blocks):
                    a, x = rows[b][(None, None, block, down.index)], columns[(None, None, block, dq.index)]
                    cute.gemm(mma, accs[b], a, x, accs[b])
            warpgroup.commit_group()
            # All but these are done: the slots before are nobody's.
            warpgroup.wait_group(1)
            if i > 0:
                self._arrive(buffers["down_empty"].iterator + down_done.index)
                self._arrive(buffers["dq_empty"].iterator + dq_done.index)
                down_done.advance()
                dq_done.advance()
            down.advance()
            dq.advance()
        warpgroup.wait_group(0)

    @cute.jit
    def _store_down(
        self,
        lay: FusedLayouts,
        place: Any,
        strips: Any,
        lora_act_in: Any,
        m: Int32,
        thread: Int32,
        group: Int32,
    ):
        """One rounding. A lane has two rows of lora_act_in, neighbours, of two of its columns."""
        lane = cute.arch.lane_idx()
        begin, count = Int32(0), Int32(lay.columns // OCTET)
        if cutlass.const_expr(self.split_k > 1):
            begin, count = self.strip(lay, place["rank"])
        first = place["row_tile"] * lay.rows + group * lay.group_rows + thread // 32 * WARP_ROWS + lane // 4
        token = place["column_tile"] * lay.columns + begin * OCTET + lane % 4 * 2
        pitch = lay.r * HALF_BYTES
        for b in cutlass.range_constexpr(self.config.row_blocks):
            for i in cutlass.range_constexpr(cute.size(strips[b]) // 4):
                for half in cutlass.range_constexpr(2):
                    column, row = first + b * MMA_ROWS + half * 8, token + i * OCTET
                    low, high = strips[b][(0, half, i), 0, 0], strips[b][(1, half, i), 0, 0]
                    word = round_pair(low, high, is_bf16=lay.is_bf16)
                    exists = Int32(column < lay.r) & Int32(count > i)
                    wanted = [exists & Int32(row < m), exists & Int32(row + 1 < m)]
                    address = lora_act_in.toint() + Int64(row) * pitch + column * HALF_BYTES
                    store_global_halves(address, pitch, word, wanted)
