"""Producer roles of ``svdquant_gemm_sm90a``: TMA loads, and the warps that dequantize the column operand."""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.kernels.dequant_sm90a import load_shared, scale_pairs, store_shared, unpack_word
from kernel_space.kernels.layouts_sm90a import DQ_K, SF_BLOCK_BYTES, LayoutsSm90a
from kernel_space.kernels.tile_walk import TileWalk

GROUP_THREADS = 128
QUADS = 4  # lanes of a quad: each owns a 32-element piece of a row of 128
DQ_ROW_BYTES = DQ_K * 2


def packed_chunk(row: Any, quad: Any) -> Any:
    """Byte offset of 16-byte piece ``quad`` of a 64-byte row in a 64-byte-swizzled packed slot."""
    return row * 64 + ((quad ^ ((row >> 1) & 3)) << 4)


def scale_offset(row: Any) -> Any:
    """Byte offset of the four scale factors of ``row`` in the first K block of a slot of scale factors."""
    return (row % 32) * 16 + (row % 128) // 32 * 4


def dq_chunk(slot: Any, row: Any, chunk: Any) -> Any:
    """Address of 16-byte piece ``chunk`` of a 128-byte row in a 128-byte-swizzled dq slot."""
    return slot + row * DQ_ROW_BYTES + ((chunk ^ (row & 7)) << 4)


