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
        """By one thread; ``arrived`` completes when all sums that this CTA owns are here."""
        lay = self.layouts
        if place["thread"] == 0:
            for i in cutlass.range_constexpr(lay.stages * lay.warps_k):
                cute.arch.mbarrier_init(_barrier(place["full"] + i * BARRIER_BYTES), 1)
                cute.arch.mbarrier_init(_barrier(place["empty"] + i * BARRIER_BYTES), lay.warps_m)
            if cutlass.const_expr(lay.splits > 1):
                arrived = _barrier(place["arrived"])
                cute.arch.mbarrier_init(arrived, 1)
                cute.arch.mbarrier_init_fence()
                cute.arch.mbarrier_arrive_and_expect_tx(arrived, self.owned_bytes(place["rank"]))
            else:
                cute.arch.mbarrier_init_fence()

    def owned_bytes(self, rank: Any) -> Any:
        """Of the pieces that the parties of CTA ``rank`` own, from all parties."""
        lay = self.layouts
        more = lay.pieces % lay.parties - rank * lay.warps_k
        more = cutlass.max(cutlass.min(more, Int32(lay.warps_k)), Int32(0))
        owned = more + lay.pieces // lay.parties * lay.warps_k
        return owned * (lay.parties * lay.piece_bytes)

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
        if count > 0:
            for octet in cutlass.range_constexpr(lay.octets):
                self._load_row(place, place["chunk"], x, octet)
        for i in cutlass.range(count, unroll=1):
            self._one_chunk(place, acc, x, by, i, is_leader)

    @cute.jit
    def _one_chunk(self, place: Any, acc: Any, x: Any, by: Any, i: Int32, is_leader: Any):
        lay = self.layouts
        chunk = place["chunk"] + i * lay.warps_k
        more = i + 1 < place["count"]
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
        if (chunk + 1) * CHUNK_K > place["k"]:
            if chunk * CHUNK_K + place["quarter"] * arithmetic.BLOCK >= place["k"]:
                x.fill(0)
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
                self._quantize(place, x, chunk, i, False)
            if more:
                for octet in cutlass.range_constexpr(lay.octets):
                    self._load_row(place, chunk + lay.warps_k, x, octet)

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

    @staticmethod
    def _load_row(place: Any, chunk: Any, x: Any, octet: int) -> None:
        """This lane's block of a row. Beyond M that of the last row, beyond K another of the row: nobody looks at it."""
        column = chunk * CHUNK_K + place["quarter"] * arithmetic.BLOCK
        column = cutlass.min(column, place["k"] - arithmetic.BLOCK)
        row = cutlass.min(place["row"] + octet * ROW_STEP, place["m"] - 1)
        for i, word in enumerate(mma_ptx.load_row(place["x"] + (Int64(row) * place["k"] + column) * 2)):
            x[i, octet] = word

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
        address = place["inverse"] + (i & 1) * INVERSE_BYTES + place["lane"] * 8
        mma_ptx.store_shared(address, [inverse[0], inverse[1]])

    # -- what is made of it --------------------------------------------------------------------------------------

    def _multiply(self, place: Any, acc: Any, x: Any, slot: Any) -> None:
        """``acc`` += the chunk in ``x`` times the slot. A matrix load brings both halves of 16 columns of a step."""
        lay = self.layouts
        lane = place["lane"]
        row = lane // 16 * 8 + lane % 8
        base = self._slot(place, slot) + row * lay.row_bytes
        piece = (lane // 8 % 2 ^ lane % 8) * 16
        for step in range(STEPS):
            address = base + (piece ^ (step * 32))
            for columns in range(0, lay.columns, 16):
                b = mma_ptx.load_matrices(address + columns * lay.row_bytes)
                for octet in range(2):
                    for block in range(lay.blocks):
                        self._multiply_piece(acc, x, b[2 * octet : 2 * octet + 2], step, block, columns // 8 + octet)

    def _multiply_piece(self, acc: Any, x: Any, b: Any, step: int, block: int, octet: int) -> None:
        lay = self.layouts
        piece = octet * lay.blocks + block
        a = [x[2 * step + half, 2 * block + row] for half in range(2) for row in range(2)]
        sums = [acc[e, piece] for e in range(4)]
        for e, value in enumerate(mma_ptx.mma_16x8x16(sums, a, list(b), is_bf16=lay.is_bf16)):
            acc[e, piece] = value

    @cute.jit
    def _quantize(self, place: Any, x: Any, chunk: Int32, i: Int32, more: Any):
        """The rows of this lane, one by one; with ``more`` each is then loaded for this warp's next chunk."""
        lay = self.layouts
        k, quarter = place["k"], place["quarter"]
        column = chunk * CHUNK_K + quarter * arithmetic.BLOCK
        bytes_ = Uint32(0)
        for octet in cutlass.range_constexpr(lay.octets):
            words, scale = self._block(place, [x[w, octet] for w in range(WORDS)], i)
            bytes_ = bytes_ | (scale << Uint32(8 * octet))
            row = place["row"] + octet * ROW_STEP
            wanted = (row < place["m"]) & (column < k)
            ptx.store_if(place["act"] + ((Int64(row) * k + column) >> 1), words, wanted)
            if cutlass.const_expr(more is not False):
                if more:
                    self._load_row(place, chunk + lay.warps_k, x, octet)
        self._store_scales(place, bytes_, chunk)

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
        word = ptx.unless_zero(Int32(row < place["m"]), word)
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
