"""The first kernel of ``merged``: weights as one 16-bit matrix, the low-rank branch in it.

``merged[N,K] = round16(codes * scales * (1 / smooth[K]) + lora_up[N,R] @ lora_down[K,R].T)``

| what | value |
|---|---|
| CTA | 128 rows of weights (64 beyond R = 256), ``merge_chunks`` chunks of 64 K |
| warpgroup | 64 rows: ``lora_up @ lora_down.T`` of a chunk by wgmma, both operands from shared memory |
| lane | of each 16 bytes of packed codes of its two rows the byte of its own two columns |

lora_up comes by TMA, chunks of packed lora_down by bulk copies into a ring, which warp 0 refills when all warps have
multiplied a slot. Codes and scales go from global memory to registers, those of a chunk before it is multiplied. A
warp turns 16 rows of 64 columns in shared memory and stores whole lines. Sums and products are fp32, with one
rounding at the end; codes times scales are exact.
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, Int64, Uint32, cute
from cutlass.cute.nvgpu import cpasync, warpgroup

from kernel_space.operators.nvfp4_quantize.lora_mma.ptx import copy_bulk
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.parts.ptx import (
    load_four_if,
    multiply,
    multiply_add,
    of_bits,
    store_if,
    two_halves,
)
from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    DEQUANT_SHIFT,
    broadcast_factor,
    load_global_if,
    load_shared,
    scale_pairs,
    store_matrices,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import SF_BLOCK_BYTES, WARP_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.packed import scale_offset
from kernel_space.operators.svdquant_gemm.sm90a_parts.tma import TmaSm90a
from kernel_space.operators.svdquant_linear_16bit.merged.layouts import HALF_BYTES, MergeLayouts
from kernel_space.operators.svdquant_linear_16bit.merged.ptx import byte_selector, pair_of_byte
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import inverse, round_pair

WORDS = CHUNK_K // 8  # of packed codes of a row of a chunk
BLOCKS = CHUNK_K // 16  # scales
HELD = WORDS + 1  # words of a row of a chunk that a lane holds: codes, and the scales
LINE = CHUNK_K * HALF_BYTES  # bytes of a row of a chunk
PIECE = 16  # bytes that a lane stores
FROM_DEQUANT = 2.0**DEQUANT_SHIFT


class Merge(TmaSm90a):
    """Mixin with the merging kernel."""

    def _merge_layouts(self) -> MergeLayouts:
        return MergeLayouts(self.config, self.problem_class)

    @cute.jit
    def launch_merge(
        self, pointers: Any, lora_up: cute.Pointer, merged: Any, n: Int32, k: Int32, stream: Any
    ):
        """Start merging into ``merged`` ``[N, K]``; with ``use_pdl`` its launch overlaps the kernel before it.

        ``pointers``: wgt, wscales, smooth, lora_down.
        """
        lay = self._merge_layouts()
        atom, tiles = self._tma_up(lay, lora_up, n)
        parts = cute.ceil_div(cute.ceil_div(k, CHUNK_K), lay.chunks)
        self.merge_kernel(atom, tiles, pointers, merged, n, k).launch(
            grid=(cute.ceil_div(n, lay.rows), parts, 1),
            block=[lay.threads, 1, 1],
            stream=stream,
            # As the GEMM that follows: an SM that has to change it must be empty first.
            preferred_smem_carveout=100,
            use_pdl=self.config.use_pdl,
        )

    @staticmethod
    def _tma_up(lay: MergeLayouts, lora_up: Any, n: Any) -> tuple[Any, Any]:
        """Of lora_up ``[N, R]``; nothing where there is none."""
        if not lay.r:
            return None, None
        gmem = cute.make_tensor(lora_up, cute.make_layout((n, lay.r), stride=(lay.r, 1)))
        op = cpasync.CopyBulkTensorTileG2SOp()
        found: tuple[Any, Any] = cpasync.make_tiled_tma_atom(op, gmem, lay.up_box, (lay.rows, lay.slice_k))
        return found

    @cute.kernel
    def merge_kernel(self, atom: Any, tiles: Any, pointers: Any, merged: cute.Pointer, n: Int32, k: Int32):
        # The GEMM may be launched now: it waits for the end of this grid before it reads what is merged.
        cute.arch.griddepcontrol_launch_dependents()
        lay = self._merge_layouts()
        tile, part, _ = cute.arch.block_idx()
        self.merge_part(atom, tiles, pointers, merged, self._allocate_merge(lay), (tile, part), n, k)

    @cute.jit
    def merge_part(
        self,
        atom: Any,
        tiles: Any,
        pointers: Any,
        merged: cute.Pointer,
        buffers: Any,
        where: Any,
        n: Int32,
        k: Int32,
    ):
        """What a CTA merges: ``where`` is its tile of rows and its part of K."""
        lay = self._merge_layouts()
        place = self._merge_place(lay, pointers, merged, buffers, where, n, k)
        if cutlass.const_expr(lay.r > 0):
            self._load_lora(lay, place, buffers, atom, tiles)
        held = cute.make_rmem_tensor((HELD, 2), Uint32)
        self._load_codes(place, Int32(0), held)
        self._invert(lay, place)
        cute.arch.sync_threads()
        if cutlass.const_expr(lay.r > 0):
            cute.arch.mbarrier_wait(buffers["up_full"].iterator, 0)
        if cutlass.const_expr(self.config.use_pdl):
            # The GEMM of the launch before reads what was merged for it until it ends.
            cute.arch.griddepcontrol_wait()
        acc = cute.make_rmem_tensor(cute.make_layout(((2, 2, WORDS), 1, 1)), ACC_DTYPE)
        acc.fill(0.0)
        ring = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.slots)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.slots)
        for i in cutlass.range(place["count"], unroll=1):
            if cutlass.const_expr(lay.r > 0):
                self._multiply(lay, place, buffers, acc, ring.index, ring.phase)
                if i > 0:
                    self._refill(lay, place, buffers, i - 1 + lay.slots, freed.index, freed.phase)
                    freed.advance()
                ring.advance()
            self._finish_chunk(lay, place, acc, held, i)

    @staticmethod
    def _allocate_merge(lay: MergeLayouts) -> dict[str, Any]:
        return TmaSm90a._allocate(lay)  # type: ignore[arg-type]  # asks for allocations() alone

    def _merge_place(
        self, lay: MergeLayouts, pointers: Any, merged: Any, buffers: Any, where: Any, n: Any, k: Any
    ) -> dict[str, Any]:
        """Where this thread stands: its rows and columns; addresses."""
        tile, part = where
        thread, _, _ = cute.arch.thread_idx()
        lane = cute.arch.lane_idx()
        warp = cute.arch.make_warp_uniform(thread // 32)
        chunks = (k + CHUNK_K - 1) // CHUNK_K
        first = part * lay.chunks
        names = ("wgt", "wscales", "smooth", "lora_down")
        place: dict[str, Any] = {name: one.toint() for name, one in zip(names, pointers, strict=True)}
        warp_row = tile * lay.rows + warp * WARP_ROWS
        # Rows beyond N are the last one once more: their stores are not wanted.
        rows = [cutlass.min(warp_row + lane // 4 + 8 * half, n - 1) for half in range(2)]
        blocks = [
            (Int64(row // 128) * chunks + first) * SF_BLOCK_BYTES + scale_offset(row % 128) for row in rows
        ]
        return place | {
            "n": n, "k": k, "thread": thread, "lane": lane, "warp": warp, "group": warp // 4, "quarter": lane % 4,
            "tile": tile, "warp_row": warp_row, "first": first, "merged": merged.toint(),
            "count": cutlass.min(chunks - first, Int32(lay.chunks)),
            "codes": [place["wgt"] + Int64(row) * (k // 2) + first * (CHUNK_K // 2) for row in rows],
            "scales": [place["wscales"] + block for block in blocks],
            "inverses": buffers["1 / smooth"].iterator.toint(),
            "staged": buffers["merged"].iterator.toint() + warp * (WARP_ROWS * CHUNK_K * lay.merged_bytes),
        }  # fmt: skip

    @cute.jit
    def _load_lora(self, lay: MergeLayouts, place: Any, buffers: Any, atom: Any, tiles: Any):
        """A thread asks for lora_up and for as many chunks of lora_down as there are slots."""
        up_full = buffers["up_full"].iterator
        if place["warp"] == 0:
            cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(up_full, 1)
                for slot in range(lay.slots):
                    cute.arch.mbarrier_init(buffers["full"].iterator + slot, 1)
                    cute.arch.mbarrier_init(buffers["empty"].iterator + slot, lay.warps)
            cute.arch.mbarrier_init_fence()
            cute.arch.sync_warp()
            target, source = self._partition(atom, buffers["lora_up"], tiles, (lay.rows, lay.slice_k))
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(up_full, lay.up_bytes)
            for one in range(lay.slices):
                cute.copy(atom, source[(None, place["tile"], one)], target[(None, one)], tma_bar_ptr=up_full)
            for slot in cutlass.range_constexpr(lay.slots):
                if slot < place["count"]:
                    self._copy_down(lay, place, buffers, Int32(slot), slot)

    @cute.jit
    def _refill(self, lay: MergeLayouts, place: Any, buffers: Any, chunk: Int32, slot: Int32, phase: Int32):
        """The next chunk of lora_down into a slot that all warps have multiplied."""
        if place["warp"] == 0:
            if chunk < place["count"]:
                cute.arch.mbarrier_wait(buffers["empty"].iterator + slot, phase)
                self._copy_down(lay, place, buffers, chunk, slot)

    @cute.jit
    def _copy_down(self, lay: MergeLayouts, place: Any, buffers: Any, chunk: Int32, slot: Any):
        barrier = buffers["full"].iterator + slot
        begin = place["lora_down"] + Int64(place["first"] + chunk) * lay.chunk_bytes
        target = buffers["lora_down"].iterator.toint() + slot * lay.chunk_bytes
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, lay.chunk_bytes)
            copy_bulk(target, begin, lay.chunk_bytes, barrier.toint())

    @cute.jit
    def _invert(self, lay: MergeLayouts, place: Any):
        """2^DEQUANT_SHIFT / smooth of every column of this CTA; 0 beyond K."""
        smooth = cute.make_tensor(
            cute.make_ptr(Float32, place["smooth"], cute.AddressSpace.gmem, assumed_align=4),
            cute.make_layout(place["k"]),
        )
        inverses = cute.make_tensor(
            cute.make_ptr(Float32, place["inverses"], cute.AddressSpace.smem, assumed_align=16), lay.inverse
        )
        total = lay.chunks * CHUNK_K
        for step in cutlass.range_constexpr((total + lay.threads - 1) // lay.threads):
            at = place["thread"] + step * lay.threads
            if at < total:
                column = place["first"] * CHUNK_K + at
                value = Float32(0.0)
                if column < place["k"]:
                    value = smooth[column]
                inverses[at] = multiply(inverse(value), Float32(FROM_DEQUANT))

    @cute.jit
    def _multiply(self, lay: MergeLayouts, place: Any, buffers: Any, acc: Any, slot: Int32, phase: Int32):
        """lora_up @ lora_down.T of a chunk, as the lanes of wgmma have it; then its slot is given back."""
        mma = lay.make_mma()
        thread = mma.get_slice(0)
        rows = cute.local_tile(buffers["lora_up"], (MMA_ROWS, lay.slice_k), (place["group"], 0, None))
        up = mma.make_fragment_A(thread.partition_A(rows))
        down = mma.make_fragment_B(thread.partition_B(buffers["lora_down"]))
        cute.arch.mbarrier_wait(buffers["full"].iterator + slot, phase)
        warpgroup.fence()
        for block in cutlass.range_constexpr(lay.r // 16):
            mma.set(warpgroup.Field.ACCUMULATE, block > 0)
            one, within = block * 16 // lay.slice_k, block % (lay.slice_k // 16)
            cute.gemm(mma, acc, up[(None, None, within, one)], down[(None, None, block, slot)], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        self._arrive(buffers["empty"].iterator + slot)

    @staticmethod
    def _load_codes(place: dict[str, Any], i: Any, held: Any) -> None:
        """Of chunk ``i`` of both rows of this lane: eight words of codes, four scales in a word; zeros beyond K."""
        begin = (place["first"] + i) * CHUNK_K
        for half in range(2):
            at = place["codes"][half] + i * (CHUNK_K // 2)
            for part in range(2):
                words = load_four_if(at + part * 16, Int32(begin + part * 32 < place["k"]))
                for word in range(4):
                    held[4 * part + word, half] = words[word]
            scales = place["scales"][half] + Int64(i) * SF_BLOCK_BYTES
            held[WORDS, half] = load_global_if(scales, Int32(begin < place["k"]))

    @cute.jit
    def _finish_chunk(self, lay: MergeLayouts, place: Any, acc: Any, held: Any, i: Int32):
        """Scale, add, round; a warp's 16 rows of 64 columns to global memory."""
        factors = self._factors(held)
        lane = place["lane"]
        row = lane // 8 % 2 * 8 + lane % 8
        for octet in cutlass.range_constexpr(0, WORDS, 2):
            words = self._merged_words(lay, place, acc, held, factors, i, octet)
            piece = (octet + lane // 16) ^ (row % 8)
            store_matrices(place["staged"] + row * LINE + piece * PIECE, words, transpose=False)
        # On their way while the next chunk is multiplied.
        self._load_codes(place, i + 1, held)
        cute.arch.sync_warp()
        pieces = LINE // PIECE
        for step in cutlass.range_constexpr(WARP_ROWS * pieces // 32):
            row_of_warp, piece = step * (32 // pieces) + lane // pieces, lane % pieces
            found = load_shared(place["staged"] + row_of_warp * LINE + (piece ^ (row_of_warp % 8)) * PIECE, 4)
            line, column = place["warp_row"] + row_of_warp, (place["first"] + i) * CHUNK_K + piece * 8
            wanted = Int32(line < place["n"]) & Int32(column < place["k"])
            store_if(place["merged"] + (Int64(line) * place["k"] + column) * HALF_BYTES, found, wanted)
        # The next chunk is turned in the same place.
        cute.arch.sync_warp()

    @staticmethod
    def _factors(held: Any) -> list[list[Any]]:
        """Of both rows of this lane the scale of each block, in both halves of a word."""
        found = []
        for half in range(2):
            pairs = scale_pairs(held[WORDS, half])
            found.append([broadcast_factor(pairs[block // 2], block % 2) for block in range(BLOCKS)])
        return found

    @staticmethod
    def _merged_words(
        lay: MergeLayouts, place: Any, acc: Any, held: Any, factors: Any, i: Any, first: int
    ) -> list[Any]:
        """This lane's pairs of octets ``first`` and the next of its two rows, rounded: four matrices of stmatrix."""
        selector = byte_selector(place["quarter"])
        inverses = place["inverses"] + i * (CHUNK_K * 4) + place["quarter"] * 8
        words = []
        for octet in (first, first + 1):
            scaled_by = load_shared_pair(inverses + octet * 32)
            for half in range(2):
                exact = pair_of_byte(held[octet, half], selector, factors[half][octet // 2])
                done = []
                for e, value in enumerate(two_halves(exact, "f16")):
                    if lay.r:
                        value = multiply_add(value, scaled_by[e], acc[(e, half, octet), 0, 0])
                    else:
                        value = multiply(value, scaled_by[e])
                    done.append(value)
                words.append(round_pair(*done, is_bf16=lay.is_bf16))
        return words


def load_shared_pair(address: Any) -> list[Any]:
    """Two fp32 numbers at an 8-byte aligned shared address."""
    return [of_bits(word) for word in load_shared(address, 2)]
