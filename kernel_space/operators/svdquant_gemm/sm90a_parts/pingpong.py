"""Ping-pong of two consumer warpgroups: each has whole tiles, in turn; one multiplies while the other stores.

Warpgroup 0 takes the tiles of a CTA's list with even place in it, warpgroup 1 the others. The rings are filled in the
order of tiles; a slot is read by the four warps of one warpgroup, and both count the slots of every tile.

A wait for a full barrier names the parity of a phase, so it is right only while at most that phase is not over: until
the slot has been filled for the other's tile, a wait for the fill after next would pass. Hence turns: a warpgroup waits
for full slots of its tile only when the other one has passed its last such wait of the tile before. A named barrier for
each warpgroup passes the turn (CUTLASS: OrderedSequenceBarrier): its own 128 threads wait at it, the other's arrive.
For every tile but the first of the list there is one arrival, by the warpgroup of the tile before, and one wait; so no
arrival is left over, whether a list is odd or even.
"""

from typing import Any

from cutlass import Int32, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import DQ_K, LayoutsSm90a

ROTATION, DEEP_ROTATION = (4, 2), (8, 4)
FIRST_BARRIER = 1  # named barriers: one per consumer warpgroup, then
TURN_BARRIER = 3  # named barriers: one per consumer warpgroup
BOTH_THREADS = 256


class PingpongSm90a:
    """Mixin of the consumer role."""

    config: Any

    @property
    def rotation(self) -> tuple[int, int]:
        """Register operands in rotation, and blocks of 16 K elements between dequantizing one and multiplying it.

        Those to come, one in use, and the others' wgmma may still read them. Alone, a warpgroup gains by more of them
        (2 % in tiles of 64x200, 4 % in 64x256; H200); two that share a tile fill each other's gaps.
        """
        alone = self.config.pingpong and self.config.row_blocks == 1
        deep = alone and self.config.expands_act and self.config.wgmma_k == 16
        return DEEP_ROTATION if deep else ROTATION

    def slots_of_tile(self, k_tiles: Any) -> tuple[Any, Any, Any]:
        """Slots of the ab, dq and LoRA rings that a tile takes."""
        lay: LayoutsSm90a = self._layouts()
        slices = Int32(lay.num_lora_slices)
        dq = k_tiles * (lay.k // DQ_K)
        # Expanded activations let LoRA's columns pass through the dq ring.
        return k_tiles, dq + slices if lay.expanded else dq, slices

    def wait_for_turn(self, group: Any) -> None:
        cute.arch.barrier(barrier_id=TURN_BARRIER + group, number_of_threads=BOTH_THREADS)

    def pass_turn(self, group: Any) -> None:
        """To the other warpgroup; by all threads of this one."""
        cute.arch.barrier_arrive(barrier_id=TURN_BARRIER + 1 - group, number_of_threads=BOTH_THREADS)
