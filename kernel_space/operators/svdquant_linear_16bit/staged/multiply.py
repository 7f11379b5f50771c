"""Multiplying role up to the sums: wgmma with both operands in shared memory, for y and for lora_act_in alike."""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Boolean, Int32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.svdquant_gemm.parts.allocations import ACC_DTYPE
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import MMA_ROWS, SWIZZLE_ALIGN
from kernel_space.operators.svdquant_linear_16bit.staged.config import HALF_K, OCTET
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import HALVES, WEIGHTS, StagedLayouts, X

BLOCKS = 4  # of 16 K, one wgmma, in half a slot


class Multiplier:
    """Mixin with the loop over K."""

    config: Any
    has_lora: bool
    split_k: int
    share: int

    def zeros(self, columns: int) -> list[Any]:
        """Accumulators of this thread, by row block."""
        shape = ((2, 2, columns // OCTET), 1, 1)
        accs = [cute.make_rmem_tensor(shape, ACC_DTYPE) for _ in range(self.config.row_blocks)]
        for acc in accs:
            acc.fill(0.0)
        return accs

    @cute.jit
    def multiply_weights(self, place: Any, accs: Any, buffers: Any, group: Int32):
        """x times dequantized weights, then lora_act_in times lora_up, which follow them in both rings."""
        lay = self._layouts()
        self._multiply(
            lay,
            lay.up_mma,
            place,
            accs,
            buffers,
            buffers[WEIGHTS],
            ("dq", self.config.num_dq_stage),
            group,
            lay.branch_halves,
        )

    @cute.jit
    def multiply_down(self, place: Any, accs: Any, buffers: Any, group: Int32):
        """x times columns of lora_down, whose slots are where other CTAs have weights."""
        lay = self._layouts()
        inner, outer = lay.down.inner, lay.down.outer
        slots = cute.recast_ptr(buffers[WEIGHTS].iterator.align(SWIZZLE_ALIGN), inner, dtype=lay.half)
        columns = cute.make_tensor(slots, outer)
        self._multiply(lay, lay.down_mma, place, accs, buffers, columns, ("down", lay.down_stages), group, [])

    @cute.jit
    def _multiply(
        self,
        lay: StagedLayouts,
        mma: Any,
        place: Any,
        accs: Any,
        buffers: Any,
        columns: Any,
        ring: cutlass.Constexpr,
        group: Int32,
        behind: cutlass.Constexpr,
    ):
        """All slots of this CTA, and those ``behind`` them, each with so many halves. ``ring``: name and slots of that
        of ``columns``; ``group``: this thread's warpgroup, which owns ``row_blocks`` of the tile.
        """
        config = self.config
        thread = mma.get_slice(0)
        b = mma.make_fragment_B(thread.partition_B(columns))
        rows = []
        for block in cutlass.range_constexpr(config.row_blocks):
            at = (group * config.row_blocks + block, 0, None)
            tile = cute.local_tile(buffers[X], (MMA_ROWS, HALF_K), at)
            rows.append(mma.make_fragment_A(thread.partition_A(tile)))
        mma.set(warpgroup.Field.ACCUMULATE, True)
        name, stages = ring
        full, empty = buffers[f"{name}_full"].iterator, buffers[f"{name}_empty"].iterator
        dq = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, stages)
        x = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_x_stage)
        held = 0 if config.early_release else 1  # slots that wgmma may still read meanwhile
        dq_there, x_there = Boolean(False), Boolean(False)
        dq_done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, stages)
        x_done = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.num_x_stage)
        for i in cutlass.range(place["slots"], unroll=1):
            if not dq_there:
                cute.arch.mbarrier_wait(full + dq.index, dq.phase)
            if not x_there:
                cute.arch.mbarrier_wait(buffers["x_full"].iterator + x.index, x.phase)
            self._multiply_slot(mma, accs, (rows, b), (x.index, dq.index), HALVES)
            dq.advance()
            x.advance()
            # What a wait at a barrier that is ready takes passes while these are multiplied.
            dq_there = cute.arch.mbarrier_test_wait(full + dq.index, dq.phase)
            x_there = cute.arch.mbarrier_test_wait(buffers["x_full"].iterator + x.index, x.phase)
            # All but ``held`` are done: the slots before are nobody's.
            warpgroup.wait_group(held)
            if i >= held:
                self._arrive(empty + dq_done.index)
                self._release_x(lay, buffers["x_empty"].iterator + x_done.index, place, i - held)
                dq_done.advance()
                x_done.advance()
        for number, halves in enumerate(behind):
            cute.arch.mbarrier_wait(full + dq.index, dq.phase)
            cute.arch.mbarrier_wait(buffers["x_full"].iterator + x.index, x.phase)
            self._multiply_slot(mma, accs, (rows, b), (x.index, dq.index), halves)
            dq.advance()
            x.advance()
            if cutlass.const_expr(number + 1 < len(behind)):
                warpgroup.wait_group(held)
                self._arrive(empty + dq_done.index)
                done = place["slots"] + number - held
                self._release_x(lay, buffers["x_empty"].iterator + x_done.index, place, done)
                dq_done.advance()
                x_done.advance()
        warpgroup.wait_group(0)

    def _multiply_slot(self, mma: Any, accs: Any, operands: Any, slots: Any, halves: int) -> None:
        """Commit the products of a slot of each ring, of so many halves."""
        rows, b = operands
        x, dq = slots
        warpgroup.fence()
        for k_block in range(halves * BLOCKS):
            half, within = k_block // BLOCKS, k_block % BLOCKS
            for block, acc in enumerate(accs):
                a = rows[block][(None, None, within, HALVES * x + half)]
                weights = b[(None, None, within, HALVES * dq + half)]
                cute.gemm(mma, acc, a, weights, acc)
        warpgroup.commit_group()

    @cute.jit
    def _release_x(self, lay: StagedLayouts, barrier: Any, place: Any, i: Int32):
        """Tell every CTA that loads for this one that the ``i``-th slot is read. Of sharers only as often as somebody
        waits for it: another CTA may have ended when its last slots are.
        """
        if cutlass.const_expr(self.share == 1):
            self._arrive(barrier)
        else:
            if i + self.config.num_x_stage < place["slots"] + len(lay.branch_halves):
                cute.arch.sync_warp()
                lane = cute.arch.lane_idx()
                if lane < self.share:
                    cute.arch.mbarrier_arrive(barrier, place["rank"] + lane * self.split_k)
