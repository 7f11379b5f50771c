"""``cvt`` and address conversions. PTX ISA 9.7.9 "cvt", "cvt.pack", "cvta", "mapa"."""

from __future__ import annotations

from kernel_space.machine.opcodes.float import FLOAT_TYPES
from kernel_space.machine.opcodes.table import INTEGER_TYPES, Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Reg
from kernel_space.machine.values.address_windows import SHARED_WINDOW

_ROUND_INT = ("rni", "rzi", "rmi", "rpi")
_ROUND = ("rn", "rz", "rna", "rm", "rp", "rs")
NARROW = ("e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2", "ue8m0x2")
_WIDE = ("e4m3x4", "e5m2x4", "e2m1x4")
_KINDS = {**{kind: kind for kind in INTEGER_TYPES}, **{kind: kind for kind in FLOAT_TYPES}}


@opcode("cvt")
def cvt(c: Writer, i: Instr, m: Modifiers) -> None:
    rounding = m.take(*_ROUND_INT, *_ROUND)
    finite, relu, ftz, saturate = m.take("satfinite"), m.take("relu"), m.take("ftz"), m.take("sat")
    types = [word for word in m.rest if word in _KINDS or word in (*NARROW, "tf32")]
    m.rest = [word for word in m.rest if word not in types]
    if len(types) != 2:
        raise c.fail("conversion is not modelled", modifier=".".join(m.rest))
    target, source = types
    if target in NARROW or source in NARROW:
        return _narrow(c, i, target, source, rounding, bool(relu))
    halves = ("f16", "bf16", "f16x2", "bf16x2")
    if target == "tf32":
        return _tf32(c, i, source, rounding, bool(relu), bool(finite))
    if rounding in ("rna", "rm", "rp", "rs") or (rounding == "rz" and target not in (*halves, "f32")):
        raise c.fail("rounding is not modelled", modifier=rounding)
    if target in ("f16x2", "bf16x2"):
        return _two_halves(c, i, target, rounding, bool(relu), bool(finite))
    _scalar(c, i, target, source, rounding, bool(saturate), bool(ftz), bool(relu))


def _scalar(
    c: Writer, i: Instr, target: str, source: str, rounding: str, saturate: bool, ftz: bool, relu: bool
) -> None:
    text = c.read(i.operands[1], _width(source))
    destination = i.operands[0]
    if not isinstance(destination, Reg):
        raise c.fail(f"cannot convert into {destination}")
    register = destination.width
    if target in INTEGER_TYPES and source in INTEGER_TYPES:
        return c.write(i.operands[0], _integers(c, i, text, target, source, register, saturate))
    if target in INTEGER_TYPES:
        width, is_signed = INTEGER_TYPES[target]
        result = f"float_to_int({text}, {source!r}, {width}, {is_signed}, {rounding!r}, {register})"
    elif source in INTEGER_TYPES:
        width, is_signed = INTEGER_TYPES[source]
        result = f"int_to_float({text}, {width}, {is_signed}, {target!r}, {rounding!r})"
    else:
        result = f"float_to_float({text}, {source!r}, {target!r}, {rounding!r}, {ftz})"
    if saturate:
        result = f"f_saturate({result}, {target!r})"
    c.write(i.operands[0], f"f_relu({result}, {target!r})" if relu else result)


def _tf32(c: Writer, i: Instr, source: str, rounding: str, relu: bool, finite: bool) -> None:
    if source != "f32" or finite or rounding not in ("rn", "rna", "rz"):
        raise c.fail("conversion is not modelled", modifier="tf32")
    c.write(i.operands[0], f"to_tf32({c.read(i.operands[1], 32)}, {rounding!r}, {relu})")


def _width(kind: str) -> int:
    return INTEGER_TYPES[kind][0] if kind in INTEGER_TYPES else FLOAT_TYPES[kind]


