"""What a CTA of the first kernel of ``merged_fp8`` merges: weights as one FP8 matrix, the low-rank branch in it.

``merged8[N,K] = e4m3((codes * scales * (1 / smooth[K]) + lora_up[N,R] @ lora_down[K,R].T) * (448 / wpeak[N]))``

Layouts, lora_up and the ring of lora_down are those of ``merged/merge.py``. Differences:

- Packed codes come by TMA into a ring of boxes of two chunks: lanes load 16 bytes of theirs from shared memory.
- Loads are asked for before the CTA looks at x, and what a CTA merges is not bound by what shared memory holds.
- The product of the next chunk is under way in a second set of accumulators while this one is scaled and rounded.
- A warp stages its 16 rows of a chunk twice, and TMA stores one while the other is written.
- A row is written in the order of K in which lanes have it: of 16 neighbours lane t of a quad holds 2 t, 2 t + 1,
  8 + 2 t and 9 + 2 t, which become four bytes. x is written in the same order (``rows.py``), so products meet.
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Float32, Int32, Int64, Uint32, cute
from cutlass.cute.nvgpu import cpasync, warpgroup

from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.parts.ptx import (
    multiply,
    multiply_add,
    of_bits,
    two_halves,
)
from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    broadcast_factor,
    load_global_if,
    load_shared,
    scale_pairs,
    store_matrices,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import SF_BLOCK_BYTES, WARP_ROWS
from kernel_space.operators.svdquant_linear_16bit.merged.merge import FROM_DEQUANT, PIECE, WORDS, Merge
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import inverse
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.layouts import BOX_BYTES, MergeFp8Layouts
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.ptx import (
    bytes_selector,
    e4m3_word,
    factor_of,
    load_constants,
    pairs_of_bytes,
)

GROUPS = CHUNK_K // PIECE  # pieces of 16 K of a row of a chunk


class MergeFp8(Merge):
    """Mixin with what CTAs do to weights."""

    def _merge_place(
        self, lay: Any, pointers: Any, merged: Any, buffers: Any, where: Any, n: Any, k: Any
    ) -> dict[str, Any]:
        """And where codes of this lane's two rows lie in shared memory, and by what they are multiplied at last.
        ``pointers`` end with wpeak.
        """
        place = super()._merge_place(lay, pointers[:-1], merged, buffers, where, n, k)
        peaks = cute.make_tensor(pointers[-1], cute.make_layout(n))
        own = [place["warp"] * WARP_ROWS + place["lane"] // 4 + 8 * half for half in range(2)]
        rows = [cutlass.min(place["tile"] * lay.rows + row, n - 1) for row in own]
        base = buffers["codes"].iterator.toint()
        return place | {
            "factors": [factor_of(peaks[row]) for row in rows],
            "packed": [base + row * BOX_BYTES for row in own],
            "turned": own[0] // 2 % 4,  # of the 64-byte swizzle: eight rows further it is the same
        }

    @cute.jit
    def ask_for_weights(self, lay: MergeFp8Layouts, place: Any, buffers: Any, up: Any, codes: Any, held: Any):
        """All that merging needs is on its way, before the CTA turns to x. ``up``, ``codes``: TMA atoms and tensors;
        ``held``: scales of the first chunk and columns of smooth of this thread, as they will be found.
        """
        if place["count"] > 0:
            if cutlass.const_expr(lay.r > 0):
                self._load_lora(lay, place, buffers, *up)
            self._ask_for_codes(lay, place, buffers, codes)
        scales, smooth = held
        self._load_scales(place, Int32(0), scales)
        self._load_smooth(lay, place, smooth)

    @cute.jit
    def merge_fp8_part(
        self, lay: MergeFp8Layouts, place: Any, buffers: Any, codes: Any, merged: Any, held: Any
    ):
        """What a CTA merges; ``held`` as ``ask_for_weights`` left it."""
        scales, smooth = held
        self._invert_held(lay, place, smooth)
        cute.arch.sync_threads()
        if cutlass.const_expr(lay.r > 0):
            cute.arch.mbarrier_wait(buffers["up_full"].iterator, 0)
        accs = [cute.make_rmem_tensor(cute.make_layout(((2, 2, WORDS), 1, 1)), ACC_DTYPE) for _ in range(2)]
        ring = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.slots)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.slots)
        boxes = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.boxes)
        used = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.boxes)
        self._issue(lay, place, buffers, accs[0], Int32(0), ring)
        ring.advance()
        for pair in cutlass.range((place["count"] + 1) // 2, unroll=1):
            cute.arch.mbarrier_wait(buffers["codes_full"].iterator + boxes.index, boxes.phase)
            for which in cutlass.range_constexpr(2):
                i = pair * 2 + which
                # On their way while the product is waited for.
                held_codes = [
                    self._codes_of(lay, place, boxes.index, which, part) for part in range(GROUPS // 2)
                ]
                if cutlass.const_expr(lay.r > 0):
                    warpgroup.wait_group(0)
                    self._arrive(buffers["empty"].iterator + freed.index)
                # One product more than there are chunks, so that accumulators are in no branch.
                self._issue(lay, place, buffers, accs[1 - which], i + 1, ring)
                if cutlass.const_expr(lay.r > 0):
                    self._refill(lay, place, buffers, i + lay.slots, freed.index, freed.phase)
                ring.advance()
                freed.advance()
                if i < place["count"]:
                    words = (accs[which], held_codes, scales)
                    self._finish_fp8_chunk(lay, place, buffers, words, merged, i, which)
            self._arrive(buffers["codes_empty"].iterator + boxes.index)
            boxes.advance()
            if pair > 0:
                self._refill_codes(lay, place, buffers, codes, pair - 1 + lay.boxes, used)
                used.advance()
        if cutlass.const_expr(lay.r > 0):
            warpgroup.wait_group(0)
        # Shared memory is the CTA's until TMA has read it.
        cute.arch.cp_async_bulk_wait_group(0, read=True)

    @staticmethod
    def make_held(lay: MergeFp8Layouts) -> tuple[Any, Any]:
        """Registers of a thread: scales of both of its rows of a chunk; columns of smooth that it inverts."""
        return cute.make_rmem_tensor((2,), Uint32), cute.make_rmem_tensor((_steps(lay),), Uint32)

    @staticmethod
    def _load_smooth(lay: MergeFp8Layouts, place: Any, smooth: Any) -> None:
        """Columns of smooth of this thread, zeros beyond K and behind the CTA's chunks."""
        total = lay.chunks * CHUNK_K
        for step in range(_steps(lay)):
            at = place["thread"] + step * lay.threads
            column = place["first"] * CHUNK_K + at
            inside = Int32(column < place["k"]) & Int32(at < total)
            smooth[step] = load_global_if(place["smooth"] + Int64(column) * 4, inside)

    @cute.jit
    def _invert_held(self, lay: MergeFp8Layouts, place: Any, smooth: Any):
        """As ``Merge._invert``, of what ``_load_smooth`` found."""
        total = lay.chunks * CHUNK_K
        inverses = cute.make_tensor(
            cute.make_ptr(Float32, place["inverses"], cute.AddressSpace.smem, assumed_align=16), lay.inverse
        )
        for step in cutlass.range_constexpr(_steps(lay)):
            at = place["thread"] + step * lay.threads
            value = multiply(inverse(of_bits(smooth[step])), Float32(FROM_DEQUANT))
            if at < total:
                inverses[at] = value

    @cute.jit
    def _ask_for_codes(self, lay: MergeFp8Layouts, place: Any, buffers: Any, codes: Any):
        """A thread asks for the first codes of the CTA, as many as there are boxes."""
        if place["warp"] == 0:
            cpasync.prefetch_descriptor(codes[0])
            with cute.arch.elect_one():
                for box in range(lay.boxes):
                    cute.arch.mbarrier_init(buffers["codes_full"].iterator + box, 1)
                    cute.arch.mbarrier_init(buffers["codes_empty"].iterator + box, lay.warps)
            cute.arch.mbarrier_init_fence()
            cute.arch.sync_warp()
            for box in cutlass.range_constexpr(lay.boxes):
                if 2 * box < place["count"]:
                    self._copy_codes(lay, place, buffers, codes, Int32(box), box)

    @cute.jit
    def _refill_codes(
        self, lay: MergeFp8Layouts, place: Any, buffers: Any, codes: Any, box: Int32, used: Any
    ):
        """Two chunks of codes to where those of ``used`` were, when all warps are done with these."""
        if place["warp"] == 0:
            if 2 * box < place["count"]:
                cute.arch.mbarrier_wait(buffers["codes_empty"].iterator + used.index, used.phase)
                self._copy_codes(lay, place, buffers, codes, box, used.index)

    @cute.jit
    def _copy_codes(self, lay: MergeFp8Layouts, place: Any, buffers: Any, codes: Any, box: Int32, slot: Any):
        """Zeros beyond N and K."""
        atom, tensor = codes
        full = buffers["codes_full"].iterator + slot
        target, source = self._partition(atom, buffers["codes"], tensor, (lay.rows, BOX_BYTES))
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, lay.codes_bytes)
        cute.copy(
            atom,
            source[(None, place["tile"], place["first"] // 2 + box)],
            target[(None, slot)],
            tma_bar_ptr=full,
        )

    @cute.jit
    def _issue(self, lay: MergeFp8Layouts, place: Any, buffers: Any, acc: Any, chunk: Int32, ring: Any):
        """lora_up @ lora_down.T of a chunk is on its way to ``acc``; of anything where there is none such."""
        if cutlass.const_expr(lay.r > 0):
            mma = lay.make_mma()
            thread = mma.get_slice(0)
            rows = cute.local_tile(buffers["lora_up"], (MMA_ROWS, lay.slice_k), (place["group"], 0, None))
            up = mma.make_fragment_A(thread.partition_A(rows))
            down = mma.make_fragment_B(thread.partition_B(buffers["lora_down"]))
            if chunk < place["count"]:
                cute.arch.mbarrier_wait(buffers["full"].iterator + ring.index, ring.phase)
            warpgroup.fence()
            for block in cutlass.range_constexpr(lay.r // 16):
                mma.set(warpgroup.Field.ACCUMULATE, block > 0)
                one, within = block * 16 // lay.slice_k, block % (lay.slice_k // 16)
                cute.gemm(mma, acc, up[(None, None, within, one)], down[(None, None, block, ring.index)], acc)
            warpgroup.commit_group()

    @staticmethod
    def _load_scales(place: dict[str, Any], i: Any, held: Any) -> None:
        """Of chunk ``i`` of both rows of this lane: four scales in a word; zeros beyond K."""
        inside = Int32((place["first"] + i) * CHUNK_K < place["k"])
        for half in range(2):
            held[half] = load_global_if(place["scales"][half] + Int64(i) * SF_BLOCK_BYTES, inside)

    @cute.jit
    def _finish_fp8_chunk(
        self,
        lay: MergeFp8Layouts,
        place: Any,
        buffers: Any,
        found: Any,
        merged: Any,
        i: Int32,
        which: cutlass.Constexpr,
    ):
        """Scale, add, round; a warp's 16 rows of 64 columns to global memory by TMA."""
        acc, codes, scales = found
        factors = [scale_factors(scales[half]) for half in range(2)]
        # On their way while this chunk is worked on.
        self._load_scales(place, i + 1, scales)
        lane = place["lane"]
        row = lane // 8 % 2 * 8 + lane % 8
        box = which * lay.warps + place["warp"]
        staged = buffers["merged"].iterator.toint() + box * (WARP_ROWS * CHUNK_K)
        # The chunk before the last was staged in the same place.
        cute.arch.cp_async_bulk_wait_group(1, read=True)
        cute.arch.sync_warp()
        for group in cutlass.range_constexpr(0, GROUPS, 2):
            words = []
            for one in (group, group + 1):
                words += self._group_words(lay, place, acc, codes[group // 2], factors, i, one)
            store_matrices(staged + _at(row, group + lane // 16), words, transpose=False)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        atom, tensor = merged
        source, target = self._partition(atom, buffers["merged"], tensor, (WARP_ROWS, CHUNK_K))
        rows = place["tile"] * lay.warps + place["warp"]
        cute.copy(atom, source[(None, box)], target[(None, rows, place["first"] + i)])
        cute.arch.cp_async_bulk_commit_group()

    @staticmethod
    def tma_merged(lay: MergeFp8Layouts, merged: Any, n: Any, k: Any) -> tuple[Any, Any]:
        """Of merged weights ``[N, K]``, to store what a warp has of a chunk."""
        k = cute.assume(k, PIECE)
        gmem = cute.make_tensor(
            cute.recast_ptr(merged, dtype=cutlass.Uint8), cute.make_layout((n, k), stride=(k, 1))
        )
        op = cpasync.CopyBulkTensorTileS2GOp()
        found: tuple[Any, Any] = cpasync.make_tiled_tma_atom(op, gmem, lay.store_box, (WARP_ROWS, CHUNK_K))
        return found

    @staticmethod
    def _codes_of(lay: MergeFp8Layouts, place: Any, box: Any, which: int, part: int) -> list[list[Any]]:
        """Of both rows of this lane the four words of codes of 32 columns of chunk ``which`` of a box."""
        piece = (2 * which + part) ^ place["turned"]
        at = box * lay.codes_bytes + piece * PIECE
        return [list(load_shared(place["packed"][half] + at, 4)) for half in range(2)]

    @staticmethod
    def _group_words(
        lay: MergeFp8Layouts, place: Any, acc: Any, held: Any, factors: Any, i: Any, group: int
    ) -> list[Any]:
        """Of 16 columns this lane's four numbers of both of its rows: two matrices of stmatrix."""
        selector = bytes_selector(place["quarter"])
        inverses = place["inverses"] + i * (CHUNK_K * 4) + place["quarter"] * 8
        scaled_by = [load_constants(inverses + (2 * group + one) * 32) for one in range(2)]
        words = []
        for half in range(2):
            pairs: list[list[Any]] = [[], []]
            for e, exact in enumerate(
                pairs_of_bytes(held[half], 2 * group % 4, selector, factors[half][group])
            ):
                for one, value in enumerate(two_halves(exact, "f16")):
                    if lay.r:
                        value = multiply_add(value, scaled_by[one][e], acc[(e, half, 2 * group + one), 0, 0])
                    else:
                        value = multiply(value, scaled_by[one][e])
                    pairs[one].append(multiply(value, place["factors"][half]))
            words.append(e4m3_word(*pairs))
        return words


def _steps(lay: MergeFp8Layouts) -> int:
    """Columns of smooth of a thread."""
    return -(-lay.chunks * CHUNK_K // lay.threads)


def scale_factors(word: Any) -> list[Any]:
    """Four scales of a row of a chunk, each in both halves of a word."""
    pairs = scale_pairs(word)
    return [broadcast_factor(pairs[block // 2], block % 2) for block in range(GROUPS)]


def _at(row: Any, piece: Any) -> Any:
    """Where a piece of a warp's row is staged: two rows fill the banks, so every second row has another order."""
    return row * CHUNK_K + ((piece ^ (row // 2 % GROUPS)) * PIECE)
