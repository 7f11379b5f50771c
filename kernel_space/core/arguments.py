"""Arguments of an exported host function: what they are called, what C type they have, how a value is passed.

The generated host functions take one ``void **``: a pointer to each value. Tensors are passed as a struct
that the generated C header declares: ``{void *data; intNN dynamic_shapes[]; intNN dynamic_strides[]}``.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from kernel_space.core.errors import InputError

_SCALARS: dict[str, Any] = {
    "pointer": ctypes.c_uint64,
    "stream": ctypes.c_uint64,
    "int8": ctypes.c_int8,
    "int16": ctypes.c_int16,
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint8": ctypes.c_uint8,
    "uint16": ctypes.c_uint16,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
}
KINDS = (*_SCALARS, "tensor")
_INTEGERS = frozenset(kind for kind in _SCALARS if not kind.startswith("float"))


@dataclasses.dataclass(frozen=True)
class Argument:
    """One value of a host function. ``kind`` is one of ``KINDS``.

    For ``kind="tensor"``: how many sizes and strides are run-time values, and the width in bits of each.
    Static sizes are baked into the object and are not passed.
    """

    name: str
    kind: str
    dynamic_shapes: int = 0
    dynamic_strides: int = 0
    shape_bits: int = 32
    stride_bits: int = 64

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InputError(f"argument kind must be one of {', '.join(KINDS)}, got {self.kind!r}")


@dataclasses.dataclass(frozen=True)
class TensorValue:
    """A tensor handed to a host function: device address, and the dynamic sizes and strides in elements."""

    data: int
    shapes: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()


def pack(argument: Argument, value: Any) -> Any:
    """The ctypes object whose address goes into the argument vector; keep it alive during the call.

    ``value``: an integer (pointers and streams as addresses) or float, or a ``TensorValue``.
    Raises ``InputError`` when it does not fit the argument.
    """
    if argument.kind == "tensor":
        return _pack_tensor(argument, value)
    if argument.kind not in _INTEGERS:
        return _SCALARS[argument.kind](float(value))
    return _pack_integer(argument.name, argument.kind, value)


def _pack_integer(name: str, kind: str, value: Any) -> Any:
    ctype = _SCALARS[kind]
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise InputError(f"argument {name} ({kind}) must be an integer, got {value!r}")
    packed = ctype(value.__index__())
    if packed.value != value:
        raise InputError(f"argument {name} must fit {kind}, got {value}")
    return packed


def _pack_tensor(argument: Argument, value: Any) -> Any:
    if not isinstance(value, TensorValue):
        raise InputError(f"argument {argument.name} (tensor) must be a TensorValue, got {value!r}")
    for what, got, want in (
        ("sizes", value.shapes, argument.dynamic_shapes),
        ("strides", value.strides, argument.dynamic_strides),
    ):
        if len(got) != want:
            raise InputError(f"tensor {argument.name} has {want} dynamic {what}, got {len(got)}: {got}")
    parts = [("data", ctypes.c_uint64, value.data)]
    parts += _fields(argument.name, "shape", argument.shape_bits, value.shapes)
    parts += _fields(argument.name, "stride", argument.stride_bits, value.strides)
    # ctypes lays the fields out as C does, so mixed widths get the same padding as in the header's struct.
    layout = type("TensorArgument", (ctypes.Structure,), {"_fields_": [(n, c) for n, c, _ in parts]})
    return layout(*(v for _, _, v in parts))


def _fields(name: str, what: str, bits: int, values: Sequence[int]) -> list[tuple[str, Any, int]]:
    kind = f"int{bits}"
    return [
        (f"{what}{i}", _SCALARS[kind], _pack_integer(f"{name}.{what}[{i}]", kind, value).value)
        for i, value in enumerate(values)
    ]


# -- the generated C header --------------------------------------------------------------------------------

_C_KINDS = {
    "void *": "pointer",
    "cudaStream_t": "stream",
    "float": "float32",
    "double": "float64",
    **{f"{kind}_t": kind for kind in _SCALARS if "int" in kind and kind != "pointer"},
}
_TYPEDEF = re.compile(r"typedef struct \{([^}]*)\} (\w+);")
_VECTOR = re.compile(r"int(32|64)_t (dynamic_shapes|dynamic_strides)\[(\d+)\];")
_WRAPPER = re.compile(r"static inline \w+ \w+_wrapper\(([^)]*)\) \{.*?void \*args\[\d+\] = \{(.*?)&ret", re.S)
_PARAMETER = re.compile(r"(.*?)(\w+)$", re.S)


def arguments_from_header(text: str) -> tuple[Argument, ...]:
    """The arguments of the host function that the generated C header ``text`` declares, in calling order.

    An array (a CuTe shape or coordinate) becomes one argument per element, a tensor list one per tensor.
    Raises ``InputError`` for a header this reader does not understand.
    """
    wrapper = _WRAPPER.search(text)
    if wrapper is None:
        raise InputError("the C header declares no wrapper function; it must come from the DSL's export_to_c")
    typedefs = {name: body for body, name in _TYPEDEF.findall(text)}
    types = dict(_parameter(item) for item in wrapper.group(1).split(","))
    passed = [item.strip() for item in wrapper.group(2).split(",")]
    return tuple(_argument(item, types, typedefs) for item in passed if item)


def _parameter(text: str) -> tuple[str, str]:
    match = _PARAMETER.match(text.strip())
    if match is None:
        raise InputError(f"the C header has a parameter that cannot be read: {text.strip()!r}")
    return match.group(2), match.group(1).strip()


def _argument(passed: str, types: dict[str, str], typedefs: dict[str, str]) -> Argument:
    """One entry of the argument vector: ``&scalar``, ``tensor``, ``&array[i]`` or ``&list->elements[i]``."""
    name = re.sub(r"^&|->elements|\[\d+\]", "", passed)
    label = passed.lstrip("&").replace("->elements", "")
    ctype = types.get(name, "")
    if passed == f"&{name}" and ctype in _C_KINDS:
        return Argument(name, _C_KINDS[ctype])
    if passed.startswith("&") and "->" not in passed and ctype.rstrip("* ") in _C_KINDS:
        return Argument(label, _C_KINDS[ctype.rstrip("* ")])
    body = typedefs.get(ctype.rstrip("* ").replace("_TensorList_", "_Tensor_"))
    if body is None:
        raise InputError(f"the C header passes {passed!r} of type {ctype!r}, which is not supported")
    widths = {which: (int(bits), int(count)) for bits, which, count in _VECTOR.findall(body)}
    shape_bits, shapes = widths.get("dynamic_shapes", (32, 0))
    stride_bits, strides = widths.get("dynamic_strides", (64, 0))
    return Argument(label, "tensor", shapes, strides, shape_bits, stride_bits)
