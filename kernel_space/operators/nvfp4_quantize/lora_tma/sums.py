"""From sums of a cluster's CTAs to lora_act_in, by the warps that multiply, while others still quantize.

1. A thread sends each vector of four sums (``st.async``) to the CTA that owns it, but for its own. There it lies at the
   place of the sender's rank and of the thread, and a barrier of the same warp of the owner counts bytes.
2. The same thread of the owner adds them to its own, those of the next rank first: bits are those of any launch.
3. It rounds them to 16 bits and stores them, each by itself: columns of lora_down are far apart in its registers.

No CTA waits for one that may not run, for clusters start whole; nobody touches the shared memory of a CTA that has got
all of its bytes, so it ends without a barrier.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute

from kernel_space.operators.nvfp4_quantize.lora_mma import ptx as mma_ptx
from kernel_space.operators.nvfp4_quantize.lora_tma import ptx
from kernel_space.operators.nvfp4_quantize.lora_tma.config import GROUP_WARPS, LANES
from kernel_space.operators.nvfp4_quantize.lora_tma.layouts import (
    MMA_ROWS,
    QUANT_ROWS,
    VECTOR_BYTES,
    LoraTmaLayouts,
)

WARP_COLUMNS = 16  # of lora_down, in one wgmma
HALF_BYTES = 2


class Sums:
    """Mixin with what multiplying warps do behind their loop."""

    layouts: LoraTmaLayouts
    config: Any
    _barrier: Any  # of ``Roles``

    def init_more_barriers(self, place: Any) -> None:
        """Those of the sums, by one thread."""
        if "sums_full" in place:
            for warp in range(GROUP_WARPS):
                cute.arch.mbarrier_init(self._barrier(place, "sums_full", warp), 1)

    @cute.jit
    def finish(self, place: Any, acc: Any):
        """``acc`` is this CTA's part of the tile's sums."""
        lay = self.layouts
        shape = (2, 2, lay.groups, lay.blocks)  # row of two, half of the warp's columns, octet of rows, wgmma
        sums = cute.make_tensor(acc.iterator, cute.make_layout(shape))
        place = place | {"group_warp": place["warp"] - GROUP_WARPS}
        mine = self._first_owned(place)
        own = cute.make_rmem_tensor((4, lay.owned), Float32)
        self._take_own(sums, own, mine)
        if cutlass.const_expr(lay.splits > 1):
            self._send(place, sums, mine)
            self._add(place, own, mine)
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
        self._store(place, own, mine)

    def _first_owned(self, place: Any) -> Any:
        """Of this CTA and warp; each ``splits``-th behind it is, too."""
        lay = self.layouts
        turned = lay.owner_step * GROUP_WARPS * lay.splits - lay.owner_step * place["group_warp"]
        return (place["rank"] + turned) % lay.splits

    def _vector(self, sums: Any, v: int) -> list[Any]:
        octet, block = divmod(v, self.layouts.blocks)
        return [sums[e, half, octet, block] for half in range(2) for e in range(2)]

    def _take_own(self, sums: Any, own: Any, mine: Any) -> None:
        """This CTA's part of what it owns."""
        if self.layouts.vectors == self.layouts.splits:
            self._select_own(sums, own, mine)
        else:
            own.fill(0.0)
            self._copy_own(sums, own, mine)

    @cute.jit
    def _copy_own(self, sums: Any, own: Any, mine: Int32):
        lay = self.layouts
        for first in cutlass.range_constexpr(lay.splits):
            if mine == first:
                for v in cutlass.range_constexpr(first, lay.vectors, lay.splits):
                    for i, value in enumerate(self._vector(sums, v)):
                        own[i, v // lay.splits] = value

    def _select_own(self, sums: Any, own: Any, mine: Any) -> None:
        """Where each CTA owns one vector. Of two conditional stores to one in a row the DSL (4.8.1) loses the second:
        the IR has it, the PTX has not, if there is one wgmma of columns.
        """
        found = self._vector(sums, 0)
        for v in range(1, self.layouts.vectors):
            own_v = zip(self._vector(sums, v), found, strict=True)
            found = [cutlass.select_(mine == v, a, b) for a, b in own_v]
        for i, value in enumerate(found):
            own[i, 0] = value

    @cute.jit
    def _send(self, place: Any, sums: Any, mine: Int32):
        """To the other CTAs of the cluster, each what it owns."""
        lay = self.layouts
        full = self._barrier(place, "sums_full", place["group_warp"])
        if place["lane"] == 0:
            count = (lay.vectors - mine + lay.splits - 1) // lay.splits
            cute.arch.mbarrier_arrive_and_expect_tx(full, count * ((lay.splits - 1) * LANES * VECTOR_BYTES))
        # The barriers of the others are there.
        cute.arch.cluster_wait()
        for first in cutlass.range_constexpr(lay.splits):
            owner = (first + lay.owner_step * place["group_warp"]) % lay.splits
            if owner != place["rank"]:
                behind = (place["rank"] - owner + lay.splits - 1) % lay.splits
                target = ptx.map_to_rank(self._at(place, behind, 0), owner)
                barrier = ptx.map_to_rank(full.toint(), owner)
                for v in cutlass.range_constexpr(first, lay.vectors, lay.splits):
                    offset = v // lay.splits * lay.vector_bytes
                    ptx.store_async(target + offset, self._vector(sums, v), barrier)

    def _at(self, place: Any, behind: Any, number: int) -> Any:
        """Where this thread's sums of an owned vector lie, from a CTA so many ranks, less one, behind the owner."""
        lay = self.layouts
        thread = place["thread"] - LANES * GROUP_WARPS
        return place["sums"] + (behind * lay.owned + number) * lay.vector_bytes + thread * VECTOR_BYTES

    @cute.jit
    def _add(self, place: Any, own: Any, mine: Int32):
        lay = self.layouts
        cute.arch.mbarrier_wait(self._barrier(place, "sums_full", place["group_warp"]), 0)
        for number in cutlass.range_constexpr(lay.owned):
            if mine + number * lay.splits < lay.vectors:
                for behind in cutlass.range_constexpr(lay.splits - 1):
                    piece = mma_ptx.load_shared(self._at(place, behind, number))
                    for i in cutlass.range_constexpr(4):
                        own[i, number] = own[i, number] + piece[i]

    @cute.jit
    def _store(self, place: Any, own: Any, mine: Int32):
        lay = self.layouts
        lane = place["lane"]
        for number in cutlass.range_constexpr(lay.owned):
            v = mine + number * lay.splits
            octet, block = v // lay.blocks, v % lay.blocks
            row = place["first_row"] + octet * QUANT_ROWS + lane % 4 * 2
            first = block * MMA_ROWS + place["group_warp"] * WARP_COLUMNS
            is_there = (v < lay.vectors) & (first < lay.r)
            wanted = [is_there & (row + e < place["m"]) for e in range(2)]
            target = place["lora_act_in"] + (Int64(row) * lay.r + first + lane // 4) * HALF_BYTES
            for half in cutlass.range_constexpr(2):
                pair = own[2 * half, number], own[2 * half + 1, number]
                ptx.store_column_if(
                    target + half * (8 * HALF_BYTES), lay.r * HALF_BYTES, pair, wanted, is_bf16=lay.is_bf16
                )
