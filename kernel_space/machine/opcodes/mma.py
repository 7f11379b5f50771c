"""Matrix products of a warp: ``mma.sync`` m16n8k16 (PTX ISA 9.7.14.5) and ``wgmma`` m64nNk16."""

from __future__ import annotations

import re

from kernel_space.machine.opcodes.sync import uniform
from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Operand, Vec
from kernel_space.machine.units.wgmma_order import emit_issue

_HALVES = ("f16", "bf16")


@opcode("mma.sync")
def mma_sync(c: Writer, i: Instr, m: Modifiers) -> None:
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
    shape = re.fullmatch(r"m64n(\d+)k16", m.rest[0])
    if shape is None or m.rest[1:] not in (["f32", kind, kind] for kind in _HALVES):
        raise c.fail("shape and types are not modelled", modifier=".".join(m.rest))
    kind, m.rest = m.rest[-1], []
    sums, a, b, scale, *signs = i.operands
    in_registers = isinstance(a, Vec)
    if [sign.value for sign in signs if isinstance(sign, Imm)] != [1, 1, *([0] if in_registers else [0, 0])]:
        raise c.fail("needs K-major operands and no negation")
    emit_issue(c, i)
    accumulate = uniform(c, c.predicate(scale), scale)
    descriptor = uniform(c, c.read(b, 64), b)
    rows = _words(c, a) if in_registers else uniform(c, c.read(a, 64), a)
    words = f"{rows}, {descriptor}, {accumulate}, {_words(c, sums)}"
    name = "wgmma_registers" if in_registers else "wgmma_shared"
    _write(c, i, f"{name}(w, {kind!r}, {int(shape[1])}, {words}, {c.site})")


@opcode("wgmma.fence", "wgmma.commit_group", "wgmma.wait_group")
def wgmma_order(c: Writer, i: Instr, m: Modifiers) -> None:
    m.ignore("sync", "aligned")
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