def _integers(c: Writer, i: Instr, text: str, target: str, source: str, register: int, saturate: bool) -> str:
    (width, is_signed), (from_width, from_signed) = INTEGER_TYPES[target], INTEGER_TYPES[source]
    if saturate:
        arguments = f"{from_width}, {from_signed}, {width}, {is_signed}, {register}"
        return f"per_lane(lambda a: clamp_int(a, {arguments}), {register}, {text})"
    own = i.operands[1].width if hasattr(i.operands[1], "width") else from_width
    narrowed = min(width, from_width)
    if width < register:  # the value of the narrow type is extended to the register by its own sign
        return f"resize(resize({text}, {narrowed}, {width}, {from_signed}), {width}, {register}, {is_signed})"
    if c.varies(i.operands[1]) or own != from_width or from_signed:
        return f"resize({text}, {from_width}, {register}, {from_signed})"
    return text if from_width <= register else f"{text} & {(1 << register) - 1}"


def _two_halves(c: Writer, i: Instr, target: str, rounding: str, relu: bool, finite: bool) -> None:
    high, low = c.read(i.operands[1]), c.read(i.operands[2])
    kind = target[:-2]
    if rounding == "rn" and not finite:
        text = f"cvt_{target}({high}, {low})"
    elif rounding in ("rn", "rz"):
        text = f"to_halves({high}, {low}, {kind!r}, {rounding!r}, {finite})"
    else:
        raise c.fail("rounding is not modelled", modifier=rounding)
    c.write(i.operands[0], f"packed(lambda x: f_relu(x, {kind!r}), {text})" if relu else text)


def _narrow(c: Writer, i: Instr, target: str, source: str, rounding: str, relu: bool) -> None:
    """Pairs of 8-, 6- and 4-bit floats; conversions to them saturate to the largest finite value."""
    if target in NARROW:
        kind = target[:-2]
        if source == "f32":
            high, low = c.read(i.operands[1]), c.read(i.operands[2])
            text = f"to_narrow({high}, {low}, 'f32', {kind!r}, {rounding!r}, {relu})"
        else:
            pair = c.read(i.operands[1])
            text = f"to_narrow(halves({pair})[1], halves({pair})[0], {source[:-2]!r}, {kind!r}, {rounding!r}, {relu})"
        return c.write(i.operands[0], text)
    kind = source[:-2]
    text = c.read(i.operands[1], 8 if kind == "e2m1" else 16)
    result = f"from_narrow({text}, {kind!r}, {target[:-2]!r})"
    c.write(i.operands[0], f"packed(lambda x: f_relu(x, {target[:-2]!r}), {result})" if relu else result)


@opcode("cvta")
def cvta(c: Writer, i: Instr, m: Modifiers) -> None:
    to = m.take("to")
    space = m.need("param", "shared", "global", "const", "local", "shared::cluster", "shared::cta")
    m.need("u64", "u32")
    text = c.read(i.operands[1], 64)
    if not space.startswith("shared"):
        return c.write(i.operands[0], text)
    if to:
        return c.write(i.operands[0], f"{text} & 4294967295")
    c.write(
        i.operands[0],
        f"shared_to_generic({text})" if c.varies(i.operands[1]) else f"{text} | {SHARED_WINDOW}",
    )


@opcode("isspacep")
def isspacep(c: Writer, i: Instr, m: Modifiers) -> None:
    space = m.need("shared", "global", "const", "local", "param", "shared::cta", "shared::cluster")
    c.write(i.operands[0], f"is_space(w, {c.read(i.operands[1], 64)}, {space!r})")


@opcode("mapa")
def mapa(c: Writer, i: Instr, m: Modifiers) -> None:
    """The same offset in another CTA: only the rank byte changes."""
    m.take("shared::cluster")
    width, _ = m.integer()
    address, rank = c.read(i.operands[1], width), c.read(i.operands[2])
    if c.varies(i.operands[2]) or c.varies(i.operands[1]):
        return c.write(i.operands[0], f"map_rank({address}, {rank}, {width})")
    c.write(i.operands[0], f"({address} & ~0xFF000000) | ({rank} & 255) << 24")


@opcode("getctarank")
def getctarank(c: Writer, i: Instr, m: Modifiers) -> None:
    m.take("shared::cluster")
    width, _ = m.integer()
    text = c.read(i.operands[1], width)
    c.write(i.operands[0], f"resize({text} >> 24, 32, 32, False) & 255")