class ProducerSm90a(TileWalk):
    """Mixin with the TMA and dequantizing roles."""

    @cute.jit
    def tma_warp(self, tiles: Any, atoms: Any, tensors: Any, buffers: Any):
        """Fill the ab ring for every tile of this CTA."""
        lay = self._layouts()
        tma_a, tma_b, tma_sfa, tma_sfb = atoms
        mA, mB, mSFA, mSFB = tensors
        tAsA, tAgA = self._partition(tma_a, buffers["rows"], mA, (lay.rows, lay.k // 2))
        tBsB, tBgB = self._partition(tma_b, buffers["columns"], mB, (lay.columns, lay.k // 2))
        tAsSFA, tAgSFA = self._partition_scales(lay, tma_sfa, buffers["row scales"], mSFA, lay.sfa_row_blocks)
        tBsSFB, tBgSFB = self._partition_scales(lay, tma_sfb, buffers["column scales"], mSFB, lay.sfb_row_blocks)
        full, empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_ab_stage)
        _, _, work = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        num_work = tiles[0] * tiles[1] * self.split_k
        while work < num_work:
            tile_m, tile_n, split = self.tile_coord(work, tiles)
            k_begin, k_count = self.k_range(split, tiles[2])
            sf_m, sf_n = tile_m * lay.rows // 128, tile_n * lay.columns // 128
            for kt in cutlass.range(k_begin, k_begin + k_count, unroll=1):
                slot = state.index
                barrier = full + slot
                cute.arch.mbarrier_wait(empty + slot, state.phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(barrier, lay.ab_bytes)
                cute.copy(tma_a, tAgA[(None, tile_m, kt)], tAsA[(None, slot)], tma_bar_ptr=barrier)
                cute.copy(tma_b, tBgB[(None, tile_n, kt)], tBsB[(None, slot)], tma_bar_ptr=barrier)
                cute.copy(tma_sfa, tAgSFA[(None, sf_m, kt)], tAsSFA[(None, slot)], tma_bar_ptr=barrier)
                cute.copy(tma_sfb, tBgSFB[(None, sf_n, kt)], tBsSFB[(None, slot)], tma_bar_ptr=barrier)
                state.advance()
            work += num_clusters

    @cute.jit
    def lora_warp(self, tiles: Any, atoms: Any, tensors: Any, buffers: Any):
        """Fill the LoRA ring: the slices of every tile whose split has them, as early as the ring allows."""
        lay = self._layouts()
        tma_la, tma_lb = atoms
        tAsLA, tAgLA = self._partition(tma_la, buffers["LoRA rows"], tensors[0], (lay.rows, DQ_K))
        tBsLB, tBgLB = self._partition(tma_lb, buffers["LoRA columns"], tensors[1], (lay.columns, DQ_K))
        full, empty = buffers["lora_full"].iterator, buffers["lora_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_lora_stage)
        _, _, work = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        num_work = tiles[0] * tiles[1] * self.split_k
        while work < num_work:
            tile_m, tile_n, split = self.tile_coord(work, tiles)
            for piece in cutlass.range(self.lora_slices(split), unroll=1):
                slot = state.index
                barrier = full + slot
                cute.arch.mbarrier_wait(empty + slot, state.phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(barrier, lay.lora_bytes)
                cute.copy(tma_la, tAgLA[(None, tile_m, piece)], tAsLA[(None, slot)], tma_bar_ptr=barrier)
                cute.copy(tma_lb, tBgLB[(None, tile_n, piece)], tBsLB[(None, slot)], tma_bar_ptr=barrier)
                state.advance()
            work += num_clusters

    @cute.jit
    def lora_slices(self, split: Int32):
        """LoRA slices of this split: all belong to split 0."""
        count = Int32(self._layouts().num_lora_slices)
        if cutlass.const_expr(self.split_k > 1):
            if split != 0:
                count = Int32(0)
        return count

    @staticmethod
    def _partition(atom: Any, smem: cute.Tensor, gmem: cute.Tensor, tiler: Any) -> Any:
        """TMA views (bytes, slot) of SMEM and (bytes, tile, k-tile) of global memory."""
        tiled = cute.local_tile(gmem, tiler, (None, None))
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 2), cute.group_modes(tiled, 0, 2)
        )

    @staticmethod
    def _partition_scales(lay: LayoutsSm90a, atom: Any, smem: cute.Tensor, gmem: cute.Tensor, blocks: int) -> Any:
        tiler = (blocks, lay.sf_k_blocks, 128)
        tiled = cute.local_tile(gmem, tiler, (None, None, 0))
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(smem, 0, 3), cute.group_modes(tiled, 0, 3)
        )

    # ------------------------------------------------------------ dequantizing warps

    @cute.jit
    def dequant_warps(self, tiles: Any, buffers: Any):
        """Column operand: every packed slot -> two dq slots of 64 K elements.

        The warps share the rows of a slot, or the words of a row where there are twice as many threads as rows.
        Threads beyond that repeat what the last one writes.
        """
        lay = self._layouts()
        tidx, _, _ = cute.arch.thread_idx()
        thread = tidx - GROUP_THREADS
        ab_full, ab_empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        dq_full, dq_empty = buffers["dq_full"].iterator, buffers["dq_empty"].iterator
        ab = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.num_ab_stage)
        dq = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_dq_stage)
        pool = GROUP_THREADS * self.config.num_dequant_warpgroups
        shared_rows = 2 * lay.columns <= pool
        parts = (lay.columns + pool - 1) // pool
        codes, scales, target = (
            buffers[name].iterator.toint() for name in ("columns", "column scales", "dequantized")
        )
        word_half = cutlass.min(thread // lay.columns, Int32(1))
        _, _, work = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        num_work = tiles[0] * tiles[1] * self.split_k
        while work < num_work:
            _, tile_n, split = self.tile_coord(work, tiles)
            _, k_count = self.k_range(split, tiles[2])
            first_row = (tile_n * lay.columns) % 128
            for _ in cutlass.range(k_count, unroll=1):
                cute.arch.mbarrier_wait(ab_full + ab.index, ab.phase)
                slot_codes = codes + ab.index * lay.b_bytes
                slot_scales = scales + ab.index * lay.sfb_bytes
                rows = []
                for part in cutlass.range_constexpr(parts):
                    if cutlass.const_expr(shared_rows):
                        row = thread % lay.columns
                    else:
                        row = cutlass.min(thread + part * pool, Int32(lay.columns - 1))
                    rows.append((row, *self._load_row(slot_codes, slot_scales, row, first_row + row)))
                self._arrive(ab_empty + ab.index)
                ab.advance()
                for half in cutlass.range_constexpr(lay.dq_per_k_tile):
                    cute.arch.mbarrier_wait(dq_empty + dq.index, dq.phase)
                    slot = target + dq.index * (lay.columns * DQ_ROW_BYTES)
                    for row, words, factors in rows:
                        if cutlass.const_expr(shared_rows):
                            self._dequant_half_row(slot, row, words, factors, half, word_half)
                        else:
                            self._dequant_row(slot, row, words, factors, half)
                    cute.arch.fence_proxy("async.shared", space="cta")
                    self._arrive(dq_full + dq.index)
                    dq.advance()
            work += num_clusters

    @staticmethod
    def _load_row(codes: Any, scales: Any, row: Any, scale_row: Any) -> Any:
        """(16 words of codes of a row, by quad; factors of its eight scale groups as four pairs)."""
        words = [load_shared(codes + packed_chunk(row, quad), 4) for quad in range(QUADS)]
        block = scales + scale_row // 128 * (2 * SF_BLOCK_BYTES) + scale_offset(scale_row)
        factors = []
        for k_block in range(2):
            factors += scale_pairs(load_shared(block + k_block * SF_BLOCK_BYTES, 1)[0])
        return words, factors

    @staticmethod
    def _dequant_row(slot: Any, row: Any, words: Any, factors: Any, half: int) -> None:
        """All 64 elements of dq slot ``half``: word w gives chunks 4w..4w+3, one pair of every quad each."""
        for w in range(2):
            pairs = [unpack_word(words[quad][2 * half + w], factors[quad], half) for quad in range(QUADS)]
            for i in range(4):
                store_shared(dq_chunk(slot, row, 4 * w + i), [pairs[quad][i] for quad in range(QUADS)])

    @staticmethod
    def _dequant_half_row(slot: Any, row: Any, words: Any, factors: Any, half: int, w: Any) -> None:
        """The chunks of word ``w`` (a run-time 0 or 1) alone."""
        chosen = [
            cutlass.select_(w == 0, words[quad][2 * half], words[quad][2 * half + 1]) for quad in range(QUADS)
        ]
        pairs = [unpack_word(chosen[quad], factors[quad], half) for quad in range(QUADS)]
        for i in range(4):
            store_shared(dq_chunk(slot, row, 4 * w + i), [pairs[quad][i] for quad in range(QUADS)])

    @staticmethod
    def _arrive(barrier: Any) -> None:
        """One arrival for the whole warp, after all its lanes are done."""
        cute.arch.sync_warp()
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive(barrier)
