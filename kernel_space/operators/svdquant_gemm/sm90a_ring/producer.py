"""Producer roles: TMA loads, and the warps that dequantize the column operand."""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, Uint32, cute

from kernel_space.operators.svdquant_gemm.parts.tile_walk import TileWalk
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    broadcast_factor,
    load_shared,
    load_shared_u16,
    scale_pair,
    scale_pairs,
    store_shared,
    unpack_pairs,
    unpack_word,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import DQ_K, SF_BLOCK_BYTES, LayoutsSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.packed import packed_chunk, scale_offset

GROUP_THREADS = 128
QUADS = 4  # lanes of a quad: each owns a 32-element piece of a row of 128
DQ_ROW_BYTES = DQ_K * 2
WORDS_OF_DQ_ROW = 8


def dq_chunk(slot: Any, row: Any, chunk: Any) -> Any:
    """Address of 16-byte piece ``chunk`` of a 128-byte row in a 128-byte-swizzled dq slot."""
    return slot + row * DQ_ROW_BYTES + ((chunk ^ (row & 7)) << 4)


def loose_place(first_row: int, unit: Any) -> Any:
    """(row, quad, word) of loose word ``unit``."""
    return first_row + unit // WORDS_OF_DQ_ROW, unit % 4, unit // 4 % 2


