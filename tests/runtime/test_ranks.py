"""Ranks that are padded: the operator and the layer against float64, and what a layer saves."""

from __future__ import annotations

import copy
import dataclasses
import io
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.core.arch import SM90A
from kernel_space.operators.svdquant_gemm.inputs import PackedInputs
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import check_packed
from kernel_space.operators.svdquant_gemm.runtime import pad_rank, stand_in
from tests.layers.test_linear import BUFFERS, activations, linear_of
from tests.runtime.test_choice import PLAIN, SPLIT, entry, of_rank, row, write
from tests.runtime.test_operator import call, operands_of
from tuner.layers import linear
from tuner.layers.ranks import rank_of_layer
from tuner.runtime import SVDQuantLinear, caller, quantize_act
from tuner.runtime.choice.choose import Library
from tuner.runtime.choice.remembered import forget_tables

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_gemm on cpu is the torch reference")


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """Plans are known by what the tensors look like, from whichever test."""
    forget_tables()
    yield
    forget_tables()


def padding_to(rank: int, problem: GemmProblem) -> Any:
    """A plan of what a kernel of that rank stands in for."""
    made = stand_in(problem, dataclasses.replace(problem, r=rank))
    return SimpleNamespace(choice=SimpleNamespace(is_padded=True, stand_in=made))


@pytest.mark.parametrize("rank", [0, 16])
def test_zeros_behind(rank: int) -> None:
    one = torch.randn(5, rank).half()
    more = pad_rank(one, 48)
    assert more.shape == (5, 48) and more.is_contiguous() and more.dtype == torch.float16
    assert torch.equal(more[:, :rank], one) and not more[:, rank:].any()


@pytest.mark.parametrize("shape", ["17,160,72,0", "17,160,72,16", "5,64,16,48"])
@pytest.mark.parametrize("given", [False, True])
def test_the_operator_pads_what_the_table_says(
    monkeypatch: pytest.MonkeyPatch, shape: str, given: bool
) -> None:
    """The table's answer is made up; below it the torch reference computes what it is handed."""
    seen: list[int] = []

    def plan(tables: Any, problem: GemmProblem, device: Any) -> Any:
        seen.append(problem.r)
        return None if problem.r == 64 else padding_to(64, problem)

    monkeypatch.setattr(caller, "plan_for", plan)
    one = operands_of(shape)
    before = {name: tensor.clone() for name, tensor in one.tensors().items()}
    y = call(one, out=one.y if given else None)
    assert seen == [one.problem.r, 64]
    assert (y is one.y) == given
    one.y.copy_(y)
    assert one.check().ok, one.check()
    before.pop("y")
    assert all(torch.equal(getattr(one, name), tensor) for name, tensor in before.items())


def test_lora_up_that_is_written_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """However: torch counts no changes of tensors made in inference mode, nor those through ``.data``."""

    def plan(tables: Any, problem: GemmProblem, device: Any) -> Any:
        return None if problem.r == 64 else padding_to(64, problem)

    monkeypatch.setattr(caller, "plan_for", plan)
    with torch.inference_mode():
        one = operands_of("5,64,16,16")
        call(one)
        one.lora_up.data.mul_(2)
        one.y.copy_(call(one))
    assert one.check().ok, one.check()


# ------------------------------------------------------------------ the layer


