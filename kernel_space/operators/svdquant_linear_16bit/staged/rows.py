"""x to shared memory by TMA, for the whole tile or for as many rows of it as x has."""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import SWIZZLE_ALIGN
from kernel_space.operators.svdquant_linear_16bit.staged.config import HALF_K
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    HALVES,
    LEAST_BOX,
    LINE,
    StagedLayouts,
    X,
)


class RowsOfX:
    """Mixin with the warp that loads x."""

    config: Any
    split_k: int
    share: int

    def _tma_rows(self, lay: StagedLayouts, x: cute.Pointer, m: Int32, k: Int32) -> Any:
        """(atoms, tensors) of half a slot of rows of x ``[m, K]``, of each of ``lay.boxes``."""
        gmem = cute.make_tensor(x, cute.make_layout((m, k), stride=(cute.assume(k, 32), 1)))
        op = self._load_op(self.share)
        made = [cpasync.make_tiled_tma_atom(op, gmem, box, (rows, HALF_K)) for rows, box, _ in lay.boxes]
        return tuple(atom for atom, _ in made), tuple(tensor for _, tensor in made)

    @cute.jit
    def _x_warp(self, lay: StagedLayouts, place: Any, atoms: Any, tensors: Any, buffers: Any, m: Int32):
        """x of this CTA's part of K; zeros for the second half of a slot that has none. A tile that x does not fill
        comes in boxes of fewer rows: those behind the last of them are never stored, whatever they are.
        """
        count = len(lay.boxes)
        views = self._x_views(lay, atoms[:count], tensors[:count], buffers)
        filled = self._filled(lay, place, m)
        self._begin_x(place)
        self._all_x(lay, place, atoms, views, buffers, filled)

    def _x_views(self, lay: StagedLayouts, atoms: Any, tensors: Any, buffers: Any) -> list[Any]:
        """Slots and coordinates in each of ``lay.boxes``."""
        start, views = buffers[X].iterator.align(SWIZZLE_ALIGN), []
        for atom, tensor, (rows, _, layout) in zip(atoms, tensors, lay.boxes, strict=True):
            slots = cute.make_tensor(cute.recast_ptr(start, layout.inner, dtype=lay.half), layout.outer)
            views.append(self._partition(atom, slots, tensor, (rows, HALF_K)))
        return views

    def _filled(self, lay: StagedLayouts, place: Any, m: Any) -> Any:
        """Rows of the tile that x has, in whole boxes."""
        rows = cutlass.min(m - place["row_tile"] * lay.rows, Int32(lay.rows))
        return cute.round_up(rows, LEAST_BOX)

    @cute.jit
    def _prefetch_x(self, lay: StagedLayouts, place: Any, atoms: Any, tensors: Any, buffers: Any, m: Int32):
        """The first CTAs bring all of x into the L2, where what the kernel before still writes replaces it. Not by the
        warp that waits for that kernel: it would begin microseconds later.
        """
        views = self._x_views(lay, atoms[: len(lay.boxes)], tensors[: len(lay.boxes)], buffers)
        filled = self._filled(lay, place, m)
        for i in cutlass.range(place["halves"], unroll=1):
            for number in cutlass.range_constexpr(len(lay.boxes)):
                rows = lay.boxes[number][0]
                if filled & rows != 0:
                    row = self._box(lay, place["row_tile"], filled, rows)
                    cute.prefetch(atoms[number], views[number][1][(None, row, place["first"] + i)])

    @cute.jit
    def _begin_x(self, place: Any):
        """Up to where the kernel before has ended, and this CTA's sharers are there."""
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
            # The next launch reads its weights early: they may come from any kernel but the one before it.
            cute.arch.griddepcontrol_launch_dependents()
        if cutlass.const_expr(self.share > 1):
            cute.arch.cluster_wait()

    @staticmethod
    def _box(lay: StagedLayouts, tile: Any, filled: Any, rows: int) -> Any:
        """Which box of so many rows: of ``filled`` rows of a tile larger ones come before it."""
        return tile * (lay.rows // rows) + filled // (2 * rows) * 2

    @cute.jit
    def _all_x(self, lay: StagedLayouts, place: Any, atoms: Any, views: Any, buffers: Any, filled: Int32):
        if filled == lay.rows:
            self._load_x(lay, place, atoms, views, buffers, filled, (0, 1))
        else:
            self._load_x(lay, place, atoms, views, buffers, filled, (1, len(lay.boxes)))

    @cute.jit
    def _load_x(
        self,
        lay: StagedLayouts,
        place: Any,
        atoms: Any,
        views: Any,
        buffers: Any,
        filled: Int32,
        which: cutlass.Constexpr,
    ):
        """All slots, in those of ``which`` boxes that ``filled`` rows have."""
        full, empty = buffers["x_full"].iterator, buffers["x_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_x_stage)
        for i in cutlass.range(place["slots"], unroll=1):
            slot = state.index
            cute.arch.mbarrier_wait(empty + slot, state.phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + slot, filled * (HALVES * LINE))
            for half in cutlass.range_constexpr(HALVES):
                at = place["first"] + HALVES * i + half
                if HALVES * i + half >= place["halves"]:
                    at = place["beyond"]
                for number in cutlass.range_constexpr(*which):
                    rows = lay.boxes[number][0]
                    if filled & rows != 0:
                        tXsX, tXgX = views[number]
                        source = tXgX[(None, self._box(lay, place["row_tile"], filled, rows), at)]
                        target = tXsX[(None, self._box(lay, HALVES * slot + half, filled, rows))]
                        self._copy_x(place, atoms[number], source, target, full + slot, i)
            state.advance()

    @cute.jit
    def _copy_x(self, place: Any, atom: Any, source: Any, target: Any, barrier: Any, i: Int32):
        if cutlass.const_expr(self.share == 1):
            cute.copy(atom, source, target, tma_bar_ptr=barrier)
        else:
            # Each loads its share of slots for all.
            if i % self.share == place["sharer"]:
                peers = sum(1 << self.split_k * other for other in range(self.share))
                mask = cutlass.Int16(Int32(peers) << place["rank"])
                cute.copy(atom, source, target, tma_bar_ptr=barrier, mcast_mask=mask)
