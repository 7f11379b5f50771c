"""The whole layer as a torch operator, ``torch.ops.svdquant.linear``: one call and one object for both halves."""

from __future__ import annotations

import torch

from kernel_space.numerics.activation import activated
from kernel_space.operators.svdquant_gemm.problem import SWIGLU
from kernel_space.operators.svdquant_linear.runtime import problem_of
from tuner.layers.activations import AUTO, NVFP4, OPERATORS, decide, require_activations
from tuner.layers.fusion import is_fused
from tuner.layers.gemm import LIBRARY
from tuner.runtime import state
from tuner.runtime.caller import Caller
from tuner.runtime.choice.remembered import MAX_CALLS, Recent
from tuner.runtime.torch_operator import needs_dispatcher

CALLERS = {name: Caller(operator) for name, operator in OPERATORS.items()}
CALLER = CALLERS[NVFP4]
_QUICK = {name: caller.quick.call for name, caller in CALLERS.items()}
_Y = {name: caller.signature.outputs.index("y") for name, caller in CALLERS.items()}
_NOT_GIVEN = {name: (None,) * len(caller.signature.outputs) for name, caller in CALLERS.items()}
_autos: Recent[tuple, str] = Recent(MAX_CALLS, of_tables=True)
"""What ``auto`` is, by what the tensors look like."""
_compiling = torch.compiler.is_dynamo_compiling  # which torch.compile knows to be true where it traces
LIBRARY.define(
    "linear(Tensor x, Tensor smooth, Tensor lora_down, Tensor wgt, Tensor wscales, Tensor lora_up, Tensor wcscale, "
    f'Tensor bias, str activations="{AUTO}", str activation="none") -> Tensor',
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
    activations: str = AUTO,
    activation: str = "none",
) -> torch.Tensor:
    """``y`` ``[M, N]`` of ``x`` ``[M, K]``: smoothed, multiplied, activated, in the dtype of x, fp16 or bf16.

    ``smooth`` fp32 ``[K]``; ``lora_down`` as ``pack_lora_down`` gives it; the others as in ``PackedSVDQuant``, with
    lora_up in the dtype of x. ``activations``: ``nvfp4``, ``16bit``, or ``auto`` for what is faster on this card.
    ``activation``: what is done with y, in the kernel or after it (``fusion``); ``swiglu`` makes ``[M, N/2]``. Raises
    as ``svdquant_gemm``, and ``InputError`` for other ``activations`` and another ``activation``.
    """
    if not _compiling() and type(x) is torch.Tensor:
        name = activations if activations in CALLERS else _autos.get(_look(x, wgt, lora_up))
        if name is not None:
            made = _QUICK[name](
                x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias, *_NOT_GIVEN[name], activation
            )
            if made is not None:
                return made[_Y[name]]
    inputs = (x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias)
    if not needs_dispatcher(x):
        return _long_way(*inputs, activations, activation)
    CALLER.require_no_grad(inputs, None)
    return torch.ops.svdquant.linear(*inputs, activations, activation)


def _look(x: torch.Tensor, wgt: torch.Tensor, lora_up: torch.Tensor) -> tuple:
    return (state.generation, x.shape, wgt.shape, lora_up.shape, x.dtype, wgt.device)


def _linear(
    x: torch.Tensor,
    smooth: torch.Tensor,
    lora_down: torch.Tensor,
    wgt: torch.Tensor,
    wscales: torch.Tensor,
    lora_up: torch.Tensor,
    wcscale: torch.Tensor,
    bias: torch.Tensor,
    activations: str = AUTO,
    activation: str = "none",
) -> torch.Tensor:
    """As the dispatcher calls it, which is every call of a compiled model: quick where one like it was made before."""
    inputs = (x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias)
    name = activations if activations in CALLERS else _autos.get(_look(x, wgt, lora_up))
    made = None if name is None else _QUICK[name](*inputs, *_NOT_GIVEN[name], activation)
    return _long_way(*inputs, activations, activation) if made is None else made[_Y[name]]


def _long_way(
    x: torch.Tensor,
    smooth: torch.Tensor,
    lora_down: torch.Tensor,
    wgt: torch.Tensor,
    wscales: torch.Tensor,
    lora_up: torch.Tensor,
    wcscale: torch.Tensor,
    bias: torch.Tensor,
    activations: str,
    activation: str,
) -> torch.Tensor:
    inputs = (x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias)
    name = require_activations(activations)
    if x.ndim == 2 and not x.shape[0]:
        return _no_rows(inputs, activation)
    if name == AUTO:
        look = _look(x, wgt, lora_up)
        name = decide(problem_of(CALLER.named(inputs)), wgt.device).activations
        _autos.put(look, name)
    if activation != "none":
        problem = problem_of(CALLER.named(inputs), activation=activation)
        if not is_fused(name, problem, wgt.device):
            return _after(_long_way(*inputs, name, "none"), activation)
    return CALLERS[name].run(inputs, None, (activation,), asked=activation, quick=True)[_Y[name]]


def _after(y: torch.Tensor, activation: str) -> torch.Tensor:
    """By kernels of torch: GELU and SiLU are one each."""
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(y, approximate="tanh")
    if activation == "silu":
        return torch.nn.functional.silu(y)
    return activated(y.float(), activation).to(y.dtype)


def _no_rows(inputs: tuple[torch.Tensor, ...], activation: str) -> torch.Tensor:
    """There is nothing to launch, but tensors must fit as ever."""
    CALLER.require_no_grad(inputs, None)
    problem = problem_of(CALLER.named(inputs), activation=activation)
    CALLER.require_placed(inputs)
    return inputs[0].new_empty((0, _columns(problem.n, activation)))


def _columns(n: int, activation: str) -> int:
    return n // 2 if activation == SWIGLU else n


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("linear", _linear, _key)


@torch.library.register_fake("svdquant::linear", lib=LIBRARY)
def _fake_linear(*arguments: torch.Tensor | str) -> torch.Tensor:
    inputs = tuple(one for one in arguments if isinstance(one, torch.Tensor))
    CALLER.require_no_grad(inputs, None)
    x, wgt = inputs[0], inputs[3]
    activation = arguments[-1] if len(arguments) > len(inputs) + 1 else "none"
    return x.new_empty((x.shape[0], _columns(wgt.shape[0], str(activation))))
