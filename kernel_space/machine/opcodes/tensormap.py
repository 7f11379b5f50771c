"""``tensormap.*`` and its proxy fence. PTX ISA 9.7.9.28 "tensormap.replace", 9.7.13 "fence.proxy.tensormap"."""

from __future__ import annotations

from kernel_space.machine.memory.tensor_map_updates import FIELDS, ORDINAL_FIELDS
from kernel_space.machine.opcodes.memory import address
from kernel_space.machine.opcodes.sync import converged, uniform
from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Mem

_SCOPES = ("cta", "cluster", "gpu", "sys")


def _where(c: Writer, i: Instr, at: int) -> str:
    operand = i.operands[at]
    assert isinstance(operand, Mem)
    return uniform(c, address(c, operand), operand.base)


def _whole_map(c: Writer, i: Instr) -> None:
    size = i.operands[-1]
    if not isinstance(size, Imm) or size.value != 128:
        raise c.fail("a tensor map has 128 bytes")


@opcode("tensormap.replace")
def replace(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need("tile")
    field = m.need(*FIELDS)
    shared = m.take("shared::cta", "global") == "shared::cta"
    m.need("b1024")
    width = int(m.need("b32", "b64")[1:])
    ordinal = "0"
    if field in ORDINAL_FIELDS:
        ordinal = uniform(c, c.read(i.operands[1]), i.operands[1])
    value = uniform(c, c.read(i.operands[-1], width), i.operands[-1])
    c.emit(f"tensormap_replace(w, {_where(c, i, 0)}, {shared}, {field!r}, {ordinal}, {value}, {c.site})")


@opcode("tensormap.cp_fenceproxy")
def cp_fenceproxy(c: Writer, i: Instr, m: Modifiers) -> None:
    for word in ("global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"):
        m.need(word)
    converged(c)
    m.need(*_SCOPES)
    _whole_map(c, i)
    c.emit(f"tensormap_copy(w, {_where(c, i, 0)}, {_where(c, i, 1)}, {c.site})")


@opcode("fence.proxy.tensormap::generic")
def fence_tensormap(c: Writer, i: Instr, m: Modifiers) -> None:
    how = m.need("acquire", "release")
    m.need(*_SCOPES)
    if how == "release":
        return c.emit(f"tensormap_release(w, {c.site})")
    _whole_map(c, i)
    c.emit(f"tensormap_acquire(w, {_where(c, i, 0)}, {c.site})")
