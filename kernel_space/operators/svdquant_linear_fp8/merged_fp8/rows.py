"""What a CTA of the first kernel of ``merged_fp8`` does to its rows of x.

    factor = 448 / max |x|,  x8 = e4m3(x * factor),  scale = max |x| / 448        of each row

A CTA takes as many rows at a time as its threads hold, four, two or one: a thread four vectors of 16 elements. The
largest magnitudes are found through shuffles, then through shared memory, of which steps take turns to use one half, so
that one needs one barrier. Of rows longer than all threads hold, the rest is read twice.

A vector is two pieces of 8 elements, so that the lanes of a warp load whole lines: of 512 elements lane l has 8 l to
8 l + 7 and as many 256 behind. Two neighbours hold two groups of 16 together. One gives the other what it has of the
second group for what that has of the first, as E4M3 numbers, and each stores a group in the order of ``merge.py``.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from kernel_space.operators.nvfp4_quantize.parts.ptx import (
    bits_of,
    larger_magnitude,
    load_four_if,
    multiply,
    store_if,
    two_halves,
)
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.layouts import HELD, MergeFp8Layouts
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.ptx import (
    chosen,
    e4m3_word,
    factor_of,
    halves,
    larger_halves,
    scale_of,
)

VECTOR = 16  # elements
WORDS = VECTOR // 2
PIECE = 8  # elements that lie side by side
SPAN = 32 * PIECE  # from the first piece of a lane to the second


class QuantizeRows:
    """Mixin with what CTAs do to x."""

    config: Any

    @cute.jit
    def quantize_part(
        self,
        lay: MergeFp8Layouts,
        x: cute.Pointer,
        made: Any,
        buffers: Any,
        first: Int32,
        last: Int32,
        k: Int32,
    ):
        """Rows ``first`` to ``last`` of x. ``made``: addresses where x8 and scales are written."""
        step = lay.threads * VECTOR
        rows = (x.toint(), *made, first, last, k)
        if k <= step:
            self._quantize(lay, rows, buffers, HELD, 1)
        elif k <= 2 * step:
            self._quantize(lay, rows, buffers, HELD // 2, 2)
        else:
            self._quantize(lay, rows, buffers, 1, HELD)

    @cute.jit
    def _quantize(
        self,
        lay: MergeFp8Layouts,
        rows: Any,
        buffers: Any,
        at_once: cutlass.Constexpr,
        vectors: cutlass.Constexpr,
    ):
        """``at_once`` rows side by side, of which a thread holds ``vectors`` each."""
        x, x8, scales, first, last, k = rows
        thread, _, _ = cute.arch.thread_idx()
        lane = cute.arch.lane_idx()
        kind = "bf16" if lay.is_bf16 else "f16"
        begin = thread // 32 * (2 * SPAN) + lane * PIECE
        # Where the group of 16 begins that this lane stores.
        group = thread // 32 * (2 * SPAN) + lane % 2 * SPAN + lane // 2 * VECTOR
        step = lay.threads * VECTOR
        held = cute.make_rmem_tensor((WORDS, HELD), Uint32)
        turn = Int32(0)
        row = first
        while row < last:
            for one in cutlass.range_constexpr(at_once):
                inside = Int32(row + one < last)
                for v in cutlass.range_constexpr(vectors):
                    words = _vector(x + Int64(row + one) * k * 2, begin + v * step, k, inside)
                    for i in cutlass.range_constexpr(WORDS):
                        held[i, one * vectors + v] = words[i]
            most = cute.make_rmem_tensor((at_once,), Float32)
            for one in cutlass.range_constexpr(at_once):
                largest = Uint32(0)
                for v in cutlass.range_constexpr(vectors):
                    for i in cutlass.range_constexpr(WORDS):
                        largest = larger_halves(largest, held[i, one * vectors + v])
                beyond = Int32(vectors) * step
                while beyond < k:  # never but of rows longer than what is held
                    for word in _vector(x + Int64(row + one) * k * 2, begin + beyond, k, Int32(1)):
                        largest = larger_halves(largest, word)
                    beyond += step
                most[one] = larger_magnitude(*two_halves(largest, kind))
            self._meet(lay, buffers, most, turn)
            for one in cutlass.range_constexpr(at_once):
                factor = factor_of(most[one])
                target = x8 + Int64(row + one) * k + group
                inside = Int32(row + one < last)
                for v in cutlass.range_constexpr(vectors):
                    words = [held[i, one * vectors + v] for i in range(WORDS)]
                    found = _narrowed(words, factor, kind, lane)
                    store_if(target + v * step, found, inside & Int32(group + v * step < k))
                beyond = Int32(vectors) * step
                while beyond < k:
                    words = _vector(x + Int64(row + one) * k * 2, begin + beyond, k, Int32(1))
                    store_if(target + beyond, _narrowed(words, factor, kind, lane), Int32(group + beyond < k))
                    beyond += step
                scale = bits_of(scale_of(most[one]))
                store_if(scales + Int64(row + one) * 4, [scale], inside & Int32(thread == 0))
            turn = 1 - turn
            row += at_once

    @cute.jit
    def _meet(self, lay: MergeFp8Layouts, buffers: Any, most: Any, turn: Int32):
        """Of each row the largest of all threads of the CTA, in place."""
        count = cute.size(most)
        maxima = buffers["maxima"]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        for one in cutlass.range_constexpr(count):
            for distance in (16, 8, 4, 2, 1):
                most[one] = larger_magnitude(most[one], cute.arch.shuffle_sync_bfly(most[one], distance))
            if cute.arch.lane_idx() == 0:
                maxima[one, warp, turn] = most[one]
        cute.arch.sync_threads()
        for one in cutlass.range_constexpr(count):
            for other in cutlass.range_constexpr(lay.warps):
                most[one] = larger_magnitude(most[one], maxima[one, other, turn])


def _vector(source: Any, column: Any, k: Any, wanted: Any) -> list[Any]:
    """Words of both pieces of a lane, the first from ``column`` on of the row at ``source``; zeros beyond K."""
    words: list[Any] = []
    for at in (column, column + SPAN):
        words += load_four_if(source + Int64(at) * 2, wanted & Int32(at < k))
    return words


def _narrowed(words: list[Any], factor: Any, kind: str, lane: Any) -> list[Any]:
    """Of two pieces and those of the lane's neighbour a group of 16 elements times ``factor``, as four words: pair t of
    each half side by side in word t.
    """
    pairs = [[multiply(value, factor) for value in two_halves(word, kind)] for word in words]
    first, second = ([e4m3_word(pairs[i], pairs[i + 1]) for i in (at, at + 2)] for at in (0, WORDS // 2))
    odd = lane % 2 == 1
    low, high = [], []
    for mine, other in zip(first, second, strict=True):
        came = cute.arch.shuffle_sync_bfly(chosen(odd, mine, other), 1)
        low.append(chosen(odd, came, mine))
        high.append(chosen(odd, other, came))
    return [halves(low[t // 2], high[t // 2], t % 2) for t in range(WORDS // 2)]
