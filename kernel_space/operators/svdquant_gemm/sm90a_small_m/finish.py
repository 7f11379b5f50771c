"""Sums of a cluster and epilogue of the small-M wgmma kernel of sm_90a.

Octet o of a tile's columns is finished by the CTA of rank o mod ``split_k``. Every lane sends its four sums of an
octet to the same lane of the owner, which adds them to its own in registers: nothing is transposed, no CTA waits for
its own warps. What a lane receives lies at [sender, as ranks after the owner][octet][warp][lane].

A lane holds two rows, 32 apart, and two columns of an octet. Under swap_ab rows are columns of y: its wcscale and bias
are two of each, and it stores halves of words; otherwise two for each octet that its CTA owns, and it stores words.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    finish_pair,
    load_global_if,
    load_global_pair_if,
    prefetch_global_if,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.layouts_wgmma import SUM_BYTES, LayoutsSmallMWgmma
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.layouts import LANES
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import (
    load_shared_f32,
    map_to_rank,
    multiply_bits,
    store_async_if,
    store_global_halves,
    store_global_word,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.rows import FROM_VALUES

ROWS_OF_LANE = 2  # 32 apart


class SmallMFinish:
    """Mixin: sums of the cluster, ``sum * wcscale + bias``, activation, y."""

    def load_affine(self, lay: LayoutsSmallMWgmma, place: Any) -> Any:
        """Early, as DRAM would hold up what follows the main loop: wcscale and bias of what this lane finishes. Rows of
        act need more of them than registers hold: those are only asked into L2.
        """
        if lay.swap_ab:
            columns = [place["row"] + 32 * h for h in range(ROWS_OF_LANE)]
            return [
                [load_global_if(place[name] + Int64(column) * 4, column < place["n"]) for column in columns]
                for name in ("wcscale", "bias")
            ]
        thread = place["consumer_warp"] * LANES + place["lane"]
        for which, name in enumerate(("wcscale", "bias")):
            octet = thread - which * lay.octets
            column = place["first_column"] + octet * 8
            wanted = (octet >= 0) & (octet < lay.octets) & (column < place["n"])
            prefetch_global_if(place[name] + Int64(column) * 4, wanted)
        return None

    @staticmethod
    def _affine_pairs(lay: LayoutsSmallMWgmma, place: Any) -> list[list[Any]]:
        """wcscale and bias of this lane's two columns of every octet that its CTA finishes."""
        column = place["first_column"] + place["rank"] * 8 + place["quarter"] * 2
        both = []
        for name in ("wcscale", "bias"):
            begin = place[name] + Int64(column) * 4
            step = lay.splits * 8
            pairs = [
                load_global_pair_if(begin + j * step * 4, column + j * step < place["n"])
                for j in range(lay.owned)
            ]
            both.append([word for pair in pairs for word in pair])
        return both

    @cute.jit
    def finish(self, lay: LayoutsSmallMWgmma, place: Any, accs: Any):
        own = cute.make_rmem_tensor((4, lay.owned), Float32)
        affine = place["affine"]
        if cutlass.const_expr(lay.splits == 1):
            if cutlass.const_expr(not lay.swap_ab):
                affine = self._affine_pairs(lay, place)
            for octet in cutlass.range_constexpr(lay.octets):
                for e in cutlass.range_constexpr(4):
                    own[e, octet] = _sum(lay, accs, octet, e)
        else:
            own.fill(0.0)
            self._send(lay, place, accs, own)
            if cutlass.const_expr(not lay.swap_ab):
                affine = self._affine_pairs(lay, place)
            self._receive(lay, place, own)
        scales, biases = [multiply_bits(word, 1.0 / FROM_VALUES) for word in affine[0]], affine[1]
        if cutlass.const_expr(lay.swap_ab):
            self._store_transposed(lay, place, own, scales, biases)
        else:
            self._store(lay, place, own, scales, biases)

    @staticmethod
    def _store_transposed(lay: LayoutsSmallMWgmma, place: Any, own: Any, scales: Any, biases: Any) -> None:
        """Rows are columns of y."""
        columns = [place["row"] + 32 * h for h in range(ROWS_OF_LANE)]
        for j in range(lay.owned):
            octet = place["rank"] + j * lay.splits
            for e in range(2):
                word = finish_pair(own[e, j], own[2 + e, j], scales, biases, lay.out_bf16, lay.activation)
                row = place["first_column"] + octet * 8 + place["quarter"] * 2 + e
                target = place["y"] + (Int64(row) * place["n"] + columns[0]) * 2
                inside = (row < place["m"]) & (octet < lay.octets)
                wanted = [inside & (column < place["n"]) for column in columns]
                store_global_halves(target, 64, word, wanted)

    @staticmethod
    def _store(lay: LayoutsSmallMWgmma, place: Any, own: Any, scales: Any, biases: Any) -> None:
        column = place["first_column"] + place["rank"] * 8 + place["quarter"] * 2
        step = lay.splits * 8  # columns between two octets of this CTA
        for h in range(ROWS_OF_LANE):
            row = place["row"] + 32 * h
            begin = place["y"] + (Int64(row) * place["n"] + column) * 2
            for j in range(lay.owned):
                pair = slice(2 * j, 2 * j + 2)
                low, high = own[2 * h, j], own[2 * h + 1, j]
                word = finish_pair(low, high, scales[pair], biases[pair], lay.out_bf16, lay.activation)
                inside = (place["rank"] + j * lay.splits < lay.octets) & (column + j * step < place["n"])
                store_global_word(begin + j * step * 2, word, inside & (row < place["m"]))

    @cute.jit
    def _send(self, lay: LayoutsSmallMWgmma, place: Any, accs: Any, own: Any):
        """Send what others own, once their rings are free; keep what this CTA owns in ``own``."""
        rank = place["rank"]
        lane_offset = (place["consumer_warp"] * LANES + place["lane"]) * SUM_BYTES
        cute.arch.mbarrier_wait(place["rings_free"], 0)
        for owner in cutlass.range_constexpr(lay.splits):
            octets = range(owner, lay.octets, lay.splits)
            if rank == owner:
                for j, octet in enumerate(octets):
                    for e in cutlass.range_constexpr(4):
                        own[e, j] = _sum(lay, accs, octet, e)
            else:
                sender = (rank - owner + lay.splits - 1) % lay.splits
                offset = sender * (lay.owned * lay.received_octet_bytes) + lane_offset
                target = map_to_rank(place["received"] + offset, Int32(owner))
                barrier = map_to_rank(place["sums_full"].toint(), Int32(owner))
                for j, octet in enumerate(octets):
                    values = [_sum(lay, accs, octet, e) for e in range(4)]
                    address = target + j * lay.received_octet_bytes
                    store_async_if(address, values, barrier, octet < place["octets_here"])

    @cute.jit
    def _receive(self, lay: LayoutsSmallMWgmma, place: Any, own: Any):
        """Add the others' sums of what this CTA owns, in the order of ranks that follow its own."""
        lane_offset = (place["consumer_warp"] * LANES + place["lane"]) * SUM_BYTES
        cute.arch.mbarrier_wait(place["sums_full"], 0)
        for j in cutlass.range_constexpr(lay.owned):
            if place["rank"] + j * lay.splits < place["octets_here"]:
                for sender in cutlass.range_constexpr(lay.splits - 1):
                    offset = (sender * lay.owned + j) * lay.received_octet_bytes
                    piece = load_shared_f32(place["received"] + offset + lane_offset)
                    for e in cutlass.range_constexpr(4):
                        own[e, j] = own[e, j] + piece[e]


def _sum(lay: LayoutsSmallMWgmma, accs: Any, octet: int, e: int) -> Any:
    """Row e // 2 and column e % 2 of what a lane holds of an octet of columns."""
    for part, acc in zip(lay.parts, accs, strict=True):
        if 8 * octet < part.first + part.extent:
            return acc[(e % 2, e // 2, octet - part.first // 8), 0, 0]
    raise IndexError(octet)