@cute.jit
def store_own(own: Any, address: Any, words: Any):
    """``store_shared`` by the threads for which ``own`` holds; ``True``: by all."""
    if cutlass.const_expr(own is True):
        store_shared(address, words)
    elif own:
        store_shared(address, words)


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
        tBsSFB, tBgSFB = self._partition_scales(
            lay, tma_sfb, buffers["column scales"], mSFB, lay.sfb_row_blocks
        )
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
        tAsLA, tAgLA = self._partition(tma_la, buffers["LoRA rows"], tensors[0], (lay.rows, lay.lora_k))
        tBsLB, tBgLB = self._partition(tma_lb, buffers["LoRA columns"], tensors[1], (lay.columns, lay.lora_k))
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
                    cute.arch.mbarrier_arrive_and_expect_tx(
                        barrier, lay.lora_row_bytes + lay.lora_column_bytes
                    )
                cute.copy(tma_la, tAgLA[(None, tile_m, piece)], tAsLA[(None, slot)], tma_bar_ptr=barrier)
                cute.copy(tma_lb, tBgLB[(None, tile_n, piece)], tBsLB[(None, slot)], tma_bar_ptr=barrier)
                state.advance()
            work += num_clusters

    @cute.jit
    def dequant_warps(self, tiles: Any, buffers: Any):
        """Column operand: every packed slot -> two dq slots of 64 K elements.

        A thread takes a row. One warpgroup fills both slots; of two, each fills one.
        """
        lay = self._layouts()
        tidx, _, _ = cute.arch.thread_idx()
        thread = tidx % GROUP_THREADS
        groups = self.config.num_dequant_warpgroups
        group = cute.arch.make_warp_uniform(tidx // GROUP_THREADS - 1)
        ab_full, ab_empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        dq_full, dq_empty = buffers["dq_full"].iterator, buffers["dq_empty"].iterator
        ab = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.num_ab_stage)
        dq = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_dq_stage)
        if cutlass.const_expr(groups == 2):
            if group == 1:
                dq.advance()
        codes = buffers["columns"].iterator.toint()
        scales = buffers["column scales"].iterator.toint()
        target = buffers["dequantized"].iterator.toint()
        rows, own_rows = self._shared_out(thread, lay.columns - lay.loose_rows)
        loose, own_loose = self._shared_out(thread, lay.loose_rows * WORDS_OF_DQ_ROW)
        loose_words = cute.make_rmem_tensor((2, max(1, len(loose))), Uint32)
        loose_factors = cute.make_rmem_tensor((max(1, len(loose)),), Uint32)
        words = cute.make_rmem_tensor((4, QUADS, len(rows)), Uint32)
        factors = cute.make_rmem_tensor((QUADS, len(rows)), Uint32)
        _, _, work = cute.arch.block_idx()
        _, _, num_clusters = cute.arch.grid_dim()
        num_work = tiles[0] * tiles[1] * self.split_k
        while work < num_work:
            _, tile_n, split = self.tile_coord(work, tiles)
            _, k_count = self.k_range(split, tiles[2])
            first_row = (tile_n * lay.columns) % 128
            if cutlass.const_expr(groups == 1):
                # Codes and factors of one k-tile are loaded while the second half of the one before is dequantized.
                self._load_k_tile(
                    lay,
                    (codes, scales),
                    ab,
                    ab_full,
                    (rows, loose),
                    first_row,
                    (words, factors),
                    (loose_words, loose_factors),
                )
                # Loads must be done before TMA, another proxy, may overwrite the slot.
                cute.arch.fence_proxy("async.shared", space="cta")
                self._arrive(ab_empty + ab.index)
                ab.advance()
            for kt in cutlass.range(k_count, unroll=1):
                if cutlass.const_expr(groups == 1):
                    first = self._unpack_part(words, factors, 0, 0, 0)
                    for half in cutlass.range_constexpr(2):
                        cute.arch.mbarrier_wait(dq_empty + dq.index, dq.phase)
                        slot = target + dq.index * (lay.columns * DQ_ROW_BYTES)
                        self._store_part(slot, rows[0], own_rows[0], 0, first)
                        self._store_part(
                            slot, rows[0], own_rows[0], 1, self._unpack_part(words, factors, 0, half, 1)
                        )
                        for part in cutlass.range_constexpr(1, len(rows)):
                            for w in cutlass.range_constexpr(2):
                                self._store_part(
                                    slot,
                                    rows[part],
                                    own_rows[part],
                                    w,
                                    self._unpack_part(words, factors, part, half, w),
                                )
                        for part in cutlass.range_constexpr(len(loose)):
                            self._store_loose(
                                lay,
                                slot,
                                loose[part],
                                own_loose[part],
                                loose_words,
                                loose_factors,
                                part,
                                half,
                            )
                        # Work between the stores and the fence, which waits for them.
                        if cutlass.const_expr(half == 0):
                            first = self._unpack_part(words, factors, 0, 1, 0)
                        elif kt + 1 < k_count:
                            self._load_k_tile(
                                lay,
                                (codes, scales),
                                ab,
                                ab_full,
                                (rows, loose),
                                first_row,
                                (words, factors),
                                (loose_words, loose_factors),
                            )
                        # Stores before wgmma reads them, loads before TMA overwrites what they read.
                        cute.arch.fence_proxy("async.shared", space="cta")
                        self._arrive(dq_full + dq.index)
                        dq.advance()
                        if cutlass.const_expr(half == 1):
                            if kt + 1 < k_count:
                                self._arrive(ab_empty + ab.index)
                                ab.advance()
                else:
                    cute.arch.mbarrier_wait(ab_full + ab.index, ab.phase)
                    slot_codes = codes + ab.index * lay.b_bytes
                    slot_scales = scales + ab.index * lay.sfb_bytes
                    loaded = [
                        (
                            self._load_half_codes(slot_codes, row, group),
                            self._load_factors(slot_scales, first_row + row),
                        )
                        for row in rows
                    ]
                    cute.arch.mbarrier_wait(dq_empty + dq.index, dq.phase)
                    slot = target + dq.index * (lay.columns * DQ_ROW_BYTES)
                    for row, own, (half_words, half_factors) in zip(rows, own_rows, loaded, strict=True):
                        self._dequant_row(slot, row, own, half_words, half_factors, group)
                    cute.arch.fence_proxy("async.shared", space="cta")
                    self._arrive(dq_full + dq.index)
                    self._arrive(ab_empty + ab.index)
                    dq.advance()
                    dq.advance()
                    ab.advance()
            work += num_clusters

    @cute.jit
    def _load_k_tile(
        self,
        lay: LayoutsSm90a,
        bases: Any,
        ab: Any,
        ab_full: Any,
        units: Any,
        first_row: Int32,
        whole: Any,
        loose: Any,
    ):
        """Codes and factors of this thread's rows and loose words from the next packed slot."""
        words, factors = whole
        loose_words, loose_factors = loose
        rows, loose_units = units
        cute.arch.mbarrier_wait(ab_full + ab.index, ab.phase)
        codes = bases[0] + ab.index * lay.b_bytes
        scales = bases[1] + ab.index * lay.sfb_bytes
        for part in cutlass.range_constexpr(len(rows)):
            loaded = self._load_codes(codes, rows[part])
            pairs = self._load_factors(scales, first_row + rows[part])
            for quad in cutlass.range_constexpr(QUADS):
                factors[quad, part] = pairs[quad]
                for w in cutlass.range_constexpr(4):
                    words[w, quad, part] = loaded[quad][w]
        for part in cutlass.range_constexpr(len(loose_units)):
            row, quad, w = loose_place(lay.columns - lay.loose_rows, loose_units[part])
            for half in cutlass.range_constexpr(2):
                address = codes + packed_chunk(row, quad) + half * 8 + w * 4
                loose_words[half, part] = load_shared(address, 1)[0]
            scale_row = first_row + row
            block = scales + scale_row // 128 * (2 * SF_BLOCK_BYTES) + scale_offset(scale_row)
            two = load_shared_u16(block + quad // 2 * SF_BLOCK_BYTES + quad % 2 * 2)
            loose_factors[part] = scale_pair(two)

    @staticmethod
    def _shared_out(thread: Any, count: int) -> tuple[list[Any], list[Any]]:
        """Units of a thread, of ``count`` for all, and whether each is its own; beyond the last one it loads that once
        more and must not store it: two warps would write one word, and nothing would order them.
        """
        firsts = range(0, count, GROUP_THREADS)
        units = [cutlass.min(thread + first, Int32(count - 1)) for first in firsts]
        return units, [True if first + GROUP_THREADS <= count else thread + first < count for first in firsts]

    @staticmethod
    def _store_loose(
        lay: LayoutsSm90a, slot: Any, unit: Any, own: Any, words: Any, factors: Any, part: int, half: int
    ) -> None:
        """One word of a row that has no thread of its own: a pair of four chunks."""
        row, quad, w = loose_place(lay.columns - lay.loose_rows, unit)
        pairs = unpack_word(words[half, part], factors[part], half)
        for i in range(4):
            store_own(own, dq_chunk(slot, row, 4 * w + i) + quad * 4, [pairs[i]])

    @staticmethod
    def _unpack_part(words: Any, factors: Any, part: int, half: int, w: int) -> list[Any]:
        """Word ``w`` of dq slot ``half``, all quads: for each of four chunks a pair of every quad."""
        chunks: list[Any] = [[], [], [], []]
        for quad in range(QUADS):
            pairs = unpack_word(words[2 * half + w, quad, part], factors[quad, part], half)
            for i in range(4):
                chunks[i].append(pairs[i])
        return chunks

    @staticmethod
    def _store_part(slot: Any, row: Any, own: Any, w: int, chunks: list[Any]) -> None:
        for i in range(4):
            store_own(own, dq_chunk(slot, row, 4 * w + i), chunks[i])

    @staticmethod
    def _load_codes(codes: Any, row: Any) -> list[Any]:
        """Four words of codes of each quad: 128 elements of a row."""
        return [load_shared(codes + packed_chunk(row, quad), 4) for quad in range(QUADS)]

    @staticmethod
    def _load_half_codes(codes: Any, row: Any, half: Any) -> list[Any]:
        """The two words of each quad that dq slot ``half`` holds."""
        return [load_shared(codes + packed_chunk(row, quad) + half * 8, 2) for quad in range(QUADS)]

    @staticmethod
    def _load_factors(scales: Any, scale_row: Any) -> list[Any]:
        """Factors of a row's eight scale groups: a pair for each quad."""
        block = scales + scale_row // 128 * (2 * SF_BLOCK_BYTES) + scale_offset(scale_row)
        factors = []
        for k_block in range(2):
            factors += scale_pairs(load_shared(block + k_block * SF_BLOCK_BYTES, 1)[0])
        return factors

    @staticmethod
    def _dequant_row(slot: Any, row: Any, own: Any, words: Any, factors: Any, half: Any) -> None:
        """64 elements of a row: word w gives chunks 4w..4w+3, one pair of every quad each."""
        factors = [broadcast_factor(factors[quad], half) for quad in range(QUADS)]
        for w in range(2):
            for odd in range(2):
                pairs = [unpack_pairs(words[quad][w], factors[quad], odd) for quad in range(QUADS)]
                for i in range(2):
                    chunk = dq_chunk(slot, row, 4 * w + 2 * odd + i)
                    store_own(own, chunk, [pairs[quad][i] for quad in range(QUADS)])
