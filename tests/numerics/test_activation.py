"""Activations in float64 against torch's own; error bounds against an fp32 evaluation with the worst functions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernel_space.numerics.activation import Uncertain, activated, after, gates

CURVED = ("gelu_tanh", "silu")
_LOG2E = math.log2(math.e)


def oracle(v: torch.Tensor, name: str) -> torch.Tensor:
    if name == "gelu_tanh":
        return torch.nn.functional.gelu(v, approximate="tanh")
    return torch.nn.functional.silu(v)


def test_values_are_those_of_torch() -> None:
    v = torch.linspace(-40, 40, 20001, dtype=torch.float64).view(1, -1)
    for name in CURVED:
        torch.testing.assert_close(activated(v, name), oracle(v, name), rtol=1e-12, atol=1e-15)
    assert activated(v, "none") is v


def test_gates_are_blocks_of_eight() -> None:
    v = torch.arange(64, dtype=torch.float64).view(2, 32) / 8 - 4
    gate, up = gates(v)
    for row in range(2):
        for column in range(16):
            source = column // 8 * 16 + column % 8
            assert (gate[row, column], up[row, column]) == (v[row, source], v[row, source + 8])
    torch.testing.assert_close(activated(v, "swiglu"), oracle(gate, "silu") * up, rtol=1e-12, atol=0)


def in_fp32(v: np.ndarray, name: str, worst: int) -> np.ndarray:
    """As kernels do it, two elements sharing a reciprocal, with the largest errors of ``ex2.approx`` and ``rcp.approx``
    to the side ``worst``.
    """
    one = np.float32
    v = np.maximum(v, one(-7.61 if name == "gelu_tanh" else -43.66))
    linear = -_LOG2E * (2 * math.sqrt(2 / math.pi) if name == "gelu_tanh" else 1.0)
    t = one(linear) * v
    if name == "gelu_tanh":
        cube = (v * v).astype(np.float64) * float(one(linear * 0.044715)) + float(one(linear))
        t = cube.astype(one) * v
    power = (np.exp2(t.astype(np.float64)) * (1 + worst * 2.0**-22)).astype(one)
    denominator = one(1) + power
    other = np.roll(denominator, 1)
    shared = (1 / (denominator * other).astype(np.float64) * (1 + worst * 2.0**-23)).astype(one)
    return v * (shared * other)


@pytest.mark.parametrize("worst", [-1, 1])
@pytest.mark.parametrize("name", CURVED)
def test_an_fp32_evaluation_stays_within_the_bound(name: str, worst: int) -> None:
    """And the bound is no wider than what rounding to fp16 may do, wherever that is not subnormal."""
    v = np.linspace(-60, 60, 240001, dtype=np.float32)
    exact = torch.from_numpy(v).double().view(1, -1)
    made = after(name, Uncertain(exact, torch.zeros_like(exact), torch.zeros_like(exact)))
    error = (torch.from_numpy(in_fp32(v, name, worst)).double() - made.value).abs()
    assert (error <= made.error).all(), (error / made.error).max()
    normal = made.value.abs() >= 2.0**-14
    assert (made.error[normal] <= 0.05 * 2.0**-11 * made.value.abs()[normal]).all()


@pytest.mark.parametrize("name", CURVED)
def test_an_error_in_front_grows_no_more_than_it_says(name: str) -> None:
    """Both ends of the interval of every argument: the functions have one extremum, which a fine grid does not miss."""
    v = torch.linspace(-12, 12, 4801, dtype=torch.float64).view(1, -1)
    for size in (1e-3, 0.1, 1.0):
        error = torch.full_like(v, size)
        made = after(name, Uncertain(v, error, error))
        for step in torch.linspace(-size, size, 21, dtype=torch.float64):
            moved = (oracle(v + step, name) - made.value).abs()
            assert (moved <= made.error + 1e-15).all()
            assert (moved <= made.drift + 1e-15).all()


def test_an_error_in_front_of_a_product() -> None:
    random = torch.Generator().manual_seed(0)
    v = torch.randn(64, 32, generator=random, dtype=torch.float64) * 4
    error = torch.full_like(v, 0.25)
    made = after("swiglu", Uncertain(v, error, error))
    for _ in range(50):
        moved = v + (torch.rand(v.shape, generator=random, dtype=torch.float64) * 2 - 1).sign() * 0.25
        gate, up = gates(moved)
        assert ((oracle(gate, "silu") * up - made.value).abs() <= made.error).all()
