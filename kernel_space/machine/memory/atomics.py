"""Atomic operations on global and shared memory, lane by lane in lane order. PTX ISA 9.7.13 "atom", "red"."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from kernel_space.machine.memory.global_memory import _is_shared
from kernel_space.machine.memory.undefined import UndefinedBytes, birth_in, carry
from kernel_space.machine.values.faults import Unsupported
from kernel_space.machine.values.floats import BITS, binary, maximum, minimum, packed
from kernel_space.machine.values.lanes import (
    LANES,
    MASKS,
    UNSIGNED,
    Array,
    Value,
    first_lane,
    lane_list,
    signed,
)
from kernel_space.machine.values.undefined import where

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp

import numpy as np

_FLOAT_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {"add": np.add, "min": minimum, "max": maximum}


@functools.cache
def update(how: str, kind: str, shared: bool = True) -> Callable[..., Value]:
    """(old, operand, third) -> new value, on bits. Raises ``Unsupported``.

    Adding f32 in global memory flushes subnormal operands and results, in shared memory not (measured on Hopper).
    """
    if kind.endswith("x2"):
        half = update(how, kind[:-2])
        return lambda old, a, b=0: packed(half, old, a)
    if kind in BITS and how in _FLOAT_FUNCTIONS:
        function = _FLOAT_FUNCTIONS[how]
        ftz = kind == "f32" and how == "add" and not shared
        return lambda old, a, b=0: binary(function, old, a, kind, ftz)
    if kind in BITS and how != "exch":
        raise Unsupported(f"atomic {how} of {kind} is not modelled")
    width = BITS.get(kind) or int(kind[1:])
    mask = MASKS[width]
    order: Callable[[int], int] = (lambda v: signed(v, width)) if kind[0] == "s" else (lambda v: v)
    functions: dict[str, Callable[..., int]] = {
        "add": lambda old, a, b=0: (old + a) & mask,
        "min": lambda old, a, b=0: min(old, a, key=order),
        "max": lambda old, a, b=0: max(old, a, key=order),
        "and": lambda old, a, b=0: old & a,
        "or": lambda old, a, b=0: old | a,
        "xor": lambda old, a, b=0: old ^ a,
        "exch": lambda old, a, b=0: a,
        "cas": lambda old, a, b=0: b if old == a else old,
        "inc": lambda old, a, b=0: 0 if old >= a else old + 1,
        "dec": lambda old, a, b=0: a if old == 0 or old > a else old - 1,
    }
    return functions[how]


def atomic(
    w: Warp, address: Value, how: str, kind: str, operands: tuple[Value, ...], mask: int, site: int, order: str,
    scope: str, space: str, vector: bool,
) -> Value:  # fmt: skip
    """Old values. With ``vector`` each operand goes to the next element and nothing is returned."""
    w.site = site
    width = 32 if kind.endswith("x2") else BITS.get(kind) or int(kind[1:])
    size = width // 8
    shared = space == "shared" or (space == "" and _is_shared(address, mask))
    function = update(how, kind, shared)
    olds = np.zeros(32, UNSIGNED[width])
    tracks = w.races is not None or w.storing is not None
    if not shared:
        w.machine.global_version += 1
    for lane in lane_list(mask):
        bit = 1 << lane
        values = [first_lane(operand, bit) for operand in operands]
        place = first_lane(address, bit)
        groups = [[value] for value in values] if vector else [values]
        for number, group in enumerate(groups):
            view, at = _cell(w, place + number * size, size, shared, bit, site, order, scope)
            olds[lane] = old = int(view[at])
            view[at] = function(old, *group)
            if tracks:
                _bits(w, lane, number if vector else None, place + number * size, size, how, shared, site)
    lanes = lane_list(mask)
    return int(olds[lanes[0]]) if len(lanes) == 1 and mask == 1 else olds


def _bits(
    w: Warp, lane: int, number: int | None, address: int, size: int, how: str, shared: bool, site: int
) -> None:
    """The undefined bits of one element behind an atomic operation, and those of the old value in ``w.loaded``."""
    cell = _undefined_cell(w, address, size, shared)
    if cell is None:
        return
    memory, name, at = cell
    old = int(memory.views[size][at // size])
    given, birth = 0, None
    if w.storing is not None:
        items = w.storing.items if number is None else w.storing.items[number : number + 1]
        given, birth = (
            functools.reduce(lambda a, b: a | b, (int(bits[lane]) for bits in items)),
            w.storing.birth,
        )
    if old:
        birth = birth_in(w, memory, name, at, site)
        items = [np.zeros(LANES, np.uint64)]
        items[0][lane] = MASKS[8 * size]
        carry(w, items, birth)
    left = given if how == "exch" else old | given
    memory.views[size][at // size] = MASKS[8 * size] if left else 0
    if left and birth is not None:
        memory.note(at, at + size, birth, where(w, site))


def _undefined_cell(w: Warp, address: int, size: int, shared: bool) -> tuple[UndefinedBytes, str, int] | None:
    """(undefined bits, name of the memory, offset); None where all is defined and stays so."""
    if shared:
        cta, offset = w.cta.peer((address & 0xFFFFFFFF) >> 24), address & 0xFFFFFF
        return None if cta.smem.undefined is None else (cta.smem.undefined, f"SMEM{cta.suffix}", offset)
    region = w.machine.memory.find(address, address + size, "atomic")
    if region.undefined is None and w.storing is None:
        return None
    return region.bits(), region.name, address - region.base


def _cell(
    w: Warp, address: int, size: int, shared: bool, bit: int, site: int, order: str, scope: str
) -> tuple[Array, int]:
    from kernel_space.machine.memory.global_memory import _check_alignment

    _check_alignment(address, size, "atomic")
    if shared:
        cta, offset = w.cta.peer((address & 0xFFFFFFFF) >> 24), address & 0xFFFFFF
        cta.smem.check(offset, offset + size, size, "atomic")
        if w.races is not None:
            w.races.shared_strong(w, cta, offset, size, order, scope, bit, site, "atomic")
        return cta.smem.views[size], offset // size
    region = w.machine.memory.find(address, address + size, "atomic")
    if w.races is not None:
        w.races.global_atomic(w, region, address - region.base, size, order, scope, bit, site)
    return region.views[size], (address - region.base) // size
