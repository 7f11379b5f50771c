"""Integer arithmetic, comparison and selection. PTX ISA 9.7.1 "Integer Arithmetic", 9.7.6 "Comparison"."""

from __future__ import annotations

from kernel_space.machine.opcodes.float import FLOAT_TYPES, float_arithmetic
from kernel_space.machine.opcodes.table import INTEGER_TYPES, Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Operand, Pair
from kernel_space.machine.values.floats import COMPARISONS
from kernel_space.machine.values.lanes import FULL, MASKS

_PLAIN = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_UNSIGNED_WORDS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


def sources(c: Writer, instr: Instr, width: int, start: int = 1) -> list[str]:
    return [c.read(operand, width) for operand in instr.operands[start:]]


def varies(c: Writer, instr: Instr, start: int = 1) -> bool:
    return any(c.varies(operand) for operand in instr.operands[start:])


def arithmetic(c: Writer, instr: Instr, width: int, plain: str, general: str) -> None:
    """Write one of two templates over the sources {0} {1} {2}; {M} is the mask of the width."""
    template = general if varies(c, instr) else plain
    c.write(instr.operands[0], template.format(*sources(c, instr, width), M=MASKS[width], W=width))


def is_float(m: Modifiers) -> bool:
    return any(word in FLOAT_TYPES for word in m.rest)


@opcode("add")
def add(c: Writer, i: Instr, m: Modifiers) -> None:
    if is_float(m):
        return float_arithmetic(c, i, m, "add")
    if m.take("cc"):
        return _carry(c, i, m, "add", use=False)
    if m.take("sat"):
        m.need("s32")
        return arithmetic(
            c, i, 32, "saturate({0}, {1}, 1)", "per_lane(lambda x, y: saturate(x, y, 1), 32, {0}, {1})"
        )
    if m.take("u16x2", "s16x2"):
        a, b = sources(c, i, 32)
        return c.write(i.operands[0], f"packed(lambda x, y: add(x, y, 65535), {a}, {b})")
    width, _ = m.integer()
    arithmetic(c, i, width, "({0} + {1}) & {M}", "add({0}, {1}, {M})")


@opcode("sub")
def sub(c: Writer, i: Instr, m: Modifiers) -> None:
    if is_float(m):
        return float_arithmetic(c, i, m, "sub")
    if m.take("cc"):
        return _carry(c, i, m, "sub", use=False)
    if m.take("sat"):
        m.need("s32")
        return arithmetic(
            c, i, 32, "saturate({0}, {1}, -1)", "per_lane(lambda x, y: saturate(x, y, -1), 32, {0}, {1})"
        )
    width, _ = m.integer()
    arithmetic(c, i, width, "({0} - {1}) & {M}", "sub({0}, {1}, {M})")


@opcode("addc")
def addc(c: Writer, i: Instr, m: Modifiers) -> None:
    m.take("cc")
    _carry(c, i, m, "add", use=True)


@opcode("subc")
def subc(c: Writer, i: Instr, m: Modifiers) -> None:
    m.take("cc")
    _carry(c, i, m, "sub", use=True)


def _carry(c: Writer, i: Instr, m: Modifiers, how: str, *, use: bool) -> None:
    """The carry register belongs to the warp."""
    width, _ = m.integer()
    a, b = sources(c, i, width)
    carry = "w.carry" if use else "0"
    name = c.temporary()
    c.emit(f"{name}, w.carry = {how}_carry({a}, {b}, {carry}, {width})")
    c.write(i.operands[0], name)


@opcode("mul")
def mul(c: Writer, i: Instr, m: Modifiers) -> None:
    if is_float(m):
        return float_arithmetic(c, i, m, "mul")
    part = m.need("lo", "hi", "wide")
    width, is_signed = m.integer()
    if part == "lo":
        return arithmetic(c, i, width, "({0} * {1}) & {M}", "mul_lo({0}, {1}, {M})")
    if part == "wide":
        return _wide(c, i, width, is_signed)
    plain = "{0} * {1} >> {W}" if not is_signed else "scalar_mul_hi({0}, {1}, {W}, True)"
    arithmetic(c, i, width, plain, f"mul_hi({{0}}, {{1}}, {{W}}, {is_signed})")


def _wide(c: Writer, i: Instr, width: int, is_signed: bool) -> None:
    general = f"mul_wide({{0}}, {{1}}, {{W}}, {is_signed})"
    arithmetic(c, i, width, "{0} * {1}" if not is_signed else general, general)


