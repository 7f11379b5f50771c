"""Of the first kernel of ``merged_fp8`` the CTAs that merge: weights as one FP8 matrix, the low-rank branch in it.

``merged8[N,K] = e4m3((codes * scales * (1 / smooth[K]) + lora_up[N,R] @ lora_down[K,R].T) * (448 / wpeak[N]))``

Layouts, lora_up and the ring of lora_down are those of ``merged/merge.py``. Differences:

- All packed codes of a CTA come by TMA, in boxes of two chunks: lanes load 16 bytes of theirs from shared memory.
- The product of the next chunk is under way in a second set of accumulators while this one is scaled and rounded.
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
    store_if,
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
from kernel_space.operators.svdquant_linear_16bit.merged.ptx import byte_selector, pair_of_byte
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import inverse
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.layouts import BOX_BYTES, MergeFp8Layouts
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.ptx import e4m3_word, factor_of, load_constants

GROUPS = CHUNK_K // PIECE  # pieces of 16 K of a row of a chunk


class MergeFp8(Merge):
    """Mixin with the merging CTAs."""

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
    def merge_fp8_part(
        self,
        up: Any,
        codes: Any,
        pointers: Any,
        merged: cute.Pointer,
        buffers: Any,
        where: Any,
        n: Int32,
        k: Int32,
    ):
        """What a CTA merges. ``up``, ``codes``: TMA atoms and tensors; ``where``: its tile of rows, its part of K."""
        lay = self._merge_layouts()
        place = self._merge_place(lay, pointers, merged, buffers, where, n, k)
        self._ask_for_codes(lay, place, buffers, codes)
        if cutlass.const_expr(lay.r > 0):
            self._load_lora(lay, place, buffers, *up)
        scales = cute.make_rmem_tensor((2,), Uint32)
        self._load_scales(place, Int32(0), scales)
        self._invert(lay, place)
        cute.arch.sync_threads()
        if cutlass.const_expr(lay.r > 0):
            cute.arch.mbarrier_wait(buffers["up_full"].iterator, 0)
        if cutlass.const_expr(self.config.use_pdl):
            # The GEMM of the launch before reads what was merged for it until it ends.
            cute.arch.griddepcontrol_wait()
        accs = [cute.make_rmem_tensor(cute.make_layout(((2, 2, WORDS), 1, 1)), ACC_DTYPE) for _ in range(2)]
        ring = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.slots)
        freed = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.slots)
        self._issue(lay, place, buffers, accs[0], Int32(0), ring)
        ring.advance()
        cute.arch.mbarrier_wait(buffers["codes_full"].iterator, 0)
        for pair in cutlass.range((place["count"] + 1) // 2, unroll=1):
            for which in cutlass.range_constexpr(2):
                i = pair * 2 + which
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
                    self._finish_fp8_chunk(lay, place, accs[which], scales, i)
        if cutlass.const_expr(lay.r > 0):
            warpgroup.wait_group(0)

    @cute.jit
    def _invert(self, lay: MergeFp8Layouts, place: Any):
        """As ``Merge._invert``; a thread has asked for all its columns of smooth before it waits for one."""
        total = lay.chunks * CHUNK_K
        inverses = cute.make_tensor(
            cute.make_ptr(Float32, place["inverses"], cute.AddressSpace.smem, assumed_align=16), lay.inverse
        )
        steps = (total + lay.threads - 1) // lay.threads
        words = []
        for step in cutlass.range_constexpr(steps):
            at = place["thread"] + step * lay.threads
            column = place["first"] * CHUNK_K + at
            inside = Int32(column < place["k"]) & Int32(at < total)
            words.append(load_global_if(place["smooth"] + Int64(column) * 4, inside))
        for step in cutlass.range_constexpr(steps):
            at = place["thread"] + step * lay.threads
            value = multiply(inverse(of_bits(words[step])), Float32(FROM_DEQUANT))
            if at < total:
                inverses[at] = value

    @cute.jit
    def _ask_for_codes(self, lay: MergeFp8Layouts, place: Any, buffers: Any, codes: Any):
        """A thread asks for all codes of the CTA; zeros beyond N and K."""
        atom, tensor = codes
        full = buffers["codes_full"].iterator
        if place["warp"] == 0:
            cpasync.prefetch_descriptor(atom)
            with cute.arch.elect_one():
                cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.sync_warp()
            target, source = self._partition(atom, buffers["codes"], tensor, (lay.rows, BOX_BYTES))
            boxes = (place["count"] + 1) // 2
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, boxes * lay.codes_bytes)
            first = place["first"] // 2
            for box in cutlass.range(boxes, unroll=1):
                cute.copy(
                    atom, source[(None, place["tile"], first + box)], target[(None, box)], tma_bar_ptr=full
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
    def _finish_fp8_chunk(self, lay: MergeFp8Layouts, place: Any, acc: Any, scales: Any, i: Int32):
        """Scale, add, round; a warp's 16 rows of 64 columns to global memory."""
        factors = [scale_factors(scales[half]) for half in range(2)]
        # On their way while this chunk is worked on.
        self._load_scales(place, i + 1, scales)
        lane = place["lane"]
        row = lane // 8 % 2 * 8 + lane % 8
        held = [self._codes_of(lay, place, i, part) for part in range(GROUPS // 2)]
        for group in cutlass.range_constexpr(0, GROUPS, 2):
            words = []
            for one in (group, group + 1):
                words += self._group_words(lay, place, acc, held[group // 2], factors, i, one)
            store_matrices(place["staged"] + _at(row, group + lane // 16), words, transpose=False)
        cute.arch.sync_warp()
        for step in cutlass.range_constexpr(WARP_ROWS * GROUPS // 32):
            row_of_warp, piece = step * (32 // GROUPS) + lane // GROUPS, lane % GROUPS
            found = load_shared(place["staged"] + _at(row_of_warp, piece), 4)
            line, column = place["warp_row"] + row_of_warp, (place["first"] + i) * CHUNK_K + piece * PIECE
            wanted = Int32(line < place["n"]) & Int32(column < place["k"])
            store_if(place["merged"] + Int64(line) * place["k"] + column, found, wanted)
        # The next chunk is turned in the same place.
        cute.arch.sync_warp()

    @staticmethod
    def _codes_of(lay: MergeFp8Layouts, place: Any, i: Any, part: int) -> list[list[Any]]:
        """Of both rows of this lane the four words of codes of 32 columns of chunk ``i``."""
        piece = (i % 2 * 2 + part) ^ place["turned"]
        at = i // 2 * lay.codes_bytes + piece * PIECE
        return [list(load_shared(place["packed"][half] + at, 4)) for half in range(2)]

    @staticmethod
    def _group_words(
        lay: MergeFp8Layouts, place: Any, acc: Any, held: Any, factors: Any, i: Any, group: int
    ) -> list[Any]:
        """Of 16 columns this lane's four numbers of both of its rows: two matrices of stmatrix."""
        selector = byte_selector(place["quarter"])
        inverses = place["inverses"] + i * (CHUNK_K * 4) + place["quarter"] * 8
        scaled_by = [load_constants(inverses + (2 * group + one) * 32) for one in range(2)]
        words = []
        for half in range(2):
            pairs = []
            for one in range(2):
                octet = 2 * group + one
                exact = pair_of_byte(held[half][octet % 4], selector, factors[half][group])
                values = []
                for e, value in enumerate(two_halves(exact, "f16")):
                    if lay.r:
                        value = multiply_add(value, scaled_by[one][e], acc[(e, half, octet), 0, 0])
                    else:
                        value = multiply(value, scaled_by[one][e])
                    values.append(multiply(value, place["factors"][half]))
                pairs.append(values)
            words.append(e4m3_word(*pairs))
        return words


def scale_factors(word: Any) -> list[Any]:
    """Four scales of a row of a chunk, each in both halves of a word."""
    pairs = scale_pairs(word)
    return [broadcast_factor(pairs[block // 2], block % 2) for block in range(GROUPS)]


def _at(row: Any, piece: Any) -> Any:
    """Where a piece of a warp's row is staged: two rows fill the banks, so every second row has another order."""
    return row * CHUNK_K + ((piece ^ (row // 2 % GROUPS)) * PIECE)
