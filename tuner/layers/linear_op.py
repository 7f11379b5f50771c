"""The whole layer as a torch operator, ``torch.ops.svdquant.linear``: one call and one object for both halves."""

from __future__ import annotations

import torch

from kernel_space.operators.svdquant_linear.runtime import problem_of
from tuner.layers.gemm import LIBRARY
from tuner.runtime.caller import Caller
from tuner.runtime.torch_operator import needs_dispatcher

CALLER = Caller("svdquant_linear")
quick_call = CALLER.quick.call
_Y = CALLER.signature.outputs.index("y")
_NOT_GIVEN = (None,) * len(CALLER.signature.outputs)
_compiling = torch.compiler.is_dynamo_compiling  # which torch.compile knows to be true where it traces
LIBRARY.define(
    "linear(Tensor x, Tensor smooth, Tensor lora_down, Tensor wgt, Tensor wscales, Tensor lora_up, Tensor wcscale, "
    "Tensor bias) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def linear(
    x: torch.Tensor,
    smooth: torch.Tensor,
    lora_down: torch.Tensor,
    wgt: torch.Tensor,
    wscales: torch.Tensor,
    lora_up: torch.Tensor,
    wcscale: torch.Tensor,
    bias: torch.Tensor,
) -> torch.Tensor:
    """``y`` ``[M, N]`` of ``x`` ``[M, K]``: quantized, multiplied, in the dtype of both, float16 or bfloat16.

    ``smooth`` fp32 ``[K]``; ``lora_down`` as ``pack_lora_down`` gives it; the others as in ``PackedSVDQuant``, with
    lora_up in the dtype of x. Raises as ``svdquant_gemm``.
    """
    if not _compiling():
        made = quick_call(x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias, *_NOT_GIVEN, None)
        if made is not None:
            return made[_Y]
    if not needs_dispatcher(x):
        return _linear(x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias)
    CALLER.require_no_grad((x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias), None)
    return torch.ops.svdquant.linear(x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias)


def _linear(*inputs: torch.Tensor) -> torch.Tensor:
    if inputs[0].ndim == 2 and not inputs[0].shape[0]:
        return _no_rows(inputs)
    return CALLER.run(inputs, None, (), quick=True)[_Y]


def _no_rows(inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """There is nothing to launch, but tensors must fit as ever."""
    CALLER.require_no_grad(inputs, None)
    problem = problem_of(CALLER.named(inputs))
    CALLER.require_placed(inputs)
    return inputs[0].new_empty((0, problem.n))


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("linear", _linear, _key)


@torch.library.register_fake("svdquant::linear", lib=LIBRARY)
def _fake_linear(*inputs: torch.Tensor) -> torch.Tensor:
    CALLER.require_no_grad(inputs, None)
    x, wgt = inputs[0], inputs[3]
    return x.new_empty((x.shape[0], wgt.shape[0]))
