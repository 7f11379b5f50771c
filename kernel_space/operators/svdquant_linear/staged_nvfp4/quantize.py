"""x to the values of its NVFP4 codes, by the warps that dequantize and multiply, before they do.

A tile's rows of x are shared out in parts, a CTA's own first. Who takes a part sets its bit: so a part of a CTA that
has not begun is taken by another, after a while in which it is likely to come. A lane has eight neighbours along K,
half a block of 16, and its neighbour lane the other half.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from kernel_space.operators.nvfp4_quantize.parts import ptx
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    load_acquire,
    load_shared,
    store_shared,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.split_k import ALL_BARRIER, GROUP_THREADS
from kernel_space.operators.svdquant_linear.staged_nvfp4.half_blocks import HalfBlocks
from kernel_space.operators.svdquant_linear.staged_nvfp4.layouts import TURN
from kernel_space.operators.svdquant_linear_16bit.staged.ptx import weights_of_word
from kernel_space.operators.svdquant_linear_16bit.whole.eights import ONE, VECTOR
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import rest

OWN_BARRIER = 6  # named barrier of all warps that quantize
HELD_WORDS = VECTOR // 2 + VECTOR  # of x, and of smooth
WORD_BITS = 32
PATIENCE = 8  # looks at who is done, some 5 us, before a CTA takes parts that are not its own
# Codes times scales are 2^-7 of their values. In bf16 x has 2^7 of them, by 2^14 here, for weights have 2^-7; in fp16
# it would leave the range, so both have theirs, by 2^7.
RAISED = {True: 0x46804680, False: 0x58005800}  # of bf16 or not: in both halves


class Quantizer(HalfBlocks):
    """Mixin with what all warps but those that load do first."""

    config: Any
    threads: int

    @staticmethod
    def _raised(lay: Any) -> list[Any] | None:
        """2^7 for weights of fp16."""
        return None if lay.is_bf16 else [Uint32(RAISED[False])] * VECTOR

    @cute.jit
    def quantize_own(self, lay: Any, place: Any, buffers: Any, m: Int32):
        """This CTA's part, unless another has taken it meanwhile. Its first vectors are quantized by when that is
        known: an atomic takes as long as both. The second ones, mostly the last, are on their way with them.
        """
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
        tidx, _, _ = cute.arch.thread_idx()
        thread, threads = tidx - GROUP_THREADS, self._piece()
        turn, at = buffers[TURN].iterator.toint(), place["own"]
        number, total = at * threads + thread, self._total(lay, place, m)
        won = Int32(0)
        if thread == 0:
            won = self._win(place, at)
        own = total * Int32(at < place["parts"])
        held = self._vector(lay, place, number, own)
        second = self._vector(lay, place, number + place["parts"] * threads, own)
        made = self._quantized(lay, [held[i] for i in range(HELD_WORDS)])
        if thread == 0:
            store_shared(turn, [won])
        cute.arch.barrier(barrier_id=OWN_BARRIER, number_of_threads=threads)
        won = Int32(load_shared(turn, 1)[0])
        self._store_vector(lay, place, number, made, total * won)
        if won != 0:
            self._quantize_part(lay, place, number, total, second, 1)
        # They are read by TMA.
        cute.arch.fence_proxy("async.global")
        cute.arch.barrier(barrier_id=OWN_BARRIER, number_of_threads=threads)
        if thread == 0:
            if won != 0:
                cute.arch.atomic_add(place["done"], Int32(1), sem="release", scope="gpu")

    @cute.jit
    def quantize_others(self, lay: Any, place: Any, buffers: Any, m: Int32, thread: Int32):
        """Until all parts of the tile's x are done: those whose CTA has not come after a while, by warps that multiply,
        which have nothing to multiply before.
        """
        threads = 32 * lay.multiplying_warps
        parts, at = place["parts"], place["own"]
        turn = buffers[TURN].iterator.toint()
        lacking = self._lacking(place, turn, thread, threads, Int32(PATIENCE))
        while lacking > 0:
            at = (at + 1) % parts
            if thread == 0:
                store_shared(turn, [self._win(place, at)])
            cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=threads)
            won = load_shared(turn, 1)[0]
            if won != 0:
                # As many threads as its CTA has for it, in turn.
                for begin in cutlass.range(Int32(0), Int32(self._piece()), threads, unroll=1):
                    own = begin + thread
                    number = at * self._piece() + own
                    total = self._total(lay, place, m) * Int32(own < self._piece())
                    held = self._vector(lay, place, number, total)
                    self._quantize_part(lay, place, number, total, held, 0)
                cute.arch.fence_proxy("async.global")
            cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=threads)
            if thread == 0:
                if won != 0:
                    cute.arch.atomic_add(place["done"], Int32(1), sem="release", scope="gpu")
            lacking = self._lacking(place, turn, thread, threads, Int32(1))

    @cute.jit
    def _lacking(self, place: Any, turn: Int32, thread: Int32, threads: cutlass.Constexpr, looks: Int32):
        """Parts that are not done after so many looks, the same for all threads."""
        if thread == 0:
            done = load_acquire(place["done"].toint())
            while (done < place["parts"]) & (looks > 0):
                rest()
                done = load_acquire(place["done"].toint())
                looks -= 1
            store_shared(turn + 4, [done])
        cute.arch.barrier(barrier_id=ALL_BARRIER, number_of_threads=threads)
        return place["parts"] - Int32(load_shared(turn + 4, 1)[0])

    @cute.jit
    def _win(self, place: Any, at: Int32):
        """1 if there is such a part and nobody else has it."""
        won = Int32(0)
        if at < place["parts"]:
            bit = Int32(1) << (at % WORD_BITS)
            before = cute.arch.atomic_or(
                place["taken_parts"] + at // WORD_BITS, bit, sem="relaxed", scope="gpu"
            )
            won = Int32((before & bit) == 0)
        return won

    # A part is every ``parts``-th piece of ``_piece`` vectors, from the piece of its number on.

    def _piece(self) -> int:
        """Vectors of a piece: a CTA's threads that quantize its own part."""
        return self.threads - GROUP_THREADS

    def _total(self, lay: Any, place: Any, m: Any) -> Any:
        """Vectors of the tile's rows of x."""
        return cutlass.min(m - place["row_tile"] * lay.rows, Int32(lay.rows)) * (place["k"] // VECTOR)

    @cute.jit
    def _vector(self, lay: Any, place: Any, number: Int32, total: Int32):
        """Words of x and smooth of a vector, if it is one of ``total``, on their way."""
        held = cute.make_rmem_tensor(HELD_WORDS, Uint32)
        self._load_vector(lay, place, number, number < total, held)
        return held

    def _load_vector(self, lay: Any, place: Any, number: Any, wanted: Any, held: Any) -> None:
        row, column = self._coordinates(lay, place, number)
        words = [*ptx.load_four_if(place["x"] + (Int64(row) * place["k"] + column) * 2, wanted)]
        for i in range(0, VECTOR, 4):
            words += ptx.load_four_if(place["smooth"] + Int64(column + i) * 4, wanted, ONE)
        for i, word in enumerate(words):
            held[i] = word

    def _coordinates(self, lay: Any, place: Any, number: Any) -> tuple[Any, Any]:
        """Row of x, and first of the neighbours along K."""
        vectors = place["k"] // VECTOR
        row = number // vectors
        return place["row_tile"] * lay.rows + row, (number - row * vectors) * VECTOR

    @cute.jit
    def _quantize_part(
        self, lay: Any, place: Any, first: Int32, total: Int32, held: Any, done: cutlass.Constexpr
    ):
        """This thread's vectors of a part from the ``first`` on, but for ``done``; ``held``: words of the first that is
        left. Those of the next one are on their way while one is quantized.
        """
        step = place["parts"] * self._piece()
        # The same for all lanes of a warp: they shuffle.
        turns = cute.ceil_div(total - (first - cute.arch.lane_idx()), step)
        for turn in cutlass.range(Int32(done), turns, unroll=1):
            number = turn * step + first
            words = [held[i] for i in range(HELD_WORDS)]
            self._load_vector(lay, place, number + step, number + step < total, held)
            self._store_vector(lay, place, number, self._quantized(lay, words), total)

    def _store_vector(self, lay: Any, place: Any, number: Any, made: Any, total: Any) -> None:
        """If it is one of ``total``."""
        row, column = self._coordinates(lay, place, number)
        ptx.store_if(place["quantized"] + (Int64(row) * place["k"] + column) * 2, made, number < total)

    def _quantized(self, lay: Any, words: Any) -> tuple[Any, ...]:
        """Four words of pairs, of four of x and eight of smooth; both lanes of a block at once."""
        inverse = self.inverse(words[VECTOR // 2 :])
        codes, factor = self.codes_and_factor(lay, words[: VECTOR // 2], inverse)
        return weights_of_word(codes, factor, [Uint32(RAISED[lay.is_bf16])] * 4, is_bf16=lay.is_bf16)
