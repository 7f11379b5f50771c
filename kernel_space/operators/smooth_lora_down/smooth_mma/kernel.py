"""Activations smoothed and put in order, and ``x @ lora_down``, on sm_90a: one launch that reads x once.

``xs = quad_order(round16(fp32(x) * (1 / smooth)))``, ``lora_act_in = x @ lora_down`` with fp32 sums

It is ``lora_mma`` of ``nvfp4_quantize`` (CTA, warps, ring of lora_down, sums), but for what is made of a lane's 16
elements of a row (``lane_order``): two stores of 16 bytes, which are 64 bytes in a row with those of the quad.

With ``use_pdl`` smooth and lora_down are read before the previous kernel has ended (``griddepcontrol.wait``): that
kernel must not be the one that writes them.
"""

from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.kernel import QuantizeLora
from kernel_space.operators.nvfp4_quantize.lora_mma.stream import WORDS
from kernel_space.operators.smooth_lora_down.parts import ordered
from kernel_space.operators.smooth_lora_down.smooth_mma.config import SmoothMmaConfig


class SmoothMma(ordered.Ordered, QuantizeLora):
    """Generator of one kernel: a resolved config and a problem class."""

    def __init__(self, config: SmoothMmaConfig, problem_class: ProblemClass) -> None:
        super().__init__(config, problem_class, has_fp4=False)

    def _quantize(self, place: Any, x: Any, chunk: Any, i: Any, more: Any) -> None:
        """The rows of this lane, one by one; each is then loaded for the warp's next chunk, unless ``more`` is None."""
        lay = self.layouts
        for octet in range(lay.octets):
            self.store_row(place, [x[w, octet] for w in range(WORDS)], i, chunk, octet)
            if more is not None:
                self._load_row(place, chunk + lay.warps_k, x, octet, more)


ARGUMENTS = ordered.ARGUMENTS


def host_function(
    config: SmoothMmaConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    return SmoothMma(config, problem_class), ordered.typed_arguments(problem_class)
