"""What each warp of ``lora_tma`` does. ``place`` holds what a thread knows of where it is
(``kernel.QuantizeLoraTma._place``).
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.nvfp4_quantize.lora_mma import ptx as mma_ptx
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import BARRIER_BYTES
from kernel_space.operators.nvfp4_quantize.lora_mma.stream import WORDS, Stream, scale_address
from kernel_space.operators.nvfp4_quantize.lora_tma import ptx as tma_ptx
from kernel_space.operators.nvfp4_quantize.lora_tma.config import LANES, ROLE_WARPS
from kernel_space.operators.nvfp4_quantize.lora_tma.layouts import (
    QUANT_ROWS,
    LoraTmaLayouts,
)
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx

K_BLOCKS = CHUNK_K // 16  # wgmma along K in a chunk
QUANT_REGISTERS = 56  # that a quantizing thread wants beside words of x
MOST_OCTETS = 4  # that a warp has in registers at once: their code is there as often
INVERSE_PIECE = 64  # bytes of 1 / smooth: of four columns of each lane of a quad


class Roles(Stream):
    """Mixin with the roles but for the end of those that multiply (``sums``)."""

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
            self.init_more_barriers(place)
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
            self.prefetch(place, atom, views, i)

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
    def begin_prefetch(self, place: Any, atom: Any, views: Any):
        """x of the first chunks to the L2, before the kernel before has ended: what that one still writes replaces it
        there. By a warp that has nothing else to do so early.
        """
        lay = self.layouts
        first = cutlass.min(place["chunks"], Int32(lay.stages + lay.prefetch_dist))
        for i in cutlass.range(first, unroll=1):
            cute.prefetch(atom, views[1][(None, place["tile"], place["first_chunk"] + i)])

    @cute.jit
    def prefetch(self, place: Any, atom: Any, views: Any, i: Int32):
        """x of the chunk that is ``prefetch_dist`` behind chunk ``i`` to the L2."""
        lay = self.layouts
        if cutlass.const_expr(lay.prefetch_dist > 0):
            ahead = i + lay.prefetch_dist
            if ahead < place["chunks"]:
                cute.prefetch(atom, views[1][(None, place["tile"], place["first_chunk"] + ahead)])

    @cute.jit
    def multiply(self, place: Any, mma: Any, columns: Any, rows: Any):
        """Four warps: sums of all chunks."""
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
        # The last slot is nobody's any more.
        self.finish(place, acc)

    # -- nvfp4(x / smooth) ---------------------------------------------------------------------------------------

    @cute.jit
    def quantize(self, place: Any):
        """The other warps. Those of a turn have each so many-th chunk. A slot is given back when all that a warp wants
        of it is in registers, if that many registers are there.
        """
        lay = self.layouts
        warp = place["warp"] - ROLE_WARPS
        octet = warp % lay.warps_m
        for i in cutlass.range(warp // lay.warps_m, place["chunks"], lay.turns, unroll=1):
            self._wait_full(place, i)
            if cutlass.const_expr(lay.octets <= self._octets_in_registers):
                if octet + (lay.octets - 1) * lay.warps_m < lay.groups:
                    self._quantize_at_once(place, i, octet, lay.octets)
                else:
                    self._quantize_at_once(place, i, octet, lay.octets - 1)
            else:
                self._quantize_in_pairs(place, i, octet)
            # Rows of the next chunk go on from here, so that no warp has more to do.
            octet += (lay.groups - octet + lay.warps_m - 1) // lay.warps_m * lay.warps_m - lay.groups
        self.clear_padding(place)

    @property
    def _octets_in_registers(self) -> int:
        """Whose words a quantizing thread can hold at once."""
        return min(MOST_OCTETS, (self.config.role_registers[2] - QUANT_REGISTERS) // WORDS)

    @cute.jit
    def _quantize_at_once(self, place: Any, i: Int32, octet: Int32, count: cutlass.Constexpr):
        """``count`` octets of rows of chunk ``i``, the first being ``octet``."""
        words, inverse = [], []
        if cutlass.const_expr(count > 0):
            octets = [octet + n * self.layouts.warps_m for n in range(count)]
            words = [self._load_octet(place, i, one) for one in octets]
            inverse = self._load_inverse(place, i % self.layouts.stages)
        self._give_back(place, i)
        for n in cutlass.range_constexpr(count):
            self._emit_octet(place, i, octets[n], words[n], inverse)

    @cute.jit
    def _quantize_in_pairs(self, place: Any, i: Int32, octet: Int32):
        """All octets of a warp, two at once: so two blocks of a lane are in work, and share 1 / smooth."""
        lay = self.layouts
        inverse = self._load_inverse(place, i % lay.stages)
        while octet + lay.warps_m < lay.groups:
            octets = (octet, octet + lay.warps_m)
            words = [self._load_octet(place, i, one) for one in octets]
            self._emit_octet(place, i, octets[0], words[0], inverse)
            self._emit_octet(place, i, octets[1], words[1], inverse)
            octet += 2 * lay.warps_m
        if octet < lay.groups:
            words = self._load_octet(place, i, octet)
            self._emit_octet(place, i, octet, words, inverse)
        self._give_back(place, i)

    def _give_back(self, place: Any, i: Any) -> None:
        """The slot of chunk ``i``; the next copy is of another proxy."""
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        barrier = self._barrier(place, "empty", i % self.layouts.stages)
        self._arrive_first(place, barrier)

    @cute.jit
    def _arrive_first(self, place: Any, barrier: Any):
        if place["lane"] == 0:
            cute.arch.mbarrier_arrive(barrier)

    def _load_octet(self, place: Any, i: Any, octet: Any) -> list[Any]:
        """Eight words of this lane's block of its row."""
        lay = self.layouts
        own = place["lane"] // 4
        at = place["x_ring"] + own * lay.row_bytes + ((place["quarter"] * 2) ^ own) * 16
        return self._load_words(at + i % lay.stages * lay.x_bytes + octet * (QUANT_ROWS * lay.row_bytes))

    def _emit_octet(self, place: Any, i: Any, octet: Any, words: list[Any], inverse: list[Any]) -> None:
        row = octet * QUANT_ROWS + place["lane"] // 4
        self.emit(place, words, inverse, place["first_chunk"] + i, row)

    @cute.jit
    def clear_padding(self, place: Any):
        """Zeros for rows from the end of the last tile to a multiple of 128, by the warps that quantize: for them the
        kernel before has ended, since each has seen x (rule ``idle_turns``).
        """
        lay = self.layouts
        end = place["first_row"] + lay.tile_m
        rows = place["padded_m"] - end
        if (end >= place["m"]) & (rows > 0):
            first = place["thread"] - LANES * ROLE_WARPS
            for index in cutlass.range(first, rows * place["chunks"], LANES * lay.quant_warps, unroll=1):
                address = scale_address(place, end + index % rows, place["first_chunk"] + index // rows)
                ptx.store_if(address, [Uint32(0)], Int32(1))

    def _inverse_address(self, place: Any, buffer: Any) -> Any:
        """Of this lane's two columns. Four columns of each quarter lie side by side, and the next four of each behind
        them: so the four lanes of a quad read 64 bytes, in which no bank is twice.
        """
        lane = place["lane"]
        return buffer + lane % 8 // 2 * INVERSE_PIECE + lane // 8 * 16 + lane % 2 * 8

    def _load_inverse(self, place: Any, slot: Any) -> list[Any]:
        """1 / smooth of this lane's 16 columns."""
        lay = self.layouts
        if not lay.has_smooth:
            return []
        address = place["inverses"] + slot * lay.inverse_bytes + place["quarter"] * 16
        pieces = range(0, lay.inverse_bytes, INVERSE_PIECE)
        return [one for offset in pieces for one in mma_ptx.load_shared(address + offset)]

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
