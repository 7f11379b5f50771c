"""What a layer's kernel does not write, and nobody reads, takes no memory; whoever calls the operator itself gets all.

The object is a host function in Python, which writes down the addresses that it is given.
"""

from __future__ import annotations

import contextlib
import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.core import registry
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import parse_config
from tests.runtime.test_any_operator import HOST_FUNCTION
from tuner.layers import linear_op
from tuner.runtime import caller, quick
from tuner.runtime.caller import Caller
from tuner.runtime.choice.remembered import forget_tables
from tuner.runtime.load import plan as plan_module
from tuner.runtime.load.loaded import Launchable
from tuner.runtime.load.plan import Plan
from tuner.runtime.load.workspace import Workspaces

NAME = "svdquant_linear_16bit"
OPERATOR = registry.operator(NAME)
PROBLEM = OPERATOR.problem.parse("5,64,16,16", dtype="bf16")
CONFIGS = {
    "merged": "kernel=merged tile_mnk=128x128x64 num_ab_stage=2",
    "chain": "kernel=smooth_mma+narrow",
}
OUTPUTS = {"xs": (5, 64), "lora_act_in": (5, 16), "y": (5, 16)}


class Object:
    def __init__(self) -> None:
        self.seen: list[dict[str, int]] = []
        self.function = HOST_FUNCTION(self._call)
        self.entry = ctypes.cast(self.function, ctypes.c_void_p).value or 0

    def _call(self, vector: int, length: int) -> None:
        addresses = (ctypes.c_void_p * length).from_address(vector)
        ctypes.c_int32.from_address(addresses[-1]).value = 0
        named = zip(OPERATOR.signature.abi, addresses[:-1], strict=True)
        self.seen.append(
            {one.name: ctypes.c_uint64.from_address(at).value for one, at in named if one.kind == "pointer"}
        )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``launched(text)``: an object of that config for any problem, the CPU as a card."""
    one, new = Object(), torch._C._dynamo.guards._empty_strided_cpu

    def plan(text: str) -> Plan:
        config = parse_config(NAME, SM90A, text)
        choice: Any = SimpleNamespace(problem=PROBLEM, config=config, is_padded=False)
        monkeypatch.setattr(
            plan_module.registry, "kernel_of", lambda *_: SimpleNamespace(room=lambda *_: no_room())
        )
        loaded: Any = None
        return Plan(
            choice,
            Launchable(device=0, entry=one.entry, sm_count=132, clusters=None, loaded=loaded),
            Workspaces(0),
        )

    def no_room() -> Any:
        return SimpleNamespace(size=0, zeroed=0)

    monkeypatch.setattr(quick, "new_tensor", new)
    monkeypatch.setattr(plan_module, "new_tensor", new)
    monkeypatch.setattr(quick, "_raw_stream", lambda device: 77)
    monkeypatch.setattr(quick, "_current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=77))
    forget_tables()
    yield one, lambda text: monkeypatch.setattr(caller, "plan_for", lambda *_: plan(text))
    forget_tables()


def called(one: Caller) -> list[tuple[torch.Tensor, ...]]:
    """The long way, then the short one."""
    tensors = OPERATOR.inputs(PROBLEM, 1, "gaussian", "cpu")
    inputs = tuple(tensors[name] for name in OPERATOR.signature.inputs)
    long = one.run(inputs, None, ("none",), asked="none", quick=True)
    short = one.short_way(inputs, None, "none")
    assert short is not None
    return [long, short]


@pytest.mark.parametrize("text", CONFIGS.values(), ids=CONFIGS)
def test_what_is_neither_written_nor_read_is_not_made(made: Any, text: str) -> None:
    one, use = made
    use(text)
    left_out = ("xs", "lora_act_in") if "merged" in text else ()
    calls = called(Caller(NAME, reads=("y",)))
    for outputs, seen in zip(calls, one.seen[-2:], strict=True):
        found = dict(zip(OPERATOR.signature.outputs, outputs, strict=True))
        assert {name for name, shape in OUTPUTS.items() if tuple(found[name].shape) != shape} == set(left_out)
        assert len({found[name].data_ptr() for name in left_out}) <= 1
        assert all(seen[name] == found[name].data_ptr() for name in OUTPUTS)


def test_it_is_the_same_small_tensor_in_every_call(made: Any) -> None:
    _, use = made
    use(CONFIGS["merged"])
    first, second = called(Caller(NAME, reads=("y",)))
    assert first[0] is first[1] is second[0] is second[1]
    assert first[0].nbytes == 16


def test_who_reads_all_gets_all(made: Any) -> None:
    _, use = made
    use(CONFIGS["merged"])
    for outputs in called(Caller(NAME)):
        assert [tuple(tensor.shape) for tensor in outputs] == list(OUTPUTS.values())


def test_a_layer_reads_y_alone() -> None:
    for one in linear_op.CALLERS.values():
        unread = {name for number, name in enumerate(one.signature.outputs) if number in one._unread}
        assert unread == set(one.signature.outputs) - {"y"}
