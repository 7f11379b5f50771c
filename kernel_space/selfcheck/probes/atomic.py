"""Probes of atomics and reductions on shared and global memory."""

from __future__ import annotations

from kernel_space.selfcheck.text import bits
from kernel_space.selfcheck.text.probe import Probe
from kernel_space.selfcheck.text.ptx_text import elementwise, per_thread

_INTS = bits.tuples(bits.INT_EDGES, "atomics", 128, 3)
_FLOATS = bits.tuples(bits.F32_EDGES, "float atomics", 128, 3)
_F16 = bits.tuples(
    tuple(a << 16 | b for a, b in zip(bits.F16_EDGES, reversed(bits.F16_EDGES), strict=True)), "half", 128, 3
)
_ATOMICS = ("add.u32", "exch.b32", "min.s32", "min.u32", "max.s32", "max.u32", "and.b32", "or.b32", "xor.b32",
            "inc.u32", "dec.u32", "cas.b32")  # fmt: skip
_WIDE_ATOMICS = ("add.u64", "min.s64", "max.u64", "cas.b64", "exch.b64")


def probes() -> list[Probe]:
    return [*_atomics(), *_float_atomics(), *_contended(), *_vector_reductions()]


def _atomic(space: str, opcode: str, inputs: bytes) -> Probe:
    """Each thread on a word of its own: %x the word afterwards, %y what the instruction returned."""
    more = ", %c" if opcode.startswith("cas") else ""
    prepare = "mad.wide.u32 %q0, %r299, 8, %out;\nst.global.b32 [%q0], %a;\n"
    where, load = "%q0", "ld.relaxed.gpu.global.b32 %x, [%q0];"
    if space == "shared":
        prepare = ".shared .align 16 .b8 room[512];\nmov.u32 %r0, room;\n"
        prepare += "mad.lo.u32 %r0, %thread, 4, %r0;\nst.shared.b32 [%r0], %a;\n"
        where, load = "%r0", "ld.shared.b32 %x, [%r0];"
    code = f"{prepare}atom.{space}.{opcode} %y, [{where}], %b{more};\n{load}"
    asks = f"atom.{space}.{opcode}: memory after, and the old value returned"
    return elementwise(f"atomic.{space}.{opcode}", asks, code, inputs, reads=3, writes=2)


def _atomics() -> list[Probe]:
    equal = b"".join(
        _INTS[n : n + 4] * 2 + _INTS[n + 8 : n + 12] if n % 24 else _INTS[n : n + 12]
        for n in range(0, len(_INTS), 12)
    )
    found = [
        _atomic(space, opcode, equal if opcode.startswith("cas") else _INTS)
        for space in ("global", "shared")
        for opcode in _ATOMICS
    ]
    for opcode in _WIDE_ATOMICS:
        more = ", %q3" if opcode.startswith("cas") else ""
        code = f"""\
            mad.wide.u32 %q0, %r299, 16, %out;
            mov.b64 %q1, {{%a, %b}};
            mov.b64 %q2, {{%c, %a}};
            mov.b64 %q3, {{%b, %c}};
            st.global.b64 [%q0], %q1;
            atom.global.{opcode} %q4, [%q0], %q2{more};
            ld.relaxed.gpu.global.b64 %q5, [%q0];
            mov.b64 {{%x, %y}}, %q5;
            mov.b64 {{%z, %w}}, %q4;"""
        found.append(
            elementwise(f"atomic.global.{opcode}", f"atom.global.{opcode}", code, _INTS, reads=3, writes=4)
        )
    return found


def _float_atomics() -> list[Probe]:
    found = [_atomic(space, "add.f32", _FLOATS) for space in ("global", "shared")]
    found += [
        _atomic("global", f"add.noftz.{kind}", data) for kind, data in (("f16x2", _F16), ("bf16x2", _FLOATS))
    ]
    return found


def _contended() -> list[Probe]:
    """128 threads on four words: the sums do not depend on the order."""
    code = """\
        mov.u32 %r0, room;
        setp.ge.u32 %p0, %thread, 4;
        mad.lo.u32 %r1, %thread, 4, %r0;
        @%p0 bra READY;
        st.shared.b32 [%r1], 5;
        READY:
        @%lead st.shared.b32 [%r0+16], 0;
        bar.sync 0;
        and.b32 %r2, %thread, 3;
        mad.lo.u32 %r2, %r2, 4, %r0;
        red.shared.add.u32 [%r2], %thread;
        atom.shared.inc.u32 %r3, [%r0+16], 50;
        bar.sync 0;
        mov.u32 %x, 0;
        mov.u32 %y, 0;
        @%p0 bra SKIP;
        ld.shared.b32 %x, [%r1];
        ld.shared.b32 %y, [%r0+16];
        SKIP:"""

    shared = ".shared .align 16 .b8 room[32];"
    return [
        per_thread(
            "atomic.contended",
            "128 threads add to 4 words, all increment one that wraps at 50",
            code,
            words=2,
            block=128,
            shared=shared,
        )
    ]


def _vector_reductions() -> list[Probe]:
    code = """\
        mad.wide.u32 %q0, %r299, 16, %out;
        st.global.v4.b32 [%q0], {%a, %b, %c, %a};
        red.global.add.VECTOR [%q0], OPERANDS;
        ld.relaxed.gpu.global.b32 %x, [%q0];
        ld.relaxed.gpu.global.b32 %y, [%q0+4];
        ld.relaxed.gpu.global.b32 %z, [%q0+8];
        ld.relaxed.gpu.global.b32 %w, [%q0+12];"""
    cases = (
        ("v2.f32", "{%b, %c}", _FLOATS),
        ("v4.f32", "{%b, %c, %a, %b}", _FLOATS),
        ("noftz.v2.f16x2", "{%b, %c}", _F16),
        ("noftz.v4.bf16x2", "{%b, %c, %a, %b}", _FLOATS),
    )
    return [
        elementwise(
            f"atomic.red.{kind}",
            f"red.global.add.{kind}",
            code.replace("VECTOR", kind).replace("OPERANDS", operands),
            data,
            reads=3,
            writes=4,
        )
        for kind, operands, data in cases
    ]
