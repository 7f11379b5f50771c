"""What warps load: x by TMA, for the whole tile or for as many rows of it as x has; packed weights, their scales and
smooth, or lora_down.
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import cpasync

from kernel_space.operators.svdquant_gemm.sm90a_parts.barriers import BarriersSm90a
from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import prefetch_global_if
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    SF_BLOCK_K,
    SF_BLOCK_ROWS,
    SF_BLOCK_WORDS,
    SWIZZLE_ALIGN,
)
from kernel_space.operators.svdquant_linear_16bit.fused.ptx import copy_bulk
from kernel_space.operators.svdquant_linear_16bit.staged.config import HALF_K
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    HALVES,
    LEAST_BOX,
    LINE,
    PACKED,
    SCALES,
    SMOOTH,
    WEIGHTS,
    WORD_BYTES,
    StagedLayouts,
    X,
)

SMOOTH_WARPS = 2


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


class StagedLoads(RowsOfX, BarriersSm90a):
    """Mixin with the descriptors of weights and the warps that load them and invert smooth."""

    has_lora: bool
    over_smooth: bool

    def prefetch_ups(self, lay: Any, place: Any, atom: Any, tensor: Any, buffers: Any) -> None:
        """By the warp that loads weights, before all else: what a kernel wants of lora_up in the L2."""

    def _invert(self, lay: Any, buffers: Any, slot: Any, left: Any) -> None:
        """1 / smooth of a slot, of which ``left`` numbers are there, by one warp."""
        raise NotImplementedError

    def _tma_halves(self, lay: StagedLayouts, wgt: cute.Pointer, n: Int32, k: Int32) -> Any:
        """Packed codes: boxes of a k-tile overlap, so that coordinate i along K begins at the ith 64 of it."""
        atom, coords = self._tma_packed(lay.packed_box, wgt, n, k, 1)
        tile, half = lay.k // 2, HALF_K // 2
        shape, stride = coords.shape, coords.stride
        overlapping = cute.make_layout(
            (shape[0], (tile, cute.ceil_div(shape[1], half))),
            stride=(stride[0], (stride[1], half * stride[1])),
        )
        return atom, cute.make_tensor(coords.iterator, overlapping)

    def _tma_blocks(self, lay: StagedLayouts, wscales: cute.Pointer, n: Int32, k: Int32) -> Any:
        """Scale-factor blocks as ``[row blocks, K blocks, 128 words]``; coordinates of both begin at any block."""
        blocks, k_blocks = cute.ceil_div(n, SF_BLOCK_ROWS), cute.ceil_div(k, SF_BLOCK_K)
        words = cute.recast_ptr(wscales, dtype=cutlass.Int32)
        stride = (k_blocks * SF_BLOCK_WORDS, SF_BLOCK_WORDS, 1)
        gmem = cute.make_tensor(words, cute.make_layout((blocks, k_blocks, SF_BLOCK_WORDS), stride=stride))
        box = cute.slice_(lay.scales, (None, None, None, 0))
        tiler = (lay.sf_row_blocks, lay.sf_k_blocks, SF_BLOCK_WORDS)
        atom, coords = cpasync.make_tiled_tma_atom(self._load_op(1), gmem, box, tiler)
        shape, stride = coords.shape, coords.stride
        overlapping = cute.make_layout(
            ((tiler[0], shape[0]), (tiler[1], shape[1]), shape[2]),
            stride=((stride[0], stride[0]), (stride[1], stride[1]), stride[2]),
        )
        return atom, cute.make_tensor(coords.iterator, overlapping)

    @cute.jit
    def _weight_warp(
        self,
        lay: StagedLayouts,
        place: Any,
        atoms: Any,
        tensors: Any,
        smooth: cute.Pointer,
        buffers: Any,
        k: Int32,
    ):
        tWsW, tWgW = self._partition(atoms[0], buffers[PACKED], tensors[0], (lay.columns, lay.k // 2))
        tSsS, tSgS = self._partition_scales(lay, atoms[1], buffers[SCALES], tensors[1], lay.sf_row_blocks)
        full, empty = buffers["ab_full"].iterator, buffers["ab_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_ab_stage)
        tile, sf_block = place["column_tile"], place["column_tile"] * lay.columns // SF_BLOCK_ROWS
        if cutlass.const_expr(self.has_lora):
            self.prefetch_ups(lay, place, atoms[-1], tensors[-1], buffers)
        for i in cutlass.range(place["slots"], unroll=1):
            slot, at = state.index, place["first"] + HALVES * i
            barrier = full + slot
            cute.arch.mbarrier_wait(empty + slot, state.phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, lay.packed_bytes + lay.scales_bytes)
                if cutlass.const_expr(self.over_smooth):
                    size = cutlass.min(k - at * HALF_K, Int32(lay.k)) * WORD_BYTES
                    arrived = buffers["smooth_full"].iterator + slot
                    cute.arch.mbarrier_arrive_and_expect_tx(arrived, size)
                    target = buffers[SMOOTH].iterator.toint() + slot * lay.smooth_bytes
                    copy_bulk(target, smooth.toint() + Int64(at * HALF_K) * WORD_BYTES, size, arrived.toint())
            cute.copy(atoms[0], tWgW[(None, tile, at)], tWsW[(None, slot)], tma_bar_ptr=barrier)
            cute.copy(atoms[1], tSgS[(None, sf_block, at)], tSsS[(None, slot)], tma_bar_ptr=barrier)
            state.advance()

    @cute.jit
    def _smooth_warp(self, lay: StagedLayouts, place: Any, buffers: Any, which: Int32, k: Int32):
        """1 / smooth of the k-tiles in every second place of the ring, from ``which`` on: one warp is slower than all
        who wait for it. Each has places of its own, for a barrier that another has waited at may be two rounds behind,
        and looks like one that is ready.
        """
        stages = self.config.num_ab_stage
        for i in cutlass.range(place["slots"], unroll=1):
            slot = i % stages
            if slot % SMOOTH_WARPS == which:
                cute.arch.mbarrier_wait(buffers["smooth_full"].iterator + slot, i // stages & 1)
                self._invert(lay, buffers, slot, k - (place["first"] + HALVES * i) * HALF_K)
                self._arrive(buffers["ab_full"].iterator + slot)

    @cute.jit
    def _down_warp(self, lay: StagedLayouts, place: Any, lora_down: cute.Pointer, buffers: Any):
        """Chunks of 64 K of this CTA's columns of packed lora_down, in the order of K."""
        full, empty = buffers["down_full"].iterator, buffers["down_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, lay.down_stages)
        column = place["column_tile"] * lay.down_columns
        size = cutlass.min(Int32(lay.r) - column, Int32(lay.down_columns)) * LINE
        lane = cute.arch.lane_idx()
        # What the ring has no room for yet comes into the L2: it is a weight.
        for i in cutlass.range(Int32(HALVES * lay.down_stages), place["halves"], unroll=1):
            chunk = lora_down.toint() + (Int64(place["first"] + i) * lay.r + column) * LINE
            for line in cutlass.range_constexpr(0, lay.down_columns, 32):
                own = line + lane
                prefetch_global_if(chunk + Int64(own * LINE), Int32(own * LINE < size))
        for i in cutlass.range(place["slots"], unroll=1):
            slot = state.index
            cute.arch.mbarrier_wait(empty + slot, state.phase)
            barrier = full + slot
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(barrier, HALVES * size)
                for half in cutlass.range_constexpr(HALVES):
                    # Behind the last chunk it again: x is zero there.
                    chunk = cutlass.min(place["first"] + HALVES * i + half, place["beyond"] - 1)
                    source = lora_down.toint() + (Int64(chunk) * lay.r + column) * LINE
                    target = buffers[WEIGHTS].iterator.toint() + (HALVES * slot + half) * lay.down_bytes
                    copy_bulk(target, source, size, barrier.toint())
            state.advance()
