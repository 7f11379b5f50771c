"""Names that the generated Python text uses."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernel_space.machine.memory import (
    async_stores,
    atomics,
    bulk,
    global_memory,
    local_memory,
    smem,
    tensor_map_updates,
    tma,
    tmem,
)
from kernel_space.machine.translate import flow
from kernel_space.machine.units import (
    barriers,
    clc,
    dependents,
    fences,
    mbarrier,
    members,
    mma_sync,
    registers,
    shared_loads,
    tensor_loads,
    tensor_pipe,
    wgmma,
    wgmma_order,
)
from kernel_space.machine.values import conversions, directed_rounding, floats, lanes, scalars
from kernel_space.machine.values.address_windows import SHARED_WINDOW
from kernel_space.machine.values.lanes import UNSIGNED, Value, first_lane, ndarray


def pack_parts(low: Value, high: Value, shift: int, width: int) -> Value:
    """One more part of ``mov.b {a, b, c, ...}``."""
    dtype = UNSIGNED[width]
    parts = [value.astype(dtype) if type(value) is ndarray else value for value in (low, high)]
    return parts[0] | parts[1] << shift


def bits_at(value: Value, shift: int, width: int) -> Value:
    if type(value) is ndarray:
        return (value >> shift).astype(UNSIGNED[width])
    return value >> shift & lanes.MASKS[width]


def lane_value(value: Value, lane: int) -> Value:
    """``shfl.sync.idx`` with a constant lane."""
    return int(value[lane & 31]) if type(value) is ndarray else value


def match_any(value: Value, active: int, width: int) -> Value:
    values = lanes.spread(value, width)
    masks = [lanes.lane_mask(values == item) & active for item in values]
    return np.array(masks, np.uint32)


def match_all(value: Value, active: int, width: int) -> int:
    """``active`` if the values of its lanes are all the same, else 0."""
    values = lanes.spread(value, width)[lanes.lane_flags(active)]
    return active if (values == values[0]).all() else 0


def shared_to_generic(value: Value) -> Value:
    return (
        value.astype(np.uint64) | np.uint64(SHARED_WINDOW)
        if type(value) is ndarray
        else value | SHARED_WINDOW
    )


def map_rank(address: Value, rank: Value, width: int) -> Value:
    offset = lanes.spread(address, width) & UNSIGNED[width](~0xFF000000 & lanes.MASKS[width])
    return offset | lanes.spread(rank, 32).astype(UNSIGNED[width]) << 24


def is_space(w: Any, address: Value, space: str) -> int:
    window = first_lane(address, lanes.FULL) >> 60
    found = {1: "shared", 2: "param"}.get(window, "global")
    return lanes.FULL if space.startswith(found) else 0


def _float_functions() -> dict[str, Any]:
    binary, unary = floats.binary, floats.unary
    table: dict[str, Any] = {
        f"f_{name}": lambda a, b, kind, ftz, f=function: binary(f, a, b, kind, ftz)
        for name, function in {
            "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": floats.minimum,
            "max": floats.maximum, "min_nan": floats.minimum_nan, "max_nan": floats.maximum_nan,
        }.items()
    }  # fmt: skip
    table |= {
        f"f_{name}": lambda a, kind, ftz, f=function: unary(f, a, kind, ftz)
        for name, function in {
            "rcp": np.reciprocal, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "ex2": np.exp2, "lg2": np.log2,
            "sin": np.sin, "cos": np.cos, "tanh": np.tanh,
        }.items()
    }  # fmt: skip
    for name, function in {"add": np.add, "sub": np.subtract, "mul": np.multiply}.items():
        table[f"f32_{name}"] = _f32(function)
    return table


def _f32(function: Any) -> Any:
    view = np.float32

    def run(a: Value, b: Value) -> Value:
        if type(a) is ndarray:
            if type(b) is ndarray:
                return floats.canonical(function(a.view(view), b.view(view)), "f32")
            return floats.canonical(function(a.view(view), np.uint32(b).view(view)), "f32")
        if type(b) is ndarray:
            return floats.canonical(function(np.uint32(a).view(view), b.view(view)), "f32")
        bits = int(function(np.uint32(a).view(view), np.uint32(b).view(view)).view(np.uint32))
        return bits if bits & 0x7FFFFFFF <= 0x7F800000 else 0x7FFFFFFF

    return run


def _public(*modules: Any) -> dict[str, Any]:
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("_")
        and getattr(value, "__module__", None) == module.__name__
    }


NAMES: dict[str, Any] = {
    **_public(async_stores, atomics, barriers, bulk, clc, conversions, dependents, directed_rounding, fences),
    **_public(floats, global_memory, lanes, local_memory, mbarrier, members, mma_sync, registers, scalars, smem),
    **_public(shared_loads, tensor_loads, tensor_map_updates, tensor_pipe, tma, tmem, wgmma, wgmma_order),
    **_float_functions(),
    **{function.__name__: function for function in (
        pack_parts, bits_at, lane_value, match_all, match_any, shared_to_generic, map_rank, is_space,
        flow.step, flow.decide, flow.take_loaded, flow.product)},
}  # fmt: skip
