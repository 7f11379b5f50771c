"""Second half of ``lora_mma``: sums of parties along K, added in the order of the parties, to ``lora_act_in``.

Every lane gives its four sums of a piece to the same lane of the piece's owner, at [turn, warp along K][party][warp
along M][lane] of the ring that lora_down has left: nothing is transposed.
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, cute

from kernel_space.operators.nvfp4_quantize.lora_mma import ptx as mma_ptx
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import PIECE_BYTES, LoraMmaLayouts
from kernel_space.operators.nvfp4_quantize.lora_mma.stream import ROW_STEP, _barrier
from kernel_space.operators.nvfp4_quantize.parts import ptx


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
            if cutlass.const_expr(lay.splits > 1):
                # Everybody's barrier is ready, and nobody reads lora_down any more.
                cute.arch.cluster_arrive()
                cute.arch.cluster_wait()
            else:
                cute.arch.sync_threads()
            me = place["rank"] * lay.warps_k + place["warp_k"]
            for piece in cutlass.range_constexpr(lay.pieces):
                self._send(place, me, piece, [acc[e, piece] for e in range(4)])
            if cutlass.const_expr(lay.splits > 1):
                cute.arch.mbarrier_wait(_barrier(place["arrived"]), 0)
            else:
                cute.arch.sync_threads()
            for turn in cutlass.range(lay.turns, unroll=1):
                piece = turn * lay.parties + me
                if piece < lay.pieces:
                    self._store(place, piece, self._sum(place, turn))

    def _send(self, place: Any, me: Any, piece: int, sums: list[Any]) -> None:
        """A piece to its owner, this CTA or another one."""
        lay = self.layouts
        turn, owner = divmod(piece, lay.parties)
        rank, warp_k = divmod(owner, lay.warps_k)
        address = self._received(place, turn * lay.warps_k + warp_k) + me * lay.piece_bytes
        if lay.splits == 1:
            return mma_ptx.store_shared(address, sums)
        mma_ptx.store_async(
            mma_ptx.map_to_rank(address, rank), sums, mma_ptx.map_to_rank(place["arrived"], rank)
        )

    def _received(self, place: Any, slot: Any) -> Any:
        """Where this lane's sums lie of a piece, from party 0."""
        lay = self.layouts
        lane = place["warp_m"] * PIECE_BYTES + place["lane"] * 16
        return place["ring"] + slot * (lay.parties * lay.piece_bytes) + lane

    def _sum(self, place: Any, turn: Any) -> list[Any]:
        lay = self.layouts
        address = self._received(place, turn * lay.warps_k + place["warp_k"])
        total = list(mma_ptx.load_shared(address))
        for party in range(1, lay.parties):
            piece = mma_ptx.load_shared(address + party * lay.piece_bytes)
            total = [a + b for a, b in zip(total, piece, strict=True)]
        return total

    def _store(self, place: Any, piece: Any, sums: list[Any]) -> None:
        """Four sums, two columns of two rows, rounded to the dtype of lora_down."""
        lay = self.layouts
        row = place["row"] + piece % lay.blocks * 16
        column = place["columns"] + piece // lay.blocks * 8 + place["quarter"] * 2
        for half in range(2):
            at = row + half * ROW_STEP
            word = mma_ptx.half_pair(sums[2 * half], sums[2 * half + 1], is_bf16=lay.is_bf16)
            ptx.store_if(place["lora_act_in"] + (Int64(at) * lay.r + column) * 2, [word], at < place["m"])
