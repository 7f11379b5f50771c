"""Which plain accesses to global memory the clock follows to their addresses.

An address is *known* when launch parameters, special registers and integer arithmetic decide it, or what the reduced
kernel computes anyway. Data that decide an address (a gather) or a guard are not there in a clocked run: such an
access counts as one whose lanes stand side by side, a guard as one that holds.
"""

from __future__ import annotations

from typing import Final

from kernel_space.machine.clock.weights import FLOATS, memory_space
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import WIDTHS, Imm, Mem, Reg
from kernel_space.machine.ptx.parse import Kernel

LOAD, STORE, COPY = "load", "store", "copy"
_GROUPS: Final = frozenset({"commit_group", "wait_group", "wait_all", "mbarrier", "bulk"})
_INTEGER: Final = frozenset({
    "abs", "activemask", "add", "and", "bfe", "bfi", "bfind", "brev", "clz", "cnot", "cvt", "cvta", "div", "elect",
    "lop3", "mad", "max", "min", "mov", "mul", "neg", "not", "or", "popc", "prmt", "rem", "sad", "selp", "set", "setp",
    "shf", "shfl", "shl", "shr", "sub", "vote", "xor",
})  # fmt: skip


def access_of(instr: Instr, unknown: int) -> Instr | None:
    """``instr`` as an access that the clock charges, or None. ``unknown``: registers (bits) that data decide."""
    kind, number = _kind_of(instr)
    if not kind:
        return None
    where = instr.operands[number]
    assert isinstance(where, Mem)
    guard = instr.guard if instr.guard is None or not unknown >> instr.guard.slot & 1 else None
    blind = isinstance(where.base, Reg) and unknown >> where.base.slot & 1
    return Instr(
        instr.line, f"timed.{kind}.blind" if blind else f"timed.{kind}",
        (Imm(0) if blind else where, Imm(_bytes_of(instr))),
        guard, instr.negated and guard is not None, instr.loc, instr.text,
    )  # fmt: skip


def _kind_of(instr: Instr) -> tuple[str, int]:
    """(kind of a plain access, its operand in global memory); no kind for anything else."""
    tokens = instr.tokens
    if tokens[:2] == ("cp", "async"):
        return (COPY, 1) if _GROUPS.isdisjoint(tokens) else ("", 0)
    if tokens[0] not in ("ld", "st") or memory_space(tokens) != "global":
        return "", 0
    return (LOAD, 1) if tokens[0] == "ld" else (STORE, 0)


def _bytes_of(instr: Instr) -> int:
    """Bytes of one lane."""
    if instr.tokens[0] == "cp":
        size = instr.operands[2]
        assert isinstance(size, Imm)
        return size.value
    count = next((int(token[1:]) for token in instr.tokens if token in ("v2", "v4", "v8")), 1)
    width = next(WIDTHS[token] for token in reversed(instr.tokens) if token in WIDTHS)
    return count * width // 8


def unknown_registers(kernel: Kernel, known: set[int]) -> int:
    """Registers (bits by slot) whose value data decide; ``known``: slots that the reduced kernel holds anyway."""
    held = sum(1 << slot for slot in known)
    unknown = 0
    flows = []
    for instr in kernel.instrs:
        if _is_opaque(instr):
            unknown |= instr.written_bits & ~held
        elif instr.written_bits:
            flows.append((instr.read_bits, instr.written_bits & ~held))
    while True:
        before = unknown
        for read, written in flows:
            if read & unknown:
                unknown |= written
        if unknown == before:
            return unknown


def _is_opaque(instr: Instr) -> bool:
    """May the result depend on more than the registers that the instruction reads?"""
    tokens = instr.tokens
    if tokens[0] == "ld":
        return memory_space(tokens) not in ("param", "const")
    return tokens[0] not in _INTEGER or not FLOATS.isdisjoint(tokens)
