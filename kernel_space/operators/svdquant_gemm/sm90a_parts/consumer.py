"""Consumer role: row operand to registers, wgmma, epilogue."""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    FROM_DEQUANT_SCALE,
    broadcast_factor,
    load_shared,
    load_shared_u16,
    scale_pair,
    unpack_half,
    unpack_pairs,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    DQ_DTYPE,
    MMA_ROWS,
    SF_BLOCK_BYTES,
    WARP_ROWS,
    LayoutsSm90a,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.packed import packed_chunk, scale_offset
from kernel_space.operators.svdquant_gemm.sm90a_parts.pingpong import FIRST_BARRIER, PingpongSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_parts.stream_k import StreamKSm90a

K_BLOCKS = 8  # wgmma instructions along K in a k-tile of 128
DQ_BLOCKS = 4  # and in one dq slot


class ConsumerSm90a(PingpongSm90a, StreamKSm90a):
    """Mixin with the consumer role. ``_load_affine`` and ``_store`` are an epilogue's, beside it."""

    @cute.jit
    def consumer_warps(self, tiles: Any, store: Any, pointers: Any, n: Int32, buffers: Any):
        """Multiply and store every tile of this CTA; each warpgroup owns ``group_rows`` rows of it, or with ping-pong
        all rows of every second one.
        """
        lay = self._layouts()
        config = self.config
        operands, ahead = self.rotation
        wcscale, bias, workspace = pointers
        tidx, _, _ = cute.arch.thread_idx()
        consumer = tidx - GROUP_THREADS * (1 + lay.num_dequant_groups)
        thread = consumer % GROUP_THREADS
        group = cute.arch.make_warp_uniform(consumer // GROUP_THREADS)
        lane = cute.arch.lane_idx()
        quad_row = thread // 32 * WARP_ROWS + lane // 4  # of the accumulator: this row and the 8th after it
        tiled_mma, lora_mma = lay.tiled_mma, lay.lora_mma
        thr_mma = tiled_mma.get_slice(0)
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(buffers["dequantized"]))
        blocks = range(config.row_blocks)
        accs = [cute.make_rmem_tensor(lay.acc_shape, ACC_DTYPE) for _ in blocks]
        frag_shape = tiled_mma.partition_shape_A((MMA_ROWS, 16))
        frags = [[cute.make_rmem_tensor(frag_shape, DQ_DTYPE) for _ in blocks] for _ in range(operands)]
        # wgmma that may still run when the operand of the oldest one is overwritten.
        pending = (operands - ahead) * config.row_blocks
        rows_per_thread = 2 * config.row_blocks
        words = cute.make_rmem_tensor((4, rows_per_thread), Uint32)
        factors = cute.make_rmem_tensor((2 if lay.expanded else 1, rows_per_thread), Uint32)
        if cutlass.const_expr(lay.expanded):
            buffers = {**buffers, "affine": cute.make_rmem_tensor((2, rows_per_thread), Float32)}
        if cutlass.const_expr(self.has_lora):
            lora_thr = lora_mma.get_slice(0)
            tCrLA = []
            for b in blocks:
                sLA = cute.local_tile(
                    buffers["LoRA rows"],
                    (MMA_ROWS, lay.lora_k),
                    (group * (lay.rows_between_groups // MMA_ROWS) + b, 0, None),
                )
                tCrLA.append(lora_mma.make_fragment_A(lora_thr.partition_A(sLA)))
            tCrLB = lora_mma.make_fragment_B(lora_thr.partition_B(buffers["LoRA columns"]))
            lora_full, lora_empty = buffers["lora_full"].iterator, buffers["lora_empty"].iterator
            lora = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_lora_stage)
            lora_mma.set(warpgroup.Field.ACCUMULATE, True)
        tiled_mma.set(warpgroup.Field.ACCUMULATE, True)

        ab_full, ab_empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        dq_full, dq_empty = buffers["dq_full"].iterator, buffers["dq_empty"].iterator
        ab = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_ab_stage)
        dq = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_dq_stage)
        done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_dq_stage)
        row = group * lay.rows_between_groups + quad_row
        work, stop, stride, share = self.work_range(tiles)
        first, hop = work, stride
        if cutlass.const_expr(config.pingpong):
            # The slots of a tile, which are passed over where it is the other warpgroup's.
            ab_slots, dq_slots, lora_slots = self.slots_of_tile(tiles[2])
            ab.advance(group * ab_slots)
            dq.advance(group * dq_slots)
            done.advance(group * dq_slots)
            if cutlass.const_expr(self.has_lora):
                lora.advance(group * lora_slots)
            work, hop = first + group * stride, 2 * stride
        while work < stop:
            tile_m, tile_n, split, k_begin, k_count = self.segment(work, tiles, share)
            scale_row = (tile_m * lay.rows) % 128 + row
            self._load_affine(lay, (wcscale, bias), buffers, tile_m, tile_n, n, thread, group)
            for b in cutlass.range_constexpr(config.row_blocks):
                accs[b].fill(0.0)
            if cutlass.const_expr(config.pingpong):
                if work != first:
                    self.wait_for_turn(group)

            cute.arch.mbarrier_wait(ab_full + ab.index, ab.phase)
            self._load_words(lay, buffers, ab.index, row, scale_row, words, factors)
            for block in cutlass.range_constexpr(ahead):
                for b in cutlass.range_constexpr(config.row_blocks):
                    self._dequant(words, factors, frags[block % operands][b], block, b)
            self._release_packed(ab_empty + ab.index)
            ab.advance()
            if cutlass.const_expr(self.has_lora):
                slices = self.lora_slices(split)
                for _ in cutlass.range(slices, unroll=1):
                    cute.arch.mbarrier_wait(lora_full + lora.index, lora.phase)
                    columns_slot = lora.index
                    if cutlass.const_expr(lay.expanded):
                        cute.arch.mbarrier_wait(dq_full + dq.index, dq.phase)
                        columns_slot = dq.index
                    warpgroup.fence()
                    for block in cutlass.range_constexpr(lay.lora_k // 16):
                        for b in cutlass.range_constexpr(config.row_blocks):
                            rows, columns = tCrLA[b], tCrLB[(None, None, block, columns_slot)]
                            cute.gemm(
                                lora_mma, accs[b], rows[(None, None, block, lora.index)], columns, accs[b]
                            )
                    warpgroup.commit_group()
                    warpgroup.wait_group(0)
                    self._arrive(lora_empty + lora.index)
                    lora.advance()
                    if cutlass.const_expr(lay.expanded):
                        self._release_dq(dq_empty + dq.index)
                        dq.advance()
                        done.advance()
                for b in cutlass.range_constexpr(config.row_blocks):
                    for i in cutlass.range_constexpr(cute.size(accs[b])):
                        accs[b][i] = accs[b][i] * FROM_DEQUANT_SCALE

            if cutlass.const_expr(config.wgmma_k == 32):
                for kt in cutlass.range(k_count, unroll=1):
                    for step in cutlass.range_constexpr(K_BLOCKS // 2):
                        if cutlass.const_expr(step % 2 == 0):
                            cute.arch.mbarrier_wait(dq_full + dq.index, dq.phase)
                        warpgroup.fence()
                        for block in cutlass.range_constexpr(2 * step, 2 * step + 2):
                            for b in cutlass.range_constexpr(config.row_blocks):
                                cute.gemm(
                                    tiled_mma,
                                    accs[b],
                                    frags[block % operands][b][(None, None, 0)],
                                    tCrB[(None, None, block % DQ_BLOCKS, dq.index)],
                                    accs[b],
                                )
                        warpgroup.commit_group()
                        warpgroup.wait_group(1)
                        if cutlass.const_expr(step == 0):
                            if kt > 0:
                                self._release_dq(dq_empty + done.index)
                                done.advance()
                        if cutlass.const_expr(step == 2):
                            self._release_dq(dq_empty + done.index)
                            done.advance()
                        for block in cutlass.range_constexpr(2 * step + 2, 2 * step + 4):
                            for b in cutlass.range_constexpr(config.row_blocks):
                                self._dequant(words, factors, frags[block % operands][b], block % K_BLOCKS, b)
                        if cutlass.const_expr(step == 2):
                            if kt + 1 < k_count:
                                cute.arch.mbarrier_wait(ab_full + ab.index, ab.phase)
                                self._load_words(lay, buffers, ab.index, row, scale_row, words, factors)
                        if cutlass.const_expr(step == 2 and config.pingpong):
                            if kt + 1 == k_count and work + stride < stop:
                                self.pass_turn(group)
                        if cutlass.const_expr(step == 3):
                            if kt + 1 < k_count:
                                self._release_packed(ab_empty + ab.index)
                                ab.advance()
                        if cutlass.const_expr(step % 2 == 1):
                            dq.advance()
            else:
                for kt in cutlass.range(k_count, unroll=1):
                    for block in cutlass.range_constexpr(K_BLOCKS):
                        if cutlass.const_expr(block % DQ_BLOCKS == 0):
                            cute.arch.mbarrier_wait(dq_full + dq.index, dq.phase)
                        if cutlass.const_expr(block == K_BLOCKS - ahead):
                            # All words of this k-tile are used up.
                            if kt + 1 < k_count:
                                cute.arch.mbarrier_wait(ab_full + ab.index, ab.phase)
                                self._load_words(lay, buffers, ab.index, row, scale_row, words, factors)
                            if cutlass.const_expr(config.pingpong):
                                if kt + 1 == k_count and work + stride < stop:
                                    self.pass_turn(group)
                        for b in cutlass.range_constexpr(config.row_blocks):
                            warpgroup.fence()
                            cute.gemm(
                                tiled_mma,
                                accs[b],
                                frags[block % operands][b][(None, None, 0)],
                                tCrB[(None, None, block % DQ_BLOCKS, dq.index)],
                                accs[b],
                            )
                            warpgroup.commit_group()
                            warpgroup.wait_group(pending)
                            if cutlass.const_expr(
                                block % DQ_BLOCKS == operands - ahead - 1 and b == config.row_blocks - 1
                            ):
                                # The last wgmma that reads the previous dq slot is done.
                                if cutlass.const_expr(block < DQ_BLOCKS):
                                    if kt > 0:
                                        self._release_dq(dq_empty + done.index)
                                        done.advance()
                                else:
                                    self._release_dq(dq_empty + done.index)
                                    done.advance()
                            self._dequant(
                                words,
                                factors,
                                frags[(block + ahead) % operands][b],
                                (block + ahead) % K_BLOCKS,
                                b,
                            )
                        if cutlass.const_expr(block == K_BLOCKS - ahead):
                            if kt + 1 < k_count:
                                self._release_packed(ab_empty + ab.index)
                                ab.advance()
                        if cutlass.const_expr(block % DQ_BLOCKS == DQ_BLOCKS - 1):
                            dq.advance()
            warpgroup.wait_group(0)
            self._release_dq(dq_empty + done.index)
            done.advance()

            if cutlass.const_expr(self.stream_k):
                if k_begin + k_count < tiles[2]:
                    self._publish_part(accs, workspace, consumer)
                else:
                    if k_begin > 0:
                        self._add_parts(accs, workspace, tiles, share, consumer)
                    self._store(lay, accs, buffers, store, tile_m, tile_n, thread, group)
            elif cutlass.const_expr(self.split_k == 1):
                self._store(lay, accs, buffers, store, tile_m, tile_n, thread, group)
            else:
                self._write_partials(lay, accs, workspace, tiles, tile_m, tile_n, split, consumer)
                if self._is_last_split(lay, workspace, buffers, tiles, tile_m, tile_n, consumer):
                    self._sum_partials(lay, accs, workspace, tiles, tile_m, tile_n, consumer)
                    self._store(lay, accs, buffers, store, tile_m, tile_n, thread, group)
            if cutlass.const_expr(not lay.expanded):
                # The next tile overwrites wcscale and bias.
                cute.arch.barrier(barrier_id=FIRST_BARRIER + group, number_of_threads=GROUP_THREADS)
            if cutlass.const_expr(config.pingpong):
                ab.advance(ab_slots)
                dq.advance(dq_slots)
                done.advance(dq_slots)
                if cutlass.const_expr(self.has_lora):
                    lora.advance(lora_slots)
            work += hop
        if cutlass.const_expr(not lay.expanded):
            cute.arch.cp_async_bulk_wait_group(0, read=True)

    def _release_dq(self, barrier: Any) -> None:
        """Give a dq slot back, once this warp's wgmma that read it are done."""
        self._arrive(barrier)

    def _release_packed(self, barrier: Any) -> None:
        """Give a packed slot back. The fence waits for this thread's loads from it and orders them before TMA, another
        proxy, overwrites it. Without it single rows of a tile were wrong about once in a hundred launches (H200).
        """
        cute.arch.fence_proxy("async.shared", space="cta")
        self._arrive(barrier)

    @cute.jit
    def _load_words(
        self,
        lay: LayoutsSm90a,
        buffers: Any,
        slot: Int32,
        row: Int32,
        scale_row: Int32,
        words: Any,
        factors: Any,
    ):
        """This lane's 32 codes and two scale factors of each of its rows, from one packed slot."""
        quad = cute.arch.lane_idx() % 4
        codes = buffers["rows"].iterator.toint() + slot * lay.a_bytes
        scales = buffers["row scales"].iterator.toint() + slot * lay.sfa_bytes
        scales = scales + quad // 2 * SF_BLOCK_BYTES + quad % 2 * 2
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            offset = i // 2 * MMA_ROWS + i % 2 * 8
            loaded = load_shared(codes + packed_chunk(row + offset, quad), 4)
            for w in cutlass.range_constexpr(4):
                words[w, i] = loaded[w]
            block = (scale_row + offset) // 128 * (lay.sf_k_blocks * SF_BLOCK_BYTES)
            pair = scale_pair(load_shared_u16(scales + block + scale_offset(scale_row + offset)))
            factors[0, i] = pair
            if cutlass.const_expr(lay.expanded):
                factors[0, i] = broadcast_factor(pair, 0)
                factors[1, i] = broadcast_factor(pair, 1)

    def _dequant(
        self, words: cute.Tensor, factors: cute.Tensor, frag: cute.Tensor, block: int, rows: int
    ) -> None:
        """16 K elements of this lane's two rows of row block ``rows`` into the register operand of one wgmma."""
        target = cute.recast_tensor(frag, Uint32)
        for half in range(2):
            i = 2 * rows + half
            word, half_of_k = words[block // 2, i], block // DQ_BLOCKS
            if self.config.expands_act:
                pairs = unpack_pairs(word, factors[half_of_k, i], block % 2, pinned=True)
            else:
                pairs = unpack_half(word, factors[0, i], half_of_k, block % 2)
            for k_octet in range(2):
                target[(0, half, k_octet), 0, 0] = pairs[k_octet]
