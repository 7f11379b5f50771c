"""Which plain accesses to global memory the clock follows to their addresses, and what waits for what they load.

An address is *known* when launch parameters, special registers and integer arithmetic decide it, or what the reduced
kernel computes anyway. Data that decide an address (a gather) or a guard are not there in a clocked run: such an
access counts as one whose lanes stand side by side, a guard as one that holds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from kernel_space.machine.clock.weights import FLOATS, memory_space, sass_instructions
from kernel_space.machine.ptx.cfg import EXIT, Block, Graph
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import WIDTHS, Imm, Mem, Reg
from kernel_space.machine.ptx.parse import Kernel

LOAD, STRONG, STORE, COPY = "load", "strong", "store", "copy"
PAST_L1: Final = frozenset({"acquire", "relaxed", "volatile", "mmio", "cg", "cv", "L1::no_allocate"})
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
    if kind == LOAD and not PAST_L1.isdisjoint(instr.tokens):
        kind = STRONG
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


def waiting_uses(graph: Graph, loads: Collection[int]) -> set[int]:
    """Instructions (by id) that a warp cannot issue before what it has loaded is there: the first to work with it.

    ``loads``: ids of loads. Copying a loaded register is no use of it; a wait is for all loads so far.
    """
    entering = [0] * len(graph.blocks)
    todo = [block.index for block in reversed(graph.blocks)]
    while todo:
        index = todo.pop()
        leaving = _pass(graph.blocks[index], entering[index], loads, set())
        for target in graph.blocks[index].successors:
            if target != EXIT and leaving & ~entering[target]:
                entering[target] |= leaving
                todo.append(target)
    waits: set[int] = set()
    for block in graph.blocks:
        _pass(block, entering[block.index], loads, waits)
    return waits


def _pass(block: Block, pending: int, loads: Collection[int], waits: set[int]) -> int:
    """Registers whose loads nobody has waited for behind ``block``, given those before it; adds to ``waits``."""
    for instr in block.instrs:
        reads = instr.source_bits & pending
        copies = reads and instr.definitions and not sass_instructions(instr, elects=False)
        if reads and not copies:
            waits.add(id(instr))
            pending = 0
        if id(instr) in loads or copies:
            pending |= instr.written_bits
        else:
            pending &= ~instr.written_bits
    return pending
