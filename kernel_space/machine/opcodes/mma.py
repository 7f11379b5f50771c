"""Matrix products of a warp: ``mma.sync`` m16n8k16 (PTX ISA 9.7.14.5) and ``wgmma``."""

from __future__ import annotations

import re

from kernel_space.machine.opcodes.sync import converged, uniform
from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Operand, Vec
from kernel_space.machine.units.wgmma import SIZES
from kernel_space.machine.units.wgmma_order import emit_issue

_HALVES = ("f16", "bf16")
# Operands of wgmma -> accumulators that are modelled; those of f16 are not.
_SUMS = {
    **dict.fromkeys(("f16", "bf16", "tf32", "e4m3", "e5m2"), ("f32",)),
    **dict.fromkeys(("s8", "u8"), ("s32",)),
}


@opcode("mma.sync")
def mma_sync(c: Writer, i: Instr, m: Modifiers) -> None:
    c.meet()
    for word in ("aligned", "m16n8k16", "row", "col"):
        m.need(word)
    if m.rest not in (["f32", kind, kind, "f32"] for kind in _HALVES):
        raise c.fail("types are not modelled", modifier=".".join(m.rest))
    kind, m.rest = m.rest[1], []
    groups = ", ".join(_words(c, operand) for operand in i.operands[1:])
    _write(c, i, f"mma_16x8x16({kind!r}, {groups})")


@opcode("wgmma.mma_async")
def wgmma(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need("sync")
    m.need("aligned")
    c.meet()
    sums, a, b, scale, *rest = i.operands
    in_registers = isinstance(a, Vec)
    shape = _wgmma_shape(c, m, [item.value for item in rest if isinstance(item, Imm)], in_registers)
    emit_issue(c, i)
    accumulate = uniform(c, c.predicate(scale), scale)
    descriptor = uniform(c, c.read(b, 64), b)
    rows = _words(c, a) if in_registers else uniform(c, c.read(a, 64), a)
    words = f"{rows}, {descriptor}, {accumulate}, {_words(c, sums)}"
    name = "wgmma_registers" if in_registers else "wgmma_shared"
    _write(c, i, f"{name}(w, {shape}, {words}, {c.site})")


def _wgmma_shape(c: Writer, m: Modifiers, flags: list[int], in_registers: bool) -> str:
    """Text of a ``WgmmaShape``. ``flags``: signs of A and B where they are floats, then which of the operands in shared
    memory lie MN-major where they have 16 bits."""
    satfinite = m.take("satfinite")
    form = re.fullmatch(r"m64n(\d+)k(\d+)", m.rest[0])
    d, a, b = m.rest[1:] if len(m.rest) == 4 else ("", "", "")
    if form is None or d not in _SUMS.get(a, ()) or int(form[2]) * SIZES[a] != 32 or satfinite:
        raise c.fail("shape and types are not modelled", modifier=".".join(m.rest))
    if (a in _HALVES and a != b) or SIZES.get(b) != SIZES[a] or d not in _SUMS[b]:
        raise c.fail("shape and types are not modelled", modifier=".".join(m.rest))
    m.rest = []
    signs = [] if d == "s32" else flags[:2]
    majors = flags[len(signs) :]
    if in_registers and majors:
        majors = [0, *majors]
    sign = signs[0] * signs[1] if signs else 1
    return (
        f"WgmmaShape({int(form[1])}, {a!r}, {b!r}, {d!r}, {sign}, {', '.join(str(bool(x)) for x in majors)})"
    )


@opcode("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group")
def wgmma_order(c: Writer, i: Instr, m: Modifiers) -> None:
    m.ignore("sync", "aligned")
    converged(c)
    match i.tokens[1]:
        case "fence":
            c.emit("wgmma_fence(w)")
        case "commit_group":
            c.emit("wgmma_commit(w)")
        case _:
            c.emit(f"wgmma_wait(w, {c.read(i.operands[0])}, {c.site})")


def _words(c: Writer, operand: Operand) -> str:
    """The registers of a vector operand; PTX may write constants for accumulators that start at zero."""
    assert isinstance(operand, Vec)
    return f"({', '.join(str(item.value) if isinstance(item, Imm) else c.read(item, 32) for item in operand.items)})"


def _write(c: Writer, i: Instr, call: str) -> None:
    if not c.converged:
        raise c.fail("not all lanes of the warp are known to be here")
    target = i.operands[0]
    assert isinstance(target, Vec)
    name = c.temporary()
    c.emit(f"{name} = {call}")
    for number, item in enumerate(target.items):
        c.write(item, f"{name}[{number}]")
