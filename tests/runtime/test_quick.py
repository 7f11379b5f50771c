"""The short way of a repeated call: taken for calls like those that were learned, and for no others.

The launch is a Python function here, so no card is needed; what is under test is which calls reach it.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.layers.gemm import CALLER
from tuner.runtime import quick, state
from tuner.runtime.choice.remembered import forget_tables
from tuner.runtime.load.plan import Output
from tuner.runtime.load.trampoline import MISALIGNED
from tuner.runtime.load.workspace import Room
from tuner.runtime.quick import MAX_VARIANTS, Quick


class Listening(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


class Layer:
    """A layer's tensors, and a plan whose launch writes down what it is given."""

    def __init__(self, workspace: int = 0, calls: Quick = CALLER.quick) -> None:
        self.calls = calls
        one = make_operands(GemmProblem.parse("5,64,16,16"), seed=1)
        self.act, self.ascales, self.lora, self.y = one.act, one.ascales, one.lora_act_in, one.y
        self.weights = (one.wgt, one.wscales, one.lora_up, one.wcscale, one.bias)
        self.launched: list[tuple] = []
        self.captured: list[tuple] = []
        self.code = 0
        self.taken: list[tuple[int, int, int]] = []
        self.plan: Any = SimpleNamespace(
            device=0,
            outputs_for=lambda unread: (Output((5, 16), (16, 1), torch.float16),),
            launch=self._launch,
            captured=self._captured,
            workspaces=self,
            workspace_bytes=workspace,
            zeroed_bytes=workspace // 2,
            choice=SimpleNamespace(problem=one.problem),
        )

    def _captured(self, *values: Any) -> int:
        self.captured.append(values)
        return self.code

    def _launch(self, *values: Any) -> int:
        self.launched.append(values)
        return self.code

    def take(self, size: int, zeroed: int, stream: int) -> Room:
        self.taken.append((size, zeroed, stream))
        return Room(self.act, 99)

    def learn(self, out: torch.Tensor | None = None, dtype: torch.dtype | None = None) -> None:
        wgt, wscales, lora_up, wcscale, bias = self.weights
        inputs = (self.act, self.ascales, wgt, wscales, self.lora, lora_up, wcscale, bias)
        self.calls.learn(self.plan, state.generation, inputs, None if out is None else (out,), dtype)

    def call(self, **changes: Any) -> torch.Tensor | None:
        wgt, wscales, lora_up, wcscale, bias = self.weights
        values = {
            "act": self.act,
            "ascales": self.ascales,
            "wgt": wgt,
            "wscales": wscales,
            "lora_act_in": self.lora,
            "lora_up": lora_up,
            "wcscale": wcscale,
            "bias": bias,
            "out": None,
            "out_dtype": None,
        }
        return self.calls.call(*{**values, **changes}.values())


