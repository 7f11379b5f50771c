"""The low-rank branch of ``sliced``: a tile of lora_act_in in CTAs of its own, and what the others make of it.

Columns of lora_down are what rows of weights are elsewhere, as they are, in slots where other CTAs have packed weights,
and x is multiplied as it is, in its own order along K. What comes of it is handed over as in ``whole``: pairs of 16-bit
numbers, each with a word behind it that says that it is there (``whole.ptx.store_tagged``).
"""

from typing import Any

import cutlass
from cutlass import Int32, Int64, Uint32, cute

from kernel_space.operators.nvfp4_quantize.parts.ptx import load_four_if
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    load_shared,
    prefetch_global_if,
    store_shared,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.stream import exists
from kernel_space.operators.svdquant_linear_16bit.sliced.config import OCTET
from kernel_space.operators.svdquant_linear_16bit.sliced.layouts import TAKEN, SlicedLayouts
from kernel_space.operators.svdquant_linear_16bit.sliced.products import PIECES
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import HALVES, LINE, WEIGHTS
from kernel_space.operators.svdquant_linear_16bit.whole.pairs import LOOKS
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import clear_tagged, load_tagged, rest
from kernel_space.operators.svdquant_linear_16bit.whole.spec import TAGGED

WORDS = 4  # of a piece
UNIT_R = 32  # columns of R: a piece for each lane of a quad


