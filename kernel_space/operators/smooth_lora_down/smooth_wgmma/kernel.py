"""Activations smoothed and put in order, and ``x @ lora_down`` by wgmma, on sm_90a: one launch that reads x once.

``xs = quad_order(round16(fp32(x) * (1 / smooth)))``, ``lora_act_in = x @ lora_down`` with fp32 sums

It is ``lora_wgmma`` of ``nvfp4_quantize`` (warpgroups, rings of x and lora_down, sums), but for what is made of a
lane's 16 elements of a row (``lane_order``): two stores of 16 bytes, which are 64 bytes in a row with those of the
quad. wgmma of a chunk run while the first row of each lane is smoothed.

With ``use_pdl`` smooth and lora_down are read before the previous kernel has ended (``griddepcontrol.wait``): that
kernel must not be the one that writes them.
"""

from typing import Any

from cutlass import Uint32

from kernel_space.core.arch import Arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_wgmma.kernel import QuantizeLoraWgmma
from kernel_space.operators.smooth_lora_down.parts import ordered
from kernel_space.operators.smooth_lora_down.smooth_wgmma.config import SmoothWgmmaConfig


class SmoothWgmma(ordered.Ordered, QuantizeLoraWgmma):
    """Generator of one kernel: a resolved config and a problem class."""

    def _quantize_row(self, place: Any, words: list[Any], chunk: Any, octet: int) -> Any:
        """Store this lane's elements of a row, smoothed; the scale of all that has none."""
        self.store_row(place, words, 0, chunk, octet)
        return Uint32(0)


ARGUMENTS = ordered.ARGUMENTS


def host_function(
    config: SmoothWgmmaConfig, problem_class: ProblemClass, arch: Arch
) -> tuple[Any, tuple[Any, ...]]:
    """The function to compile and arguments that give it the types of a call, in the order of ``ARGUMENTS``.

    ``config`` must be legal. Addresses and sizes are run-time values: those given here only carry types.
    """
    return SmoothWgmma(config, problem_class), ordered.typed_arguments(problem_class)
