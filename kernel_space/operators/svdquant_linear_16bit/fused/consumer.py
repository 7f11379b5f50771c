"""Consumer role of CTAs of y: weights over smooth to registers, wgmma, sums, epilogue.

Register operands take turns, as in ``wide``: two are made ahead of the one that is multiplied, and wgmma of one more
may run. x lies as it is, so the operand is in the order of K: of each eight codes, a word, a lane wants one byte.
"""

import copy
from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, Int64, Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import broadcast_factor, load_shared
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import MMA_ROWS, SF_BLOCK_BYTES, WARP_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.packed import packed_chunk, scale_offset
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import GROUP_THREADS
from kernel_space.operators.svdquant_gemm_16bit.dequant import scale_pair, unpack_pairs
from kernel_space.operators.svdquant_linear_16bit.fused.branch import Branch
from kernel_space.operators.svdquant_linear_16bit.fused.config import OCTET
from kernel_space.operators.svdquant_linear_16bit.fused.layouts import INVERSE, FusedLayouts
from kernel_space.operators.svdquant_linear_16bit.fused.ptx import (
    gather_octets,
    multiply_pair,
    octet_selector,
    pairs_apart,
)
from kernel_space.operators.svdquant_linear_16bit.fused.sums import ClusterSums

OPERANDS, AHEAD = 4, 2  # in rotation; blocks of 16 K between making one and multiplying it
K_BLOCKS = 8  # wgmma instructions along K in a k-tile of 128
SLOT_BLOCKS = 4  # and in one slot of x
PIECES = 4  # of 16 bytes, 32 codes, in a row of a k-tile


