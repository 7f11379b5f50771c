"""Consumer role: weights to registers, wgmma, epilogue.

Register operands take turns: two are dequantized ahead of the one that is multiplied, and wgmma of one more may run.
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    DEQUANT_SHIFT,
    broadcast_factor,
    gather_bytes,
    load_shared,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import MMA_ROWS, SF_BLOCK_BYTES, WARP_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.packed import packed_chunk, scale_offset
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_gemm.sm90a_parts.stream_k import StreamKSm90a
from kernel_space.operators.svdquant_gemm_16bit.dequant import scale_pair, unpack_pairs
from kernel_space.operators.svdquant_gemm_16bit.wide.layouts import WideLayouts

OPERANDS, AHEAD = 4, 2  # in rotation; blocks of 16 K between dequantizing one and multiplying it
K_BLOCKS = 8  # wgmma instructions along K in a k-tile of 128
SLOT_BLOCKS = 4  # and in one slot of xs
SPANS = 2  # of 64 K in a k-tile: in each a lane owns 16 elements, one scale
FROM_DEQUANT_SCALE = 2.0**-DEQUANT_SHIFT  # what products with dequantized weights lack


class WideConsumer(StreamKSm90a):
    """Mixin with the consumer role, before ``ExpandedGemmSm90a``, which gives slots back, loads wcscale and stores."""

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
        blocks = range(config.row_blocks)
        accs = [cute.make_rmem_tensor(lay.acc_shape, ACC_DTYPE) for _ in blocks]
        held = self._registers(lay)
        row = group * lay.group_rows + thread // 32 * WARP_ROWS + cute.arch.lane_idx() // 4
        buffers = {**buffers, "affine": cute.make_rmem_tensor((2, 2 * config.row_blocks), Float32)}
        operands = self._operands(lay, buffers, group)
        for mma in (lay.tiled_mma, lay.lora_mma):
            mma.set(warpgroup.Field.ACCUMULATE, True)
        ab = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_ab_stage)
        dq = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_dq_stage)
        done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_dq_stage)
        if cutlass.const_expr(self.has_lora):
            lora = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_lora_stage)
        work, stop, stride, share = self.work_range(tiles)
        while work < stop:
            tile_m, tile_n, split, k_begin, k_count = self.segment(work, tiles, share)
            scale_row = (tile_m * lay.rows) % 128 + row
            self._load_affine(lay, (wcscale, bias), buffers, tile_m, tile_n, n, thread, group)
            for b in cutlass.range_constexpr(config.row_blocks):
                accs[b].fill(0.0)
            cute.arch.mbarrier_wait(buffers["ab_full"].iterator + ab.index, ab.phase)
            self._load_words(lay, buffers, ab.index, row, scale_row, held)
            for block in cutlass.range_constexpr(AHEAD):
                for b in cutlass.range_constexpr(config.row_blocks):
                    self._dequant(held, block, b)
            self._release_packed(buffers["ab_empty"].iterator + ab.index)
            ab.advance()
            if cutlass.const_expr(self.has_lora):
                for _ in cutlass.range(self.lora_slices(split), unroll=1):
                    self._multiply_lora(
                        lay, buffers, operands, accs, lora.index, lora.phase, dq.index, dq.phase
                    )
                    lora.advance()
                    dq.advance()
                    done.advance()
                for b in cutlass.range_constexpr(config.row_blocks):
                    for i in cutlass.range_constexpr(cute.size(accs[b])):
                        accs[b][i] = accs[b][i] * FROM_DEQUANT_SCALE
            for kt in cutlass.range(k_count, unroll=1):
                for step in cutlass.range_constexpr(K_BLOCKS * 16 // config.wgmma_k):
                    first = step * (config.wgmma_k // 16)
                    if cutlass.const_expr(first % SLOT_BLOCKS == 0):
                        cute.arch.mbarrier_wait(buffers["dq_full"].iterator + dq.index, dq.phase)
                    if cutlass.const_expr(first == K_BLOCKS - AHEAD):
                        # All words of this k-tile are used up.
                        if kt + 1 < k_count:
                            cute.arch.mbarrier_wait(buffers["ab_full"].iterator + ab.index, ab.phase)
                            self._load_words(lay, buffers, ab.index, row, scale_row, held)
                    self._multiply_step(lay, buffers, operands, held, accs, first, kt, dq.index, done.index)
                    if cutlass.const_expr(first == K_BLOCKS - AHEAD):
                        if kt + 1 < k_count:
                            self._release_packed(buffers["ab_empty"].iterator + ab.index)
                            ab.advance()
                    if cutlass.const_expr((first + config.wgmma_k // 16) % SLOT_BLOCKS == 0):
                        dq.advance()
                    # The slot that the last wgmma but those in flight has read.
                    if cutlass.const_expr(first == self._release_at):
                        if kt > 0:
                            done.advance()
                    if cutlass.const_expr(first == SLOT_BLOCKS + self._release_at):
                        done.advance()
            warpgroup.wait_group(0)
            self._release_dq(buffers["dq_empty"].iterator + done.index)
            done.advance()
            self._finish_tile(
                lay, accs, buffers, store, workspace, tiles, share, (tile_m, tile_n, split, k_begin, k_count)
            )
            work += stride

    @property
    def _release_at(self) -> int:
        """First block of the step of a slot after whose wait all wgmma of the slot before are done."""
        return OPERANDS - AHEAD - 1 if self.config.wgmma_k == 16 else 0

    def _registers(self, lay: WideLayouts) -> dict[str, Any]:
        """Of a lane: codes (word, row), factors (span, row), register operands in rotation by row block."""
        rows = 2 * self.config.row_blocks
        shape = lay.tiled_mma.partition_shape_A((MMA_ROWS, 16))
        return {
            "words": cute.make_rmem_tensor((2 * SPANS, rows), Uint32),
            "factors": cute.make_rmem_tensor((SPANS, rows), Uint32),
            "operands": [
                [cute.make_rmem_tensor(shape, lay.half) for _ in range(self.config.row_blocks)]
                for _ in range(OPERANDS)
            ],
        }

    def _operands(self, lay: WideLayouts, buffers: Any, group: Any) -> dict[str, Any]:
        """xs in its slots; both sides of LoRA in theirs."""
        columns = lay.tiled_mma.get_slice(0).partition_B(buffers["dequantized"])
        found: dict[str, Any] = {"xs": lay.tiled_mma.make_fragment_B(columns)}
        if self.has_lora:
            thread = lay.lora_mma.get_slice(0)
            first = group * (lay.group_rows // MMA_ROWS)
            tiles = [
                cute.local_tile(buffers["LoRA rows"], (MMA_ROWS, lay.lora_k), (first + b, 0, None))
                for b in range(self.config.row_blocks)
            ]
            found["lora_up"] = [lay.lora_mma.make_fragment_A(thread.partition_A(tile)) for tile in tiles]
            found["lora_act"] = lay.lora_mma.make_fragment_B(thread.partition_B(buffers["LoRA columns"]))
        return found

    @cute.jit
    def _multiply_lora(
        self,
        lay: WideLayouts,
        buffers: Any,
        operands: Any,
        accs: Any,
        slot: Int32,
        phase: Int32,
        columns_slot: Int32,
        columns_phase: Int32,
    ):
        """A slice of R; its columns pass through the ring of xs."""
        cute.arch.mbarrier_wait(buffers["lora_full"].iterator + slot, phase)
        cute.arch.mbarrier_wait(buffers["dq_full"].iterator + columns_slot, columns_phase)
        warpgroup.fence()
        for block in cutlass.range_constexpr(lay.lora_k // 16):
            for b in cutlass.range_constexpr(self.config.row_blocks):
                rows = operands["lora_up"][b][(None, None, block, slot)]
                columns = operands["lora_act"][(None, None, block, columns_slot)]
                cute.gemm(lay.lora_mma, accs[b], rows, columns, accs[b])
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        self._arrive(buffers["lora_empty"].iterator + slot)
        self._release_dq(buffers["dq_empty"].iterator + columns_slot)

    @cute.jit
    def _multiply_step(
        self,
        lay: WideLayouts,
        buffers: Any,
        operands: Any,
        held: Any,
        accs: Any,
        first: cutlass.Constexpr,
        kt: Int32,
        slot: Int32,
        done: Int32,
    ):
        """Blocks ``first`` .. of a k-tile, ``wgmma_k`` elements; meanwhile the blocks ``AHEAD`` are dequantized."""
        config = self.config
        if cutlass.const_expr(config.wgmma_k == 32):
            warpgroup.fence()
            for block in cutlass.range_constexpr(first, first + 2):
                for b in cutlass.range_constexpr(config.row_blocks):
                    self._issue(lay, operands, held, accs, block, b, slot)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            self._give_back(buffers, first, kt, done)
            for block in cutlass.range_constexpr(first + AHEAD, first + AHEAD + 2):
                for b in cutlass.range_constexpr(config.row_blocks):
                    self._dequant(held, block, b)
        else:
            for b in cutlass.range_constexpr(config.row_blocks):
                warpgroup.fence()
                self._issue(lay, operands, held, accs, first, b, slot)
                warpgroup.commit_group()
                warpgroup.wait_group((OPERANDS - AHEAD) * config.row_blocks)
                if cutlass.const_expr(b == config.row_blocks - 1):
                    self._give_back(buffers, first, kt, done)
                self._dequant(held, first + AHEAD, b)

    @cute.jit
    def _give_back(self, buffers: Any, first: cutlass.Constexpr, kt: Int32, done: Int32):
        """The last wgmma that reads the slot of xs before is done; that of a tile's first slot belongs to no one."""
        if cutlass.const_expr(first == self._release_at):
            if kt > 0:
                self._release_dq(buffers["dq_empty"].iterator + done)
        if cutlass.const_expr(first == SLOT_BLOCKS + self._release_at):
            self._release_dq(buffers["dq_empty"].iterator + done)

    def _issue(
        self, lay: WideLayouts, operands: Any, held: Any, accs: Any, block: int, b: int, slot: Any
    ) -> None:
        weights = held["operands"][block % OPERANDS][b][(None, None, 0)]
        columns = operands["xs"][(None, None, block % SLOT_BLOCKS, slot)]
        cute.gemm(lay.tiled_mma, accs[b], weights, columns, accs[b])

    @cute.jit
    def _finish_tile(
        self,
        lay: WideLayouts,
        accs: Any,
        buffers: Any,
        store: Any,
        workspace: cute.Pointer,
        tiles: Any,
        share: Any,
        where: Any,
    ):
        """Sums to the workspace or from it, or straight to y."""
        tile_m, tile_n, split, k_begin, k_count = where
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
        elif cutlass.const_expr(self.split_k == 1):
            self._store(lay, accs, buffers, store, tile_m, tile_n, thread, group)
        else:
            self._write_partials(lay, accs, workspace, tiles, tile_m, tile_n, split, consumer)
            if self._is_last_split(lay, workspace, buffers, tiles, tile_m, tile_n, consumer):
                self._sum_partials(lay, accs, workspace, tiles, tile_m, tile_n, consumer)
                self._store(lay, accs, buffers, store, tile_m, tile_n, thread, group)

    @cute.jit
    def _load_words(
        self, lay: WideLayouts, buffers: Any, slot: Int32, row: Int32, scale_row: Int32, held: Any
    ):
        """This lane's two words and one factor of each span of 64 K of each of its rows, from one packed slot."""
        quad = cute.arch.lane_idx() % 4
        codes = buffers["rows"].iterator.toint() + slot * lay.a_bytes + quad % 2 * 8
        scales = buffers["row scales"].iterator.toint() + slot * lay.sfa_bytes
        own = quad | (quad + 4) << 4  # bytes of two words
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            offset = i // 2 * MMA_ROWS + i % 2 * 8
            begin = codes + packed_chunk(row + offset, quad // 2)
            for span in cutlass.range_constexpr(SPANS):
                # Half a row further on, which the swizzle leaves at one bit.
                loaded = load_shared(begin ^ span * 32, 2)
                for w in cutlass.range_constexpr(2):
                    held["words"][2 * span + w, i] = loaded[w]
            block = (scale_row + offset) // 128 * (lay.sf_k_blocks * SF_BLOCK_BYTES)
            at = scales + block + scale_offset(scale_row + offset)
            low, high = load_shared(at, 1)[0], load_shared(at + SF_BLOCK_BYTES, 1)[0]
            pair = scale_pair(gather_bytes(low, high, own), is_bf16=lay.is_bf16)
            for span in cutlass.range_constexpr(SPANS):
                held["factors"][span, i] = broadcast_factor(pair, span)

    def _dequant(self, held: Any, block: int, rows: int) -> None:
        """16 K elements of this lane's two rows of row block ``rows`` into the operand of block ``block``."""
        block_of_tile = block % K_BLOCKS
        target = cute.recast_tensor(held["operands"][block % OPERANDS][rows], Uint32)
        for half in range(2):
            i = 2 * rows + half
            word, factor = held["words"][block_of_tile // 2, i], held["factors"][block_of_tile // 4, i]
            pairs = unpack_pairs(word, factor, block_of_tile % 2, is_bf16=self.problem_class.dtype == "bf16")
            for k_octet in range(2):
                target[(0, half, k_octet), 0, 0] = pairs[k_octet]
