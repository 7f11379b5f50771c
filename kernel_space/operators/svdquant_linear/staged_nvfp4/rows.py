"""The warp that loads x: as it is for the low-rank branch, and as it is quantized for weights, when all of it is."""

from typing import Any

from cutlass import Int32, Int64, cute

from kernel_space.operators.svdquant_gemm.sm90a_parts.dequant import load_acquire
from kernel_space.operators.svdquant_linear_16bit.staged.rows import RowsOfX
from kernel_space.operators.svdquant_linear_16bit.whole.ptx import rest

LOOKS = 64  # at ``done`` without a rest, which would be half of what they take: longer than CTAs of one launch differ


class QuantizedRows(RowsOfX):
    """Mixin with two kinds of x: of ``atoms`` the first are those of x, then those of what it is quantized to."""

    def _tma_quantized(self, lay: Any, workspace: cute.Pointer, counted: Any, m: Int32, k: Int32) -> Any:
        """(pointer, atoms, tensors) of x as it is multiplied with weights, behind ``counted`` bytes."""
        quantized = cute.recast_ptr(workspace + Int64(counted), dtype=lay.half).align(256)
        return quantized, *self._tma_rows(lay, quantized, m, k)

    @cute.jit
    def _x_warp(self, lay: Any, place: Any, atoms: Any, tensors: Any, buffers: Any, m: Int32):
        """x as it is to the low-rank branch, x as it is quantized to weights."""
        filled, count = self._filled(lay, place, m), len(lay.boxes)
        given = self._x_views(lay, atoms[:count], tensors[:count], buffers)
        self._begin_x(place)
        if place["tile"] < lay.down_tiles:
            self._all_x(lay, place, atoms[:count], given, buffers, filled)
        else:
            done = load_acquire(place["done"].toint())
            looks = Int32(LOOKS)
            while done < place["parts"]:
                if looks <= 0:
                    rest()
                done = load_acquire(place["done"].toint())
                looks -= 1
            # Written by ordinary stores, read by TMA.
            cute.arch.fence_proxy("async.global")
            cute.arch.sync_warp()
            of_codes = slice(count, 2 * count)
            quantized = self._x_views(lay, atoms[of_codes], tensors[of_codes], buffers)
            self._all_x(lay, place, atoms[of_codes], quantized, buffers, filled)
