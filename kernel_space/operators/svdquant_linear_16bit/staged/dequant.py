"""Dequantizing role: packed slots to slots of bf16 weights over smooth, as wgmma reads them.

A warpgroup has every ``num_dequant_warpgroups``-th slot: so one reads while another computes, and both rings have
places of its own. Two of its warps have the first 64 of the slot's K, the others the second, and share the octets of
rows of weights. A lane has 16 neighbours along K of a row in eight: one scale factor, eight bytes of codes, and the
same 16 of 1 / smooth in all octets.

Rows 2, 3 and 4, 5 of an octet are exchanged among the lanes, so that four rows of codes lie in different banks.
"""

from typing import Any

import cutlass
from cutlass import Boolean, Int32, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_shared, store_shared
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import (
    SF_BLOCK_BYTES,
    SF_BLOCK_ROWS,
    WARPS_PER_GROUP,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.packed import packed_chunk, scale_offset
from kernel_space.operators.svdquant_linear_16bit.staged.config import OCTET
from kernel_space.operators.svdquant_linear_16bit.staged.layouts import (
    HALVES,
    INVERSE,
    LINE,
    PACKED,
    SCALES,
    WEIGHTS,
    StagedLayouts,
)
from kernel_space.operators.svdquant_linear_16bit.staged.ptx import (
    block_factor,
    factor_selector,
    weights_of_word,
)

SHARERS = WARPS_PER_GROUP // HALVES  # warps of a half of a slot


class Dequantizer:
    """Mixin with the dequantizing role."""

    config: Any
    dequant_groups: int
    over_smooth: bool

    @cute.jit
    def dequantize(self, place: Any, buffers: Any, warp: Int32):
        """All slots of this warpgroup. ``warp``: of this warp among all dequantizing ones."""
        lay = self._layouts()
        config = self.config
        within = warp % WARPS_PER_GROUP
        half = within % HALVES
        ab_there = Boolean(False)
        for i in cutlass.range(warp // WARPS_PER_GROUP, place["slots"], self.dequant_groups, unroll=1):
            packed, slot = i % config.num_ab_stage, i % config.num_dq_stage
            # Of an odd number of octets the warps have one more in turn.
            first = (within // HALVES + i // self.dequant_groups) % SHARERS
            if not ab_there:
                cute.arch.mbarrier_wait(buffers["ab_full"].iterator + packed, i // config.num_ab_stage & 1)
            # What a wait at a barrier that is ready takes passes while other work is under way.
            given, parity = buffers["dq_empty"].iterator + slot, i // config.num_dq_stage & 1 ^ 1
            dq_there = cute.arch.mbarrier_test_wait(given, parity)
            held = self._read(lay, place, buffers, packed, half, first)
            if not dq_there:
                cute.arch.mbarrier_wait(given, parity)
            self._write(lay, buffers, held, HALVES * slot + half, first)
            ahead = i + self.dequant_groups
            ab_there = cute.arch.mbarrier_test_wait(
                buffers["ab_full"].iterator + ahead % config.num_ab_stage, ahead // config.num_ab_stage & 1
            )
            # What wgmma reads it reads in another proxy.
            cute.arch.fence_proxy("async.shared", space="cta")
            self._arrive(buffers["dq_full"].iterator + slot)
            self._arrive(buffers["ab_empty"].iterator + packed)

    @staticmethod
    def _octets(lay: StagedLayouts) -> int:
        """Of one warp in a slot, at most."""
        return -(-(lay.columns // OCTET) // SHARERS)

    @staticmethod
    def _row_of_lane() -> Any:
        """Row of an octet, of this lane."""
        of_eight = cute.arch.lane_idx() // 4
        return (of_eight & 1) | (of_eight & 2) << 1 | (of_eight & 4) >> 1

    def _read(
        self, lay: StagedLayouts, place: Any, buffers: Any, slot: Any, half: Any, first: Any
    ) -> tuple[Any, Any, Any]:
        """(1 / smooth if weights are over it, codes by octet, factors by octet) of this lane."""
        block = cute.arch.lane_idx() % 4
        row = first * OCTET + self._row_of_lane()
        inverses = None
        if self.over_smooth:
            inverses = buffers[INVERSE].iterator.toint() + slot * lay.inverse_bytes + half * LINE + block * 32
        codes = buffers[PACKED].iterator.toint() + slot * lay.packed_bytes
        codes = codes + packed_chunk(row, half * 2 + block // 2) + block % 2 * 8
        scales = buffers[SCALES].iterator.toint() + slot * lay.scales_bytes + half * SF_BLOCK_BYTES
        scale_row = place["column_tile"] * lay.columns % SF_BLOCK_ROWS + row
        selector = factor_selector(block)
        words, factors = [], []
        for octet in range(self._octets(lay)):
            own = octet * SHARERS
            if own + SHARERS > lay.columns // OCTET:
                # Beyond the tile's columns its last ones again: they are not written.
                own = cutlass.min(first + own, Int32(lay.columns // OCTET - 1)) - first
            words.append(load_shared(codes + own * (OCTET * lay.k // 2), 2))
            at = scale_row + own * OCTET
            offset = at // SF_BLOCK_ROWS * (lay.sf_k_blocks * SF_BLOCK_BYTES) + scale_offset(at)
            factors.append(load_shared(scales + offset, 1)[0])
        factors = [block_factor(word, selector, is_bf16=lay.is_bf16) for word in factors]
        if inverses is None:
            return self._raised(lay), words, factors
        return [*load_shared(inverses, 4), *load_shared(inverses + 16, 4)], words, factors

    @staticmethod
    def _raised(lay: StagedLayouts) -> list[Any] | None:
        """Eight pairs that weights are multiplied by which are not over smooth."""
        return None

    @cute.jit
    def _write(self, lay: StagedLayouts, buffers: Any, held: Any, slot: Int32, first: Int32):
        """Two pieces of 16 bytes of each row."""
        inverses, words, factors = held
        block, row = cute.arch.lane_idx() % 4, self._row_of_lane()
        target = buffers[WEIGHTS].iterator.toint() + slot * lay.weights_bytes
        low = target + (first * OCTET + row) * LINE + (((2 * block) ^ row) << 4)
        high = target + (first * OCTET + row) * LINE + (((2 * block + 1) ^ row) << 4)
        for octet in cutlass.range_constexpr(self._octets(lay)):
            if first + octet * SHARERS < lay.columns // OCTET:
                for part, at in enumerate((low, high)):
                    own = None if inverses is None else inverses[4 * part : 4 * part + 4]
                    made = weights_of_word(words[octet][part], factors[octet], own, is_bf16=lay.is_bf16)
                    store_shared(at + octet * (SHARERS * OCTET * LINE), made)