@opcode("mad")
def mad(c: Writer, i: Instr, m: Modifiers) -> None:
    if is_float(m):
        return float_arithmetic(c, i, m, "fma")
    if m.take("cc"):
        return _mad_carry(c, i, m, use=False)
    part = m.need("lo", "hi", "wide")
    width, is_signed = m.integer()
    out = 2 * width if part == "wide" else width
    a, b = (c.read(operand, width) for operand in i.operands[1:3])
    addend = c.read(i.operands[3], out)
    if part == "lo" and not varies(c, i):
        return c.write(i.operands[0], f"({a} * {b} + {addend}) & {MASKS[width]}")
    product = {
        "lo": f"mul_lo({a}, {b}, {MASKS[width]})",
        "hi": f"mul_hi({a}, {b}, {width}, {is_signed})",
        "wide": f"mul_wide({a}, {b}, {width}, {is_signed})",
    }[part]
    c.write(i.operands[0], f"add({product}, {addend}, {MASKS[out]})")


@opcode("madc")
def madc(c: Writer, i: Instr, m: Modifiers) -> None:
    m.take("cc")
    _mad_carry(c, i, m, use=True)


def _mad_carry(c: Writer, i: Instr, m: Modifiers, *, use: bool) -> None:
    part = m.need("lo", "hi")
    width, is_signed = m.integer()
    a, b, addend = sources(c, i, width)
    product = (
        f"mul_lo({a}, {b}, {MASKS[width]})" if part == "lo" else f"mul_hi({a}, {b}, {width}, {is_signed})"
    )
    name = c.temporary()
    c.emit(f"{name}, w.carry = add_carry({product}, {addend}, {'w.carry' if use else '0'}, {width})")
    c.write(i.operands[0], name)


