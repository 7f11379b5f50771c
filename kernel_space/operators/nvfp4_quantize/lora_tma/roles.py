"""What each warp of ``lora_tma`` does. ``place`` holds what a thread knows of where it is
(``kernel.QuantizeLoraTma._place``).
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.nvfp4_quantize.lora_mma import ptx as mma_ptx
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import BARRIER_BYTES
from kernel_space.operators.nvfp4_quantize.lora_mma.stream import Stream, scale_address
from kernel_space.operators.nvfp4_quantize.lora_tma import ptx as tma_ptx
from kernel_space.operators.nvfp4_quantize.lora_tma.config import GROUP_WARPS, LANES, ROLE_WARPS
from kernel_space.operators.nvfp4_quantize.lora_tma.layouts import (
    MMA_ROWS,
    QUANT_ROWS,
    SUM_BYTES,
    LoraTmaLayouts,
)
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx

K_BLOCKS = CHUNK_K // 16  # wgmma along K in a chunk
DONE_BARRIER = 1  # named barrier: nobody reads the rings any more


class Roles(Stream):
    """Mixin with the roles and the end of the kernel. Zeros for rows behind the last tile are those of ``lora_mma``."""

    layouts: LoraTmaLayouts  # type: ignore[assignment]  # of this kernel
    config: Any

    @cute.jit
    def init_barriers(self, place: Any):
        """By one thread, and zeros behind lora_down in its slots by all; then all of the CTA know of both."""
        lay = self.layouts
        if cutlass.const_expr(lay.columns > lay.r):
            pieces = (lay.slot_bytes - lay.lora_bytes) // 16
            for index in cutlass.range(place["thread"], lay.stages * pieces, lay.threads, unroll=1):
                at = index // pieces * lay.slot_bytes + lay.lora_bytes + index % pieces * 16
                mma_ptx.store_shared(place["ring"] + at, [Float32(0.0)] * 4)
            cute.arch.fence_proxy("async.shared", space="cta")
        if place["thread"] == 0:
            for i in cutlass.range_constexpr(lay.stages):
                cute.arch.mbarrier_init(self._barrier(place, "full", i), lay.full_arrivals)
                cute.arch.mbarrier_init(self._barrier(place, "empty", i), lay.empty_arrivals)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()

    @staticmethod
    def _barrier(place: Any, name: str, slot: Any) -> Any:
        address = place[name] + slot * BARRIER_BYTES
        return cute.make_ptr(cutlass.Int64, address, cute.AddressSpace.smem, assumed_align=BARRIER_BYTES)

    def _wait_empty(self, place: Any, i: Any) -> None:
        """For the slot of chunk ``i``, which had one before."""
        slot = i % self.layouts.stages
        cute.arch.mbarrier_wait(self._barrier(place, "empty", slot), (i // self.layouts.stages + 1) & 1)

    def _wait_full(self, place: Any, i: Any) -> None:
        slot = i % self.layouts.stages
        cute.arch.mbarrier_wait(self._barrier(place, "full", slot), (i // self.layouts.stages) & 1)

    # -- loads ---------------------------------------------------------------------------------------------------

    @cute.jit
    def load(self, place: Any, atom: Any, views: Any):
        """Warp 0: chunks in order. lora_down of the first ones does not wait for the kernel before."""
        lay = self.layouts
        count = place["chunks"]
        first = cutlass.min(count, Int32(lay.stages))
        for i in cutlass.range(first, unroll=1):
            self._load_lora(place, i, i)
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        for i in cutlass.range(first, unroll=1):
            self._load_x(place, atom, views, i, i)
        for i in cutlass.range(lay.stages, count, unroll=1):
            self._wait_empty(place, i)
            self._load_lora(place, i, i % lay.stages)
            self._load_x(place, atom, views, i, i % lay.stages)

    @cute.jit
    def _load_lora(self, place: Any, i: Int32, slot: Int32):
        """Announce all bytes of a slot; those of lora_down."""
        lay = self.layouts
        barrier = self._barrier(place, "full", slot)
        source = place["lora_down"] + Int64(place["first_chunk"] + i) * lay.lora_bytes
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, lay.x_bytes + lay.lora_bytes)
            mma_ptx.copy_bulk(place["ring"] + slot * lay.slot_bytes, source, lay.lora_bytes, barrier.toint())

    @cute.jit
    def _load_x(self, place: Any, atom: Any, views: Any, i: Int32, slot: Int32):
        barrier = self._barrier(place, "full", slot)
        source = views[1][(None, place["tile"], place["first_chunk"] + i)]
        cute.copy(atom, source, views[0][(None, slot)], tma_bar_ptr=barrier)

    @cute.jit
    def invert(self, place: Any):
        """Warps 1 to 3: 1 / smooth of each third chunk, two columns a lane. One warp alone is as slow as a load from
        the L2 for every chunk, which at few rows is longer than anything else.

        Of two slots it is warps 1 and 2: a warp knows that a slot was given back two turns ago only if its own chunk
        before came later than that one. Else the parity that it waits for may be an older phase's.
        """
        lay = self.layouts
        warps = lay.invert_warps
        count, own = place["chunks"], place["warp"] - 1
        by = cute.make_rmem_tensor(2, Float32)
        by.fill(1.0)
        if own < count:
            self._load_smooth(place, place["first_chunk"] + own, by)
        for i in cutlass.range(own, count, warps, unroll=1):
            slot = i % lay.stages
            if i >= lay.stages:
                self._wait_empty(place, i)
            self._write_inverse(
                {**place, "inverse": place["inverses"] + slot * lay.inverse_bytes}, by, Int32(0)
            )
            cute.arch.sync_warp()
            if place["lane"] == 0:
                cute.arch.mbarrier_arrive(self._barrier(place, "full", slot))
            self._load_smooth(place, place["first_chunk"] + i + warps, by)

    # -- x @ lora_down -------------------------------------------------------------------------------------------

    @cute.jit
    def multiply(self, place: Any, mma: Any, columns: Any, rows: Any):
        """Four warps: sums of all chunks, then to shared memory."""
        lay = self.layouts
        acc = cute.make_rmem_tensor(mma.partition_shape_C((lay.columns, lay.tile_m)), Float32)
        acc.fill(0.0)
        is_first = place["lane"] == 0
        for i in cutlass.range(place["chunks"], unroll=1):
            slot = i % lay.stages
            self._wait_full(place, i)
            warpgroup.fence()
            for block in cutlass.range_constexpr(K_BLOCKS):
                cute.gemm(mma, acc, columns[(None, None, block, slot)], rows[(None, None, block, slot)], acc)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            # wgmma reads by the proxy of the next copy: no fence between proxies.
            if is_first & (i > 0):
                cute.arch.mbarrier_arrive(self._barrier(place, "empty", (i + lay.stages - 1) % lay.stages))
        warpgroup.wait_group(0)
        readers = LANES * (GROUP_WARPS + lay.quant_warps)
        cute.arch.barrier(barrier_id=DONE_BARRIER, number_of_threads=readers)
        self._write_sums(place, acc)

    def _write_sums(self, place: Any, acc: Any) -> None:
        """To ``[row of x, column of lora_down]``, those columns that there are."""
        lay = self.layouts
        warp, lane = place["warp"] - GROUP_WARPS, place["lane"]
        first = warp * 16 + lane // 4
        begin = place["x_ring"] + (place["quarter"] * 2 * lay.sum_row + first) * SUM_BYTES
        shape = (2, 2, lay.tile_m // 8, lay.columns // MMA_ROWS)
        sums = cute.make_tensor(acc.iterator, cute.make_layout(shape))
        for block in range(lay.columns // MMA_ROWS):
            for half in range(2):
                column = block * MMA_ROWS + half * 8
                wanted = Int32(first + column < lay.r)
                for octet in range(lay.tile_m // 8):
                    for e in range(2):
                        offset = ((octet * 8 + e) * lay.sum_row + column) * SUM_BYTES
                        tma_ptx.store_one_if(begin + offset, sums[e, half, octet, block], wanted)

    # -- nvfp4(x / smooth) ---------------------------------------------------------------------------------------

    @cute.jit
    def quantize(self, place: Any):
        """The other warps: rows of every chunk, eight at a time, in turns. A slot is given back when the next one is
        full: right after the loads from it the fence would wait for them, and whatever they feed with it.
        """
        lay = self.layouts
        own, quarter = place["lane"] // 4, place["quarter"]
        x_own = place["x_ring"] + own * lay.row_bytes + ((quarter * 2) ^ own) * 16
        group = place["warp"] - ROLE_WARPS
        for i in cutlass.range(place["chunks"], unroll=1):
            slot = i % lay.stages
            self._wait_full(place, i)
            if i > 0:
                # The next copy is of another proxy.
                cute.arch.fence_proxy("async.shared", space="cta")
                cute.arch.sync_warp()
                if place["lane"] == 0:
                    cute.arch.mbarrier_arrive(
                        self._barrier(place, "empty", (i + lay.stages - 1) % lay.stages)
                    )
            if group < lay.groups:
                inverse = self._load_inverse(place, slot)
                at = x_own + slot * lay.x_bytes
                while group < lay.groups:
                    words = self._load_words(at + group * (QUANT_ROWS * lay.row_bytes))
                    self.emit(place, words, inverse, place["first_chunk"] + i, group * QUANT_ROWS + own)
                    group += lay.quant_warps
            group -= lay.groups
        readers = LANES * (GROUP_WARPS + lay.quant_warps)
        cute.arch.barrier_arrive(barrier_id=DONE_BARRIER, number_of_threads=readers)

    def _load_inverse(self, place: Any, slot: Any) -> list[Any]:
        """1 / smooth of this lane's 16 columns."""
        lay = self.layouts
        if not lay.has_smooth:
            return []
        address = (
            place["inverses"] + slot * lay.inverse_bytes + place["quarter"] * (arithmetic.BLOCK * SUM_BYTES)
        )
        return [one for offset in range(0, 64, 16) for one in mma_ptx.load_shared(address + offset)]

    @staticmethod
    def _load_words(address: Any) -> list[Any]:
        """Eight words of this lane's block of a row: slots and rows are multiples of 32 bytes apart."""
        return [word for own in (address, address ^ 16) for word in mma_ptx.load_words(own)]

    def emit(self, place: Any, words: list[Any], inverse: list[Any], chunk: Any, row_of_tile: Any) -> None:
        """Codes of a lane's block of a row, and the scale."""
        lay = self.layouts
        row = place["first_row"] + row_of_tile
        column = chunk * CHUNK_K + place["quarter"] * arithmetic.BLOCK
        z = [value for word in words for value in ptx.two_halves(word, "bf16" if lay.is_bf16 else "f16")]
        if lay.has_smooth:
            z = ptx.multiply_each(z, inverse, paired=False)
        scale = ptx.e4m3_bytes(arithmetic.sixth(arithmetic.largest(z)), Float32(0.0))
        codes = arithmetic.codes(z, scale, has_fp4=False)
        wanted = (row < place["m"]) & (column < place["k"])
        address = place["act"] + Int64(row) * place["half_k"] + Int64(column >> 1)
        ptx.store_if(address, codes, wanted)
        # Beyond M and K it is 0, whatever 1 / smooth is.
        byte = ptx.unless_zero(Int32(wanted), scale)
        address = scale_address(place, row, chunk) + place["quarter"]
        tma_ptx.store_byte_if(address, byte, row < place["padded_m"])

    # -- the end -------------------------------------------------------------------------------------------------

    @cute.jit
    def finish(self, place: Any):
        """All threads: the cluster's sums of every ``splits``-th row, in the order of ranks."""
        lay = self.layouts
        if cutlass.const_expr(lay.splits > 1):
            cute.arch.cluster_wait()
        else:
            cute.arch.sync_threads()
        quads = lay.r // 4
        rows = (lay.tile_m - place["rank"] + lay.splits - 1) // lay.splits
        for index in cutlass.range(place["thread"], rows * quads, lay.threads, unroll=1):
            row_of_tile = index // quads * lay.splits + place["rank"]
            quad = index % quads
            address = place["x_ring"] + (row_of_tile * lay.sum_row + quad * 4) * SUM_BYTES
            row = place["first_row"] + row_of_tile
            target = place["lora_act_in"] + (Int64(row) * lay.r + quad * 4) * 2
            wanted = row < place["m"]
            tma_ptx.store_halves_if(target, self._sum(address), wanted, is_bf16=lay.is_bf16)
        self.clear_padding(place)
        if cutlass.const_expr(lay.splits > 1):
            # Nobody reads this CTA's sums any more: what was read has been used.
            cute.arch.cluster_arrive_relaxed()
            cute.arch.cluster_wait()

    def _sum(self, address: Any) -> list[Any]:
        if self.layouts.splits == 1:
            return list(mma_ptx.load_shared(address))
        total = list(tma_ptx.load_cluster(tma_ptx.map_to_rank(address, 0)))
        for rank in range(1, self.layouts.splits):
            piece = tma_ptx.load_cluster(tma_ptx.map_to_rank(address, rank))
            total = [a + b for a, b in zip(total, piece, strict=True)]
        return total
