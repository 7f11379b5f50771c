"""Floating-point arithmetic. PTX ISA 9.7.3 "Floating Point", 9.7.4 "Half Precision", packed f32x2 included."""

from __future__ import annotations

from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Operand, Reg

FLOAT_TYPES = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32, "f32x2": 64}
_FUNCTIONS = {"add": "f_add", "sub": "f_sub", "mul": "f_mul", "div": "f_div"}
_UNARY = {"abs": "f_abs", "neg": "f_neg"}
_SOURCES = {
    "fma": (3,),
    "neg": (1,),
    "abs": (1,),
    "min": (2, 3),
    "max": (2, 3),
}  # numbers of operands; others: 2
FLIP = {
    "f16": 0x8000,
    "bf16": 0x8000,
    "f32": 0x80000000,
    "f64": 1 << 63,
    "f16x2": 0x80008000,
    "bf16x2": 0x80008000,
}


def float_arithmetic(c: Writer, i: Instr, m: Modifiers, name: str) -> None:
    """``add sub mul fma div min max abs neg`` of any float type, to nearest even; in f32 directed as well."""
    approximate = name == "div" and m.take("approx", "full")
    rounding = m.take("rn", "rz", "rm", "rp")
    del approximate  # computed correctly rounded, which lies inside the error the ISA allows
    ftz, saturate, relu = bool(m.take("ftz")), m.take("sat"), m.take("relu")
    nan = m.take("NaN")
    magnitudes = name in ("min", "max") and len(i.operands) == 4 and m.take("abs")
    if m.take("xorsign"):
        raise c.fail("modifier is not modelled", modifier="xorsign")
    kind = m.need(*FLOAT_TYPES)
    if len(i.operands) - 1 not in _SOURCES.get(name, (2,)):
        raise c.fail(f"{len(i.operands) - 1} sources are not modelled")
    directed = rounding if rounding in ("rm", "rp") or kind == "f32x2" and rounding == "rz" else ""
    if directed and (kind not in ("f32", "f32x2") or name not in ("add", "sub", "mul", "fma") or ftz):
        raise c.fail("rounding is not modelled", modifier=rounding)
    if kind == "f32x2":
        return _packed_f32(c, i, name, ftz, directed)
    narrow = m.take("f16", "bf16") if kind == "f32" and name in ("add", "sub", "fma") else ""
    width = FLOAT_TYPES[kind]
    if narrow:  # mixed precision: all operands but the last are 16 bits wide
        first = [
            f"float_to_float({c.read(operand, 16)}, {narrow!r}, 'f32', '', False)"
            for operand in i.operands[1:-1]
        ]
        args = [*first, c.read(i.operands[-1], width)]
    else:
        args = [c.read(operand, width) for operand in i.operands[1:]]
    if magnitudes:
        args = [f"f_abs({argument}, {kind!r}, {ftz})" for argument in args]
    if rounding == "rz":
        if kind != "f32" or name == "div" or narrow:
            raise c.fail("truncation is modelled for f32 add, sub, mul and fma", modifier=rounding)
        text = f"toward_zero({name!r}, {kind!r}, {ftz}, {', '.join(args)})"
    else:
        text = expression(name, args, kind, ftz, bool(nan))
    if directed:
        text = f"directed({name!r}, {directed!r}, {', '.join(args)})"
    if saturate:
        text = f"f_saturate({text}, {kind!r})"
    if relu:
        text = f"f_relu({text}, {kind!r})"
    c.write(i.operands[0], text)


def expression(name: str, args: list[str], kind: str, ftz: bool, nan: bool = False) -> str:
    """Python text of one operation on bits."""
    if kind.endswith("x2"):
        names = [f"x{n}" for n in range(len(args))]
        inner = expression(name, names, kind[:-2], ftz, nan)
        return f"packed(lambda {', '.join(names)}: {inner}, {', '.join(args)})"
    if name in ("neg", "abs"):
        return f"f_{name}({args[0]}, {kind!r}, {ftz})"
    if name == "fma":
        return f"fma({args[0]}, {args[1]}, {args[2]}, {kind!r}, {ftz})"
    if name in ("min", "max"):
        function = f"f_{name}{'_nan' if nan else ''}"
        pair = f"{function}({args[0]}, {args[1]}, {kind!r}, {ftz})"
        return f"{function}({pair}, {args[2]}, {kind!r}, {ftz})" if len(args) == 3 else pair
    if kind == "f32" and not ftz and name != "div":
        return f"f32_{name}({args[0]}, {args[1]})"
    return f"f_{name}({args[0]}, {args[1]}, {kind!r}, {ftz})"