@pytest.fixture
def padding(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Launched rank by kind of device, as a table would have it; devices that are not there have the layer's."""
    ranks: dict[str, int] = {}
    monkeypatch.setattr(linear, "launched_rank", lambda device, problem: ranks.get(device.type, problem.r))
    return ranks


def inputs_of(layer: SVDQuantLinear, x: torch.Tensor) -> PackedInputs:
    act, ascales, lora = quantize_act(x.to(layer.dtype), layer.smooth, layer.lora_down)
    tensors = {name: getattr(layer, name) for name in BUFFERS}
    tensors["lora_up"] = tensors["lora_up"][:, : layer.rank].contiguous()
    return PackedInputs(act=act, ascales=ascales, lora_act_in=lora, **tensors)


def test_a_padded_layer_computes_and_saves_what_it_did(padding: dict[str, int]) -> None:
    plain = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16)
    padding["cpu"] = 64
    layer, x = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16), activations(19, 160)
    assert (layer.lora_down_packed.shape, layer.lora_up.shape, layer.rank) == ((3, 64, 64), (72, 64), 16)
    assert torch.equal(layer.lora_down, plain.lora_down) and plain.lora_down.shape == (160, 16)
    assert check_packed(layer(x).to(layer.dtype), inputs_of(layer, x)).ok
    wanted, saved = plain.state_dict(), layer.state_dict()
    assert list(saved) == list(wanted)
    for name, tensor in wanted.items():
        assert torch.equal(saved[name], tensor) and saved[name].is_contiguous()


def test_state_dicts_of_padded_and_plain_layers_are_the_same(padding: dict[str, int]) -> None:
    state = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16).state_dict()
    x = activations(5, 160)
    padding["cpu"] = 64
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    for assign in (False, True):
        padded = SVDQuantLinear(160, 72, rank=16)
        padded.load_state_dict(torch.load(file, weights_only=True), assign=assign)
        file.seek(0)
        assert padded.lora_up.shape == (72, 64) and not padded.lora_up[:, 16:].any()
        assert check_packed(padded(x).to(padded.dtype), inputs_of(padded, x)).ok
        again = padded.state_dict()
        assert all(torch.equal(again[name], tensor) for name, tensor in state.items())
    padding.clear()
    plain = SVDQuantLinear(160, 72, rank=16)
    plain.load_state_dict(again)
    assert all(torch.equal(plain.state_dict()[name], tensor) for name, tensor in state.items())


def test_moving_pads_for_where_it_goes(padding: dict[str, int]) -> None:
    padding["meta"] = 128
    layer = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16)
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    model = torch.nn.Sequential(copy.deepcopy(layer)).to("meta")
    assert model[0].lora_down_packed.shape == (3, 128, 64)
    assert model.state_dict()["0.lora_down"].shape == (160, 16)
    model.load_state_dict({f"0.{name}": tensor for name, tensor in state.items()}, assign=True)
    assert model[0].lora_up.shape == (72, 16)  # it is on the CPU again
    assert all(torch.equal(model.state_dict()[f"0.{name}"], tensor) for name, tensor in state.items())


def test_a_state_dict_of_another_rank_is_refused(padding: dict[str, int]) -> None:
    padding["cpu"] = 64
    other = SVDQuantLinear(160, 72, rank=32).state_dict()
    with pytest.raises(RuntimeError, match=r"lora_down must be \[160, 16\], got \[160, 32\]"):
        SVDQuantLinear(160, 72, rank=16).load_state_dict(other)


def test_the_rank_of_a_layer_is_one_that_no_call_pads(tmp_path: Any) -> None:
    """Of R = 32 there is one row, far from small M: where that is padded, the layer is."""
    rows = [row("4096,3840,3072,32"), row("16,3840,3072,128", SPLIT), row("4096,3840,3072,128")]
    entries = [entry(PLAIN, of_rank(32)), entry(SPLIT), entry(PLAIN)]
    library = Library.load(write(tmp_path, rows, entries) / "h200", SM90A, cache_dir=tmp_path)
    ranks = {
        shape: rank_of_layer(library, GemmProblem.parse(f"1,{shape}"))
        for shape in ("3840,3072,16", "3840,3072,32", "3840,3072,128", "3840,3072,0", "3840,3072,240")
    }
    assert ranks == {
        "3840,3072,16": 128,
        "3840,3072,32": 128,
        "3840,3072,128": 128,
        "3840,3072,0": 0,
        "3840,3072,240": 240,  # nothing can be launched
    }
    for m in range(1, 8193, 97):
        assert not library.choose(GemmProblem.parse(f"{m},3840,3072,128")).is_padded
