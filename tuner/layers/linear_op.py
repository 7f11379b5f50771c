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
Way = tuple[str, str]
"""The kind of activations, and the activation that the kernel computes: one that it does not comes after it."""
_ways: Recent[tuple, Way] = Recent(MAX_CALLS, of_tables=True)
"""By what the tensors look like and what is asked for."""
_own_ways: Recent[tuple, tuple[weakref.ref[torch.Tensor], Way]] = Recent(MAX_CALLS, of_tables=True)
"""The same by whose weights they are, which reads less of them."""
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
    way = _way(x, inputs[3], inputs[5], peaks is not None, activations, activation)
    if way is None:
        return None
    if way[0] == FP8:
        inputs = (*inputs, peaks and peaks())
    return _quick(inputs, way, activation)


def _quick(inputs: tuple[Any, ...], way: Way, activation: str) -> torch.Tensor | None:
    """``y`` if a call with these inputs of the operator was made before."""
    name, fused = way
    made: Any = _QUICK[name](*inputs, *_NOT_GIVEN[name], fused)
    if made.__class__ is tuple:  # fp8 has one output alone
        made = made[_Y[name]]
    return made if fused == activation or made is None else _after(made, activation)


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
    way = _way(rows, wgt, lora_up, peaks is not None, activations, activation)
    if way is None or type(x) is not torch.Tensor:
        return
    name, fused = way
    read = inputs if name != FP8 or peaks is None else (*inputs, peaks())
    leading = {_Y[name]: tuple(x.shape[:-1])}
    if CALLERS[name].quick.learn_alike(read, (x, *read[1:]), fused, leading):
        asked = _asked(peaks is not None, activations, activation)
        _ways.put(_look(x, wgt, lora_up, asked), way)


def _way(
    x: torch.Tensor,
    wgt: torch.Tensor,
    lora_up: torch.Tensor,
    has_peaks: bool,
    activations: str,
    activation: str,
) -> Way | None:
    """That was found for a call like this; where the kind is given the fused one until then."""
    given = (activations, activation) if activations in CALLERS else None
    if given is not None and activation == "none":
        return given
    asked = _asked(has_peaks, activations, activation)
    key = _whose(x, wgt, lora_up, asked)
    found = _own_ways.hot.get(key)
    if found is not None and found[0]() is wgt:
        return found[1]
    way: Way | None = _ways.get(_look(x, wgt, lora_up, asked))
    if way is None:
        return given
    if type(wgt) is torch.Tensor:
        _own_ways.put(key, (weakref.ref(wgt), way))
    return way


def _asked(has_peaks: bool, activations: str, activation: str) -> tuple:
    """What decides besides the tensors: who names a kind is not asked for peaks."""
    return (has_peaks and activations == AUTO, activations, activation)


def _whose(x: torch.Tensor, wgt: torch.Tensor, lora_up: torch.Tensor, asked: tuple) -> tuple:
    return (state.generation, id(wgt), lora_up.shape, x.shape, x.dtype, asked)


def _look(x: torch.Tensor, wgt: torch.Tensor, lora_up: torch.Tensor, asked: tuple) -> tuple:
    return (state.generation, x.shape, wgt.shape, lora_up.shape, x.dtype, wgt.device, asked)


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
    way = _way(x, wgt, lora_up, wpeak is not None, activations, activation)
    if way is not None:
        made = _quick(inputs if way[0] != FP8 else (*inputs, wpeak), way, activation)
        if made is not None:
            return made
    return _long_way(inputs, activations, activation, wpeak)


def _long_way(
    inputs: tuple[torch.Tensor, ...], activations: str, activation: str, wpeak: torch.Tensor | None
) -> torch.Tensor:
    x, wgt, lora_up = inputs[0], inputs[3], inputs[5]
    name = require_activations(activations)
    if x.ndim == 2 and not x.shape[0]:
        return _no_rows(name, inputs, activation, wpeak)
    generation, has_peaks = state.generation, wpeak is not None
    if name == AUTO:
        name = _decided(inputs, has_peaks)
    fused = activation
    if activation != "none":
        problem = problem_of(CALLER.named(inputs), activation=activation)
        fused = activation if is_fused(name, problem, wgt.device) else "none"
    if generation == state.generation:
        asked = _asked(has_peaks, activations, activation)
        _ways.put(_look(x, wgt, lora_up, asked), (name, fused))
    read = _read(name, inputs, wpeak)
    y = CALLERS[name].run(read, None, (fused,), asked=fused, quick=True)[_Y[name]]
    return y if fused == activation else _after(y, activation)


def _decided(inputs: tuple[torch.Tensor, ...], has_peaks: bool) -> str:
    """What ``auto`` is."""
    problem = problem_of(CALLER.named(inputs))
    name = decide(problem, inputs[3].device, has_peaks=has_peaks).activations
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
    rows = y.reshape(-1, y.shape[-1]).float()
    return activated(rows, activation).to(y.dtype).view(*y.shape[:-1], -1)


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