def _packed_f32(c: Writer, i: Instr, name: str, ftz: bool, directed: str) -> None:
    """Two f32 operations on the halves of 64-bit registers, which stay pairs."""
    target = i.operands[0]
    assert isinstance(target, Reg)
    varying = any(c.varies(operand) for operand in i.operands[1:])
    sources = [split(c, operand) for operand in i.operands[1:]]
    halves = []
    for half in (0, 1):
        local = c.temporary()
        args = [pair[half] for pair in sources]
        text = expression(name, args, "f32", ftz)
        if directed:
            text = f"directed({name!r}, {directed!r}, {', '.join(args)})"
        c.emit(f"{local} = {text}")
        halves.append(local)
    c.write_pair(target, halves[0], halves[1], varying)


def split(c: Writer, operand: Operand) -> tuple[str, str]:
    """(low, high) texts of a 64-bit operand."""
    pair = c.pair_of(operand)
    if pair is not None:
        return pair
    text = c.read(operand, 64)
    if c.varies(operand):
        return f"low_half({text}, 32)", f"high_half({text}, 32)"
    return f"({text} & 4294967295)", f"({text} >> 32)"


@opcode("fma")
def fma(c: Writer, i: Instr, m: Modifiers) -> None:
    float_arithmetic(c, i, m, "fma")


def _function(c: Writer, i: Instr, m: Modifiers, name: str) -> None:
    m.ignore("approx", "rn", "full")
    ftz = bool(m.take("ftz"))
    kind = m.need("f32", "f64", "f16", "bf16", "f16x2", "bf16x2")
    text = c.read(i.operands[1], FLOAT_TYPES[kind])
    if kind.endswith("x2"):
        c.write(i.operands[0], f"packed(lambda x: f_{name}(x, {kind[:-2]!r}, {ftz}), {text})")
    else:
        c.write(i.operands[0], f"f_{name}({text}, {kind!r}, {ftz})")


@opcode("rcp")
def rcp(c: Writer, i: Instr, m: Modifiers) -> None:
    _function(c, i, m, "rcp")


@opcode("sqrt")
def sqrt(c: Writer, i: Instr, m: Modifiers) -> None:
    _function(c, i, m, "sqrt")


@opcode("rsqrt")
def rsqrt(c: Writer, i: Instr, m: Modifiers) -> None:
    _function(c, i, m, "rsqrt")


@opcode("ex2")
def ex2(c: Writer, i: Instr, m: Modifiers) -> None:
    _function(c, i, m, "ex2")


@opcode("lg2")
def lg2(c: Writer, i: Instr, m: Modifiers) -> None:
    _function(c, i, m, "lg2")


@opcode("sin")
def sin(c: Writer, i: Instr, m: Modifiers) -> None:
    _function(c, i, m, "sin")


@opcode("cos")
def cos(c: Writer, i: Instr, m: Modifiers) -> None:
    _function(c, i, m, "cos")


@opcode("tanh")
def tanh(c: Writer, i: Instr, m: Modifiers) -> None:
    _function(c, i, m, "tanh")


@opcode("testp")
def testp(c: Writer, i: Instr, m: Modifiers) -> None:
    what = m.need("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    kind = m.need("f32", "f64")
    c.write(i.operands[0], f"has_property({c.read(i.operands[1], FLOAT_TYPES[kind])}, {kind!r}, {what!r})")


@opcode("copysign")
def copysign(c: Writer, i: Instr, m: Modifiers) -> None:
    kind = m.need("f32", "f64")
    sign, value = (c.read(operand, FLOAT_TYPES[kind]) for operand in i.operands[1:])
    flip = FLIP[kind]
    c.write(i.operands[0], f"({value} & {flip - 1}) | ({sign} & {flip})")
