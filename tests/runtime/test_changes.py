"""Tensors that change after they were known: memory, dtype, sizes, strides, device, and the wish for a gradient.

The oracle is a call with new tensors of the same content, or the refusal that they get.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.runtime import InputError, svdquant_gemm

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_gemm on cpu is the torch reference")
WEIGHTS = ("wgt", "wscales", "lora_up", "wcscale", "bias")
GRADS = ("lora_act_in", "lora_up", "wcscale", "bias", "out")


@pytest.fixture
def one() -> Operands:
    return make_operands(GemmProblem.parse("5,64,16,16"), seed=3)


def packed(one: Operands) -> PackedSVDQuant:
    return PackedSVDQuant(**{name: getattr(one, name) for name in WEIGHTS})


def call(one: Operands, out: torch.Tensor | None = None, **options: Any) -> torch.Tensor:
    return svdquant_gemm(one.act, one.ascales, packed(one), one.lora_act_in, out, **options)


def operator(one: Operands, out: torch.Tensor | None = None) -> torch.Tensor | None:
    operands = (
        one.act,
        one.ascales,
        one.wgt,
        one.wscales,
        one.lora_act_in,
        one.lora_up,
        one.wcscale,
        one.bias,
    )
    if out is None:
        return torch.ops.svdquant.gemm(*operands, torch.float16)
    return torch.ops.svdquant.gemm_out(*operands, out)


def to_data(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], None]:
    def changed(tensor: torch.Tensor) -> None:
        tensor.data = change(tensor.data)

    return changed


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype by data": to_data(lambda tensor: tensor.to(torch.float64)),
    "dtype at the same address": to_data(lambda tensor: tensor.view(torch.int8)),
    "fewer elements by data": to_data(lambda tensor: tensor[:-1].clone()),
    "fewer elements at the same address": to_data(lambda tensor: tensor[:-1]),
    "resized": lambda tensor: tensor.resize_(tensor.numel() // 2),
    "strides": to_data(lambda tensor: tensor.repeat_interleave(2, dim=-1)[..., ::2]),
    "a dimension more": lambda tensor: tensor.unsqueeze_(-1),
    "memory released": lambda tensor: tensor.untyped_storage().resize_(0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_known_weight_that_no_longer_fits(one: Operands, name: str, change: Callable) -> None:
    call(one), operator(one)
    change(getattr(one, name))
    for way in (call, operator):
        with pytest.raises(InputError) as caught:
            way(one)
        message = str(caught.value)
        assert "\n" not in message
        assert "must be" in message or f"{name} has no memory" in message


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_weight_may_go_and_come_back(one: Operands, name: str) -> None:
    """The idiom of offloading: the tensor stays, its data are elsewhere between two calls."""
    wanted = call(one).clone()
    tensor = getattr(one, name)
    kept = tensor.data.clone()
    for _ in range(3):
        tensor.data = torch.empty(0)
        with pytest.raises(InputError):
            call(one)
        tensor.data = kept.clone()
        assert torch.equal(call(one), wanted)


def test_weights_of_another_kind_in_the_same_tensors(one: Operands) -> None:
    """Every dtype and size that depends on the weights is asked for anew."""
    call(one)
    other = make_operands(GemmProblem.parse("5,128,24,32", lora_dtype="bf16", out_dtype="bf16"), seed=4)
    wanted = call(other).clone()
    for name in WEIGHTS:
        getattr(one, name).data = getattr(other, name).data
    with pytest.raises(InputError, match="act must be"):
        call(one)
    changed = dataclasses.replace(other, **{name: getattr(one, name) for name in WEIGHTS})
    y = call(changed)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, wanted)


def test_what_is_written_into_a_weight_counts(one: Operands) -> None:
    call(one)
    one.bias.add_(1.0)
    new = dataclasses.replace(one, **{name: getattr(one, name).clone() for name in WEIGHTS})
    assert torch.equal(call(one), call(new))


@pytest.mark.parametrize("known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("name", GRADS)
def test_a_gradient_that_nobody_would_compute(one: Operands, name: str, known: bool) -> None:
    out = torch.empty_like(one.y)
    if known:
        call(one, out), operator(one, out)
    wants = (out if name == "out" else getattr(one, name)).requires_grad_()
    for way in (call, operator):
        with pytest.raises(InputError, match=f"no backward pass but {name} requires grad") as caught:
            way(one, out)
        assert "\n" not in str(caught.value)
    with torch.no_grad():
        call(one, out), operator(one, out)
    with torch.inference_mode():
        call(one)
    with pytest.raises(InputError, match="no backward pass"):  # what was known under no_grad does not count
        call(one, out)
    wants.requires_grad_(False)
    assert torch.equal(call(one, out), call(one))


@pytest.mark.parametrize("name", GRADS[:-1])
def test_a_gradient_that_nobody_would_compute_in_a_compiled_graph(one: Operands, name: str) -> None:
    getattr(one, name).requires_grad_()
    for way in (call, operator):
        compiled = torch.compile(lambda one=one, way=way: way(one) + 1, backend="aot_eager", fullgraph=True)
        with pytest.raises(Exception, match="no backward pass"):
            compiled()
        with torch.no_grad():
            assert torch.equal(compiled(), way(one) + 1)
        torch._dynamo.reset()