@pytest.fixture(autouse=True)
def without_a_card(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(quick, "new_tensor", torch._C._dynamo.guards._empty_strided_cpu)
    monkeypatch.setattr(quick, "_raw_stream", lambda device: 77)
    monkeypatch.setattr(quick, "_current_device", lambda: 0)
    forget_tables()
    yield
    forget_tables()


def test_a_learned_call_is_launched_with_its_tensors() -> None:
    layer = Layer()
    assert layer.call() is None
    layer.learn()
    y = layer.call()
    wgt, wscales, lora_up, wcscale, bias = layer.weights
    wanted = (layer.act, layer.ascales, wgt, wscales, layer.lora, lora_up, wcscale, bias, y, None, 0, 77)
    assert len(layer.launched) == 1
    assert all(got is value for got, value in zip(layer.launched[0], wanted, strict=True))
    assert (y.shape, y.dtype, y.stride()) == ((5, 16), torch.float16, (16, 1))


def test_while_a_stream_is_captured_another_launch_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer()
    layer.learn()
    monkeypatch.setattr(quick, "capturing", lambda: True)
    layer.call()
    monkeypatch.setattr(quick, "capturing", lambda: False)
    layer.call()
    assert (len(layer.captured), len(layer.launched)) == (1, 1)


def test_given_outputs_are_learned_apart() -> None:
    layer = Layer()
    layer.learn(out=layer.y)
    assert layer.call() is None
    assert layer.call(out=layer.y) is layer.y
    assert layer.call(out=layer.y[:4]) is None
    assert layer.call(out=layer.y.bfloat16()) is None
    assert layer.call(out=layer.y.T.contiguous().T) is None


def test_a_workspace_is_the_stream_s() -> None:
    layer = Layer(workspace=512)
    layer.learn()
    layer.call()
    assert layer.taken == [(512, 256, 77)]
    assert layer.launched[0][9] is layer.act
    assert layer.launched[0][10:] == (99, 77)


OTHER = {
    "fewer rows": {"act": lambda layer: layer.act[:4]},
    "other dtype": {"act": lambda layer: layer.act.view(torch.int8)},
    "other strides": {"act": lambda layer: layer.act.repeat(1, 2)[:, ::2]},
    "other scales": {"ascales": lambda layer: layer.ascales[:-1]},
    "other branch dtype": {"lora_act_in": lambda layer: layer.lora.bfloat16()},
    "no branch": {"lora_act_in": lambda layer: None},
    "grad": {"lora_act_in": lambda layer: layer.lora.clone().requires_grad_()},
    "subclass": {"act": lambda layer: torch.nn.Parameter(layer.act, requires_grad=False)},
    "other device": {"act": lambda layer: layer.act.to("meta")},
    "asked dtype": {"out_dtype": lambda layer: torch.bfloat16},
    "other layer": {"wgt": lambda layer: torch.cat([layer.weights[0]] * 2)},
    "shorter weights": {"bias": lambda layer: layer.weights[4][:-1]},
    "weights elsewhere": {"bias": lambda layer: layer.weights[4].to("meta")},
    "weights that want a gradient": {"bias": lambda layer: layer.weights[4].clone().requires_grad_()},
    "no weights": {"wgt": lambda layer: None},
}


@pytest.mark.parametrize("changes", OTHER.values(), ids=OTHER.keys())
def test_another_call_goes_the_long_way(changes: dict[str, Any]) -> None:
    layer = Layer()
    layer.learn()
    assert layer.call(**{name: make(layer) for name, make in changes.items()}) is None
    assert not layer.launched
    assert layer.call() is not None


def test_listeners_are_not_passed_by() -> None:
    layer = Layer()
    layer.learn()
    with Listening():
        assert layer.call() is None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert layer.call() is None
    with torch.overrides.BaseTorchFunctionMode():
        assert layer.call() is None
    with FakeTensorMode() as mode:
        assert layer.call(act=mode.from_tensor(layer.act)) is None
    reached = []
    torch.vmap(lambda act: (reached.append(layer.call(act=act)), act)[1])(layer.act.unsqueeze(0))
    assert reached == [None]
    assert not layer.launched


def test_a_change_of_tables_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer()
    layer.learn()
    monkeypatch.setattr(state, "generation", state.generation + 1)
    assert layer.call() is None


@pytest.mark.parametrize("cards", [1, 2])
def test_another_current_card_is_left_for_the_launch(cards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tensors on card 0 and card 1 current: everything happens on card 0, then card 1 is current again."""
    current = [1]

    @contextlib.contextmanager
    def on_card(card: int) -> Iterator[None]:
        before, current[0] = current[0], card
        yield
        current[0] = before

    monkeypatch.setattr(torch.cuda, "device_count", lambda: cards)
    monkeypatch.setattr(quick, "_current_device", lambda: current[0])
    monkeypatch.setattr(quick, "_on_card", on_card)
    layer = Layer(workspace=512)
    seen: list[tuple[str, int]] = []
    new, take, launch = quick.new_tensor, layer.take, layer.plan.launch
    monkeypatch.setattr(quick, "new_tensor", lambda *a: (seen.append(("output", current[0])), new(*a))[1])
    layer.take = lambda *a: (seen.append(("workspace", current[0])), take(*a))[1]  # type: ignore[method-assign]
    layer.plan.launch = lambda *a: (seen.append(("launch", current[0])), launch(*a))[1]
    layer.learn()
    assert layer.call() is not None
    card = 0 if cards == 2 else 1  # of one card none other can be current, so nobody asks
    assert seen == [("output", card), ("workspace", card), ("launch", card)]
    assert current == [1]


def test_what_is_known_is_not_learned_again() -> None:
    """The profiler sends calls the long way that are quick without it."""
    layer = Layer()
    layer.learn()
    (first,) = CALLER.quick.calls.hot.values()
    layer.learn()
    assert list(CALLER.quick.calls.hot.values()) == [first]
    with torch.inference_mode():
        layer.learn()
    (second,) = CALLER.quick.calls.hot.values()
    assert second is not first and second.other is first


def test_modes_of_a_shape_are_learned_side_by_side_and_bounded() -> None:
    layer = Layer()
    layer.learn()
    with torch.inference_mode():
        assert layer.call() is None
        layer.learn()
        assert layer.call() is not None
    assert layer.call() is not None
    for width in range(10):  # anything that a guard tells apart
        layer.lora = torch.empty(5, width, dtype=torch.float16)
        layer.learn()
    (first,) = CALLER.quick.calls.hot.values()
    length = 0
    while first is not None:
        first, length = first.other, length + 1
    assert length <= MAX_VARIANTS


def test_what_was_not_launched_is_not_returned() -> None:
    layer = Layer()
    layer.learn()
    layer.code = MISALIGNED
    assert layer.call() is None
    layer.code = 700
    with pytest.raises(RuntimeError, match="CUDA error 700"):
        layer.call()


CHANGES = {
    "dtype": lambda tensor: setattr(tensor, "data", tensor.data.view(torch.int8)),
    "sizes": lambda tensor: setattr(tensor, "data", tensor.data[..., :-1]),
    "strides": lambda tensor: setattr(tensor, "data", tensor.data.repeat_interleave(2, dim=-1)[..., ::2]),
    "resized": lambda tensor: tensor.resize_(8),
    "a dimension more": lambda tensor: tensor.unsqueeze_(0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("index", range(5), ids=["wgt", "wscales", "lora_up", "wcscale", "bias"])
def test_a_known_weight_that_was_changed_goes_the_long_way(index: int, change: Any) -> None:
    layer = Layer()
    layer.learn()
    assert layer.call() is not None
    change(layer.weights[index])
    assert layer.call() is None
    assert len(layer.launched) == 1


def test_new_memory_of_a_known_weight_is_launched_with() -> None:
    layer = Layer()
    layer.learn()
    layer.weights[0].data = layer.weights[0].data.clone()
    assert layer.call() is not None
    assert layer.launched[0][2] is layer.weights[0]


def test_a_gradient_is_looked_at_in_every_call() -> None:
    layer = Layer()
    layer.learn()
    layer.weights[4].requires_grad_()
    assert layer.call() is None
    with torch.no_grad():
        layer.learn()
        assert layer.call() is not None
    assert layer.call() is None
    layer.lora.requires_grad_()
    with torch.no_grad():
        layer.learn()
        assert layer.call() is not None
    assert layer.call() is None
    layer.weights[4].requires_grad_(False), layer.lora.requires_grad_(False)
    assert layer.call() is not None


def test_layers_that_look_alike_share_what_was_learned() -> None:
    first, second = Layer(), Layer()
    first.learn()
    assert second.call() is not None
    wgt, wscales, lora_up, wcscale, bias = second.weights
    wanted = (second.act, second.ascales, wgt, wscales, second.lora, lora_up, wcscale, bias)
    assert all(got is value for got, value in zip(first.launched[0], wanted, strict=False))
    assert len(CALLER.quick.calls) == 1


class AnyPlan(SimpleNamespace):
    __hash__ = object.__hash__


def test_what_is_remembered_is_bounded() -> None:
    """Thousands of M of many layers; what is called again and again stays quick all the while."""
    limit = 64
    few = Quick(CALLER.signature, CALLER.runtime.keys, CALLER.runtime.steady, limit=limit)
    alive: weakref.WeakSet[AnyPlan] = weakref.WeakSet()
    steady, others, slow = Layer(calls=few), [Layer(calls=few) for _ in range(10)], 0
    steady.act = steady.act[:1].clone()
    steady.learn()
    for m in range(2, 1000):
        for other in others:
            other.act = torch.empty(m, 32, dtype=torch.uint8)
            other.plan = AnyPlan(**vars(other.plan))
            alive.add(other.plan)
            other.learn()
        if steady.call() is None:  # an aged call goes the long way once, which finds it again
            slow += 1
            steady.learn()
    assert all(other.call() is not None for other in others)
    for other in others:
        del other.plan
    gc.collect()
    assert len(few.calls) <= limit and len(few.near) <= limit and len(alive) <= 2 * limit
    assert slow <= 10 * 1000 / (limit / 2) + 1


def test_what_is_remembered_keeps_no_tensor() -> None:
    layer = Layer()
    layer.plan.launch = layer.plan.captured = lambda *values: 0
    layer.plan.workspaces = None
    layer.learn()
    assert layer.call() is not None
    gone = [weakref.ref(tensor) for tensor in (*layer.weights, layer.act, layer.lora)]
    del layer
    gc.collect()
    assert not [one for one in gone if one() is not None]
    assert len(CALLER.quick.calls) == 1
