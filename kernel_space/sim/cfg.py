"""Control-flow graph of a parsed kernel: basic blocks, post-dominators, liveness, spin waits.

Register sets are integers used as bit sets over ``Reg.slot``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from kernel_space.sim.operands import Mem, Not, Operand, Pair, Reg, Symbol, Vec
from kernel_space.sim.parse import Instr, Kernel

EXIT = -1
NO_DESTINATION = frozenset(
    {"bar", "barrier", "bra", "ret", "exit", "trap", "nanosleep", "setmaxnreg", "st", "red"}
)
PURE = frozenset(
    {"mov", "add", "sub", "and", "or", "xor", "not", "selp", "setp", "shl", "shr", "cvt", "mad", "mul"}
)


@dataclasses.dataclass(slots=True)
class Block:
    """Instructions ``instrs`` run in order; ``taken`` is the branch target, ``fall`` the next block.

    ``EXIT`` as a successor ends the warp's lanes; None: no such successor. ``spin``: the block starts with a
    ``try_wait`` that does nothing but come back here while it is false.
    """

    index: int
    instrs: list[Instr]
    taken: int | None = None
    fall: int | None = None
    spin: bool = False

    @property
    def successors(self) -> list[int]:
        return [target for target in (self.taken, self.fall) if target is not None]

    @property
    def guard(self) -> Reg | None:
        """The predicate of a conditional branch or exit at the end."""
        last = self.instrs[-1] if self.instrs else None
        return last.guard if last is not None and ends_flow(last) else None


@dataclasses.dataclass(slots=True)
class Graph:
    """Blocks with immediate post-dominators and live-in sets by block index; ``used``: registers anyone reads."""

    kernel: Kernel
    blocks: list[Block]
    ipdom: list[int]
    live_in: list[int]
    used: int

    def live_out(self, block: Block) -> int:
        live = 0
        for target in block.successors:
            live |= self.live_in[target] if target != EXIT else 0
        return live


def ends_flow(instr: Instr) -> bool:
    return instr.tokens[0] in ("bra", "ret", "exit", "trap")


def starts_block(instr: Instr) -> bool:
    """Operations that may have to be tried again stand first in their block."""
    tokens = instr.tokens
    if tokens[0] == "mbarrier":
        return tokens[1] == "try_wait"
    if tokens[:3] == ("cp", "async", "bulk"):
        return tokens[3] == "wait_group"
    return tokens[:2] in (("tcgen05", "alloc"), ("griddepcontrol", "wait")) or tokens[:3] == (
        "barrier",
        "cluster",
        "wait",
    )


def ends_block(instr: Instr) -> bool:
    """Flow, and operations after which a warp may have to wait."""
    tokens = instr.tokens
    if ends_flow(instr) or tokens[0] == "nanosleep":
        return True
    return (
        tokens[0] == "bar" or tokens[:2] in (("barrier", "sync"), ("barrier", "red"), ("barrier", "cta"))
    ) and ("arrive" not in tokens)


def registers_of(operand: Operand) -> Iterator[Reg]:
    """Every register that an operand mentions."""
    match operand:
        case Reg():
            yield operand
        case Vec(items):
            for item in items:
                yield from registers_of(item)
        case Pair(first, second):
            yield from registers_of(first)
            yield from registers_of(second)
        case Not(inner):
            yield from registers_of(inner)
        case Mem(base, _, coords):
            yield from registers_of(base)
            for item in coords or ():
                yield from registers_of(item)


def has_destination(instr: Instr) -> bool:
    tokens = instr.tokens
    if tokens[0] in NO_DESTINATION or not instr.operands or tokens[:2] == ("tcgen05", "dealloc"):
        return False
    return isinstance(instr.operands[0], Reg | Vec | Pair)


def definitions(instr: Instr) -> list[Reg]:
    return list(registers_of(instr.operands[0])) if has_destination(instr) else []


def uses(instr: Instr) -> list[Reg]:
    """Registers read; the guard and, for a guarded definition, the old value count."""
    operands = instr.operands[1:] if has_destination(instr) else instr.operands
    found = [register for operand in operands for register in registers_of(operand)]
    if instr.tokens[0] == "wgmma":
        found.extend(definitions(instr))  # the sums it adds to
    if instr.guard is not None:
        found.append(instr.guard)
        found.extend(definitions(instr))
    return found


def build_graph(kernel: Kernel) -> Graph:
    blocks = _split(kernel)
    for block in blocks:
        block.spin = _is_spin(block, blocks)
    used = 0
    for instr in kernel.instrs:
        for register in uses(instr):
            used |= 1 << register.slot
    return Graph(kernel, blocks, _post_dominators(blocks), _liveness(blocks), used)


def _split(kernel: Kernel) -> list[Block]:
    instrs = kernel.instrs
    leaders = {0, *kernel.labels.values()}
    for at, instr in enumerate(instrs):
        if starts_block(instr):
            leaders.add(at)
        if ends_block(instr):
            leaders.add(at + 1)
    starts = sorted(leader for leader in leaders if leader < len(instrs))
    number = {start: index for index, start in enumerate(starts)}
    blocks = [
        Block(index, instrs[start:end])
        for index, (start, end) in enumerate(zip(starts, [*starts[1:], len(instrs)], strict=True))
    ]
    for block in blocks:
        _link(block, kernel, number, len(blocks))
    return blocks


def _link(block: Block, kernel: Kernel, number: dict[int, int], count: int) -> None:
    last = block.instrs[-1]
    following = block.index + 1 if block.index + 1 < count else EXIT
    if not ends_flow(last):
        block.fall = following
        return
    if last.tokens[0] == "bra":
        target = last.operands[0]
        assert isinstance(target, Symbol)
        block.taken = number.get(kernel.labels[target.name], EXIT)
    else:
        block.taken = EXIT
    if last.guard is not None:
        block.fall = following


def _is_spin(block: Block, blocks: list[Block]) -> bool:
    """True for ``L: try_wait p; ...pure...; @p bra D; bra L;`` in any of its spellings."""
    first = block.instrs[0]
    if not (first.tokens[:2] == ("mbarrier", "try_wait") and first.guard is None and block.guard is not None):
        return False
    return _pure(block.instrs[1:-1]) and any(
        _leads_to(target, block.index, blocks) for target in block.successors
    )


def _pure(instrs: list[Instr]) -> bool:
    return all(instr.tokens[0] in PURE and instr.guard is None for instr in instrs)


def _leads_to(start: int, goal: int, blocks: list[Block]) -> bool:
    seen = set()
    while start != goal:
        if start == EXIT or start in seen:
            return False
        seen.add(start)
        block = blocks[start]
        body = block.instrs[:-1] if ends_flow(block.instrs[-1]) else block.instrs
        if block.guard is not None or not _pure(body) or len(block.successors) != 1:
            return False
        start = block.successors[0]
    return True


def _post_dominators(blocks: list[Block]) -> list[int]:
    """Immediate post-dominator of each block; ``EXIT`` where only the end is common."""
    everything = (1 << (len(blocks) + 1)) - 1  # bit 0 is EXIT, bit i + 1 is block i
    sets = [everything] * len(blocks)
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            common = everything
            for target in block.successors:
                common &= 1 if target == EXIT else sets[target]
            new = common | (2 << block.index)
            changed |= new != sets[block.index]
            sets[block.index] = new
    return [_nearest(sets, index) for index in range(len(blocks))]


def _nearest(sets: list[int], index: int) -> int:
    strict = sets[index] & ~(2 << index)
    for other in range(len(sets)):
        if strict >> (other + 1) & 1 and sets[other] == strict:
            return other
    return EXIT


def _liveness(blocks: list[Block]) -> list[int]:
    summaries = [_summary(block) for block in blocks]
    live = [0] * len(blocks)
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            out = 0
            for target in block.successors:
                out |= live[target] if target != EXIT else 0
            used, killed = summaries[block.index]
            new = used | (out & ~killed)
            changed |= new != live[block.index]
            live[block.index] = new
    return live


def _summary(block: Block) -> tuple[int, int]:
    """(registers read before any write, registers written unconditionally)."""
    used = killed = 0
    for instr in block.instrs:
        for register in uses(instr):
            used |= (1 << register.slot) & ~killed
        if instr.guard is None:
            for register in definitions(instr):
                killed |= 1 << register.slot
    return used, killed
