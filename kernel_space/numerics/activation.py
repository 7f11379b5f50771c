"""Activations behind a GEMM: in float64, and how far an fp32 evaluation of them may be from that.

    gelu_tanh  v * sigmoid(2 sqrt(2 / pi) (v + 0.044715 v^3)), which is GELU with tanh
    silu       v * sigmoid(v)
    swiglu     silu(gate) * up: of every 16 columns 8 gates, then the 8 columns that they are for

Kernels compute ``v * 1 / (1 + 2^t)`` in fp32 with t = -log2(e) times the argument of the sigmoid, by ``ex2.approx``
and ``rcp.approx`` (PTX ISA: relative errors of at most 2^-22 and 2^-23), and round once to the output. A v for which t
would be beyond 63 is taken for the v where it is 63: -44 * 2^-63 at most in place of what is nearer to 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

GROUP = 8
_CUBE = 0.044715
_SCALE = 2 * math.sqrt(2 / math.pi)
_STEEPEST = 1.13  # of both functions; their second derivatives stay below 1
_ROUNDOFF = 2.0**-24
_NEAR_ZERO = 2.0**-57  # what stands for less


class Uncertain(NamedTuple):
    """float64 ``[rows, columns]``: values, how far a correct kernel's may be from them, and how far in the mean."""

    value: torch.Tensor
    error: torch.Tensor
    drift: torch.Tensor


def activated(v: torch.Tensor, name: str) -> torch.Tensor:
    """``[rows, N]`` -> the activation called ``name`` of it, in the dtype of v; ``[rows, N/2]`` for ``swiglu``."""
    if name == "none":
        return v
    if name == "swiglu":
        gate, up = gates(v)
        return activated(gate, "silu") * up
    return v * torch.sigmoid(_argument(v, name))


def gates(v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``[rows, N]`` -> the N/2 gates and the N/2 columns that they are for."""
    pairs = v.reshape(v.shape[0], -1, 2, GROUP)
    return pairs[:, :, 0].reshape(v.shape[0], -1), pairs[:, :, 1].reshape(v.shape[0], -1)


def after(name: str, before: Uncertain) -> Uncertain:
    """The activation called ``name`` of uncertain float64 values."""
    if name == "none":
        return before
    if name != "swiglu":
        return _curved(name, before)
    (gate, up), (gate_error, up_error), (gate_drift, up_drift) = map(gates, before)
    made = _curved("silu", Uncertain(gate, gate_error, gate_drift))
    value = made.value * up
    rounding = _ROUNDOFF * value.abs()
    error = made.error * (up.abs() + up_error) + made.value.abs() * up_error + rounding
    drift = made.drift * (up.abs() + up_drift) + made.value.abs() * up_drift + rounding
    return Uncertain(value, error, drift)


def _argument(v: torch.Tensor, name: str) -> torch.Tensor:
    return v if name == "silu" else _SCALE * (v + _CUBE * v**3)


_SLOPES: dict[str, Callable[[torch.Tensor], torch.Tensor | float]] = {
    "silu": lambda v: 1.0,
    "gelu_tanh": lambda v: _SCALE * (1 + 3 * _CUBE * v * v),
}


def _curved(name: str, before: Uncertain) -> Uncertain:
    """By the mean value theorem: slopes within ``error`` differ by less than it."""
    v = before.value
    argument = _argument(v, name)
    part, rest = torch.sigmoid(argument), torch.sigmoid(-argument)
    slope = (part + v * part * rest * _SLOPES[name](v)).abs()
    value = v * part
    own = value.abs() * (rest * (6 * argument.abs() + 4) + 8) * _ROUNDOFF + _NEAR_ZERO
    error = (slope + before.error).clamp_(max=_STEEPEST) * before.error + own
    drift = (slope + before.drift).clamp_(max=_STEEPEST) * before.drift + own
    return Uncertain(value, error, drift)