class FusedConsumer(Branch, ClusterSums):
    """Mixin with the consumer role; ``_load_affine`` and ``_store`` are an epilogue's, beside it."""

    problem_class: Any
    has_lora: bool

    @cute.jit
    def up_consumers(self, place: Any, store: Any, vectors: Any, n: Int32, buffers: Any):
        """A tile of y, or this CTA's part of it along K; each warpgroup owns ``group_rows`` rows."""
        lay = self._layouts()
        config = self.config
        tidx, _, _ = cute.arch.thread_idx()
        consumer = tidx - GROUP_THREADS
        thread = consumer % GROUP_THREADS
        group = cute.arch.make_warp_uniform(consumer // GROUP_THREADS)
        accs = [cute.make_rmem_tensor(lay.acc_shape, ACC_DTYPE) for _ in range(config.row_blocks)]
        for b in cutlass.range_constexpr(config.row_blocks):
            accs[b].fill(0.0)
        buffers = {**buffers, "affine": cute.make_rmem_tensor((2, 2 * config.row_blocks), Float32)}
        tile_m, tile_n = place["row_tile"], place["column_tile"]
        self._load_affine(lay, vectors, buffers, tile_m, tile_n, n, thread, group)
        self._multiply(lay, place, accs, buffers, thread, group)
        if cutlass.const_expr(config.split_k == 1):
            self._store(lay, accs, buffers, store, tile_m, tile_n, thread, group)
        else:
            strips = self.make_strips()
            self.send_sums(lay, accs, buffers, place["rank"], consumer)
            if cutlass.const_expr(self.has_lora):
                self.add_branch(lay, strips, buffers, thread, group)
            self.add_sums(lay, strips, buffers, consumer)
            self._store_strip(lay, place, strips, buffers, store, thread, group)

    @cute.jit
    def _multiply(self, lay: FusedLayouts, place: Any, accs: Any, buffers: Any, thread: Int32, group: Int32):
        """Products of all k-tiles of this CTA, and of the low-rank branch where the tile is its own."""
        config = self.config
        held = self._registers(lay)
        row = group * lay.group_rows + thread // 32 * WARP_ROWS + cute.arch.lane_idx() // 4
        scale_row = (place["row_tile"] * lay.rows) % 128 + row
        columns = lay.tiled_mma.get_slice(0).partition_B(buffers["dequantized"])
        x = lay.tiled_mma.make_fragment_B(columns)
        lay.tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        ab = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_ab_stage)
        dq = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_dq_stage)
        done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_dq_stage)
        cute.arch.mbarrier_wait(buffers["ab_full"].iterator + ab.index, ab.phase)
        self._load_words(lay, buffers, ab.index, row, scale_row, held)
        self._arrive(buffers["ab_empty"].iterator + ab.index)
        ab.advance()
        for block in cutlass.range_constexpr(AHEAD):
            self._operand(lay, held, block)
        for kt in cutlass.range(place["k_count"], unroll=1):
            for block in cutlass.range_constexpr(K_BLOCKS):
                if cutlass.const_expr(block % SLOT_BLOCKS == 0):
                    cute.arch.mbarrier_wait(buffers["dq_full"].iterator + dq.index, dq.phase)
                if cutlass.const_expr(block == K_BLOCKS - AHEAD):
                    # All words of this k-tile are used up.
                    if kt + 1 < place["k_count"]:
                        cute.arch.mbarrier_wait(buffers["ab_full"].iterator + ab.index, ab.phase)
                        self._load_words(lay, buffers, ab.index, row, scale_row, held)
                for b in cutlass.range_constexpr(config.row_blocks):
                    warpgroup.fence()
                    weights = held["operands"][block % OPERANDS][b][(None, None, 0)]
                    at = (None, None, block % SLOT_BLOCKS, dq.index)
                    cute.gemm(lay.tiled_mma, accs[b], weights, x[at], accs[b])
                    warpgroup.commit_group()
                warpgroup.wait_group((OPERANDS - AHEAD) * config.row_blocks)
                # The slot that the last wgmma but those in flight has read.
                if cutlass.const_expr(block == OPERANDS - AHEAD - 1):
                    if kt > 0:
                        self._arrive(buffers["dq_empty"].iterator + done.index)
                        done.advance()
                if cutlass.const_expr(block == SLOT_BLOCKS + OPERANDS - AHEAD - 1):
                    self._arrive(buffers["dq_empty"].iterator + done.index)
                    done.advance()
                self._operand(lay, held, block + AHEAD)
                if cutlass.const_expr(block == K_BLOCKS - AHEAD):
                    if kt + 1 < place["k_count"]:
                        self._arrive(buffers["ab_empty"].iterator + ab.index)
                        ab.advance()
                if cutlass.const_expr((block + 1) % SLOT_BLOCKS == 0):
                    dq.advance()
        warpgroup.wait_group(0)
        self._arrive(buffers["dq_empty"].iterator + done.index)
        if cutlass.const_expr(self.has_lora and config.split_k == 1):
            self.multiply_branch(lay, accs, buffers, group, dq)

    def _registers(self, lay: FusedLayouts) -> dict[str, Any]:
        """Of a lane: codes of 32 K (piece, row), pairs of 1 / smooth (octet), pairs of factors (block pair, row),
        register operands in rotation.
        """
        rows = 2 * self.config.row_blocks
        shape = lay.tiled_mma.partition_shape_A((MMA_ROWS, 16))
        return {
            "words": cute.make_rmem_tensor((PIECES, rows), Uint32),
            "inverses": cute.make_rmem_tensor((2 * K_BLOCKS,), Uint32),
            "factors": cute.make_rmem_tensor((K_BLOCKS // 2, rows), Uint32),
            "operands": [
                [cute.make_rmem_tensor(shape, lay.half) for _ in range(self.config.row_blocks)]
                for _ in range(OPERANDS)
            ],
        }

    @cute.jit
    def _load_words(
        self, lay: FusedLayouts, buffers: Any, slot: Int32, row: Int32, scale_row: Int32, held: Any
    ):
        """This lane's codes and all factors of its rows, and its columns of 1 / smooth, from one packed slot."""
        quarter = cute.arch.lane_idx() % 4
        selector = octet_selector(quarter)
        codes = buffers["rows"].iterator.toint() + slot * lay.a_bytes
        scales = buffers["row scales"].iterator.toint() + slot * lay.sfa_bytes
        inverses = buffers[INVERSE].iterator.toint() + slot * lay.inverse_bytes + quarter * (2 * K_BLOCKS * 4)
        for first in cutlass.range_constexpr(0, 2 * K_BLOCKS, 4):
            words = load_shared(inverses + first * 4, 4)
            for word in cutlass.range_constexpr(4):
                held["inverses"][first + word] = words[word]
        for i in cutlass.range_constexpr(2 * self.config.row_blocks):
            offset = i // 2 * MMA_ROWS + i % 2 * 8
            for piece in cutlass.range_constexpr(PIECES):
                words = load_shared(codes + packed_chunk(row + offset, piece), 4)
                held["words"][piece, i] = gather_octets(words, selector)
            block = (scale_row + offset) // 128 * (lay.sf_k_blocks * SF_BLOCK_BYTES)
            at = scales + block + scale_offset(scale_row + offset)
            for span in cutlass.range_constexpr(2):
                word = load_shared(at + span * SF_BLOCK_BYTES, 1)[0]
                held["factors"][2 * span, i] = scale_pair(word, is_bf16=lay.is_bf16)
                held["factors"][2 * span + 1, i] = scale_pair(word >> 16, is_bf16=lay.is_bf16)

    def _operand(self, lay: FusedLayouts, held: Any, block: int) -> None:
        """16 K elements of this lane's rows: codes times scales, exact, times 1 / smooth, rounded once."""
        within = block % K_BLOCKS
        for b in range(self.config.row_blocks):
            target = cute.recast_tensor(held["operands"][block % OPERANDS][b], Uint32)
            for half in range(2):
                i = 2 * b + half
                word = pairs_apart(held["words"][within // 2, i], within % 2)
                factor = broadcast_factor(held["factors"][within // 2, i], within % 2)
                for octet, exact in enumerate(unpack_pairs(word, factor, 0, is_bf16=lay.is_bf16)):
                    target[(0, half, octet), 0, 0] = multiply_pair(
                        exact, held["inverses"][2 * within + octet]
                    )

    @cute.jit
    def _store_strip(
        self,
        lay: FusedLayouts,
        place: Any,
        strips: Any,
        buffers: Any,
        store: Any,
        thread: Int32,
        group: Int32,
    ):
        """The epilogue of a tile that is as wide as the strip: y begins at its first row, and ends behind its last."""
        y, m, n = store
        first, count = self.strip(lay, place["rank"])
        narrow = copy.copy(lay)
        narrow.columns = OCTET * self.config.strip_octets
        begin = place["column_tile"] * lay.columns + first * OCTET
        rows = cutlass.min(m - begin, count * OCTET)
        pitch = n // 2 if cutlass.const_expr(lay.gated) else n
        of_strip = (y + Int64(begin) * pitch, rows, n)
        self._store(narrow, strips, buffers, of_strip, place["row_tile"], Int32(0), thread, group)