class SlicedBranch:
    """Mixin with both sides of lora_act_in."""

    config: Any
    counters = 1  # of a tile of rows of x: CTAs that have taken lora_act_in

    # -- lora_act_in = x @ lora_down --------------------------------------------------------------------------------

    @cute.jit
    def multiply_down(self, lay: SlicedLayouts, place: Any, buffers: Any, accs: Any, warp: Int32):
        """All k-tiles of this warp, or its halves of them; lora_down lies where other CTAs have packed weights."""
        stages, shared = self.config.num_ab_stage, self.config.slot_warps
        for i in cutlass.range(warp // shared, place["slots"], self.config.sharers, unroll=1):
            slot, own = i % stages, i % lay.down_stages
            cute.arch.mbarrier_wait(buffers["down_full"].iterator + own, i // lay.down_stages & 1)
            cute.arch.mbarrier_wait(buffers["x_full"].iterator + slot, i // stages & 1)
            for half in self.own_halves(warp):
                columns = self.pieces_of_x(lay, buffers, slot, half)
                rows = self._pieces_of_down(lay, buffers, own, half)
                for piece in cutlass.range_constexpr(PIECES):
                    operands = [
                        (block, rows[2 * block][piece], rows[2 * block + 1][piece])
                        for block in range(lay.down.blocks)
                    ]
                    of_x = [tile[piece] for tile in columns]
                    self.multiply_blocks(lay.down, operands, of_x, accs, lay.is_bf16)
            self.give_back(buffers["down_empty"].iterator + own, buffers["ab_empty"].iterator + slot)

    @staticmethod
    def _pieces_of_down(lay: SlicedLayouts, buffers: Any, slot: Any, half: Any) -> list[list[Any]]:
        """Of each octet of columns this lane's two pieces of its own; zeros of one more, where their number is odd."""
        lane = cute.arch.lane_idx()
        row, quarter = lane // 4, lane % 4
        begin = buffers[WEIGHTS].iterator.toint() + (HALVES * slot + half) * lay.down_bytes + row * LINE
        found = [
            [
                load_shared(begin + octet * (OCTET * LINE) + ((PIECES * quarter + piece) ^ row) * 16, WORDS)
                for piece in range(PIECES)
            ]
            for octet in range(lay.down.octets)
        ]
        return [*found, [(Uint32(0),) * WORDS] * PIECES]

    # -- lora_act_in @ lora_up ------------------------------------------------------------------------------------

    def _groups(self, lay: SlicedLayouts) -> tuple[int, int]:
        """32s of R are dealt out to the CTAs of a cluster and to warps; where there are more warps than that, groups of
        warps share the columns. (groups, warps of one)
        """
        each = -(-(-(-lay.r // UNIT_R)) // self.config.split_k)
        groups = max(lay.warps // each, 1)
        return groups, lay.warps // groups

    def first_unit(self, lay: SlicedLayouts, place: Any, warp: Any) -> Any:
        """Of this warp: its first 32 of R."""
        _, of_group = self._groups(lay)
        return warp % of_group * self.config.split_k + place["rank"]

    def make_held(self, lay: SlicedLayouts) -> dict[str, Any]:
        """What a warp holds of a unit: rows of lora_up of its blocks, pairs of lora_act_in, whether these are there."""
        groups, _ = self._groups(lay)
        blocks = -(-lay.up.blocks // groups)
        sizes = {"rows": blocks * 2 * WORDS, "pairs": lay.up.act_tiles * WORDS}
        held = {name: cute.make_rmem_tensor((size,), Uint32) for name, size in sizes.items()}
        held["there"] = cute.make_rmem_tensor((1,), Int32)
        for tensor in held.values():
            tensor.fill(0)
        return held

    @cute.jit
    def ask(self, lay: SlicedLayouts, place: Any, lora_up: Any, held: Any, unit: Int32, warp: Int32):
        """Loads of a unit, on their way when this returns; lora_act_in may not be there yet."""
        groups, of_group = self._groups(lay)
        column = unit * UNIT_R + cute.arch.lane_idx() % 4 * (UNIT_R // 4)
        for first in cutlass.range_constexpr(0, lay.up.blocks, groups):
            for octet in cutlass.range_constexpr(2):
                at = (first // groups * 2 + octet) * WORDS
                own = (first + warp // of_group) * 2 + octet
                words = self._load_up(lay, place, lora_up, column, own)
                for w in cutlass.range_constexpr(WORDS):
                    held["rows"][at + w] = words[w]
        self._ask_pairs(lay, place, column, held)

    def _ask_pairs(self, lay: SlicedLayouts, place: Any, column: Any, held: Any) -> None:
        """Eight neighbours of this lane's row of each tile of lora_act_in."""
        there = Int32(1)
        for tile in range(lay.up.act_tiles):
            row = OCTET * tile + cute.arch.lane_idx() // 4
            wanted = exists(cutlass.min(place["m"] - place["first_row"] - row, Int32(lay.r) - column))
            at = place["pairs"] + Int64(row) * (lay.r * TAGGED) + Int64(column * TAGGED)
            *words, flag = load_tagged(at, wanted)
            for w, word in enumerate(words):
                held["pairs"][tile * WORDS + w] = word
            there = there & Int32(flag)
        held["there"][0] = there

    @cute.jit
    def multiply_up(self, lay: SlicedLayouts, place: Any, lora_up: Any, accs: Any, held: Any):
        """This warp's part of the branch; the first unit was asked for."""
        warp = self.warp_again(place)
        units = -(-lay.r // UNIT_R)
        groups, of_group = self._groups(lay)
        group, begin = warp // of_group, self.first_unit(lay, place, warp)
        if group < groups:
            for unit in cutlass.range(begin, units, of_group * self.config.split_k, unroll=1):
                if unit != begin:
                    self.ask(lay, place, lora_up, held, unit, warp)
                column = unit * UNIT_R + cute.arch.lane_idx() % 4 * (UNIT_R // 4)
                looks = Int32(LOOKS)
                while held["there"][0] == 0:
                    if looks <= 0:
                        rest()
                    self._ask_pairs(lay, place, column, held)
                    looks -= 1
                columns = [
                    [held["pairs"][tile * WORDS + w] for w in range(WORDS)]
                    for tile in range(lay.up.act_tiles)
                ]
                for block in cutlass.range_constexpr(lay.up.blocks):
                    if block % groups == group:
                        at = block // groups * 2 * WORDS
                        low, high = (
                            [held["rows"][at + o * WORDS + w] for w in range(WORDS)] for o in range(2)
                        )
                        self.multiply_blocks(lay.up, [(block, low, high)], columns, accs, lay.is_bf16)

    def _load_up(self, lay: SlicedLayouts, place: Any, lora_up: Any, column: Any, octet: Any) -> Any:
        """Eight neighbours of this lane's row of an octet of lora_up; zeros beyond the tile, N and R."""
        row = place["column_tile"] * lay.columns + octet * OCTET + self.row_of_lane()
        wanted = Int32(row < place["n"]) & Int32(column < lay.r) & Int32(octet < lay.up.octets)
        return load_four_if(lora_up.toint() + (Int64(row) * lay.r + column) * 2, wanted)

    @cute.jit
    def prefetch_up(self, lay: SlicedLayouts, place: Any, lora_up: Any, n: Int32, lane: Int32, lanes: int):
        """This CTA's rows of lora_up into the L2, a line a lane."""
        first = place["column_tile"] * lay.columns
        rows = cutlass.min(n - first, Int32(lay.columns))
        size = rows * (2 * lay.r)
        for at in cutlass.range(lane * LINE, size, lanes * LINE, unroll=1):
            prefetch_global_if(lora_up.toint() + Int64(first) * (2 * lay.r) + Int64(at), Int32(1))

    @cute.jit
    def clear(self, lay: SlicedLayouts, place: Any, buffers: Any, taken: Int32, m: Int32):
        """The last CTA of a tile of rows leaves what the next launch begins with: nobody of this one looks again."""
        shared = buffers[TAKEN].iterator.toint()
        if place["thread"] == 0:
            store_shared(shared, [taken])
        self._meet(lay)
        _, tiles, _ = cute.arch.grid_dim()
        ctas = (tiles - lay.down_tiles) * self.config.split_k
        if Int32(load_shared(shared, 1)[0]) == ctas - 1:
            if place["thread"] == 0:
                counters = cute.make_tensor(place["taken"], cute.make_layout(self.counters))
                for i in cutlass.range_constexpr(self.counters):
                    counters[i] = Int32(0)
            rows = cutlass.min(m - place["first_row"], Int32(lay.rows))
            vectors = rows * (lay.r * TAGGED // 16)
            for vector in cutlass.range(place["thread"], vectors, 32 * lay.warps, unroll=1):
                clear_tagged(place["pairs"] + Int64(vector * 16))
