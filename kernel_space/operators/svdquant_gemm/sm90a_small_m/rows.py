"""Consumer warps of the small-M wgmma kernel of sm_90a: rows dequantized in registers, columns from shared memory.

Row g + 8h of the 16 that a warp has of a wgmma is row 32h + 8w + p(g) of its warpgroup's 64 (w: the warp):
rows 32 apart have their scale factors side by side, and the permutation p makes eight-byte reads of the swizzled rows
free of bank conflicts. Lane t of a quad owns quarter t of every 64 elements of K, a block of one scale factor.
"""

from typing import Any

import cutlass
import cutlass.pipeline as pipeline
from cutlass import Int32, Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import (
    broadcast_factor,
    gather_bytes,
    load_shared,
    scale_pair,
    unpack_pairs,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    DQ_DTYPE,
    DQ_K,
    SF_BLOCK_BYTES,
    WARPS_PER_GROUP,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.layouts_wgmma import (
    HALVES,
    ROW_BYTES,
    ColumnPart,
    LayoutsSmallMWgmma,
)
from kernel_space.operators.svdquant_gemm.sm90a_small_m.mma.ptx import arrive_if

IN_FLIGHT, SETS = 1, 2  # groups of wgmma in flight while one is dequantized; operands in rotation
STEPS, STEP_BLOCKS = 4, 2  # a unit has four groups of two K blocks: one word of a lane's row each
LORA_BLOCKS = 2
FROM_VALUES = 2.0**-14  # what products of two dequantized operands lack: see ``dequant_sm90a``


class SmallMRows:
    """Mixin with the main loop of a consumer warpgroup: 64 rows x all columns."""

    @cute.jit
    def consume(self, lay: LayoutsSmallMWgmma, place: Any):
        """All units of this CTA, then sums and epilogue."""
        self._stand(lay, place)
        if cutlass.const_expr(lay.splits > 1):
            cute.arch.cluster_wait()  # every CTA of the cluster has its barriers
        place["affine"] = self.load_affine(lay, place)
        if cutlass.const_expr(lay.helpers > 0):
            self.help_dequant(lay, place)
        accs = []
        for part in lay.parts:
            for mma in (part.mma, part.lora_mma):
                mma.set(warpgroup.Field.ACCUMULATE, True)
            accs.append(cute.make_rmem_tensor(part.mma.partition_shape_C((64, part.extent)), cutlass.Float32))
        for acc in accs:
            acc.fill(0.0)
        rows = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.stages)
        dq = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, lay.dq_stages)
        if cutlass.const_expr(lay.r > 0):
            for _ in cutlass.range(place["lora_count"], unroll=1):
                cute.arch.mbarrier_wait(place["rows_full"] + rows.index, rows.phase)
                cute.arch.mbarrier_wait(place["dq_full"] + dq.index, dq.phase)
                self._multiply_lora(lay, place, rows.index, dq.index, accs)
                self._release(place["rows_empty"] + rows.index, place["is_first_lane"])
                arrive_if(place["dq_empty"] + dq.index, place["is_first_lane"])
                rows.advance()
                dq.advance()
            for acc in accs:
                acc.store(acc.load() * FROM_VALUES)
        self.multiply(lay, place, accs, rows, dq)
        warpgroup.wait_group(0)
        self.finish(lay, place, accs)

    @cute.jit
    def multiply(self, lay: LayoutsSmallMWgmma, place: Any, accs: Any, rows: Any, dq: Any):
        """All units of K; ``rows`` and ``dq`` stand at the first one's slots. A word of each row is dequantized while
        the wgmma of the word before run.
        """
        words = cute.make_rmem_tensor((2, 2, HALVES), Uint32)  # word, row, half of the unit
        factors = cute.make_rmem_tensor((2, HALVES), Uint32)
        columns = [self._columns(lay, place, part, part.mma, DQ_DTYPE) for part in lay.parts]
        fragments = [
            [self._fragment(lay.parts[0].mma, DQ_DTYPE) for _ in range(STEP_BLOCKS)] for _ in range(SETS)
        ]
        slot_steps = STEPS // HALVES * lay.slot_halves
        done = dq.index + lay.dq_stages - 1  # the slot to give back next; first there is none
        if done >= lay.dq_stages:
            done -= lay.dq_stages
        count = place["k_count"]
        if count > 0:
            cute.arch.mbarrier_wait(place["rows_full"] + rows.index, rows.phase)
            self._read_rows(lay, place, rows.index, words, factors)
            self._release(place["rows_empty"] + rows.index, place["is_first_lane"])
            rows.advance()
        if cutlass.const_expr(lay.swap_ab):
            if count < 2:
                self._ring_is_free(lay, place)
        for i in cutlass.range(count, unroll=1):
            for step in cutlass.range_constexpr(STEPS):
                warpgroup.wait_group(IN_FLIGHT)
                if cutlass.const_expr(step % slot_steps == IN_FLIGHT):
                    # wgmma.wait_group is a warp's: no lane is behind.
                    was_read = (i > 0) | (step > IN_FLIGHT)
                    arrive_if(place["dq_empty"] + done, place["is_first_lane"] & was_read)
                    done = dq.index
                blocks = fragments[step % SETS]
                self._dequant(words, factors, blocks, step)
                if cutlass.const_expr(step % slot_steps == 0):
                    cute.arch.mbarrier_wait(place["dq_full"] + dq.index, dq.phase)
                warpgroup.fence()
                for block in cutlass.range_constexpr(STEP_BLOCKS):
                    k_block, half = step % 2 * STEP_BLOCKS + block, step // 2 % lay.slot_halves
                    for part, acc, ring in zip(lay.parts, accs, columns, strict=True):
                        operand = ring[(None, None, k_block, dq.index * lay.slot_halves + half)]
                        cute.gemm(part.mma, acc, blocks[block][(None, None, 0)], operand, acc)
                warpgroup.commit_group()
                if cutlass.const_expr(step % slot_steps == slot_steps - 1):
                    dq.advance()
            if i + 1 < count:
                cute.arch.mbarrier_wait(place["rows_full"] + rows.index, rows.phase)
                self._read_rows(lay, place, rows.index, words, factors)
                self._release(place["rows_empty"] + rows.index, place["is_first_lane"])
                rows.advance()
                if cutlass.const_expr(lay.swap_ab):
                    if i + 2 == count:
                        self._ring_is_free(lay, place)

    @staticmethod
    def _stand(lay: LayoutsSmallMWgmma, place: Any) -> None:
        """Add where this lane stands: its rows of their ring and their scale factors."""
        lane = place["lane"]
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx()) - WARPS_PER_GROUP - lay.dequant_warps
        group, g = warp // WARPS_PER_GROUP, lane // 4
        permuted = (g & 1) | (g & 2) << 1 | (g & 4) >> 1
        row = group * 64 + warp % WARPS_PER_GROUP * 8 + permuted
        place["consumer_warp"] = warp
        quarter, swizzle = lane % 4, permuted >> 1 & 3
        place["quarter"], place["is_first_lane"] = quarter, lane == 0
        place["row_address"], place["row_swizzle"] = place["rows"] + row * ROW_BYTES, swizzle
        place["own_codes"] = place["row_address"] + ((quarter // 2 ^ swizzle) << 4) + quarter % 2 * 8
        place["own_scales"] = quarter | (quarter + 4) << 4  # bytes of two words
        place["row"] = place["first_row"] + row
        # 64 rows are two of the four words in the scale factors of 32 neighbours.
        first = place["first_row"]
        block = (first + group * 64) // 128 - first // 128
        place["scale_row"] = (
            place["row scales"]
            + block * (HALVES * SF_BLOCK_BYTES)
            + row % 32 * 16
            + (first // 64 + group) % 2 * 8
        )

    @cute.jit
    def _read_rows(self, lay: LayoutsSmallMWgmma, place: Any, slot: Int32, words: Any, factors: Any):
        """This lane's two words and one scale factor of each half of the unit, for both of its rows."""
        own = place["own_codes"] + slot * lay.row_ring.bytes
        scales = place["scale_row"] + slot * lay.row_ring.scale_bytes
        for half in cutlass.range_constexpr(HALVES):
            for h in cutlass.range_constexpr(2):
                # Rows begin at multiples of 64 bytes, their halves differ in one bit.
                loaded = load_shared((own ^ half * (ROW_BYTES // HALVES)) + h * (32 * ROW_BYTES), 2)
                for w in cutlass.range_constexpr(2):
                    words[w, h, half] = loaded[w]
            low, high = load_shared(scales + half * SF_BLOCK_BYTES, 2)
            pair = scale_pair(gather_bytes(low, high, place["own_scales"]))
            for h in cutlass.range_constexpr(2):
                factors[h, half] = broadcast_factor(pair, h)

    @staticmethod
    def _dequant(words: Any, factors: Any, blocks: Any, step: int) -> None:
        """Word ``step`` of the unit of both rows of this lane -> register operands of two wgmma."""
        half, w = step // 2, step % 2
        for odd in range(STEP_BLOCKS):
            rows = [unpack_pairs(words[w, h, half], factors[h, half], odd, pinned=True) for h in range(2)]
            _set(blocks[odd], rows)

    @cute.jit
    def _multiply_lora(self, lay: LayoutsSmallMWgmma, place: Any, slot: Int32, stage: Int32, accs: Any):
        """32 columns of R, in their own order."""
        columns = [self._columns(lay, place, part, part.lora_mma, lay.lora_dtype) for part in lay.parts]
        row = place["row_address"] + slot * lay.row_ring.bytes + place["quarter"] * 4
        blocks = [self._fragment(lay.parts[0].lora_mma, lay.lora_dtype) for _ in range(LORA_BLOCKS)]
        for block in cutlass.range_constexpr(LORA_BLOCKS):
            chunks = [((2 * block + octet) ^ place["row_swizzle"]) << 4 for octet in range(2)]
            _set(
                blocks[block],
                [[load_shared(row + h * (32 * ROW_BYTES) + c, 1)[0] for c in chunks] for h in range(2)],
            )
        warpgroup.fence()
        for block in cutlass.range_constexpr(LORA_BLOCKS):
            operand = blocks[block][(None, None, 0)]
            for part, acc, ring in zip(lay.parts, accs, columns, strict=True):
                cute.gemm(
                    part.lora_mma, acc, operand, ring[(None, None, block, stage * lay.slot_halves)], acc
                )
        warpgroup.commit_group()
        warpgroup.wait_group(0)

    @staticmethod
    def _release(barrier: Any, wanted: Any) -> None:
        """Give a packed slot back: TMA, another proxy, may overwrite it (see ``ConsumerSm90a``)."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        arrive_if(barrier, wanted)

    @cute.jit
    def _ring_is_free(self, lay: LayoutsSmallMWgmma, place: Any):
        """Tell the cluster, lane r its CTA r, that this warp will not read packed weights again."""
        if cutlass.const_expr(lay.splits > 1):
            if place["lane"] < lay.splits:
                cute.arch.mbarrier_arrive(place["rings_free"], place["lane"])

    @staticmethod
    def _fragment(mma: Any, dtype: Any) -> Any:
        return cute.make_rmem_tensor(mma.partition_shape_A((64, 16)), dtype)

    @staticmethod
    def _columns(lay: LayoutsSmallMWgmma, place: Any, part: ColumnPart, mma: Any, dtype: Any) -> Any:
        """A part of the dq ring as the column operand of ``mma``."""
        begin = cute.recast_ptr(place["dq"].iterator, lay.dq.inner, dtype=dtype) + part.first * DQ_K
        return mma.make_fragment_B(mma.get_slice(0).partition_B(cute.make_tensor(begin, part.dq)))


def _set(fragment: Any, pairs: Any) -> None:
    """``pairs[row octet][k octet]`` to the registers of one wgmma."""
    target = cute.recast_tensor(fragment, Uint32)
    for octet in range(2):
        for k_octet in range(2):
            target[(0, octet, k_octet), 0, 0] = pairs[octet][k_octet]
