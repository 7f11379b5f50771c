"""Scalar integer functions of the rarer instructions, on unsigned Python integers."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernel_space.machine.values.faults import ProtocolError
from kernel_space.machine.values.lanes import (
    FULL,
    LANES,
    MASKS,
    SIGNED,
    UNSIGNED,
    Array,
    ndarray,
    signed,
    spread,
)


def saturate(a: int, b: int, sign: int) -> int:
    """Signed 32-bit sum (``sign`` 1) or difference (-1), clamped."""
    total = signed(a, 32) + sign * signed(b, 32)
    return min(max(total, -(2**31)), 2**31 - 1) & FULL


def product24(a: int, b: int, is_signed: bool) -> int:
    a, b = a & 0xFFFFFF, b & 0xFFFFFF
    if is_signed:
        a, b = (a ^ 0x800000) - 0x800000, (b ^ 0x800000) - 0x800000
    return a * b & FULL


def div_int(a: int, b: int, width: int, is_signed: bool) -> int:
    """Quotient toward zero; all ones for a zero divisor (unspecified by the ISA)."""
    if b == 0:
        return MASKS[width]
    if not is_signed:
        return a // b
    x, y = signed(a, width), signed(b, width)
    quotient = abs(x) // abs(y)
    return (quotient if (x < 0) == (y < 0) else -quotient) & MASKS[width]


def rem_int(a: int, b: int, width: int, is_signed: bool) -> int:
    if b == 0:
        return a
    if not is_signed:
        return a % b
    x, y = signed(a, width), signed(b, width)
    rest = abs(x) % abs(y)
    return (-rest if x < 0 else rest) & MASKS[width]


def add_carry(a: Any, b: Any, carry: Any, width: int) -> tuple[Any, Any]:
    """(sum, carry out) of unsigned values, per lane if any of them varies."""
    return _with_carry(lambda x, y, z: x + y + z, a, b, carry, width)


def sub_carry(a: Any, b: Any, carry: Any, width: int) -> tuple[Any, Any]:
    """(difference, borrow out)."""
    return _with_carry(lambda x, y, z: x - y - z, a, b, carry, width)


def _with_carry(function: Any, a: Any, b: Any, carry: Any, width: int) -> tuple[Any, Any]:
    if not any(type(value) is ndarray for value in (a, b, carry)):
        total = function(a, b, carry)
        return total & MASKS[width], int(total < 0 or total > MASKS[width])
    columns = [spread(value, width).tolist() for value in (a, b, carry)]
    totals = [function(*row) for row in zip(*columns, strict=True)]
    dtype = UNSIGNED[width]
    return (
        np.array([total & MASKS[width] for total in totals], dtype),
        np.array([total < 0 or total > MASKS[width] for total in totals], dtype),
    )


def funnel_shift(a: int, b: int, amount: int, side: str, mode: str) -> int:
    """``shf``: {b, a} shifted; the upper word for l, the lower for r."""
    amount = amount & 31 if mode == "wrap" else min(amount, 32)
    both = b << 32 | a
    return (both << amount >> 32 if side == "l" else both >> amount) & FULL


def permute(a: int, b: int, selector: int, mode: str) -> int:
    """``prmt``: bytes 0-3 are a, 4-7 are b; bit 3 of a selector nibble replicates the sign."""
    source = [(b << 32 | a) >> 8 * n & 0xFF for n in range(8)]
    if mode:
        picks = _permute_mode(selector & 3, mode)
        return sum(source[pick] << 8 * n for n, pick in enumerate(picks))
    result = 0
    for n in range(4):
        nibble = selector >> 4 * n & 15
        byte = source[nibble & 7]
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        result |= byte << 8 * n
    return result


def _permute_mode(index: int, mode: str) -> list[int]:
    match mode:
        case "f4e":
            return [index + n for n in range(4)]
        case "b4e":
            return [(index - n) % 8 for n in range(4)]
        case "rc8":
            return [index] * 4
        case "ecl":
            return [max(n, index) for n in range(4)]
        case "ecr":
            return [min(n, index) for n in range(4)]
    low = 2 * (index & 1)
    return [low, low + 1, low, low + 1]


def extract_field(a: int, position: int, length: int, width: int, is_signed: bool) -> int:
    """``bfe``: bits beyond the register read as 0, or as the sign."""
    position, length = position & 0xFF, length & 0xFF
    if not is_signed:
        return a >> position & ((1 << length) - 1)
    if length == 0:
        return 0
    value = signed(a, width) >> min(position, width - 1)
    length = min(length, width)
    value &= (1 << length) - 1
    sign = 1 << (length - 1)
    return ((value ^ sign) - sign) & MASKS[width]


def insert_field(a: int, b: int, position: int, length: int, width: int) -> int:
    position, length = position & 0xFF, length & 0xFF
    field = (((1 << length) - 1) << position) & MASKS[width]
    return (b & ~field) | (a << position & field)


def find_high_bit(a: int, width: int, is_signed: bool, shift: bool) -> int:
    """``bfind``: position of the most significant non-sign bit, all ones if there is none."""
    if is_signed and a >> (width - 1):
        a ^= MASKS[width]
    if a == 0:
        return FULL
    position = a.bit_length() - 1
    return width - 1 - position if shift else position


def find_nth_set(mask: int, base: int, offset: int) -> int:
    offset = signed(offset, 32)
    if offset == 0:
        return base if mask >> base & 1 else FULL
    positions = range(base, 32) if offset > 0 else range(base, -1, -1)
    found = [position for position in positions if mask >> position & 1]
    return found[abs(offset) - 1] if len(found) >= abs(offset) else FULL


def bit_mask(position: int, length: int, mode: str) -> int:
    if mode == "wrap":
        position, length = position & 31, length & 31
    return ((1 << min(length, 32)) - 1) << min(position, 32) & FULL


def extend_field(a: int, length: int, mode: str, is_signed: bool) -> int:
    length = length & 31 if mode == "wrap" else min(length, 32)
    value = a & ((1 << length) - 1)
    if is_signed and length and value >> (length - 1):
        value |= FULL & ~((1 << length) - 1)
    return value


def dot_product(a: int, b: int, c: int, by_four: bool, high: bool, sign_a: bool, sign_b: bool) -> int:
    """``dp4a``: four byte products; ``dp2a``: two 16-bit values times two bytes."""
    total = signed(c, 32)
    for n in range(4 if by_four else 2):
        width = 8 if by_four else 16
        x = a >> width * n & MASKS[width]
        y = b >> 8 * (n + 2 * high) & 0xFF
        total += (signed(x, width) if sign_a else x) * (signed(y, 8) if sign_b else y)
    return total & FULL


def vote(predicate: int, active: int, how: str) -> int:
    """``vote.sync``: ballot gives the mask, the others a predicate for all lanes."""
    chosen = predicate & active
    if how == "ballot":
        return chosen
    truth = {"all": chosen == active, "any": chosen != 0, "uni": chosen in (0, active)}[how]
    return FULL if truth else 0


def shuffle(value: Any, lane: Any, clamp: Any, how: str, active: int) -> tuple[Any, int]:
    """``shfl.sync``: (value, lane mask of in-range sources). PTX ISA 9.7.9 "shfl.sync".

    Raises ``ProtocolError`` when a lane reads one that is not ``active``: that has exited or is not a member.
    """
    if how == "idx" and active == FULL and type(value) is not ndarray and type(lane) is not ndarray:
        return value, FULL
    values, lanes, clamps = spread(value, 32), spread(lane, 32) & 31, spread(clamp, 32)
    segment, limit = clamps >> 8 & 31, clamps & 31
    own = np.arange(LANES, dtype=np.uint32)
    highest = (own & segment) | (limit & ~segment)
    lowest = own & segment
    source = {
        "up": own.astype(np.int64) - lanes,
        "down": own.astype(np.int64) + lanes,
        "bfly": (own ^ lanes).astype(np.int64),
        "idx": (lowest | (lanes & ~segment)).astype(np.int64),
    }[how]
    valid = source >= highest if how == "up" else source <= highest
    source = np.where(valid, source, own)
    inactive = ~(active >> source & 1).astype(bool)
    if (inactive & ((active >> own & 1) == 1)).any():
        raise ProtocolError("shfl.sync reads a lane that does not take part")
    result = values[source]
    mask = int.from_bytes(np.packbits(valid, bitorder="little").tobytes(), "little")
    if (result == result[0]).all():
        return int(result[0]), mask
    return result, mask


def reduce_lanes(value: Any, active: int, how: str, kind: str) -> int:
    """``redux.sync`` over the lanes of ``active``."""
    from kernel_space.machine.values.lanes import lane_flags

    lanes: Array = spread(value, 32)[lane_flags(active)]
    if kind == "s32":
        lanes = lanes.view(SIGNED[32])
    function = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
                "xor": np.bitwise_xor}[how]  # fmt: skip
    return int(function.reduce(lanes.astype(np.int64))) & FULL


def reduce_float_lanes(value: Any, active: int, how: str, absolute: bool, nan: bool) -> int:
    """``redux.sync.{min,max}.f32``: a NaN is passed over unless ``nan`` says that it wins; -0 is below +0."""
    from kernel_space.machine.values.lanes import lane_flags

    bits: Array = spread(value, 32)[lane_flags(active)].astype(np.uint32)
    if absolute:
        bits = bits & 0x7FFFFFFF
    is_nan = bits & 0x7FFFFFFF > 0x7F800000
    if is_nan.all() or (nan and is_nan.any()):
        return 0x7FFFFFFF
    bits = bits[~is_nan]
    # Sign and magnitude bits in the order of the numbers: integers compare as the floats do.
    ordered = np.where(bits >> 31, ~bits, bits | 0x80000000)
    return int(bits[np.argmax(ordered) if how == "max" else np.argmin(ordered)])
