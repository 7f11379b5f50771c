"""How undefined bits pass through each kind of instruction: rules from the bits of the sources to those of the results.

A rule returns the undefined bits of each destination. They are exact for moves, logic with known operands, shifts,
permutations and selections; a carry makes the bits above an undefined one undefined; of any other arithmetic the
whole result (or the half that its operands belong to) is undefined when a bit of a source is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.machine.ptx.operands import WIDTHS, Imm, Pair, Reg, Vec
from kernel_space.machine.values import lanes, scalars
from kernel_space.machine.values.lanes import FULL, LANES, UNSIGNED, lane_flags, lane_mask, ndarray
from kernel_space.machine.values.undefined import NOTHING, Bits, all_bits

if TYPE_CHECKING:
    from kernel_space.machine.ptx.instruction import Instr
    from kernel_space.machine.translate.flow import Step

Rule = Callable[["Step"], list[Bits]]
HALVES = {"f16x2": 16, "bf16x2": 16, "u16x2": 16, "s16x2": 16, "f32x2": 32}
_WIDTHS = {**WIDTHS, "u16x2": 32, "s16x2": 32}
_EQUALITIES = ("eq", "ne")


def width_of(instr: Instr) -> int:
    """Of the type that the opcode ends with; 32 where it names none."""
    return next((_WIDTHS[word] for word in reversed(instr.tokens) if word in _WIDTHS), 32)


def needed_values(instr: Instr) -> tuple[tuple[int, int], ...]:
    """(operand, width) of the values that the rule of an instruction looks at."""
    width = width_of(instr)
    match instr.tokens[0]:
        case "and" | "or":
            return (1, width), (2, width)
        case "lop3":
            return (1, 32), (2, 32), (3, 32)
        case "shl" | "shr":
            return ((2, 32),)
        case "shf" | "prmt":
            return ((3, 32),)
        case "bfe":
            return (2, 32), (3, 32)
        case "bfi":
            return (3, 32), (4, 32)
        case "selp":
            return ((3, 1),)
        case "setp":
            return _compared(instr, width)
        case "shfl":
            return (2, 32), (3, 32)
        case "vote":
            return ((1, 1),)
    return ()


def _compared(instr: Instr, width: int) -> tuple[tuple[int, int], ...]:
    joined = ((3, 1),) if len(instr.operands) > 3 else ()
    return ((1, width), (2, width), *joined) if _exact(instr) else joined


def _exact(instr: Instr) -> bool:
    """Is it a comparison that one differing bit decides?"""
    return instr.tokens[1] in _EQUALITIES and instr.tokens[-1][0] in "bus"


# -- helpers -----------------------------------------------------------------------------------------------------------
def spread_value(value: Any, width: int) -> Bits:
    """A value of the machine as 64-bit lanes; lane masks of predicates as 0 and 1."""
    if width == 1:
        return lane_flags(int(value) & FULL).astype(np.uint64)
    if type(value) is ndarray:
        return value.astype(np.uint64)
    return np.full(LANES, value & lanes.MASKS[width], np.uint64)


def whole(bits: Bits, width: int) -> Bits:
    """Everything undefined in the lanes where a bit is."""
    return np.where(bits != 0, all_bits(width), np.uint64(0))


def parts(bits: Bits, part: int, width: int) -> Bits:
    """``whole`` of each part of ``part`` bits."""
    result = np.zeros(LANES, np.uint64)
    for low in range(0, width, part):
        result |= whole(bits >> np.uint64(low) & all_bits(part), part) << np.uint64(low)
    return result


def _per_lane(function: Callable[..., int], *columns: Bits) -> Bits:
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return np.array([function(*row) for row in rows], np.uint64)


# -- rules -------------------------------------------------------------------------------------------------------------
def arithmetic(s: Step) -> list[Bits]:
    """Any bit of any source makes all undefined; of packed types each half for itself."""
    found = s.any_source()
    half = next((HALVES[word] for word in s.instr.tokens if word in HALVES), 0)
    if half and s.instr.tokens[0] != "cvt":
        return s.same(parts(found, half, width_of(s.instr)))
    return s.same(whole(found, 64))


def sums(s: Step) -> list[Bits]:
    """Integer sums, differences and products: a bit depends on those at and below it."""
    if s.instr.tokens[-1][0] not in "us" or s.instr.tokens[-1] in HALVES or "sat" in s.instr.tokens:
        return arithmetic(s)
    found = s.any_source() & all_bits(width_of(s.instr))
    return s.same(found | (~found + np.uint64(1)))


def products(s: Step) -> list[Bits]:
    return sums(s) if "lo" in s.instr.tokens else arithmetic(s)


def move(s: Step) -> list[Bits]:
    target, source = s.instr.operands
    width = width_of(s.instr)
    bits = s.bits(source, width)
    if not isinstance(target, Vec):
        return [bits if width == 1 else bits & all_bits(width)]
    part = width // len(target.items)
    return [bits >> np.uint64(part * n) & all_bits(part) for n in range(len(target.items))]


def table(s: Step, ones: int, count: int) -> list[Bits]:
    """Bitwise logic: ``ones`` has a bit per minterm, the first of ``count`` operands the most significant. A bit of the
    result is undefined where the undefined bits of the sources can make it 0 and 1."""
    width = width_of(s.instr)
    unknown = [s.bits(s.instr.operands[1 + n], width) for n in range(count)]
    values = [spread_value(s.values[n], width) for n in range(count)]
    could = [np.zeros(LANES, np.uint64), np.zeros(LANES, np.uint64)]
    for minterm in range(1 << count):
        possible = np.full(LANES, all_bits(width))
        for n in range(count):
            same = values[n] if minterm >> (count - 1 - n) & 1 else ~values[n]
            possible &= same | unknown[n]
        could[ones >> minterm & 1] |= possible
    return s.same(could[0] & could[1] & all_bits(width))


def lop3(s: Step) -> list[Bits]:
    ones = s.instr.operands[4]
    return table(s, ones.value if isinstance(ones, Imm) else 0, 3)


def exclusive(s: Step) -> list[Bits]:
    """``xor`` and ``not``: an undefined bit stays one."""
    return s.same(s.any_source())


def _where_known(s: Step, bits: Bits, *deciding: int) -> list[Bits]:
    """``bits``, and everything where an operand that decides is undefined itself."""
    for number in deciding:
        bits = bits | whole(s.bits(s.instr.operands[number], 32), 64)
    return s.same(bits)


def shift(s: Step) -> list[Bits]:
    width = width_of(s.instr)
    bits = (s.bits(s.instr.operands[1], width) & all_bits(width)).astype(UNSIGNED[width])
    amount = spread_value(s.values[0], 32).astype(np.uint32)
    if s.instr.tokens[0] == "shl":
        moved = lanes.shift_left(bits, amount, width)
    else:
        moved = lanes.shift_right(bits, amount, width, s.instr.tokens[-1][0] == "s")
    return _where_known(s, np.asarray(moved).astype(np.uint64), 2)


def funnel(s: Step) -> list[Bits]:
    side, mode = s.instr.tokens[1:3]
    a, b = (s.bits(s.instr.operands[n], 32) for n in (1, 2))
    amount = spread_value(s.values[0], 32)
    moved = _per_lane(lambda x, y, n: scalars.funnel_shift(x, y, n, side, mode), a, b, amount)
    return _where_known(s, moved, 3)


def permutation(s: Step) -> list[Bits]:
    mode = next((word for word in s.instr.tokens[1:] if word != "b32"), "")
    a, b = (s.bits(s.instr.operands[n], 32) for n in (1, 2))
    selector = spread_value(s.values[0], 32)
    return _where_known(s, _per_lane(lambda x, y, n: scalars.permute(x, y, n, mode), a, b, selector), 3)


def field(s: Step) -> list[Bits]:
    """``bfe`` and ``bfi``"""
    width, signed = width_of(s.instr), s.instr.tokens[-1][0] == "s"
    at, length = (spread_value(value, 32) for value in s.values)
    a = s.bits(s.instr.operands[1], width)
    if s.instr.tokens[0] == "bfe":
        taken = _per_lane(lambda x, p, n: scalars.extract_field(x, p, n, width, signed), a, at, length)
        return _where_known(s, taken, 2, 3)
    b = s.bits(s.instr.operands[2], width)
    put = _per_lane(lambda x, y, p, n: scalars.insert_field(x, y, p, n, width), a, b, at, length)
    return _where_known(s, put, 3, 4)


def conversion(s: Step) -> list[Bits]:
    types = [word for word in s.instr.tokens if word in _WIDTHS]
    plain = len(types) == 2 and all(word[0] in "bus" for word in types) and "sat" not in s.instr.tokens
    if plain:
        return _resized(s, types[1], types[0])
    if len(s.instr.operands) == 3 and types[:1] in (["f16x2"], ["bf16x2"]):
        high, low = (whole(s.bits(operand, 32), 16) for operand in s.instr.operands[1:])
        return s.same(high << np.uint64(16) | low)
    return arithmetic(s)


def _resized(s: Step, source: str, target: str) -> list[Bits]:
    """Extension copies the sign, undefined or not."""
    width, narrow = _WIDTHS[target], _WIDTHS[source]
    bits = s.bits(s.instr.operands[1], narrow) & all_bits(narrow)
    register = s.instr.operands[0].width if isinstance(s.instr.operands[0], Reg) else width
    first = lanes.resize(bits.astype(UNSIGNED[narrow]), narrow, width, source[0] == "s")
    return s.same(
        np.asarray(lanes.resize(first, width, max(register, width), target[0] == "s")).astype(np.uint64)
    )


def copy(s: Step) -> list[Bits]:
    return s.same(s.any_source())


def selection(s: Step) -> list[Bits]:
    a, b, chosen = (s.bits(s.instr.operands[n], 64) for n in (1, 2, 3))
    picked = np.where(spread_value(s.values[0], 1) != 0, a, b)
    return s.same(picked | whole(chosen, 64))


def comparison(s: Step) -> list[Bits]:
    width = width_of(s.instr)
    unknown = s.bits(s.instr.operands[1], width) | s.bits(s.instr.operands[2], width)
    found = unknown != 0
    if _exact(s.instr):
        a, b = (spread_value(value, width) for value in s.values[:2])
        found &= ((a ^ b) & ~unknown & all_bits(width)) == 0
    if len(s.instr.operands) > 3:
        found = _joined(s, found)
    return s.same(found.astype(np.uint64))


def _joined(s: Step, found: Any) -> Any:
    """``setp.and``: a known false decides; ``setp.or``: a known true."""
    other, value = s.bits(s.instr.operands[3], 1) != 0, spread_value(s.values[-1], 1) != 0
    if "and" in s.instr.tokens:
        return (found & (other | value)) | other
    if "or" in s.instr.tokens:
        return (found & (other | ~value)) | other
    return found | other


def shuffle(s: Step) -> list[Bits]:
    s.must_be_defined(s.instr.operands[4], "the member mask")
    bits = s.bits(s.instr.operands[1], 32).astype(np.uint32)
    lane, clamp = (spread_value(value, 32).astype(np.uint32) for value in s.values)
    moved, _ = scalars.shuffle(bits, lane, clamp, s.instr.tokens[2], lane_mask(s.flags))
    unsure = whole(s.bits(s.instr.operands[2], 32) | s.bits(s.instr.operands[3], 32), 64)
    result = lanes.spread(moved, 32).astype(np.uint64) | unsure
    return [result, unsure & np.uint64(1)] if isinstance(s.instr.operands[0], Pair) else [result]


def vote(s: Step) -> list[Bits]:
    s.must_be_defined(s.instr.operands[2], "the member mask")
    unknown = (s.bits(s.instr.operands[1], 1) != 0) & s.flags
    value, how = (spread_value(s.values[0], 1) != 0) & s.flags, s.instr.tokens[2]
    known = s.flags & ~unknown
    if how == "ballot":
        return s.same(np.full(LANES, lane_mask(unknown), np.uint64))
    decided = {"any": (known & value).any(), "all": (known & ~value).any()}.get(
        how, (known & value).any() and (known & ~value).any()
    )
    return s.same(np.full(LANES, unknown.any() and not decided).astype(np.uint64))


def collective(s: Step) -> list[Bits]:
    """``match`` and ``redux``: every lane depends on all."""
    s.must_be_defined(s.instr.operands[2], "the member mask")
    found = np.count_nonzero(s.bits(s.instr.operands[1], 64)[s.flags])
    return s.same(np.full(LANES, all_bits(64)) if found else NOTHING)


def elect(s: Step) -> list[Bits]:
    s.must_be_defined(s.instr.operands[1], "the member mask")
    return s.same(NOTHING)


def load(s: Step) -> list[Bits]:
    """What memory brings comes behind the load."""
    s.must_be_defined(s.instr.operands[1], "the address")
    return s.same(NOTHING)


def store(s: Step) -> list[Bits]:
    s.must_be_defined(s.instr.operands[0], "the address")
    s.store_operands(*s.instr.operands[1:])
    return []


def atomic(s: Step) -> list[Bits]:
    s.must_be_defined(s.instr.operands[1], "the address")
    s.store_operands(*s.instr.operands[2:])
    return s.same(NOTHING)


def async_store(s: Step) -> list[Bits]:
    s.must_be_defined(s.instr.operands[0], "the address")
    s.must_be_defined(s.instr.operands[2], "the barrier")
    s.store_operands(s.instr.operands[1])
    return []


def tensor_store(s: Step) -> list[Bits]:
    s.must_be_defined(s.instr.operands[0], "the address")
    s.store_operands(s.instr.operands[-1])
    return []


def fixed(s: Step) -> list[Bits]:
    """Everything else works on barriers, descriptors, counts and addresses, which must be defined."""
    for operand in s.sources():
        s.must_be_defined(operand, f"an operand of {'.'.join(s.instr.tokens[:3])}")
    return s.same(NOTHING)


def wgmma(s: Step) -> list[Bits]:
    """Descriptors and the scale; what becomes of accumulators and fragments comes behind the product."""
    _, a, b, scale, *_ = s.instr.operands
    for operand, what in ((a, "descriptor"), (b, "descriptor"), (scale, "scale-d")):
        if not isinstance(operand, Vec):
            s.must_be_defined(operand, f"the {what} of wgmma")
    return []


def nothing(s: Step) -> list[Bits]:
    return []


_ARITHMETIC = """abs bfind bmsk brev clz cnot copysign cos div dp2a dp4a ex2 fma fns getctarank isspacep lg2 mapa max
min neg popc rcp rem rsqrt sad set sin slct sqrt szext tanh testp addc subc madc mul24 mad24"""
RULES: dict[str, Rule] = {
    **dict.fromkeys(_ARITHMETIC.split(), arithmetic),
    **dict.fromkeys(("add", "sub"), sums),
    **dict.fromkeys(("mul", "mad"), products),
    "mov": move,
    "and": lambda s: table(s, 0b1000, 2),
    "or": lambda s: table(s, 0b1110, 2),
    **dict.fromkeys(("xor", "not"), exclusive),
    "lop3": lop3,
    **dict.fromkeys(("shl", "shr"), shift),
    "shf": funnel,
    "prmt": permutation,
    **dict.fromkeys(("bfe", "bfi"), field),
    "cvt": conversion,
    "cvta": copy,
    "selp": selection,
    "setp": comparison,
    "shfl": shuffle,
    "vote": vote,
    **dict.fromkeys(("match", "redux"), collective),
    "elect": elect,
    **dict.fromkeys(("ld", "ldmatrix"), load),
    **dict.fromkeys(("st", "red", "stmatrix"), store),
    "st.async": async_store,
    "atom": atomic,
    "tcgen05.ld": load,
    "tcgen05.st": tensor_store,
    "wgmma.mma_async": wgmma,
    "mma.sync": nothing,
    **dict.fromkeys(("prefetch", "applypriority", "discard", "prefetchu", "nop", "pmevent"), nothing),
}


def rule_of(instr: Instr) -> Rule:
    return RULES.get(".".join(instr.tokens[:2])) or RULES.get(instr.tokens[0], fixed)
