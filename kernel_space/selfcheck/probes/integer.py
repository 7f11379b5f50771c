"""Probes of integer arithmetic, shifts, bit fields and byte permutation."""

from __future__ import annotations

from kernel_space.selfcheck.text import bits
from kernel_space.selfcheck.text.probe import Probe
from kernel_space.selfcheck.text.ptx_text import elementwise

_PAIRS = bits.tuples(bits.INT_EDGES, "integers", 128, 3)
_SMALL = (0, 1, 5, 16, 31, 32, 33, 63, 65, 0xFF, 0x10008)
_SHIFTS = bits.words(word for a in bits.INT_EDGES[::3] for n in _SMALL for word in (a, a ^ 0x5A5A5A5A, n))
_FIELDS = bits.words(
    word for a in (0xDEADBEEF, 0x7FFFFFFF) for p in _SMALL for n in _SMALL for word in (a, p, n)
)

_BINARY = (
    "mul.hi.u32", "mul.hi.s32", "mul.lo.s32", "mul24.lo.u32", "mul24.lo.s32", "add.sat.s32", "sub.sat.s32", "min.s32",
    "max.s32", "min.u32", "max.u32", "and.b32", "xor.b32", "min.s16x2", "max.u16x2", "add.u16x2",
)  # fmt: skip
_TERNARY = (
    "mad.lo.s32", "mad.hi.u32", "mad.hi.s32", "sad.u32", "sad.s32", "prmt.b32", "prmt.b32.f4e", "prmt.b32.b4e",
    "prmt.b32.rc8", "prmt.b32.ecl", "prmt.b32.ecr", "prmt.b32.rc16", "dp4a.u32.u32", "dp4a.s32.s32", "dp4a.s32.u32",
    "dp4a.u32.s32", "dp2a.lo.u32.s32", "dp2a.hi.s32.s32", "slct.b32.s32", "mad24.lo.s32",
)  # fmt: skip
_UNARY = (
    "not.b32", "cnot.b32", "neg.s32", "abs.s32", "popc.b32", "clz.b32", "brev.b32", "bfind.u32", "bfind.s32",
    "bfind.shiftamt.u32", "bfind.shiftamt.s32",
)  # fmt: skip
_LOP3 = (0x96, 0xE8, 0xCA, 0x80, 0xFE, 0x1B, 0x2D, 0x00, 0xFF)
_COMPARISONS = (
    "eq.s32", "ne.u32", "lt.s32", "lt.u32", "le.s32", "gt.u32", "ge.s32", "lo.u32", "hs.u32", "lt.s16", "lt.u16",
)  # fmt: skip


def probes() -> list[Probe]:
    binary = [_plain(opcode, 2, _PAIRS) for opcode in _BINARY]
    ternary = [_plain(opcode, 3, _PAIRS) for opcode in _TERNARY]
    unary = [_plain(opcode, 1, _PAIRS) for opcode in _UNARY]
    return [
        *binary,
        *ternary,
        *unary,
        *_lop3(),
        *_shifts(),
        *_fields(),
        *_wide(),
        *_carry(),
        *_division(),
        *_comparisons(),
    ]


def _plain(opcode: str, reads: int, inputs: bytes) -> Probe:
    operands = ", ".join(("%a", "%b", "%c")[:reads])
    return elementwise(
        f"integer.{opcode}", f"{opcode} of edges", f"{opcode} %x, {operands};", inputs, reads=3
    )


def _lop3() -> list[Probe]:
    return [_plain_code(f"lop3.{table:02x}", f"lop3.b32 %x, %a, %b, %c, {table};", _PAIRS) for table in _LOP3]


def _plain_code(name: str, code: str, inputs: bytes, writes: int = 1) -> Probe:
    return elementwise(f"integer.{name}", code.replace("\n", " "), code, inputs, reads=3, writes=writes)


def _shifts() -> list[Probe]:
    """Amounts of 32 and more: clamped by shl and shr, wrapped or clamped by shf."""
    found = [_plain_code(f"shf.{side}.{mode}", f"shf.{side}.{mode}.b32 %x, %a, %b, %c;", _SHIFTS)
             for side in "lr" for mode in ("wrap", "clamp")]  # fmt: skip
    found += [
        _plain_code(opcode, f"{opcode} %x, %a, %c;", _SHIFTS) for opcode in ("shl.b32", "shr.u32", "shr.s32")
    ]
    for opcode in ("shl.b64", "shr.u64", "shr.s64"):
        code = f"mov.b64 %q0, {{%a, %b}};\n{opcode} %q1, %q0, %c;\nmov.b64 {{%x, %y}}, %q1;"
        found.append(_plain_code(opcode, code, _SHIFTS, writes=2))
    return found


