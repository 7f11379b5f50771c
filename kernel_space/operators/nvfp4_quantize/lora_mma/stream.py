"""First half of ``lora_mma``: the walk along K, which multiplies and quantizes. ``place`` holds what a lane knows of
where it is (``kernel.QuantizeLora._place``).
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute

from kernel_space.numerics.blocked import SF_BLOCK_BYTES
from kernel_space.operators.nvfp4_quantize.lora_mma import ptx as mma_ptx
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import BARRIER_BYTES, LoraMmaLayouts
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx

WORDS = 8  # 32-bit words of x that a lane holds of a row: 16 elements
STEPS = CHUNK_K // 16  # of 16 along K, what one instruction multiplies
ROW_STEP = 8  # rows between those of a lane
INVERSE_BYTES = CHUNK_K * 4  # of one buffer of 1 / smooth
# Which bytes of a lane's word and of its neighbour's it keeps when four lanes transpose a 4 x 4 matrix of bytes.
EVEN, ODD = 0x6240, 0x3715
LOW, HIGH = 0x5410, 0x3276


class Stream:
    """Mixin with copies and main loop."""

    layouts: LoraMmaLayouts
    has_fp4: bool

    @cute.jit
    def init_barriers(self, place: Any):
        """By one thread."""
        lay = self.layouts
        if place["thread"] == 0:
            for i in cutlass.range_constexpr(lay.stages * lay.warps_k):
                cute.arch.mbarrier_init(_barrier(place["full"] + i * BARRIER_BYTES), 1)
                cute.arch.mbarrier_init(_barrier(place["empty"] + i * BARRIER_BYTES), lay.warps_m)
            cute.arch.mbarrier_init_fence()

    @cute.jit
    def stream(self, place: Any, acc: Any):
        """Add this warp's chunks to ``acc`` and quantize them."""
        lay = self.layouts
        count = place["count"]
        is_leader = (place["warp_m"] == 0) & (place["lane"] == 0)
        if is_leader:
            for i in cutlass.range(cutlass.min(count, lay.stages), unroll=1):
                self._copy_chunk(place, i, i)
        by = cute.make_rmem_tensor(2, Float32)
        by.fill(1.0)
        if cutlass.const_expr(lay.has_smooth):
            if count > 0:
                self._load_smooth(place, place["chunk"], by)
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        x = cute.make_rmem_tensor((WORDS, lay.octets), Uint32)
        x.fill(0)
        for i in cutlass.range_constexpr(self.config.prefetch_dist):
            self._prefetch(place, Int32(i + 1))
        self._load_rows(place, place["chunk"], x, count > 0)
        for i in cutlass.range(count, unroll=1):
            self._one_chunk(place, acc, x, by, i, is_leader)

    @cute.jit
    def _one_chunk(self, place: Any, acc: Any, x: Any, by: Any, i: Int32, is_leader: Any):
        lay = self.layouts
        chunk = place["chunk"] + i * lay.warps_k
        more = i + 1 < place["count"]
        if cutlass.const_expr(self.config.prefetch_dist > 0):
            self._prefetch(place, i + 1 + self.config.prefetch_dist)
        if cutlass.const_expr(lay.has_smooth):
            self._write_inverse(place, by, i)
            if more:
                self._load_smooth(place, chunk + lay.warps_k, by)
        if is_leader:
            # The slot of the chunk before: the warps that shared it are done with it, or soon will be.
            if (i > 0) & (i - 1 + lay.stages < place["count"]):
                before = (i - 1) % lay.stages
                cute.arch.mbarrier_wait(self._of_slot(place, "empty", before), (i - 1) // lay.stages & 1)
                self._copy_chunk(place, i - 1 + lay.stages, before)
        cute.arch.sync_warp()
        slot = i % lay.stages
        cute.arch.mbarrier_wait(self._of_slot(place, "full", slot), i // lay.stages & 1)
        self._multiply(place, acc, x, slot)
        cute.arch.fence_proxy("async.shared", space="cta")  # the next copy is of another proxy
        cute.arch.sync_warp()
        if place["lane"] == 0:
            cute.arch.mbarrier_arrive(self._of_slot(place, "empty", slot))
        if cutlass.const_expr(lay.parts_r == 1):
            self._quantize(place, x, chunk, i, more)
        else:
            if chunk % lay.parts_r == place["part_r"]:
                self._quantize(place, x, chunk, i, None)
            self._load_rows(place, chunk + lay.warps_k, x, more)

    # -- what comes in -------------------------------------------------------------------------------------------

    def _of_slot(self, place: Any, name: str, slot: Any) -> Any:
        return _barrier(place[name] + (slot * self.layouts.warps_k + place["warp_k"]) * BARRIER_BYTES)

    def _copy_chunk(self, place: Any, i: Any, slot: Any) -> None:
        """This CTA's columns of the ``i``-th chunk of this warp into ``slot``."""
        lay = self.layouts
        full = self._of_slot(place, "full", slot)
        cute.arch.mbarrier_arrive_and_expect_tx(full, lay.slot_bytes)
        chunk = place["chunk"] + i * lay.warps_k
        source = place["lora_down"] + Int64(chunk) * lay.chunk_bytes + Int64(place["columns"] * lay.row_bytes)
        mma_ptx.copy_bulk(self._slot(place, slot), source, lay.slot_bytes, full.toint())

    def _slot(self, place: Any, slot: Any) -> Any:
        return place["ring"] + (slot * self.layouts.warps_k + place["warp_k"]) * self.layouts.slot_bytes

    def _load_rows(self, place: Any, chunk: Any, x: Any, wanted: Any) -> None:
        for octet in range(self.layouts.octets):
            self._load_row(place, chunk, x, octet, wanted)

    @staticmethod
    def _load_row(place: Any, chunk: Any, x: Any, octet: int, wanted: Any) -> None:
        """This lane's block of a row. Rows beyond M stay zeros. Columns beyond K are the row's last ones: lora_down is
        zero there, and their scale is not stored.
        """
        column = cutlass.min(
            chunk * CHUNK_K + place["quarter"] * arithmetic.BLOCK, place["k"] - arithmetic.BLOCK
        )
        address = place["x_row"] + Int64(column * 2) + place["x_step"] * octet
        wanted = wanted & (place["row"] + octet * ROW_STEP < place["m"])
        before = [x[i, octet] for i in range(WORDS)]
        for i, word in enumerate(mma_ptx.load_row_if(address, wanted, before)):
            x[i, octet] = word

    def _prefetch(self, place: Any, i: Any) -> None:
        """A line of 128 bytes each: the rows of the ``i``-th chunk of this warp, if there are any."""
        lay = self.layouts
        wanted = (place["ahead"] < place["m"]) & (place["lane"] < lay.rows) & (i < place["count"])
        chunk = place["chunk"] + i * lay.warps_k
        mma_ptx.prefetch_if(place["x_ahead"] + Int64(chunk * lay.row_bytes), wanted)

    @staticmethod
    def _load_smooth(place: Any, chunk: Any, by: Any) -> None:
        """Two columns of the chunk; beyond K others."""
        column = cutlass.min(chunk * CHUNK_K + place["lane"] * 2, place["k"] - 2)
        for i, value in enumerate(mma_ptx.load_pair(place["smooth"] + Int64(column) * 4)):
            by[i] = value

    @cute.jit
    def _write_inverse(self, place: Any, by: Any, i: Int32):
        """1 / smooth of the chunk for all lanes of the warp, who read it after they have met."""
        values = [by[0], by[1]]
        rounded, usual = arithmetic.reciprocals(values, paired=self.has_fp4)
        inverse = cute.make_rmem_tensor(2, Float32)
        inverse[0], inverse[1] = rounded[0], rounded[1]
        if not usual:
            inverse[0] = ptx.divide(Float32(1.0), values[0])
            inverse[1] = ptx.divide(Float32(1.0), values[1])
        address = self._inverse_address(place, place["inverse"] + (i & 1) * INVERSE_BYTES)
        mma_ptx.store_shared(address, [inverse[0], inverse[1]])

    def _inverse_address(self, place: Any, buffer: Any) -> Any:
        """Of this lane's two columns."""
        return buffer + place["lane"] * 8

    # -- what is made of it --------------------------------------------------------------------------------------

    def _multiply(self, place: Any, acc: Any, x: Any, slot: Any) -> None:
        """``acc`` += lora_down.T in the slot times x.T. The words of a row of x, neighbours in registers since they
        were loaded, are an operand as they are, if lane t of a quad gives k = 16 t + 4 j .. 16 t + 4 j + 3 in step j of
        four; a sum over k may be taken in any order. So a lane reads k = 16 t .. 16 t + 15 of its columns of lora_down,
        two pieces of 16 bytes of a row, for all four steps.
        """
        lay = self.layouts
        own = place["lane"] // 4
        base = self._slot(place, slot) + own * lay.row_bytes + ((place["quarter"] * 2) ^ own) * 16
        for columns in range(lay.columns // 16):
            low, high = (
                self._load_columns(base + (columns * 16 + octet * 8) * lay.row_bytes) for octet in range(2)
            )
            for step in range(STEPS):
                a = [low[2 * step], high[2 * step], low[2 * step + 1], high[2 * step + 1]]
                for octet in range(lay.octets):
                    b = [x[2 * step, octet], x[2 * step + 1, octet]]
                    number = columns * lay.octets + octet
                    sums = [acc[e, number] for e in range(4)]
                    for e, value in enumerate(mma_ptx.mma_16x8x16(sums, a, b, is_bf16=lay.is_bf16)):
                        acc[e, number] = value

    @staticmethod
    def _load_columns(address: Any) -> list[Any]:
        """16 elements along K of one column: the second piece lies where one bit of the address differs."""
        return [word for piece in (address, address ^ 16) for word in mma_ptx.load_words(piece)]

    def _quantize(self, place: Any, x: Any, chunk: Any, i: Any, more: Any) -> None:
        """The rows of this lane, one by one; each is then loaded for the warp's next chunk, unless ``more`` is None."""
        lay = self.layouts
        column = chunk * CHUNK_K + place["quarter"] * arithmetic.BLOCK
        inside = column < place["k"]
        bytes_ = Uint32(0)
        for octet in range(lay.octets):
            words, scale = self._block(place, [x[w, octet] for w in range(WORDS)], i)
            bytes_ = bytes_ | (scale << Uint32(8 * octet))
            wanted = (place["row"] + octet * ROW_STEP < place["m"]) & inside
            ptx.store_if(place["act_row"] + Int64(column >> 1) + place["act_step"] * octet, words, wanted)
            if more is not None:
                self._load_row(place, chunk + lay.warps_k, x, octet, more)
        self._store_scales(place, ptx.unless_zero(Int32(inside), bytes_), chunk)

    def _block(self, place: Any, words: list[Any], i: Any) -> tuple[list[Any], Any]:
        """(two words of codes, the scale's byte) of 16 elements."""
        lay = self.layouts
        kind = "bf16" if lay.is_bf16 else "f16"
        z = [value for word in words for value in ptx.two_halves(word, kind)]
        if lay.has_smooth:
            address = place["inverse"] + (i & 1) * INVERSE_BYTES + place["quarter"] * (arithmetic.BLOCK * 4)
            inverse = [one for offset in range(0, 64, 16) for one in mma_ptx.load_shared(address + offset)]
            z = ptx.multiply_each(z, inverse, paired=self.has_fp4)
        scale = ptx.e4m3_bytes(arithmetic.sixth(arithmetic.largest(z)), Float32(0.0))
        return arithmetic.codes(z, scale, has_fp4=self.has_fp4), scale

    def _store_scales(self, place: Any, bytes_: Any, chunk: Any) -> None:
        """Byte i of each of a quad's four lanes, a scale of row i of theirs, to one word of one lane; and out."""
        lay = self.layouts
        quarter = place["quarter"]
        odd, high = quarter % 2 == 1, quarter >= 2
        other = cute.arch.shuffle_sync_bfly(bytes_, 1)
        word = mma_ptx.gather_bytes(bytes_, other, _either(odd, ODD, EVEN))
        other = cute.arch.shuffle_sync_bfly(word, 2)
        word = mma_ptx.gather_bytes(word, other, _either(high, HIGH, LOW))
        row = place["row"] + quarter * ROW_STEP
        wanted = (row < place["padded_m"]) & (quarter < lay.octets)
        ptx.store_if(scale_address(place, row, chunk), [word], wanted)

    @cute.jit
    def clear_padding(self, place: Any):
        """The CTAs of the last rows write zeros for rows from the end of their tile to a multiple of 128."""
        lay = self.layouts
        end = place["first_row"] + lay.tile_m
        rows = place["padded_m"] - end
        if (end >= place["m"]) & (rows > 0) & (place["part_r"] == 0):
            for index in cutlass.range(place["thread"], rows * place["chunks"], lay.threads, unroll=1):
                address = scale_address(place, end + index % rows, place["first_chunk"] + index // rows)
                ptx.store_if(address, [Uint32(0)], Int32(1))


def scale_address(place: Any, row: Any, chunk: Any) -> Any:
    """Of the four scales of a row and a chunk in the blocked layout."""
    blocks = Int64(row >> 7) * place["k_blocks"] + chunk
    return place["ascales"] + blocks * SF_BLOCK_BYTES + ((row & 31) * 16 + ((row & 127) >> 5) * 4)


def _either(condition: Any, yes: int, no: int) -> Any:
    return Uint32(Int32(condition) * (yes - no) + no)


def _barrier(address: Any) -> Any:
    return cute.make_ptr(cutlass.Int64, address, cute.AddressSpace.smem, assumed_align=BARRIER_BYTES)
