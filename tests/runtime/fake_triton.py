"""As much of Triton as the quantizer's kernel uses, in torch on the CPU, one program of the grid after another.

What it computes is IEEE arithmetic in the dtypes that Triton gives the values; nothing about speed or memory layout.
``install`` puts it in place of the real one, so that the project's own kernel runs where there is no card.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch


class Block:
    """A tensor of a program, or a number of it."""

    def __init__(self, value: Any) -> None:
        self.value = value if isinstance(value, torch.Tensor) else torch.tensor(value)

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    def to(self, dtype: torch.dtype, bitcast: bool = False) -> Block:
        return Block(self.value.view(dtype) if bitcast else self.value.to(dtype))

    def __getitem__(self, index: Any) -> Block:
        return Block(self.value[index])

    def __invert__(self) -> Block:
        return Block(~self.value)


class Pointer:
    def __init__(self, memory: torch.Tensor, offset: Any = 0) -> None:
        self.memory, self.offset = memory, offset

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.offset + _raw(other))

    def load(self, mask: Block, other: float) -> Block:
        inside = mask.value.expand(self.offset.shape)
        found = torch.full(inside.shape, other, dtype=self.memory.dtype)
        found[inside] = self.memory.view(-1)[self.offset[inside]]
        return Block(found)

    def store(self, value: Block, mask: Block) -> None:
        inside = mask.value.expand(self.offset.shape)
        self.memory.view(-1)[self.offset[inside]] = value.value.expand(inside.shape)[inside]


def _raw(value: Any) -> Any:
    return value.value if isinstance(value, Block) else value


def _operation(name: str) -> Callable[[Block, Any], Block]:
    def apply(self: Block, other: Any) -> Block:
        return Block(getattr(self.value, name)(_raw(other)))

    return apply


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "floordiv", "mod", "and", "or", "lshift",
              "rshift", "lt", "le", "gt", "ge", "eq"):  # fmt: skip
    setattr(Block, f"__{_name}__", _operation(f"__{_name}__"))


class Kernel:
    """``@triton.jit``: called by other kernels, or launched over a grid."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **constants: Any) -> None:
            values = [Pointer(one) if isinstance(one, torch.Tensor) else one for one in arguments]
            for _place[:] in itertools.product(*map(range, grid)):
                self.function(*values, **constants)

        return launch


_place: list[int] = []


def install(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """The quantizer's module, on this Triton and for tensors on the CPU."""
    language = types.ModuleType("triton.language")
    names = {"float32": torch.float32, "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8}
    for name, value in {**names, **_FUNCTIONS}.items():
        setattr(language, name, value)
    triton = types.ModuleType("triton")
    triton.jit, triton.cdiv, triton.language = Kernel, lambda a, b: -(-a // b), language
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    monkeypatch.delitem(sys.modules, "tuner.layers.quantize_triton", raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda _: contextlib.nullcontext())
    module = importlib.import_module("tuner.layers.quantize_triton")
    monkeypatch.delitem(sys.modules, "tuner.layers.quantize_triton")
    return module


_FUNCTIONS: dict[str, Any] = {
    "constexpr": object,
    "program_id": lambda axis: Block(torch.tensor(_place[axis], dtype=torch.int32)),
    "arange": lambda start, end: Block(torch.arange(start, end, dtype=torch.int32)),
    "load": lambda pointer, mask, other: pointer.load(mask, other),
    "store": lambda pointer, value, mask: pointer.store(value, mask),
    "div_rn": lambda a, b: Block(a.value / b.value),
    "full": lambda shape, value, dtype: Block(torch.full(shape, value, dtype=dtype)),
    "broadcast_to": lambda a, shape: Block(a.value.broadcast_to(shape)),
    "reshape": lambda a, shape: Block(a.value.reshape(shape)),
    "expand_dims": lambda a, axis: Block(a.value.unsqueeze(axis)),
    "split": lambda a: (Block(a.value[..., 0]), Block(a.value[..., 1])),
    "abs": lambda a: Block(a.value.abs()),
    "floor": lambda a: Block(a.value.floor()),
    "where": lambda condition, a, b: Block(torch.where(condition.value, _raw(a), _raw(b))),
    # As fmaxf and fminf, which drop NaN; so does the reduction, in no promised way.
    "max": lambda a, axis: Block(_without_nan(a.value, -torch.inf).amax(dim=axis)),
    "maximum": lambda a, b: Block(torch.fmax(a.value, torch.as_tensor(_raw(b), dtype=a.value.dtype))),
    "minimum": lambda a, b: Block(torch.fmin(a.value, torch.as_tensor(_raw(b), dtype=a.value.dtype))),
}


def _without_nan(values: torch.Tensor, instead: float) -> torch.Tensor:
    return values.masked_fill(values.isnan(), instead) if values.is_floating_point() else values
