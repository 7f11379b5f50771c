"""The whole layer as a torch operator, ``torch.ops.svdquant.linear``: one call and one object for both halves."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from kernel_space.core.errors import InputError
from kernel_space.numerics.activation import activated
from kernel_space.operators.svdquant_gemm.problem import SWIGLU
from kernel_space.operators.svdquant_linear.runtime import problem_of
from tuner.layers.activations import AUTO, FP8, NVFP4, OPERATORS, alternatives, decide, require_activations
from tuner.layers.fusion import is_fused
from tuner.layers.gemm import LIBRARY
from tuner.runtime import record, state
from tuner.runtime.caller import Caller
from tuner.runtime.choice.remembered import MAX_CALLS, Recent
from tuner.runtime.torch_operator import needs_dispatcher

CALLERS = {name: Caller(operator, reads=("y",)) for name, operator in OPERATORS.items()}
CALLER = CALLERS[NVFP4]
_QUICK = {name: caller.quick.call for name, caller in CALLERS.items()}
_Y = {name: caller.signature.outputs.index("y") for name, caller in CALLERS.items()}
_NOT_GIVEN = {name: (None,) * len(caller.signature.outputs) for name, caller in CALLERS.items()}
_WITH_PEAKS = (AUTO, FP8)
_autos: Recent[tuple, str] = Recent(MAX_CALLS, of_tables=True)
"""What ``auto`` is, by what the tensors look like."""
_kinds: Recent[tuple, tuple[weakref.ref[torch.Tensor], str]] = Recent(MAX_CALLS, of_tables=True)
"""The same by whose weights they are, which looks at less."""
_compiling = torch.compiler.is_dynamo_compiling  # which torch.compile knows to be true where it traces
LIBRARY.define(
    "linear(Tensor x, Tensor smooth, Tensor lora_down, Tensor wgt, Tensor wscales, Tensor lora_up, Tensor wcscale, "
    f'Tensor bias, str activations="{AUTO}", str activation="none", Tensor? wpeak=None) -> Tensor',
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
    peaks: Callable[[], torch.Tensor] | None = None,
) -> torch.Tensor:
    """``y`` ``[M, N]`` of ``x`` ``[M, K]``: smoothed, multiplied, activated, in the dtype of x, fp16 or bf16.

    ``smooth`` fp32 ``[K]``; ``lora_down`` as ``pack_lora_down`` gives it; the others as in ``PackedSVDQuant``, with
    lora_up in the dtype of x. ``activations``: ``nvfp4``, ``16bit``, ``fp8``, or ``auto`` for what is fastest on this
    card. ``activation``: what is done with y, in the kernel or after it (``fusion``); ``swiglu`` makes ``[M, N/2]``.
    ``peaks`` gives wpeak, fp32 ``[N]`` (``row_peaks``), and is asked where FP8 activations may need it; without it
    ``auto`` never takes them. Raises as ``svdquant_gemm``, and ``InputError`` for other ``activations``, another
    ``activation``, and for ``fp8`` without peaks.
    """
    inputs = (x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias)
    if not _compiling():
        made = made_before(inputs, activations, activation, peaks)
        if made is not None:
            return made
    return made_first(inputs, activations, activation, peaks)


def made_first(
    inputs: tuple[torch.Tensor, ...],
    activations: str,
    activation: str,
    peaks: Callable[[], torch.Tensor] | None,
) -> torch.Tensor:
    """``linear`` where ``made_before`` knows of no call like it."""
    x = inputs[0]
    wpeak = peaks() if peaks is not None and activations in _WITH_PEAKS else None
    if not needs_dispatcher(x):
        return _long_way(inputs, activations, activation, wpeak)
    CALLER.require_no_grad(inputs, None)
    return torch.ops.svdquant.linear(*inputs, activations, activation, wpeak)


def made_before(
    inputs: tuple[Any, ...],
    activations: str,
    activation: str,
    peaks: Callable[[], torch.Tensor] | None,
) -> torch.Tensor | None:
    """``y`` ``[..., N]`` where a call like this was made before, of x ``[..., K]`` if ``learn_shape`` was told of it;
    else None, and nothing was done. ``inputs``: as ``linear`` takes them. Not for code that is being traced.
    """
    x = inputs[0]
    if type(x) is not torch.Tensor:
        return None
    name = activations if activations in CALLERS else _kind(x, inputs[3], inputs[5], peaks is not None)
    if name is None:
        return None
    if name == FP8:
        inputs = (*inputs, peaks and peaks())
    made: Any = _QUICK[name](*inputs, *_NOT_GIVEN[name], activation)
    return made if made.__class__ is not tuple else made[_Y[name]]  # fp8 has one output alone


def learn_shape(
    x: torch.Tensor,
    inputs: tuple[torch.Tensor, ...],
    activations: str,
    activation: str,
    peaks: Callable[[], torch.Tensor] | None,
) -> None:
    """From now on ``made_before`` knows calls of ``x`` ``[..., K]``, contiguous: that of ``inputs``, whose first is its
    ``[M, K]``, was just made.
    """
    rows, wgt, lora_up = inputs[0], inputs[3], inputs[5]
    name = activations if activations in CALLERS else _kind(rows, wgt, lora_up, peaks is not None)
    if name is None or type(x) is not torch.Tensor:
        return
    read = inputs if name != FP8 or peaks is None else (*inputs, peaks())
    leading = {_Y[name]: tuple(x.shape[:-1])}
    if CALLERS[name].quick.learn_alike(read, (x, *read[1:]), activation, leading):
        _kinds.put(_whose(x, wgt, lora_up, peaks is not None), (weakref.ref(wgt), name))


def _kind(x: torch.Tensor, wgt: torch.Tensor, lora_up: torch.Tensor, has_peaks: bool) -> str | None:
    """What ``auto`` was found to be for a call like this."""
    key = _whose(x, wgt, lora_up, has_peaks)
    found = _kinds.hot.get(key)
    if found is not None and found[0]() is wgt:
        return found[1]
    name: str | None = _autos.get(_look(x, wgt, lora_up, has_peaks))
    if name is not None and type(wgt) is torch.Tensor:
        _kinds.put(key, (weakref.ref(wgt), name))
    return name


def _whose(x: torch.Tensor, wgt: torch.Tensor, lora_up: torch.Tensor, has_peaks: bool) -> tuple:
    return (state.generation, id(wgt), id(lora_up), x.shape, x.dtype, has_peaks)


def _look(x: torch.Tensor, wgt: torch.Tensor, lora_up: torch.Tensor, has_peaks: bool) -> tuple:
    return (state.generation, x.shape, wgt.shape, lora_up.shape, x.dtype, wgt.device, has_peaks)


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
    wpeak: torch.Tensor | None = None,
) -> torch.Tensor:
    """As the dispatcher calls it, which is every call of a compiled model: quick where one like it was made before."""
    inputs = (x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias)
    name = activations if activations in CALLERS else _kind(x, wgt, lora_up, wpeak is not None)
    if name is not None:
        given = _NOT_GIVEN[name] if name != FP8 else (wpeak, *_NOT_GIVEN[FP8])
        made = _QUICK[name](*inputs, *given, activation)
        if made is not None:
            return made if type(made) is torch.Tensor else made[_Y[name]]
    return _long_way(inputs, activations, activation, wpeak)


def _long_way(
    inputs: tuple[torch.Tensor, ...], activations: str, activation: str, wpeak: torch.Tensor | None
) -> torch.Tensor:
    x, wgt = inputs[0], inputs[3]
    name = require_activations(activations)
    if x.ndim == 2 and not x.shape[0]:
        return _no_rows(name, inputs, activation, wpeak)
    if name == AUTO:
        name = _decided(inputs, wpeak is not None)
    if activation != "none":
        problem = problem_of(CALLER.named(inputs), activation=activation)
        if not is_fused(name, problem, wgt.device):
            return _after(_long_way(inputs, name, "none", wpeak), activation)
    read = _read(name, inputs, wpeak)
    return CALLERS[name].run(read, None, (activation,), asked=activation, quick=True)[_Y[name]]


def _decided(inputs: tuple[torch.Tensor, ...], has_peaks: bool) -> str:
    """What ``auto`` is."""
    x, wgt, lora_up = inputs[0], inputs[3], inputs[5]
    problem = problem_of(CALLER.named(inputs))
    name = decide(problem, wgt.device, has_peaks=has_peaks).activations
    _autos.put(_look(x, wgt, lora_up, has_peaks), name)
    if has_peaks and record.listening():
        record.note_alternatives(alternatives(name, problem))
    return name


def _read(
    name: str, inputs: tuple[torch.Tensor, ...], wpeak: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    """The inputs of the operator of ``name``. Raises ``InputError`` where one is missing."""
    if name != FP8:
        return inputs
    if wpeak is None:
        raise InputError(
            f'activations="{FP8}" reads wpeak, which was not given: fp32 [N], row_peaks of '
            "kernel_space.operators.svdquant_linear_fp8.peaks"
        )
    return (*inputs, wpeak)


def _after(y: torch.Tensor, activation: str) -> torch.Tensor:
    """By kernels of torch: GELU and SiLU are one each."""
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(y, approximate="tanh")
    if activation == "silu":
        return torch.nn.functional.silu(y)
    return activated(y.float(), activation).to(y.dtype)


def _no_rows(
    name: str, inputs: tuple[torch.Tensor, ...], activation: str, wpeak: torch.Tensor | None
) -> torch.Tensor:
    """There is nothing to launch, but tensors must fit as ever."""
    caller, read = CALLERS.get(name, CALLER), _read(name, inputs, wpeak)
    caller.require_no_grad(read, None)
    assert caller.runtime.problem_of is not None
    caller.runtime.problem_of(caller.named(read), activation=activation)
    caller.require_placed(read)
    return inputs[0].new_empty((0, _columns(inputs[3].shape[0], activation)))


def _columns(n: int, activation: str) -> int:
    return n // 2 if activation == SWIGLU else n


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("linear", _linear, _key)


@torch.library.register_fake("svdquant::linear", lib=LIBRARY)
def _fake_linear(
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
    wpeak: torch.Tensor | None = None,
) -> torch.Tensor:
    inputs = (x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias)
    CALLER.require_no_grad(_read(activations, inputs, wpeak), None)
    return x.new_empty((x.shape[0], _columns(wgt.shape[0], activation)))
