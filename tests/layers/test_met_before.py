"""A layer's call like one before: x of any number of sizes goes to the launch as it is, y comes in its sizes.

The object is a host function in Python, which writes down the addresses that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.core.errors import InputError
from tests.layers.test_unread_outputs import CONFIGS, made
from tuner.layers import linear, linear_op
from tuner.layers.linear import SVDQuantLinear
from tuner.runtime import quick, state
from tuner.runtime.choice.remembered import forget_tables

__all__ = ["made"]

K, N, M = 64, 16, 5


@pytest.fixture
def layer(made: Any) -> SVDQuantLinear:
    _, use = made
    use(CONFIGS["merged"])
    return SVDQuantLinear(K, N, rank=16, activations="16bit")


@pytest.fixture
def long_ways(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As many as there were calls the long way."""
    found: list[int] = []
    long_way = linear_op._long_way

    def counted(*given: Any) -> torch.Tensor:
        found.append(1)
        return long_way(*given)

    monkeypatch.setattr(linear_op, "_long_way", counted)
    return found


def x_of(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, K, dtype=torch.bfloat16)


@pytest.mark.parametrize("sizes", [(M,), (M, 1), (1, M), (1, M, 1)])
def test_the_second_call_is_launched_at_once(
    made: Any, layer: SVDQuantLinear, long_ways: list[int], sizes: tuple[int, ...]
) -> None:
    one, _ = made
    for number in range(3):
        x = x_of(*sizes)
        y = layer(x)
        assert (y.shape, y.dtype, y.is_contiguous()) == ((*sizes, N), torch.bfloat16, True)
        seen = one.seen[-1]
        assert len(one.seen) == number + 1
        assert (seen["x"], seen["y"]) == (x.data_ptr(), y.data_ptr())
        assert (seen["wgt"], seen["smooth"]) == (layer.wgt.data_ptr(), layer.smooth.data_ptr())
    assert len(long_ways) == 1


def test_sizes_are_known_apart(layer: SVDQuantLinear, long_ways: list[int]) -> None:
    for sizes in ((M,), (1, M), (M, 1)):
        for _ in range(2):
            assert layer(x_of(*sizes)).shape == (*sizes, N)
    # The rows of the second and the third were met with the first.
    assert len(long_ways) == 1


@pytest.mark.parametrize(
    "given",
    [
        lambda: x_of(M, 2)[:, 0:1],
        lambda: torch.randn(1, K, M, dtype=torch.bfloat16).transpose(1, 2),
        lambda: torch.randn(1, M, K),
        lambda: x_of(1, M).half(),
    ],
    ids=["a part", "turned round", "fp32", "fp16"],
)
def test_what_has_no_such_memory_is_copied_every_time(
    made: Any, layer: SVDQuantLinear, given: Callable[[], torch.Tensor]
) -> None:
    one, _ = made
    for _ in range(3):
        x = given()
        y = layer(x)
        assert (y.shape, y.dtype) == ((*x.shape[:-1], N), x.dtype)
        assert one.seen[-1]["x"] != x.data_ptr()


@pytest.mark.parametrize("activations", ["auto", "16bit"])
def test_layers_of_one_shape_share_what_was_learned_and_no_weights(
    made: Any,
    layer: SVDQuantLinear,
    long_ways: list[int],
    monkeypatch: pytest.MonkeyPatch,
    activations: str,
) -> None:
    one, _ = made
    monkeypatch.setattr(linear_op, "decide", lambda *_, has_peaks: SimpleNamespace(activations="16bit"))
    other = SVDQuantLinear(K, N, rank=16)
    layer.activations = other.activations = activations
    for who in (layer, other, layer, other):
        who(x_of(1, M))
        assert one.seen[-1]["wgt"] == who.wgt.data_ptr()
    assert len(long_ways) == 1


