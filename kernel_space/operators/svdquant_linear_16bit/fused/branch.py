"""The low-rank branch: lora_up @ lora_act_in.T, when lora_act_in is there.

With K in one CTA it is a k-tile or two more, of ``wgmma``, lora_act_in in slots of x. In a cluster each CTA multiplies
it for the columns that it owns, by ``mma.sync`` while their sums are on the way: none has more to do than the others.
Rows of lora_act_in then lie beside the rings, where warp 1 has copied them. A lane has eight neighbours of 32 of R, of
its rows of both: a sum over R may be taken in any order.
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, Int64, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_acquire, load_shared
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import MMA_ROWS, WARP_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import copy_async, mma_16x8x16
from kernel_space.operators.svdquant_linear_16bit.fused.config import OCTET
from kernel_space.operators.svdquant_linear_16bit.fused.layouts import (
    BRANCH,
    BRANCH_FULL,
    HALF_BYTES,
    UNIT_R,
    FusedLayouts,
)
from kernel_space.operators.svdquant_linear_16bit.fused.ptx import fence_proxies
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import rest

PIECE = 8  # neighbours along R of a lane
PIECE_BYTES = PIECE * HALF_BYTES


class Branch:
    """Mixin of the roles of CTAs of y."""

    config: Any
    split_k: int

    # -- loading warps ------------------------------------------------------------------------------------------

    @cute.jit
    def branch_warp(self, place: Any, atom: Any, tensor: Any, buffers: Any, m: Int32):
        """Slices of lora_up, as early as the ring allows; in a cluster then this CTA's rows of lora_act_in."""
        lay = self._layouts()
        target, source = self._partition(atom, buffers["LoRA rows"], tensor, (lay.rows, lay.lora_k))
        full, empty = buffers["lora_full"].iterator, buffers["lora_empty"].iterator
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, self.config.num_lora_stage)
        early = min(self.config.num_lora_stage, lay.num_lora_slices)
        if cutlass.const_expr(self.split_k > 1):
            # The consumers' barrier is one of all warps that have not ended, and this one has longer to wait than they.
            cute.arch.cluster_arrive()
        for piece in cutlass.range(lay.num_lora_slices, unroll=1):
            if cutlass.const_expr(self.split_k > 1):
                if piece == early:
                    self._copy_act(lay, place, buffers, m)
            slot = state.index
            cute.arch.mbarrier_wait(empty + slot, state.phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + slot, lay.lora_row_bytes)
            rows = source[(None, place["row_tile"], piece)]
            cute.copy(atom, rows, target[(None, slot)], tma_bar_ptr=full + slot)
            state.advance()
        if cutlass.const_expr(self.split_k > 1):
            if cutlass.const_expr(early == lay.num_lora_slices):
                self._copy_act(lay, place, buffers, m)
            cute.arch.cluster_wait()

    @cute.jit
    def _copy_act(self, lay: FusedLayouts, place: Any, buffers: Any, m: Int32):
        """Rows of the strip that this CTA owns; zeros beyond M and R."""
        if cutlass.const_expr(self.config.use_pdl):
            # Until then the counters may be those of the launch before.
            cute.arch.griddepcontrol_wait()
        self.wait_for_act(lay, place)
        first, count = self.strip(lay, place["rank"])
        begin = place["column_tile"] * lay.columns + first * OCTET
        end = cutlass.min(m, begin + count * OCTET)
        pieces = lay.branch_units * (UNIT_R // PIECE)  # of a row
        lane = cute.arch.lane_idx()
        for at in cutlass.range(lane, self.config.strip_octets * OCTET * pieces, 32, unroll=1):
            row, piece = at // pieces, at % pieces
            source = place["lora_act_in"] + (Int64(begin + row) * lay.r + piece * PIECE) * HALF_BYTES
            size = Int32((begin + row < end) & (piece * PIECE < lay.r)) * PIECE_BYTES
            target = buffers[BRANCH].iterator.toint() + row * lay.branch_pitch + piece * PIECE_BYTES
            copy_async(target, source, size, PIECE_BYTES)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        self._arrive(buffers[BRANCH_FULL].iterator)

    @cute.jit
    def load_act(self, lay: FusedLayouts, place: Any, atom: Any, tensor: Any, buffers: Any, behind_x: Any):
        """Slices of lora_act_in into slots of x, where K is in one CTA."""
        state = behind_x.clone()
        target, source = self._partition(atom, buffers["LoRA columns"], tensor, (lay.columns, lay.lora_k))
        full, empty = buffers["dq_full"].iterator, buffers["dq_empty"].iterator
        self.wait_for_act(lay, place)
        # Written by ordinary stores, read by TMA.
        fence_proxies()
        for piece in cutlass.range(lay.num_lora_slices, unroll=1):
            slot = state.index
            cute.arch.mbarrier_wait(empty + slot, state.phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full + slot, lay.lora_column_bytes)
            columns = source[(None, place["column_tile"], piece)]
            cute.copy(atom, columns, target[(None, slot)], tma_bar_ptr=full + slot)
            state.advance()

    @cute.jit
    def wait_for_act(self, lay: FusedLayouts, place: Any):
        """Until all CTAs of the low-rank branch have written theirs; count this CTA as one that has seen it. The last
        one makes both counters ready for the next launch.
        """
        writers = lay.down_tiles * self.split_k
        ready = load_acquire(place["ready"].toint())
        while ready < writers:
            rest()
            ready = load_acquire(place["ready"].toint())
        cute.arch.sync_warp()
        if cute.arch.lane_idx() == 0:
            _, tiles, _ = cute.arch.grid_dim()
            before = cute.arch.atomic_add(place["ready"] + 1, Int32(1), sem="acq_rel", scope="gpu")
            if before == (tiles - lay.down_tiles) * self.split_k - 1:
                counters = cute.make_tensor(place["ready"], cute.make_layout(2))
                counters[0] = Int32(0)
                counters[1] = Int32(0)

    # -- consumers ----------------------------------------------------------------------------------------------

    @cute.jit
    def multiply_branch(self, lay: FusedLayouts, accs: Any, buffers: Any, group: Int32, dq: Any):
        """Of a whole tile: slices of R from the slots of x behind those of x."""
        config = self.config
        thread = lay.lora_mma.get_slice(0)
        first = group * (lay.group_rows // MMA_ROWS)
        ups = []
        for b in cutlass.range_constexpr(config.row_blocks):
            tile = cute.local_tile(buffers["LoRA rows"], (MMA_ROWS, lay.lora_k), (first + b, 0, None))
            ups.append(lay.lora_mma.make_fragment_A(thread.partition_A(tile)))
        act = lay.lora_mma.make_fragment_B(thread.partition_B(buffers["LoRA columns"]))
        mma = lay.lora_mma
        mma.set(warpgroup.Field.ACCUMULATE, True)
        lora = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_lora_stage)
        for _ in cutlass.range(lay.num_lora_slices, unroll=1):
            cute.arch.mbarrier_wait(buffers["lora_full"].iterator + lora.index, lora.phase)
            cute.arch.mbarrier_wait(buffers["dq_full"].iterator + dq.index, dq.phase)
            warpgroup.fence()
            for block in cutlass.range_constexpr(lay.lora_k // 16):
                for b in cutlass.range_constexpr(config.row_blocks):
                    rows = ups[b][(None, None, block, lora.index)]
                    cute.gemm(mma, accs[b], rows, act[(None, None, block, dq.index)], accs[b])
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            self._arrive(buffers["lora_empty"].iterator + lora.index)
            self._arrive(buffers["dq_empty"].iterator + dq.index)
            lora.advance()
            dq.advance()

    @cute.jit
    def add_branch(self, lay: FusedLayouts, strips: Any, buffers: Any, thread: Int32, group: Int32):
        """Of the strip of this CTA."""
        row = group * lay.group_rows + thread // 32 * WARP_ROWS + cute.arch.lane_idx() // 4
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.num_lora_stage)
        cute.arch.mbarrier_wait(buffers[BRANCH_FULL].iterator, 0)
        for piece in cutlass.range(lay.num_lora_slices, unroll=1):
            cute.arch.mbarrier_wait(buffers["lora_full"].iterator + state.index, state.phase)
            slot = buffers["LoRA rows"].iterator.toint() + state.index * lay.lora_row_bytes
            columns = buffers[BRANCH].iterator.toint() + piece * (lay.lora_k * HALF_BYTES)
            for unit in cutlass.range_constexpr(lay.lora_k // UNIT_R):
                self._add_unit(lay, strips, slot, row, columns, unit)
            self._arrive(buffers["lora_empty"].iterator + state.index)
            state.advance()

    def _add_unit(self, lay: FusedLayouts, strips: Any, slot: Any, row: Any, columns: Any, unit: int) -> None:
        line = lay.lora_k * HALF_BYTES
        lane = cute.arch.lane_idx()
        within = unit * (UNIT_R * HALF_BYTES) + lane % 4 * PIECE_BYTES
        ups = []
        for i in range(2 * self.config.row_blocks):
            offset = (row + (i // 2 * MMA_ROWS + i % 2 * 8)) * line + within
            # The swizzle of rows of 64 or 128 bytes: 16-byte pieces by the 128-byte line.
            ups.append(load_shared(slot + (offset ^ (offset >> 3 & (line - 16))), 4))
        for octet in range(self.config.strip_octets):
            words = load_shared(columns + (octet * OCTET + lane // 4) * lay.branch_pitch + within, 4)
            for b, strip in enumerate(strips):
                sums = cute.make_tensor(strip.iterator + 4 * octet, cute.make_layout(4))
                low, high = ups[2 * b], ups[2 * b + 1]
                for half in (0, 2):
                    rows = (low[half], high[half], low[half + 1], high[half + 1])
                    mma_16x8x16(sums, rows, words[half : half + 2], lay.is_bf16)
