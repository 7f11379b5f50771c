"""Sums of a cluster and epilogue of the small-M wgmma kernel of sm_90a.

Octet o of a tile's act rows is finished by the CTA of rank o mod ``split_k``. Every lane sends its four sums of an
octet to the same lane of the owner, which adds them to its own in registers: nothing is transposed, no CTA waits for
its own warps. What a lane receives lies at [sender, as ranks after the owner][octet][warp][lane].
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernel_space.kernels.dequant_sm90a import finish_pair, load_global_if
from kernel_space.kernels.layouts_small_m_sm90a import LANES
from kernel_space.kernels.layouts_small_m_wgmma_sm90a import SUM_BYTES, LayoutsSmallMWgmma
from kernel_space.kernels.small_m_ptx_sm90a import (
    load_shared_f32,
    map_to_rank,
    multiply_bits,
    store_async,
    store_global_halves,
)
from kernel_space.kernels.small_m_weights_sm90a import FROM_VALUES

ROWS_OF_LANE = 2  # weight rows, 32 apart


class SmallMFinish:
    """Mixin: sums of the cluster, ``sum * wcscale + bias``, y."""

    @staticmethod
    def load_affine(place: Any) -> list[list[Any]]:
        """wcscale and bias of this lane's weight rows: early, as DRAM would hold up what follows the main loop."""
        columns = [place["column"] + 32 * h for h in range(ROWS_OF_LANE)]
        return [
            [load_global_if(place[name] + Int64(column) * 4, column < place["n"]) for column in columns]
            for name in ("wcscale", "bias")
        ]

    @cute.jit
    def finish(self, lay: LayoutsSmallMWgmma, place: Any, acc: Any):
        columns = [place["column"] + 32 * h for h in range(ROWS_OF_LANE)]
        scales = [multiply_bits(word, 1.0 / FROM_VALUES) for word in place["affine"][0]]
        biases = place["affine"][1]
        own = cute.make_rmem_tensor((4, lay.owned), Float32)
        if cutlass.const_expr(lay.splits == 1):
            for octet in cutlass.range_constexpr(lay.octets):
                for e in cutlass.range_constexpr(4):
                    own[e, octet] = acc[(e % 2, e // 2, octet), 0, 0]
        else:
            self._exchange(lay, place, acc, own)
        for j in cutlass.range_constexpr(lay.owned):
            octet = place["rank"] + j * lay.splits
            for e in cutlass.range_constexpr(2):
                word = finish_pair(own[e, j], own[2 + e, j], scales, biases, lay.out_bf16)
                row = place["first_row"] + octet * 8 + place["quarter"] * 2 + e
                target = place["y"] + (Int64(row) * place["n"] + columns[0]) * 2
                inside = (row < place["m"]) & (octet < lay.octets)
                wanted = [inside & (column < place["n"]) for column in columns]
                store_global_halves(target, 64, word, wanted)

    @cute.jit
    def _exchange(self, lay: LayoutsSmallMWgmma, place: Any, acc: Any, own: Any):
        """Send what others own, keep what this CTA owns in ``own``, wait for the others' parts of it and add them."""
        rank = place["rank"]
        lane_offset = (place["consumer_warp"] * LANES + place["lane"]) * SUM_BYTES
        own.fill(0.0)
        cute.arch.mbarrier_wait(place["rings_free"], 0)
        for octet in cutlass.range_constexpr(lay.octets):
            owner, j = octet % lay.splits, octet // lay.splits
            values = [acc[(e % 2, e // 2, octet), 0, 0] for e in range(4)]
            if octet < place["octets_here"]:
                if rank == owner:
                    for e in cutlass.range_constexpr(4):
                        own[e, j] = values[e]
                else:
                    sender = (rank - owner + lay.splits - 1) % lay.splits
                    offset = (sender * lay.owned + j) * lay.received_octet_bytes + lane_offset
                    target = map_to_rank(place["weights"] + offset, Int32(owner))
                    barrier = map_to_rank(place["sums_full"].toint(), Int32(owner))
                    store_async(target, values, barrier)
        cute.arch.mbarrier_wait(place["sums_full"], 0)
        for j in cutlass.range_constexpr(lay.owned):
            if rank + j * lay.splits < place["octets_here"]:
                for sender in cutlass.range_constexpr(lay.splits - 1):
                    offset = (sender * lay.owned + j) * lay.received_octet_bytes
                    piece = load_shared_f32(place["weights"] + offset + lane_offset)
                    for e in cutlass.range_constexpr(4):
                        own[e, j] = own[e, j] + piece[e]
