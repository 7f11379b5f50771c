"""Two layers with an activation between them as a torch operator, ``torch.ops.svdquant.mlp``: three launches where the
first layer's kernel quantizes for the second one (``handover``), else one after the other.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.runtime import problem_of
from tuner.layers.activations import AUTO, NVFP4, decide
from tuner.layers.gemm import LIBRARY, gemm
from tuner.layers.handover import hands_over
from tuner.layers.linear_op import CALLER, linear
from tuner.runtime import state
from tuner.runtime.caller import Caller, caller_of
from tuner.runtime.choice.remembered import MAX_CALLS, Recent
from tuner.runtime.torch_operator import needs_dispatcher

_WEIGHTS = ("smooth", "lora_down", "wgt", "wscales", "lora_up", "wcscale", "bias")
_LAYER = ", ".join(f"Tensor {name}{{n}}" for name in _WEIGHTS)
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
LIBRARY.define(
    f"mlp(Tensor x, {_LAYER.format(n=1)}, {_LAYER.format(n=2)}, Tensor? wpeak1, Tensor? wpeak2, "
    "str activations1, str activations2, str activation) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
Weights = tuple[torch.Tensor, ...]
Peaks = tuple[torch.Tensor | None, torch.Tensor | None]
_handed: Recent[tuple, bool] = Recent(MAX_CALLS, of_tables=True)
"""Whether the first layer hands over, by what the tensors look like."""


def mlp(
    x: torch.Tensor,
    first: Weights,
    second: Weights,
    peaks: Peaks,
    activations: tuple[str, str],
    activation: str,
) -> torch.Tensor:
    """``[M, N]`` of ``x`` ``[M, K]``. ``first``, ``second``: what ``linear`` takes after x, of each layer, in the dtype
    of x; the branch of the second, if it has columns, must be zeros. ``peaks``: wpeak of each, or None: then ``auto``
    does not take FP8 there. ``activations`` of each. Raises as ``linear``.
    """
    if not needs_dispatcher(x):
        return _mlp(x, *first, *second, *peaks, *activations, activation)
    CALLER.require_no_grad((x, *first, *second), None)
    made: torch.Tensor = torch.ops.svdquant.mlp(x, *first, *second, *peaks, *activations, activation)
    return made


def _mlp(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    first, second = _weights(rest)
    wpeak1, wpeak2, activations1, activations2, activation = rest[2 * len(_WEIGHTS) :]
    if x.shape[0]:
        has_peaks = (wpeak1 is not None, wpeak2 is not None)
        asked = (has_peaks, (activations1, activations2), activation)
        shapes = (x.shape, first[2].shape, first[4].shape, second[2].shape, second[4].shape)
        look = (state.generation, x.dtype, x.device, *shapes, *asked)
        is_handed = _handed.get(look)
        if is_handed is None:
            is_handed = _is_handed(x, first, second, *asked)
            _handed.put(look, is_handed)
        if is_handed:
            return handed(x, first, second, activation)
    between = _layer(x, first, wpeak1, activations1, activation)
    return _layer(between, second, wpeak2, activations2, "none")


def _weights(rest: tuple[Any, ...]) -> tuple[Weights, Weights]:
    return rest[: len(_WEIGHTS)], rest[len(_WEIGHTS) : 2 * len(_WEIGHTS)]


def _layer(
    x: torch.Tensor, weights: Weights, wpeak: torch.Tensor | None, activations: str, activation: str
) -> torch.Tensor:
    smooth, lora_down, wgt, wscales, lora_up, wcscale, bias = weights
    peaks = None if wpeak is None else lambda: wpeak
    return linear(x, smooth, lora_down, wgt, wscales, lora_up, wcscale, bias, activations, activation, peaks)


def _is_handed(
    x: torch.Tensor,
    first: Weights,
    second: Weights,
    has_peaks: tuple[bool, bool],
    activations: tuple[str, str],
    activation: str,
) -> bool:
    one = problem_of(CALLER.named((x, *first)), activation=activation)
    wgt = second[2]
    two = LinearProblem(m=one.m, k=2 * wgt.shape[1], n=wgt.shape[0], r=0, dtype=one.dtype)
    for problem, asked, has in zip((one, two), activations, has_peaks, strict=True):
        plain = dataclasses.replace(problem, activation="none")
        if asked != NVFP4 and (asked != AUTO or decide(plain, x.device, has_peaks=has).activations != NVFP4):
            return False
    return hands_over(one, two, x.device)


def handed(x: torch.Tensor, first: Weights, second: Weights, activation: str) -> torch.Tensor:
    """By three launches, without the second layer's branch."""
    smooth, lora_down, *packed = first
    next_smooth, _, wgt, wscales, lora_up, wcscale, bias = second
    lora_up = lora_up.new_empty((lora_up.shape[0], 0))
    quantize, hidden = caller_of("nvfp4_quantize"), caller_of("svdquant_gemm_nvfp4")
    act, ascales, lora_act_in = _made(quantize, (x, smooth, lora_down), ())
    about = (_NAMES[x.dtype], activation)
    inputs = (act, ascales, packed[0], packed[1], _branch(lora_act_in, x), *packed[2:], next_smooth)
    next_act, next_ascales = _made(hidden, inputs, about)
    return gemm(next_act, next_ascales, wgt, wscales, None, lora_up, wcscale, bias, None, x.dtype)


def _made(caller: Caller, inputs: Weights, about: tuple[str, ...]) -> Weights:
    return caller.short_way(inputs, None, about) or caller.run(inputs, None, about, asked=about, quick=True)


def _branch(lora_act_in: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Without columns it has not even the dtype of x."""
    return lora_act_in if lora_act_in.shape[1] else x.new_empty((x.shape[0], 0))


for _key in ("CPU", "CUDA"):
    LIBRARY.impl("mlp", _mlp, _key)


@torch.library.register_fake("svdquant::mlp", lib=LIBRARY)
def _fake_mlp(x: torch.Tensor, *rest: Any) -> torch.Tensor:
    first, second = _weights(rest)
    CALLER.require_no_grad((x, *first, *second), None)
    return x.new_empty((x.shape[0], second[2].shape[0]))