@opcode("mul24", "mad24")
def mul24(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need("lo")
    _, is_signed = m.integer()
    texts = sources(c, i, 32)
    product = f"per_lane(lambda x, y: product24(x, y, {is_signed}), 32, {texts[0]}, {texts[1]})"
    c.write(i.operands[0], product if len(texts) == 2 else f"add({product}, {texts[2]}, {FULL})")


@opcode("div", "rem")
def div(c: Writer, i: Instr, m: Modifiers) -> None:
    name = i.tokens[0]
    if is_float(m):
        return float_arithmetic(c, i, m, "div")
    width, is_signed = m.integer()
    a, b = sources(c, i, width)
    c.write(
        i.operands[0], f"per_lane(lambda x, y: {name}_int(x, y, {width}, {is_signed}), {width}, {a}, {b})"
    )


@opcode("abs", "neg")
def abs_neg(c: Writer, i: Instr, m: Modifiers) -> None:
    name = i.tokens[0]
    if is_float(m):
        return float_arithmetic(c, i, m, name)
    width, _ = m.integer()
    (a,) = sources(c, i, width)
    if name == "neg":
        c.write(i.operands[0], f"sub(0, {a}, {MASKS[width]})")
    else:
        c.write(i.operands[0], f"greater({a}, sub(0, {a}, {MASKS[width]}), {width}, True)")


@opcode("min", "max")
def min_max(c: Writer, i: Instr, m: Modifiers) -> None:
    name = i.tokens[0]
    if is_float(m):
        return float_arithmetic(c, i, m, name)
    relu = m.take("relu")
    kind = m.take("u16x2", "s16x2")
    helper = "lesser" if name == "min" else "greater"
    if kind:
        a, b = sources(c, i, 32)
        text = f"packed(lambda x, y: {helper}(x, y, 16, {kind[0] == 's'}), {a}, {b})"
        if relu:
            text = f"packed(lambda x: greater(x, 0, 16, True), {text})"
        return c.write(i.operands[0], text)
    width, is_signed = m.integer()
    a, b = sources(c, i, width)
    text = f"{helper}({a}, {b}, {width}, {is_signed})"
    c.write(i.operands[0], f"greater({text}, 0, {width}, True)" if relu else text)


@opcode("sad")
def sad(c: Writer, i: Instr, m: Modifiers) -> None:
    width, is_signed = m.integer()
    a, b, d = sources(c, i, width)
    high = f"greater({a}, {b}, {width}, {is_signed})"
    low = f"lesser({a}, {b}, {width}, {is_signed})"
    c.write(i.operands[0], f"add({d}, sub({high}, {low}, {MASKS[width]}), {MASKS[width]})")


@opcode("setp")
def setp(c: Writer, i: Instr, m: Modifiers) -> None:
    how = m.need(*COMPARISONS, *_UNSIGNED_WORDS)
    joined = m.take("and", "or", "xor")
    text = comparison(c, i, m, how, i.operands[1], i.operands[2])
    target = i.operands[0]
    if not joined and not isinstance(target, Pair):
        return c.write(target, text)
    name = c.temporary()
    c.emit(f"{name} = {text}")
    operator = {"and": "&", "or": "|", "xor": "^", "": ""}[joined]
    extra = f" {operator} {c.predicate(i.operands[3])}" if joined else ""
    if isinstance(target, Pair):
        c.write(target.first, f"{name}{extra}")
        c.write(target.second, f"({name} ^ {FULL}){extra}")
    else:
        c.write(target, f"{name}{extra}")


def comparison(c: Writer, i: Instr, m: Modifiers, how: str, left: Operand, right: Operand) -> str:
    """Expression of the lane mask of ``left how right``."""
    ftz = m.take("ftz")
    kind = m.take(*FLOAT_TYPES)
    if kind:
        if kind not in ("f32", "f64", "f16", "bf16") or ftz:
            raise c.fail("comparison type is not modelled", modifier=kind)
        width = FLOAT_TYPES[kind]
        return f"compare({c.read(left, width)}, {c.read(right, width)}, {how!r}, {kind!r})"
    width, is_signed = m.integer()
    how = _UNSIGNED_WORDS.get(how, how)
    if how not in _PLAIN:
        raise c.fail("comparison is not defined for integers", modifier=how)
    a, b = c.read(left, width), c.read(right, width)
    if is_signed and how not in ("eq", "ne"):
        sign = 1 << (width - 1)
        a, b = (str(int(text) ^ sign) if text.isdigit() else f"({text} ^ {sign})" for text in (a, b))
    test = f"{a} {_PLAIN[how]} {b}"
    if c.varies(left) or c.varies(right):
        return f"lane_mask({test})"
    return f"{FULL} if {test} else 0"


@opcode("set")
def set_(c: Writer, i: Instr, m: Modifiers) -> None:
    how = m.need(*COMPARISONS, *_UNSIGNED_WORDS)
    target = m.need("u32", "s32", "f32")
    text = comparison(c, i, m, how, i.operands[1], i.operands[2])
    one = 0x3F800000 if target == "f32" else FULL
    c.write(i.operands[0], f"select({one}, 0, {text}, {c.mask}, 32)")


@opcode("selp")
def selp(c: Writer, i: Instr, m: Modifiers) -> None:
    kind = m.need(*INTEGER_TYPES, *FLOAT_TYPES)
    width = INTEGER_TYPES[kind][0] if kind in INTEGER_TYPES else FLOAT_TYPES[kind]
    a, b = c.read(i.operands[1], width), c.read(i.operands[2], width)
    predicate = c.predicate(i.operands[3])
    if c.varies(i.operands[3]):
        c.write(i.operands[0], f"select({a}, {b}, {predicate}, {c.mask}, {width})")
    else:
        c.write(i.operands[0], f"{a} if {predicate} else {b}")


@opcode("slct")
def slct(c: Writer, i: Instr, m: Modifiers) -> None:
    width, _ = m.integer()
    m.need("s32")
    a, b = c.read(i.operands[1], width), c.read(i.operands[2], width)
    test = f"lane_mask(({c.read(i.operands[3])} ^ 2147483648) >= 2147483648)"
    c.write(i.operands[0], f"select({a}, {b}, {test}, {c.mask}, {width})")


@opcode("dp4a", "dp2a")
def dp4a(c: Writer, i: Instr, m: Modifiers) -> None:
    name = i.tokens[0]
    high = name == "dp2a" and m.need("lo", "hi") == "hi"
    signs = [word for word in m.rest if word in ("u32", "s32")]
    m.rest = [word for word in m.rest if word not in ("u32", "s32")]
    a, b, d = sources(c, i, 32)
    flags = f"{name == 'dp4a'}, {high}, {signs[0] == 's32'}, {signs[1] == 's32'}"
    function = f"lambda x, y, z: dot_product(x, y, z, {flags})"
    c.write(i.operands[0], f"per_lane({function}, 32, {a}, {b}, {d})")