def _fields() -> list[Probe]:
    """Positions and lengths beyond the register; only their low 8 bits count."""
    found = [_plain_code(opcode, f"{opcode} %x, %a, %b, %c;", _FIELDS) for opcode in ("bfe.u32", "bfe.s32")]
    found.append(_plain_code("bfi.b32", "bfi.b32 %x, 0x13579BDF, %a, %b, %c;", _FIELDS))
    for opcode in ("bfe.u64", "bfe.s64"):
        limit = (
            "and.b32 %b, %b, 255;\nand.b32 %c, %c, 255;\n"  # the ISA's range; beyond it 32 and 64 bits differ
        )
        code = f"{limit}mov.b64 %q0, {{%a, %a}};\n{opcode} %q1, %q0, %b, %c;\nmov.b64 {{%x, %y}}, %q1;"
        found.append(_plain_code(opcode, code, _FIELDS, writes=2))
    modes = [("bmsk.clamp", "%x, %b, %c"), ("bmsk.wrap", "%x, %b, %c")]
    found += [_plain_code(name, f"{name}.b32 {operands};", _FIELDS) for name, operands in modes]
    for mode in ("clamp", "wrap"):
        for kind in ("u32", "s32"):
            found.append(_plain_code(f"szext.{mode}.{kind}", f"szext.{mode}.{kind} %x, %a, %c;", _FIELDS))
    found.append(_plain_code("fns.b32", "and.b32 %b, %b, 31;\nfns.b32 %x, %a, %b, 3;\nfns.b32 %y, %a, %b, -2;\n"
                             "fns.b32 %z, %a, %b, 0;", _FIELDS, writes=3))  # fmt: skip
    return found


def _wide() -> list[Probe]:
    found = []
    for opcode in ("mul.wide.u32", "mul.wide.s32"):
        found.append(
            _plain_code(opcode, f"{opcode} %q0, %a, %b;\nmov.b64 {{%x, %y}}, %q0;", _PAIRS, writes=2)
        )
    code = "mov.b64 %q0, {%b, %c};\nmad.wide.s32 %q1, %a, %b, %q0;\nmov.b64 {%x, %y}, %q1;"
    found.append(_plain_code("mad.wide.s32", code, _PAIRS, writes=2))
    for opcode in ("mul.hi.u64", "mul.hi.s64", "mul.lo.s64", "add.s64", "min.s64", "max.u64"):
        code = f"mov.b64 %q0, {{%a, %b}};\nmov.b64 %q1, {{%c, %a}};\n{opcode} %q2, %q0, %q1;\nmov.b64 {{%x, %y}}, %q2;"
        found.append(_plain_code(opcode, code, _PAIRS, writes=2))
    return found


def _carry() -> list[Probe]:
    add = "add.cc.u32 %x, %a, %b;\naddc.cc.u32 %y, %b, %c;\naddc.u32 %z, %a, 0;"
    sub = "sub.cc.u32 %x, %a, %b;\nsubc.cc.u32 %y, %b, %c;\nsubc.u32 %z, %a, 0;"
    mad = "mad.lo.cc.u32 %x, %a, %b, %c;\nmadc.hi.u32 %y, %a, %b, %c;"
    chains = (("add_carry", add, 3), ("sub_borrow", sub, 3), ("mad_carry", mad, 2))
    return [_plain_code(name, code, _PAIRS, writes=writes) for name, code, writes in chains]


def _division() -> list[Probe]:
    """Divisors are made odd: a zero divisor has no defined result."""
    return [
        _plain_code(opcode, f"or.b32 %b, %b, 1;\n{opcode} %x, %a, %b;", _PAIRS)
        for opcode in ("div.u32", "div.s32", "rem.u32", "rem.s32")
    ]


def _comparisons() -> list[Probe]:
    lines = ["mov.u32 %x, 0;", "cvt.u16.u32 %h0, %a;", "cvt.u16.u32 %h1, %b;"]
    for number, how in enumerate(_COMPARISONS):
        operands = "%h0, %h1" if how.endswith("16") else "%a, %b"
        lines += [f"setp.{how} %p0, {operands};", f"@%p0 or.b32 %x, %x, {1 << number};"]
    lines += ["setp.lt.and.s32 %p1|%p2, %a, %b, %p0;", "selp.u32 %y, 1, 0, %p1;", "selp.u32 %z, 1, 0, %p2;"]
    return [_plain_code("setp", "\n".join(lines), _PAIRS, writes=3)]
