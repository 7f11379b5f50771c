"""Second half of the small-M kernel of sm_90a: sums of warps, then of the cluster, in a fixed order; epilogue."""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernel_space.kernels.dequant_sm90a import finish_pair, load_shared
from kernel_space.kernels.layouts_small_m_sm90a import OCTETS, SUM_STRIDE, LayoutsSmallM
from kernel_space.kernels.small_m_ptx_sm90a import (
    load_shared_f32,
    map_to_rank,
    store_cluster,
    store_global,
    store_shared_f32,
)
from kernel_space.kernels.small_m_stream_sm90a import FROM_DEQUANT_SCALE

QUADS_OF_WARP = 8  # 16-byte pieces of the 32 columns of y that one warp sums


class SmallMReduce:
    """Mixin with the reduction. A *quad* is four neighbouring columns of y in one row."""

    @cute.jit
    def reduce(self, lay: LayoutsSmallM, place: Any, accs: Any):
        """Warps -> CTA through shared memory; CTAs -> owner of a quad through the cluster's; owner -> y."""
        cute.arch.sync_warp()  # the sums overwrite pieces that other lanes of the warp read
        self._write_sums(lay, place, accs)
        cute.arch.sync_threads()
        quads = cutlass.min(place["m"] - place["first_row"], Int32(lay.columns)) * lay.quads
        if cutlass.const_expr(lay.splits == 1):
            for quad in cutlass.range(place["thread"], quads, lay.threads, unroll=1):
                self._finish(lay, place, quad, self._sum_warps(lay, place, quad))
        else:
            owned = (quads + lay.splits - 1) // lay.splits
            cute.arch.cluster_wait()  # all CTAs of the cluster run: their shared memory may be written
            for quad in cutlass.range(place["thread"], quads, lay.threads, unroll=1):
                owner = quad // owned
                to = place["received"] + (place["rank"] * lay.owned + quad - owner * owned) * 16
                store_cluster(map_to_rank(to, owner), self._sum_warps(lay, place, quad))
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
            first = place["rank"] * owned
            end = cutlass.min(first + owned, quads)
            for quad in cutlass.range(first + place["thread"], end, lay.threads, unroll=1):
                self._finish(lay, place, quad, self._sum_cluster(lay, place, quad - first))

    @staticmethod
    def _write_sums(lay: LayoutsSmallM, place: Any, accs: Any) -> None:
        """Row 8i + 2t + e of act, weight row g of octet 2b + h: [act row][weight row], rows padded by 16 bytes."""
        lane = place["lane"]
        base = place["ring"] + lane % 4 * (2 * SUM_STRIDE) + lane // 4 * 4
        for i in range(lay.act_tiles):
            for octet in range(OCTETS):
                for e in range(2):
                    value = accs[2 * i + octet // 2][octet % 2 * 2 + e]
                    store_shared_f32(base + (8 * i + e) * SUM_STRIDE + octet * 32, value)

    @staticmethod
    def _sum_warps(lay: LayoutsSmallM, place: Any, quad: Any) -> Any:
        """Sums of one quad over the warps that share it along K, in their order."""
        column, row = quad % lay.quads, quad // lay.quads
        warp = column // QUADS_OF_WARP
        ring_bytes = lay.slot_bytes * lay.stages
        address = place["rings"] + warp * ring_bytes + row * SUM_STRIDE + column % QUADS_OF_WARP * 16
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
        """``sum * wcscale + bias``, one rounding, 8 bytes of y."""
        piece = quad % lay.quads
        column = self.first_column(lay, place["tile"], piece)
        if column < place["n"]:
            scales = load_shared(place["wcscale_smem"] + piece * 16, 4)
            biases = load_shared(place["bias_smem"] + piece * 16, 4)
            values = [value * Float32(1.0 / FROM_DEQUANT_SCALE) for value in sums]
            words = [
                finish_pair(values[i], values[i + 1], scales[i : i + 2], biases[i : i + 2], lay.out_bf16)
                for i in (0, 2)
            ]
            row = place["first_row"] + quad // lay.quads
            store_global(place["y"] + (Int64(row) * place["n"] + column) * 2, words)

    @staticmethod
    def first_column(lay: LayoutsSmallM, tile: Any, quad: Any) -> Any:
        """Column of y at which quad ``quad`` of a tile begins.

        32 columns in a row are octets 0..3 of one place in a 128-row block of scale factors, 32 rows apart.
        """
        index = tile * lay.warps_n + quad // QUADS_OF_WARP
        return index // 4 * 128 + index % 4 * 8 + quad % QUADS_OF_WARP // 2 * 32 + quad % 2 * 4
