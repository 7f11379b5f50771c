"""Products of the small-M kernel with ``wgmma``: act goes dequantized through shared memory, weights through registers.

Twice the rate of mma.sync, and act is dequantized once per CTA and part of K: for 32 rows of act or more.
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.kernels.dequant_sm90a import load_shared, store_shared, unpack_word
from kernel_space.kernels.layouts_small_m_sm90a import LANES, PIECE, LayoutsSmallM
from kernel_space.kernels.small_m_stream_sm90a import SmallMStream

HALF_BLOCKS = 4  # wgmma along K in half a unit, one group
FIRST_BARRIER = 1  # named barriers: one for the warps of each part of K


class SmallMWgmma:
    """Mixin: one accumulator of 64 x columns per warpgroup; a warp holds 16 of the rows."""

    @cute.jit
    def multiply(self, lay: LayoutsSmallM, place: Any, i: Int32, slot: Int32, accs: Any):
        """128 of K in two groups of wgmma; each dequantizes into registers that the group before last has read."""
        self._pass_on(lay, place, i, slot, False)
        words, factors = SmallMStream.load_weights(lay, place, slot)
        columns = self._columns(lay, place, lay.tiled_mma, cutlass.Float16)
        stage = self._stage(lay, place, i)
        for half in cutlass.range_constexpr(2):
            warpgroup.wait_group(1)
            blocks = place["fragments"][half]
            for w in cutlass.range_constexpr(2):
                rows = [unpack_word(row[2 * half + w], factor, half) for row, factor in zip(words, factors)]
                for odd in cutlass.range_constexpr(2):
                    self._set(blocks[2 * w + odd], [row[2 * odd : 2 * odd + 2] for row in rows])
            warpgroup.fence()
            for block in cutlass.range_constexpr(HALF_BLOCKS):
                operand = blocks[block][(None, None, 0)]
                cute.gemm(
                    lay.tiled_mma, accs[0], operand, columns[(None, None, block, stage + half)], accs[0]
                )
            warpgroup.commit_group()

    @cute.jit
    def multiply_lora(self, lay: LayoutsSmallM, place: Any, i: Int32, slot: Int32, accs: Any):
        """32 columns of R: words 2j and 2j + 1 of a lane's piece make K block j."""
        self._pass_on(lay, place, i, slot, True)
        rows = [load_shared(slot + octet * PIECE + place["lane"] * 16, 4) for octet in range(lay.octets)]
        columns = self._columns(lay, place, lay.lora_mma, lay.lora_dtype)
        stage = self._stage(lay, place, i)
        blocks = place["lora fragments"]
        for j in cutlass.range_constexpr(2):
            self._set(blocks[j], [row[2 * j : 2 * j + 2] for row in rows])
        warpgroup.fence()
        for j in cutlass.range_constexpr(2):
            cute.gemm(
                lay.lora_mma, accs[0], blocks[j][(None, None, 0)], columns[(None, None, j, stage)], accs[0]
            )
        warpgroup.commit_group()
        warpgroup.wait_group(0)

    @staticmethod
    def finish_products(lay: LayoutsSmallM) -> None:
        warpgroup.wait_group(0)

    @staticmethod
    def make_sums(lay: LayoutsSmallM) -> list[Any]:
        for mma in (lay.tiled_mma, lay.lora_mma):
            mma.set(warpgroup.Field.ACCUMULATE, True)
        shape = lay.tiled_mma.partition_shape_C((64, lay.columns))
        return [cute.make_rmem_tensor(shape, Float32)]

    @staticmethod
    def make_fragments(lay: LayoutsSmallM) -> dict[str, Any]:
        """Register operands: two sets of half a unit, and one of a LoRA unit."""

        def make(mma: Any, dtype: Any, count: int) -> list[Any]:
            return [cute.make_rmem_tensor(mma.partition_shape_A((64, 16)), dtype) for _ in range(count)]

        return {
            "fragments": [make(lay.tiled_mma, cutlass.Float16, HALF_BLOCKS) for _ in range(2)],
            "lora fragments": make(lay.lora_mma, lay.lora_dtype, 2),
        }

    @staticmethod
    def sum_at(accs: Any, tile: int, octet: int, e: int) -> Any:
        """Row 8 octet + g of the warp's weights, row 8 tile + 2 (lane % 4) + e of act."""
        return accs[0][(e, octet, tile), 0, 0]

    @staticmethod
    def _set(fragment: Any, pairs: Any) -> None:
        """``pairs[row octet][k octet]`` to the registers of one wgmma."""
        target = cute.recast_tensor(fragment, Uint32)
        for octet in range(2):
            for k_octet in range(2):
                target[(0, octet, k_octet), 0, 0] = pairs[octet][k_octet]

    @staticmethod
    def _stage(lay: LayoutsSmallM, place: Any, i: Any) -> Any:
        """First of the two halves of unit ``i`` in the dequantized ring."""
        return (i % lay.dq_stages * lay.warps_k + place["part"]) * 2

    @staticmethod
    def _columns(lay: LayoutsSmallM, place: Any, mma: Any, dtype: Any) -> Any:
        """The dequantized ring as the column operand of ``mma``."""
        ring = place["dq"]
        if dtype is not ring.element_type:
            ring = cute.make_tensor(cute.recast_ptr(ring.iterator, lay.dq.inner, dtype=dtype), lay.dq.outer)
        return mma.make_fragment_B(mma.get_slice(0).partition_B(ring))

    @cute.jit
    def _pass_on(self, lay: LayoutsSmallM, place: Any, i: Int32, slot: Int32, is_lora: cutlass.Constexpr):
        """Write this warp's own act tiles where wgmma reads them, and wait for the others'.

        Chunk 4w + 2 odd + k octet of half a unit holds one pair of every quad, which is a word of four lanes. After the
        barrier nobody multiplies with the slot that will be written next: all but the newest units are done.
        """
        lane = place["lane"]
        base = place["dq_address"] + self._stage(lay, place, i) * lay.dq_bytes
        for x in cutlass.range_constexpr(lay.own_tiles):
            tile = place["first_tile"] + x * lay.warps_n
            if tile < lay.act_tiles:
                row = base + tile * 1024 + lane // 4 * 128 + lane % 4 * 4
                if cutlass.const_expr(is_lora):
                    chunks = [load_shared(slot + lay.act_offset + x * PIECE + lane * 16, 4)]
                else:
                    words = SmallMStream.dequant_act(lay, slot, x, lane)
                    chunks = [(*words[2 * half], *words[2 * half + 1]) for half in range(2)]
                for half, pairs in enumerate(chunks):
                    for chunk, pair in enumerate(pairs):
                        swizzled = (lane // 4 ^ chunk) * 16
                        store_shared(row + half * lay.dq_bytes + swizzled, [pair])
        cute.arch.fence_proxy("async.shared", space="cta")
        warpgroup.wait_group(2 * (lay.dq_stages - 2))
        cute.arch.barrier(barrier_id=FIRST_BARRIER + place["part"], number_of_threads=LANES * lay.warps_n)
