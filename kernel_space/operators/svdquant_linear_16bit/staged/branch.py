"""The low-rank branch as further slots of the rings: lora_act_in where x has been, lora_up where weights have been.

64s of R are dealt out to the CTAs that share a tile along K, so that their sums hold it. A slot has two; what lies
beyond R TMA fills with zeros. The warp that has loaded weights waits for lora_act_in, and a warp of those that
dequantize brings lora_up where the next weights would be.
"""

from typing import Any

import cutlass
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_acquire
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import WARPS_PER_GROUP
from kernel_space.operators.svdquant_linear_16bit.fused.ptx import fence_proxies
from kernel_space.operators.svdquant_linear_16bit.staged.config import HALF_K
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    BRANCH_READY,
    HALVES,
    LINE,
    WEIGHTS,
    StagedLayouts,
)
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import rest


class Branch:
    """Mixin with the loads of both operands of the low-rank branch of a tile of y."""

    config: Any
    split_k: int
    dequant_groups: int
    counters = 2  # of a tile of rows of x: CTAs that are ready, and that have seen it

    def _tma_branch(self, lay: StagedLayouts, lora_act_in: Any, lora_up: Any, m: Any, n: Any) -> Any:
        """(atoms, tensors): of lora_act_in in each of ``lay.boxes``, and of lora_up."""
        boxes = [(lora_act_in, m, box, rows) for rows, box, _ in lay.boxes]
        made = [self._tma_pieces(lay, *one) for one in (*boxes, (lora_up, n, lay.up_box, lay.columns))]
        return tuple(atom for atom, _ in made), tuple(tensor for _, tensor in made)

    def _tma_pieces(self, lay: StagedLayouts, pointer: Any, extent: Any, box: Any, rows: int) -> Any:
        """64s of R of a matrix ``[extent, R]``. Coordinates go on beyond R, as far as slots do."""
        gmem = cute.make_tensor(pointer, cute.make_layout((extent, lay.r), stride=(lay.r, 1)))
        atom, coords = cpasync.make_tiled_tma_atom(self._load_op(1), gmem, box, (rows, HALF_K))
        pieces = len(lay.branch_halves) * HALVES * self.split_k
        onward = cute.make_layout((extent, pieces * HALF_K), stride=coords.stride)
        return atom, cute.make_tensor(coords.iterator, onward)

    def _lora_piece(self, place: Any, number: Any, half: int) -> Any:
        """Which 64 of R is half of the CTA's slot of this number."""
        return place["rank"] + self.split_k * (HALVES * number + half)

    # -- lora_act_in ----------------------------------------------------------------------------------------------

    @cute.jit
    def await_acts(self, lay: StagedLayouts, place: Any, buffers: Any):
        """Until all CTAs of the low-rank branch have written theirs. By a warp that has nothing else to do then: what
        loads x would look only behind the last of it, a way through the L2 later.
        """
        if cutlass.const_expr(self.config.use_pdl):
            # Counters and lora_act_in may be those of the launch before.
            cute.arch.griddepcontrol_wait()
        writers = lay.down_tiles * self.split_k
        ready = load_acquire(place["ready"].toint())
        while ready < writers:
            rest()
            ready = load_acquire(place["ready"].toint())
        # Written by ordinary stores, read by TMA.
        fence_proxies()
        self._arrive(buffers[BRANCH_READY].iterator)
        if cutlass.const_expr(not self.quantizes):
            if cute.arch.lane_idx() == 0:
                self.take(lay, place)

    @cute.jit
    def load_acts(
        self, lay: StagedLayouts, place: Any, atoms: Any, tensors: Any, buffers: Any, filled: Int32
    ):
        """The tile's rows, behind those of x."""
        cute.arch.mbarrier_wait(buffers[BRANCH_READY].iterator, 0)
        views = self._x_views(lay, atoms, tensors, buffers)
        if filled == lay.rows:
            self._load_pieces(lay, place, atoms, views, buffers, filled, (0, 1))
        else:
            self._load_pieces(lay, place, atoms, views, buffers, filled, (1, len(lay.boxes)))

    @cute.jit
    def _load_pieces(
        self,
        lay: StagedLayouts,
        place: Any,
        atoms: Any,
        views: Any,
        buffers: Any,
        filled: Int32,
        which: cutlass.Constexpr,
    ):
        full, empty = buffers["x_full"].iterator, buffers["x_empty"].iterator
        stages = self.config.num_x_stage
        for number, halves in enumerate(lay.branch_halves):
            at = place["slots"] + number
            slot = at % stages
            cute.arch.mbarrier_wait(empty + slot, at // stages & 1 ^ 1)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + slot, filled * (halves * LINE))
            for half in cutlass.range_constexpr(halves):
                for box in cutlass.range_constexpr(*which):
                    rows = lay.boxes[box][0]
                    if filled & rows != 0:
                        row = self._box(lay, place["row_tile"], filled, rows)
                        source = views[box][1][(None, row, self._lora_piece(place, number, half))]
                        target = views[box][0][(None, self._box(lay, HALVES * slot + half, filled, rows))]
                        cute.copy(atoms[box], source, target, tma_bar_ptr=full + slot)

    @cute.jit
    def take(self, lay: StagedLayouts, place: Any):
        """This CTA has seen all that it waits for; the last one sets the counters of its tile of rows to 0."""
        _, tiles, _ = cute.arch.grid_dim()
        before = cute.arch.atomic_add(place["ready"] + 1, Int32(1), sem="acq_rel", scope="gpu")
        if before == (tiles - lay.down_tiles) * self.split_k - 1:
            counters = cute.make_tensor(place["ready"], cute.make_layout(self.counters))
            for i in cutlass.range_constexpr(self.counters):
                counters[i] = Int32(0)

    # -- lora_up --------------------------------------------------------------------------------------------------

    def _up_views(self, lay: StagedLayouts, atom: Any, tensor: Any, buffers: Any) -> Any:
        return self._partition(atom, buffers[WEIGHTS], tensor, (lay.columns, HALF_K))

    @cute.jit
    def prefetch_ups(self, lay: StagedLayouts, place: Any, atom: Any, tensor: Any, buffers: Any):
        """This CTA's part of lora_up into the L2."""
        _, source = self._up_views(lay, atom, tensor, buffers)
        for number, halves in enumerate(lay.branch_halves):
            for half in cutlass.range_constexpr(halves):
                piece = self._lora_piece(place, number, half)
                cute.prefetch(atom, source[(None, place["column_tile"], piece)])

    @cute.jit
    def load_ups(self, lay: StagedLayouts, place: Any, atom: Any, tensor: Any, buffers: Any, warp: Int32):
        """Behind the last weights, by the warpgroups whose turn it is. ``warp``: among all that dequantize."""
        target, source = self._up_views(lay, atom, tensor, buffers)
        stages, groups = self.config.num_dq_stage, self.dequant_groups
        group = warp // WARPS_PER_GROUP
        for number, halves in enumerate(lay.branch_halves):
            i = place["slots"] + number
            if i % groups == group:
                slot = i % stages
                full = buffers["dq_full"].iterator + slot
                cute.arch.mbarrier_wait(buffers["dq_empty"].iterator + slot, i // stages & 1 ^ 1)
                if warp % WARPS_PER_GROUP == 0:
                    with cute.arch.elect_one():
                        cute.arch.mbarrier_arrive_and_expect_tx(full, halves * lay.weights_bytes)
                    for half in cutlass.range_constexpr(halves):
                        piece = self._lora_piece(place, number, half)
                        into = target[(None, HALVES * slot + half)]
                        cute.copy(atom, source[(None, place["column_tile"], piece)], into, tma_bar_ptr=full)
                else:
                    self._arrive(full)
