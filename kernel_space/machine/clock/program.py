"""A reduced kernel translated by the machine's own translator, with other functions behind its operations."""

from __future__ import annotations

import functools
from typing import Any, ClassVar

from kernel_space.machine.clock import engines, plain, sync
from kernel_space.machine.clock.reduce import reduce_kernel
from kernel_space.machine.opcodes.memory import address
from kernel_space.machine.opcodes.sync import uniform
from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Mem
from kernel_space.machine.ptx.parse import parse_ptx
from kernel_space.machine.translate import runtime_names
from kernel_space.machine.translate.translate import Program


@opcode("timed.cost")
def cost(c: Writer, i: Instr, m: Modifiers) -> None:
    number = _number(i)
    c.emit(f"w.t = w.t + w.costs[{number}]; w.issued += w.slots[{number}]; w.special += w.specials[{number}]")
    c.emit(f"w.visits[{number}] += 1")


@opcode("timed.memory")
def memory(c: Writer, i: Instr, m: Modifiers) -> None:
    c.emit(f"memory(w, {_number(i)})")


@opcode("timed.load", "timed.strong", "timed.store", "timed.copy")
def access(c: Writer, i: Instr, m: Modifiers) -> None:
    kind, size = i.tokens[1], _number(i, 1)
    if m.take("blind"):
        return c.emit(f"blind_access(w, {kind!r}, {size}, {c.mask})")
    name = "strong_load" if kind == "strong" else f"plain_{kind}"
    c.emit(f"{name}(w, {address(c, i.operands[0])}, {size}, {c.mask})")


@opcode("timed.arrived")
def arrived(c: Writer, i: Instr, m: Modifiers) -> None:
    c.emit("loads_arrived(w)")


@opcode("timed.commit")
def commit(c: Writer, i: Instr, m: Modifiers) -> None:
    c.emit("copy_commit(w)")


@opcode("timed.wait")
def wait(c: Writer, i: Instr, m: Modifiers) -> None:
    operand = i.operands[0]
    assert isinstance(operand, Imm)
    c.emit(f"copy_wait(w, {operand.value})")


@opcode("timed.tmem")
def tmem(c: Writer, i: Instr, m: Modifiers) -> None:
    c.emit(f"tmem_access(w, {_number(i)})")


@opcode("timed.atomic")
def atomic(c: Writer, i: Instr, m: Modifiers) -> None:
    c.write(i.operands[0], "w.cta.atomic()")


@opcode("timed.prefetch")
def prefetch(c: Writer, i: Instr, m: Modifiers) -> None:
    operand = i.operands[0]
    assert isinstance(operand, Mem) and operand.coords is not None
    where = uniform(c, address(c, Mem(operand.base, operand.offset)), operand.base)
    coords = "".join(uniform(c, c.read(item), item) + ", " for item in operand.coords)
    c.emit(f"tma_prefetch(w, {where}, ({coords}))")


def _number(instr: Instr, at: int = 0) -> int:
    operand = instr.operands[at]
    assert isinstance(operand, Imm)
    return operand.value


class TimedProgram(Program):
    """``costs``: what ``timed.cost`` operands mean, in counts of ``Clock`` fields."""

    names: ClassVar[dict[str, Any]] = {**runtime_names.NAMES, **sync.NAMES, **engines.NAMES, **plain.NAMES}
    counts: ClassVar[bool] = False
    tracks: ClassVar[bool] = False

    def __init__(self, ptx: str, kernel_name: str | None) -> None:
        reduced = reduce_kernel(parse_ptx(ptx, kernel_name))
        self.costs = reduced.costs
        super().__init__(reduced.kernel)


@functools.lru_cache(maxsize=64)
def timed_program(ptx: str, kernel_name: str | None = None) -> TimedProgram:
    """The reduced kernel of a PTX module; kept, for further launches and further sets of constants."""
    return TimedProgram(ptx, kernel_name)
