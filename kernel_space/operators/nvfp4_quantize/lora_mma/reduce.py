"""Second half of ``lora_mma``: sums of parties along K, added in the order of the parties, to ``lora_act_in``.

Every lane gives its four sums of a piece to the same lane of the piece's owner, at [owned piece][party][warp along M]
[lane] of the ring that lora_down has left: nothing is transposed.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.nvfp4_quantize.lora_mma import ptx as mma_ptx
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import PIECE_BYTES, LoraMmaLayouts
from kernel_space.operators.nvfp4_quantize.lora_mma.stream import ROW_STEP


class Reduce:
    """Mixin with the end of the kernel."""

    layouts: LoraMmaLayouts

    @cute.jit
    def reduce(self, place: Any, acc: Any):
        lay = self.layouts
        if cutlass.const_expr(lay.parties == 1):
            for piece in cutlass.range_constexpr(lay.pieces):
                self._store(place, Int32(piece), [acc[e, piece] for e in range(4)])
        else:
            self._meet()  # nobody reads lora_down any more
            me = place["rank"] * lay.warps_k + place["warp_k"]
            for piece in cutlass.range_constexpr(lay.pieces):
                self._send(place, me, piece, [acc[e, piece] for e in range(4)])
            self._meet()
            for slot in cutlass.range(place["warp_k"], lay.owned, lay.warps_k, unroll=1):
                piece = slot * lay.splits + place["rank"]
                if piece < lay.pieces:
                    self._store(place, piece, self._sum(place, slot))

    def _meet(self) -> None:
        """All threads of the cluster; what they wrote before is there after it."""
        if self.layouts.splits > 1:
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()

    def _send(self, place: Any, me: Any, piece: int, sums: list[Any]) -> None:
        """A piece to its owner, this CTA or another one."""
        lay = self.layouts
        slot, rank = divmod(piece, lay.splits)
        address = self._received(place, slot) + me * lay.piece_bytes
        if lay.splits == 1:
            mma_ptx.store_shared(address, sums)
        else:
            mma_ptx.store_cluster(mma_ptx.map_to_rank(address, rank), sums)

    def _received(self, place: Any, slot: Any) -> Any:
        """Where this lane's sums lie of a piece, from party 0."""
        lay = self.layouts
        lane = place["warp_m"] * PIECE_BYTES + place["lane"] * 16
        return place["ring"] + slot * (lay.parties * lay.piece_bytes) + lane

    def _sum(self, place: Any, slot: Any) -> list[Any]:
        lay = self.layouts
        address = self._received(place, slot)
        total = list(mma_ptx.load_shared(address))
        for party in range(1, lay.parties):
            piece = mma_ptx.load_shared(address + party * lay.piece_bytes)
            total = [a + b for a, b in zip(total, piece, strict=True)]
        return total

    def _store(self, place: Any, piece: Any, sums: list[Any]) -> None:
        """Four sums, two columns of two neighbouring rows, rounded to the dtype of lora_down."""
        lay = self.layouts
        row = place["piece_row"] + piece % lay.octets * ROW_STEP
        column = place["columns"] + piece // lay.octets * 16 + place["lane"] // 4
        for e in range(2):
            address = place["lora_act_in"] + (Int64(row + e) * lay.r + column) * 2
            wanted = row + e < place["m"]
            if not lay.even:
                wanted = wanted & (column >= place["own_columns"])
            mma_ptx.store_halves_if(address, 16, (sums[e], sums[2 + e]), wanted, is_bf16=lay.is_bf16)
