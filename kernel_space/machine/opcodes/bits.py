"""Logic, shifts and bit manipulation. PTX ISA 9.7.7 "Logic and Shift", 9.7.1 "Integer Arithmetic" (bit fields)."""

from __future__ import annotations

from kernel_space.machine.opcodes.integer import arithmetic, sources, varies
from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Pair
from kernel_space.machine.values.lanes import FULL, MASKS


def _logic(c: Writer, i: Instr, m: Modifiers, operator: str) -> None:
    if m.take("pred"):
        a, b = c.predicate(i.operands[1]), c.predicate(i.operands[2])
        return c.write(i.operands[0], f"{a} {operator} {b}")
    width, _ = m.integer()
    a, b = sources(c, i, width)
    c.write(i.operands[0], f"{a} {operator} {b}")


@opcode("and")
def and_(c: Writer, i: Instr, m: Modifiers) -> None:
    _logic(c, i, m, "&")


@opcode("or")
def or_(c: Writer, i: Instr, m: Modifiers) -> None:
    _logic(c, i, m, "|")


@opcode("xor")
def xor(c: Writer, i: Instr, m: Modifiers) -> None:
    _logic(c, i, m, "^")


@opcode("not")
def not_(c: Writer, i: Instr, m: Modifiers) -> None:
    if m.take("pred"):
        return c.write(i.operands[0], f"{c.predicate(i.operands[1])} ^ {FULL}")
    width, _ = m.integer()
    arithmetic(c, i, width, "{0} ^ {M}", "{0} ^ {M}")


@opcode("cnot")
def cnot(c: Writer, i: Instr, m: Modifiers) -> None:
    width, _ = m.integer()
    (a,) = sources(c, i, width)
    c.write(i.operands[0], f"select(1, 0, lane_mask({a} == 0), {c.mask}, {width})")


@opcode("shl")
def shl(c: Writer, i: Instr, m: Modifiers) -> None:
    width, _ = m.integer()
    a, b = c.read(i.operands[1], width), c.read(i.operands[2], 32)
    if isinstance(i.operands[2], Imm) and int(b) < width and not varies(c, i):
        c.write(i.operands[0], f"({a} << {b}) & {MASKS[width]}")
    else:
        c.write(i.operands[0], f"shift_left({a}, {b}, {width})")


@opcode("shr")
def shr(c: Writer, i: Instr, m: Modifiers) -> None:
    width, is_signed = m.integer()
    a, b = c.read(i.operands[1], width), c.read(i.operands[2], 32)
    if isinstance(i.operands[2], Imm) and not is_signed and int(b) < width:
        c.write(i.operands[0], f"{a} >> {b}")
    else:
        c.write(i.operands[0], f"shift_right({a}, {b}, {width}, {is_signed})")


def _each(c: Writer, i: Instr, width: int, function: str, reads: int = 0, out: int = 0) -> None:
    """A scalar function of the sources on every lane."""
    texts = ", ".join(sources(c, i, reads or width))
    c.write(i.operands[0], f"per_lane({function}, {out or width}, {texts})")


@opcode("shf")
def shf(c: Writer, i: Instr, m: Modifiers) -> None:
    side, mode = m.need("l", "r"), m.need("wrap", "clamp")
    m.need("b32")
    _each(c, i, 32, f"lambda a, b, n: funnel_shift(a, b, n, {side!r}, {mode!r})")


@opcode("prmt")
def prmt(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need("b32")
    mode = m.take("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    _each(c, i, 32, f"lambda a, b, s: permute(a, b, s, {mode!r})")


@opcode("lop3")
def lop3(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need("b32")
    table = i.operands[4]
    if not isinstance(table, Imm) or isinstance(i.operands[0], Pair):
        raise c.fail("only the plain form is modelled")
    a, b, d = (c.read(operand) for operand in i.operands[1:4])
    terms = []
    for minterm in range(8):
        if table.value >> minterm & 1:
            parts = [
                text if minterm >> shift & 1 else f"({text} ^ {FULL})"
                for text, shift in ((a, 2), (b, 1), (d, 0))
            ]
            terms.append(" & ".join(parts))
    c.write(i.operands[0], " | ".join(terms) or "0")


@opcode("bfe")
def bfe(c: Writer, i: Instr, m: Modifiers) -> None:
    width, is_signed = m.integer()
    a, at, length = c.read(i.operands[1], width), c.read(i.operands[2]), c.read(i.operands[3])
    function = f"lambda a, p, n: extract_field(a, p, n, {width}, {is_signed})"
    c.write(i.operands[0], f"per_lane({function}, {width}, {a}, {at}, {length})")


@opcode("bfi")
def bfi(c: Writer, i: Instr, m: Modifiers) -> None:
    width, _ = m.integer()
    a, b = c.read(i.operands[1], width), c.read(i.operands[2], width)
    at, length = c.read(i.operands[3]), c.read(i.operands[4])
    c.write(
        i.operands[0],
        f"per_lane(lambda a, b, p, n: insert_field(a, b, p, n, {width}), {width}, {a}, {b}, {at}, {length})",
    )


@opcode("bfind")
def bfind(c: Writer, i: Instr, m: Modifiers) -> None:
    shift = bool(m.take("shiftamt"))
    width, is_signed = m.integer()
    _each(c, i, width, f"lambda a: find_high_bit(a, {width}, {is_signed}, {shift})", out=32)


@opcode("fns")
def fns(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need("b32")
    _each(c, i, 32, "find_nth_set")


@opcode("brev")
def brev(c: Writer, i: Instr, m: Modifiers) -> None:
    width, _ = m.integer()
    _each(c, i, width, f"lambda a: int(format(a, '0{width}b')[::-1], 2)")


@opcode("clz")
def clz(c: Writer, i: Instr, m: Modifiers) -> None:
    width, _ = m.integer()
    _each(c, i, width, f"lambda a: {width} - a.bit_length()", out=32)


@opcode("popc")
def popc(c: Writer, i: Instr, m: Modifiers) -> None:
    width, _ = m.integer()
    _each(c, i, width, "int.bit_count", out=32)


@opcode("bmsk")
def bmsk(c: Writer, i: Instr, m: Modifiers) -> None:
    mode = m.need("clamp", "wrap")
    m.need("b32")
    _each(c, i, 32, f"lambda a, b: bit_mask(a, b, {mode!r})")


@opcode("szext")
def szext(c: Writer, i: Instr, m: Modifiers) -> None:
    mode = m.need("clamp", "wrap")
    _, is_signed = m.integer()
    _each(c, i, 32, f"lambda a, b: extend_field(a, b, {mode!r}, {is_signed})")
