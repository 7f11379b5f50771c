"""Activations smoothed and put in order, and ``x @ lora_down`` on sm_90a: one launch that reads x once.

``xs = quad_order(round16(fp32(x) * (1 / smooth)))``, ``lora_act_in = x @ lora_down`` with fp32 sums

It is ``lora_tma`` of ``nvfp4_quantize`` (roles of warps, ring, sums), but for what its quantizing warps make of a
lane's 16 elements of a row (``lane_order``): two stores of 16 bytes, 64 bytes in a row with those of the quad.

With ``use_pdl`` smooth and lora_down are read before the previous kernel has ended (``griddepcontrol.wait``): that
kernel must not be the one that writes them.
"""

from typing import Any

import cuda.bindings.driver as cuda
from cutlass import Int32, Int64, cute

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_tma.kernel import QuantizeLoraTma
from kernel_space.operators.nvfp4_quantize.parts import ptx
from kernel_space.operators.smooth_lora_down.parts import lane_order, ordered
from kernel_space.operators.smooth_lora_down.parts.ordered import PIECE_BYTES, SPAN, SPAN_BYTES
from kernel_space.operators.smooth_lora_down.smooth_tma.config import SmoothTmaConfig


class SmoothTma(QuantizeLoraTma):
    """Generator of one kernel: a resolved config and a problem class."""

    pointers = ("smooth", "lora_down", "xs", "lora_act_in")

    @cute.jit
    def __call__(
        self,
        x: cute.Pointer,
        smooth: cute.Pointer,
        lora_down: cute.Pointer,
        xs: cute.Pointer,
        lora_act_in: cute.Pointer,
        m: Int32,
        k: Int32,
        stream: cuda.CUstream,
    ):
        """Launch a cluster for every tile of rows; not persistent, no workspace."""
        self.launch(x, (smooth, lora_down, xs, lora_act_in), m, k, stream)

    def emit(self, place: Any, words: list[Any], inverse: list[Any], chunk: Any, row_of_tile: Any) -> None:
        """A quad's span of a row; zeros beyond K. All lanes take part."""
        row = place["first_row"] + row_of_tile
        # K ends with a span or in its middle: there the last two lanes have zeros, times whatever 1 / smooth is.
        is_whole = Int32(chunk * SPAN + SPAN // 2 < place["k"])
        pairs = self._pairs(words, inverse)
        address = place["xs"] + (Int64(row) * place["k_blocks"] + chunk) * SPAN_BYTES
        for w in range(2):
            piece = lane_order.transposed(pairs[4 * w : 4 * w + 4], place["quarter"])
            piece[2:] = [ptx.unless_zero(is_whole, word) for word in piece[2:]]
            at = address + w * (SPAN_BYTES // 2) + place["quarter"] * PIECE_BYTES
            ptx.store_if(at, piece, row < place["m"])

    def _pairs(self, words: list[Any], inverse: list[Any]) -> list[Any]:
        """16 elements times 1 / smooth, as pairs."""
        lay = self.layouts
        if not lay.has_smooth:
            return lane_order.moved_pairs(words)
        values = [value for word in words for value in ptx.two_halves(word, "bf16" if lay.is_bf16 else "f16")]
        return lane_order.rounded_pairs(ptx.multiply_each(values, inverse, paired=False), is_bf16=lay.is_bf16)

    def clear_padding(self, place: Any) -> None:
        """There are no rows beyond M."""


ARGUMENTS = ordered.ARGUMENTS


def host_function(
    config: SmoothTmaConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    return SmoothTma(config, problem_class), ordered.typed_arguments(problem_class)
