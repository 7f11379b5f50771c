"""First half of ``lora_wgmma``: the walk along K, which multiplies and quantizes. ``place`` holds what a lane knows of
where it is (``kernel.QuantizeLoraWgmma._place``).
"""

from typing import Any

import cutlass
from cutlass import Float32, Int32, Int64, Uint32, cute
from cutlass.cute.nvgpu import warpgroup

from kernel_space.operators.nvfp4_quantize.lora_mma.stream import INVERSE_BYTES, STEPS, WORDS, Stream
from kernel_space.operators.nvfp4_quantize.lora_wgmma import ptx as wgmma_ptx
from kernel_space.operators.nvfp4_quantize.lora_wgmma.config import GROUP_WARPS, LANES
from kernel_space.operators.nvfp4_quantize.lora_wgmma.layouts import INVERSES, LoraWgmmaLayouts
from kernel_space.operators.nvfp4_quantize.packing import CHUNK_K
from kernel_space.operators.nvfp4_quantize.parts import arithmetic, ptx

COPIES = 4  # of 16 bytes a lane: 16 rows of 128 bytes of a warp
COPY_ROWS = 4  # of one such copy of a warp
PIECES = 8  # of 16 bytes in a row of a chunk


class WgmmaStream(Stream):
    """Mixin with copies of x and main loop; copies of lora_down, smooth and scales are those of ``lora_mma``."""

    layouts: LoraWgmmaLayouts  # type: ignore[assignment]  # of this kernel
    mma: Any  # the instruction
    slots: Any  # lora_down in the ring, its operand
    half: Any  # dtype of x

    @cute.jit
    def stream(self, place: Any, acc: Any):
        """Add this warpgroup's chunks to ``acc`` and quantize them. ``acc``: sums of its wgmma."""
        lay = self.layouts
        count = place["count"]
        is_leader = (place["warp_m"] == 0) & (place["lane"] == 0)
        if is_leader:
            for i in cutlass.range(cutlass.min(count, lay.stages), unroll=1):
                self._copy_chunk(place, i, i)
        by = cute.make_rmem_tensor(2, Float32)
        by.fill(1.0)
        if cutlass.const_expr(lay.has_smooth):
            mine = place["chunk"] + place["group_warp"] * lay.warps_k
            self._load_smooth(place, mine, by)
            self._write_inverse(self._with_inverse(place, place["group_warp"]), by, 0)
            self._load_smooth(place, mine + GROUP_WARPS * lay.warps_k, by)
        if cutlass.const_expr(self.config.use_pdl):
            cute.arch.griddepcontrol_wait()
            cute.arch.griddepcontrol_launch_dependents()
        for i in cutlass.range_constexpr(lay.x_stages):
            self._copy_x(place, Int32(i), Int32(i))
        fragments = [
            cute.make_rmem_tensor(self.mma.partition_shape_A((64, 16)), self.half) for _ in range(STEPS)
        ]
        for i in cutlass.range(count, unroll=1):
            self._one_chunk(place, acc, fragments, by, i, is_leader)
        cute.arch.cp_async_wait_group(0)

    @cute.jit
    def _one_chunk(self, place: Any, acc: Any, fragments: Any, by: Any, i: Int32, is_leader: Any):
        """wgmma of the chunk run while the first row of each lane is quantized."""
        lay = self.layouts
        chunk = place["chunk"] + i * lay.warps_k
        if cutlass.const_expr(lay.has_smooth):
            if i % GROUP_WARPS == 0:
                self._take_turns(place, by, i)
        if is_leader:
            # The slot of the chunk before: the warps that shared it are done with it, or soon will be.
            if (i > 0) & (i - 1 + lay.stages < place["count"]):
                before = (i - 1) % lay.stages
                cute.arch.mbarrier_wait(self._of_slot(place, "empty", before), (i - 1) // lay.stages & 1)
                self._copy_chunk(place, i - 1 + lay.stages, before)
        cute.arch.cp_async_wait_group(lay.x_stages - 1)
        cute.arch.sync_warp()  # lanes copy for each other
        x_slot, slot = i % lay.x_stages, i % lay.stages
        words = self._load_x(place, x_slot)
        self._set_fragments(fragments, words)
        cute.arch.mbarrier_wait(self._of_slot(place, "full", slot), i // lay.stages & 1)
        self._issue(place, acc, fragments, slot)
        cute.arch.sync_warp()
        self._copy_x(place, i + lay.x_stages, x_slot)
        place = self._with_inverse(place, i)
        low = self._quantize_row(place, words[0], chunk, 0)
        cute.arch.sync_warp()  # else ptxas moves the wait before the arithmetic
        warpgroup.wait_group(0)
        # wgmma reads by the proxy of the next copy: no fence between proxies.
        wgmma_ptx.arrive_if(self._of_slot(place, "empty", slot), place["lane"] == 0)
        high = self._quantize_row(place, words[1], chunk, 1)
        self._store_scales(place, low | (high << Uint32(8)), chunk)

    # -- smooth --------------------------------------------------------------------------------------------------

    def _take_turns(self, place: Any, by: Any, i: Any) -> None:
        """Every fourth chunk: 1 / smooth of these four is there; each warp makes one of the next four, for all warps of
        its warpgroup, where those before these were. Beyond the last chunk they are of any columns.
        """
        ahead = i + GROUP_WARPS + place["group_warp"]
        cute.arch.barrier(barrier_id=1 + place["group"], number_of_threads=GROUP_WARPS * LANES)
        self._write_inverse(self._with_inverse(place, ahead), by, 0)
        self._load_smooth(place, place["chunk"] + (ahead + GROUP_WARPS) * self.layouts.warps_k, by)

    def _with_inverse(self, place: Any, i: Any) -> Any:
        """``place`` with 1 / smooth of the ``i``-th chunk of this warpgroup as the only one."""
        if not self.layouts.has_smooth:
            return place
        return {**place, "inverse": place["inverses"] + i % INVERSES * INVERSE_BYTES}

    # -- x -------------------------------------------------------------------------------------------------------

    def _copy_x(self, place: Any, i: Any, slot: Any) -> None:
        """This warp's rows of its ``i``-th chunk, if there is one, into ``slot``: whole lines of 128 bytes. Lanes copy
        for each other. Zeros beyond M and K.
        """
        lay = self.layouts
        lane = place["lane"]
        chunk = place["chunk"] + i * lay.warps_k
        row, piece = lane // PIECES, lane % PIECES
        inside = chunk * CHUNK_K + piece * PIECES < place["k"]
        wanted = i < place["count"]
        source = place["x_copy"] + Int64(chunk * lay.row_bytes)
        base = place["x_ring"] + slot * lay.x_slot_bytes + row * lay.row_bytes
        for copy in range(COPIES):
            # The piece lies at piece ^ row % 8: eight lanes of a quad's rows read all banks.
            at = base + copy * (COPY_ROWS * lay.row_bytes) + (piece ^ (row + copy % 2 * COPY_ROWS)) * 16
            there = inside & (place["row_copy"] + copy * COPY_ROWS < place["m"])
            wgmma_ptx.copy_async_if(at, source + place["x_copy_step"] * copy, there, wanted)
        cute.arch.cp_async_commit_group()

    def _load_x(self, place: Any, slot: Any) -> list[list[Any]]:
        """Words of this lane's block of its two rows."""
        rows = []
        for octet in range(2):
            offset = slot * self.layouts.x_slot_bytes + octet * (8 * self.layouts.row_bytes)
            rows.append([w for own in place["x_own"] for w in wgmma_ptx.load_words(own + offset)])
        return rows

    # -- what is made of it --------------------------------------------------------------------------------------

    @staticmethod
    def _set_fragments(fragments: Any, words: list[list[Any]]) -> None:
        for step in range(STEPS):
            target = cute.recast_tensor(fragments[step], Uint32)
            for octet in range(2):
                for k_octet in range(2):
                    target[(0, octet, k_octet), 0, 0] = words[octet][2 * step + k_octet]

    def _issue(self, place: Any, acc: Any, fragments: Any, slot: Any) -> None:
        """``acc`` += x times lora_down in the slot; runs on after the return."""
        number = slot * self.layouts.warps_k + place["warp_k"]
        warpgroup.fence()
        for step in range(STEPS):
            operand = self.slots[(None, None, step, number)]
            cute.gemm(self.mma, acc, fragments[step][(None, None, 0)], operand, acc)
        warpgroup.commit_group()

    def _quantize_row(self, place: Any, words: list[Any], chunk: Any, octet: int) -> Any:
        """Store the codes of this lane's block of a row; its scale. Beyond M and K it is 0, whatever 1 / smooth is."""
        column = chunk * CHUNK_K + place["quarter"] * arithmetic.BLOCK
        codes, scale = self._block(place, words, 0)
        wanted = (place["row"] + octet * 8 < place["m"]) & (column < place["k"])
        ptx.store_if(place["act_row"] + Int64(column >> 1) + place["act_step"] * octet, codes, wanted)
        return ptx.unless_zero(Int32(wanted), scale)


assert WORDS == 2 * STEPS
