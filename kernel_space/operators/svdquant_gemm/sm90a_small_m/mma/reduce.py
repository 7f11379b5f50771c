"""Second half of the small-M kernel of sm_90a: sums of warps, then of the cluster, in a fixed order; epilogue."""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import finish_pair, load_shared
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.layouts import OCTETS, LayoutsSmallM
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import (
    load_shared_f32,
    map_to_rank,
    store_async,
    store_global,
    store_shared_f32,
)


class SmallMReduce:
    """Mixin with the reduction. A *quad* is four neighbouring columns of y in one row."""

    @cute.jit
    def reduce(self, lay: LayoutsSmallM, place: Any, accs: Any):
        """Warps -> CTA through shared memory; CTAs -> owner of a quad through the cluster's; owner -> y."""
        cute.arch.sync_warp()  # the sums overwrite pieces that other lanes of the warp read
        self._write_sums(lay, place, accs)
        cute.arch.sync_threads()
        self.add_warps(lay, place)

    @cute.jit
    def add_warps(self, lay: LayoutsSmallM, place: Any):
        """Sums of all warps, which are in shared memory."""
        quads = cutlass.min(place["m"] - place["first_row"], Int32(lay.columns)) * lay.quads
        if cutlass.const_expr(lay.splits == 1):
            for quad in cutlass.range(place["thread"], quads, lay.threads, unroll=1):
                self._finish(lay, place, quad, self._sum_warps(lay, place, quad))
        else:
            cute.arch.cluster_wait()  # every CTA of the cluster has its barrier ready
            for quad in cutlass.range(place["thread"], quads, lay.threads, unroll=1):
                owner = quad // lay.owned
                to = place["received"] + (place["rank"] * lay.owned + quad - owner * lay.owned) * 16
                barrier = map_to_rank(place["arrived"].toint(), owner)
                store_async(map_to_rank(to, owner), self._sum_warps(lay, place, quad), barrier)
            cute.arch.mbarrier_wait(place["arrived"], 0)
            first = place["rank"] * lay.owned
            end = cutlass.min(first + lay.owned, quads)
            for quad in cutlass.range(first + place["thread"], end, lay.threads, unroll=1):
                self._finish(lay, place, quad, self._sum_cluster(lay, place, quad - first))

    @cute.jit
    def announce(self, lay: LayoutsSmallM, arrived: Any, rank: Int32, rows: Int32):
        """Before all else: this CTA's barrier, which completes when all sums that it owns are here."""
        tidx, _, _ = cute.arch.thread_idx()
        if tidx == 0:
            cute.arch.mbarrier_init(arrived, 1)
            cute.arch.mbarrier_init_fence()
            quads = cutlass.min(rows, Int32(lay.columns)) * lay.quads - rank * lay.owned
            quads = cutlass.max(cutlass.min(quads, Int32(lay.owned)), Int32(0))
            cute.arch.mbarrier_arrive_and_expect_tx(arrived, quads * (16 * lay.splits))
        cute.arch.cluster_arrive_relaxed()

    def _write_sums(self, lay: LayoutsSmallM, place: Any, accs: Any) -> None:
        """[act row][weight row] of this warp, rows padded by 16 bytes."""
        lane = place["lane"]
        base = place["ring"] + lane % 4 * (2 * lay.sum_stride) + lane // 4 * 4
        for tile in range(lay.act_tiles):
            for octet in range(OCTETS):
                for e in range(2):
                    address = base + (8 * tile + e) * lay.sum_stride + octet * 32
                    store_shared_f32(address, self.sum_at(accs, tile, octet, e))

    @staticmethod
    def _sum_warps(lay: LayoutsSmallM, place: Any, quad: Any) -> Any:
        """Sums of one quad over the warps that share it along K, in their order."""
        column, row = quad % lay.quads, quad // lay.quads
        warp = column // lay.warp_quads
        ring_bytes = lay.slot_bytes * lay.stages
        address = place["rings"] + warp * ring_bytes + row * lay.sum_stride + column % lay.warp_quads * 16
        total = load_shared_f32(address)
        for part in range(1, lay.warps_k):
            piece = load_shared_f32(address + part * (lay.warps_n * ring_bytes))
            total = [a + b for a, b in zip(total, piece, strict=True)]
        return total

    @staticmethod
    def _sum_cluster(lay: LayoutsSmallM, place: Any, index: Any) -> Any:
        """Sums of one owned quad over the CTAs of the cluster, in the order of their ranks."""
        address = place["received"] + index * 16
        total = load_shared_f32(address)
        for rank in range(1, lay.splits):
            piece = load_shared_f32(address + rank * (lay.owned * 16))
            total = [a + b for a, b in zip(total, piece, strict=True)]
        return total

    @cute.jit
    def _finish(self, lay: LayoutsSmallM, place: Any, quad: Int32, sums: Any):
        """``sum * wcscale + bias``, activation, one rounding, 8 bytes of y."""
        piece = quad % lay.quads
        column = self.first_column(lay, place["tile"], piece)
        if column < place["n"]:
            scales = load_shared(place["wcscale_smem"] + piece * 16, 4)
            biases = load_shared(place["bias_smem"] + piece * 16, 4)
            words = []
            for i in (0, 2):
                affine = scales[i : i + 2], biases[i : i + 2]
                words.append(finish_pair(sums[i], sums[i + 1], *affine, lay.out_bf16, lay.activation))
            row = place["first_row"] + quad // lay.quads
            store_global(place["y"] + (Int64(row) * place["n"] + column) * 2, words)

    @staticmethod
    def first_column(lay: LayoutsSmallM, tile: Any, quad: Any) -> Any:
        """Column of y at which quad ``quad`` of a tile begins.

        32 columns in a row are octets 0..3 of one place in a 128-row block of scale factors, 32 rows apart.
        """
        index = tile * (lay.rows // 32) + quad // 8
        return index // 4 * 128 + index % 4 * 8 + quad % 8 // 2 * 32 + quad % 2 * 4