def test_a_weight_that_was_replaced(made: Any, layer: SVDQuantLinear) -> None:
    one, _ = made
    for _ in range(2):
        layer(x_of(1, M))
    layer.wgt = layer.wgt.clone()
    layer(x_of(1, M))
    assert one.seen[-1]["wgt"] == layer.wgt.data_ptr()


def test_sizes_that_do_not_fit_are_refused_as_ever(layer: SVDQuantLinear) -> None:
    for _ in range(2):
        layer(x_of(1, M))
        with pytest.raises(InputError, match=r"x must be \[..., 64\]"):
            layer(torch.randn(1, M, K // 2, dtype=torch.bfloat16))


def test_other_tables_are_asked_anew(layer: SVDQuantLinear, long_ways: list[int]) -> None:
    layer(x_of(1, M))
    forget_tables()
    layer(x_of(1, M))
    assert len(long_ways) == 2


def test_auto_is_decided_once_for_each_of_them(
    made: Any, layer: SVDQuantLinear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By layer, rows and whether FP8 may be taken; tables that changed are asked again."""
    asked: list[tuple[int, bool]] = []

    def decide(problem: Any, _: Any, *, has_peaks: bool) -> Any:
        asked.append((problem.m, has_peaks))
        return SimpleNamespace(activations="16bit")

    monkeypatch.setattr(linear_op, "decide", decide)
    layer.activations = "auto"
    for _ in range(3):
        layer(x_of(1, M))
        layer(x_of(M))
    assert asked == [(M, False)]
    layer._fp8_is_close = True
    for _ in range(2):
        layer(x_of(1, M))
    assert asked == [(M, False), (M, True)]
    monkeypatch.setattr(state, "generation", state.generation + 1)
    layer(x_of(1, M))
    assert asked == [(M, False), (M, True), (M, True)]


def test_under_autocast_y_has_its_dtype(layer: SVDQuantLinear, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU is the card here."""
    monkeypatch.setattr(linear, "_autocasting", lambda kind: torch.is_autocast_enabled("cpu"))
    x = x_of(1, M)
    for _ in range(2):
        assert layer(x).dtype is torch.bfloat16
        with torch.autocast("cpu", dtype=torch.float16):
            for _ in range(2):
                assert layer(x).dtype is torch.float16


@pytest.mark.parametrize("activations", ["auto", "16bit"])
@pytest.mark.parametrize("activation", ["gelu_tanh", "silu", "swiglu"])
def test_an_activation_behind_the_kernel_is_no_reason_for_the_long_way(
    made: Any,
    layer: SVDQuantLinear,
    long_ways: list[int],
    monkeypatch: pytest.MonkeyPatch,
    activation: str,
    activations: str,
) -> None:
    one, _ = made
    monkeypatch.setattr(linear_op, "is_fused", lambda *_: False)
    monkeypatch.setattr(linear_op, "decide", lambda *_, has_peaks: SimpleNamespace(activations="16bit"))
    layer.activations = activations
    for number in range(3):
        y = layer.activated(x_of(1, M), activation)
        assert len(one.seen) == number + 1
        assert y.shape == (1, M, N // 2 if activation == "swiglu" else N)
    assert len(long_ways) == 1
    assert layer(x_of(1, M)).shape == (1, M, N)


def test_what_comes_behind_the_kernel_is_the_activation(
    made: Any, layer: SVDQuantLinear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the launch left, which writes nothing here."""
    monkeypatch.setattr(linear_op, "is_fused", lambda *_: False)
    left = torch.randn(1, M, N, dtype=torch.bfloat16)
    monkeypatch.setattr(quick, "new_tensor", lambda *_: left)
    layer.activated(x_of(1, M), "swiglu")
    found = layer.activated(x_of(1, M), "swiglu").float()
    pairs = left.float().view(M, N // 16, 2, 8)
    wanted = torch.nn.functional.silu(pairs[:, :, 0]) * pairs[:, :, 1]
    assert torch.allclose(found, wanted.reshape(1, M, N // 2), rtol=2**-7)
