"""The tuned kernels from torch: the operator, the quantizer of its activations, and a layer made of both.

    from tuner.runtime import SVDQuantLinear, quantize_act, svdquant_gemm

Needs torch and llvmlite; neither the compiler nor the search. See docs/runtime.md.
"""

from typing import TYPE_CHECKING, Any

from kernel_space.core.errors import InputError
from kernel_space.launch.loading import HostCallError
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant, pack_svdquant_weights
from tuner.runtime.ask import explain, prepare
from tuner.runtime.choice.choose import Choice
from tuner.runtime.operator import svdquant_gemm
from tuner.runtime.quantize import quantize_act
from tuner.runtime.state import use_table

if TYPE_CHECKING:
    from tuner.layers.linear import SVDQuantLinear

__all__ = [
    "Choice",
    "HostCallError",
    "InputError",
    "PackedSVDQuant",
    "SVDQuantLinear",
    "explain",
    "pack_svdquant_weights",
    "prepare",
    "quantize_act",
    "svdquant_gemm",
    "use_table",
]


def __getattr__(name: str) -> Any:
    """``SVDQuantLinear``: layers are made of what is here, so they are not loaded with it."""
    if name != "SVDQuantLinear":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tuner.layers.linear import SVDQuantLinear

    return SVDQuantLinear
