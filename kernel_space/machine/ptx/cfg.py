"""Control-flow graph of a parsed kernel: basic blocks, post-dominators, liveness, spin waits.

Register sets are integers used as bit sets over ``Reg.slot``.
"""

from __future__ import annotations

import dataclasses

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Reg, Symbol
from kernel_space.machine.ptx.parse import Kernel

EXIT = -1
POLLS = ("try_wait", "test_wait")
PURE = frozenset(
    {
        "nanosleep",
        "mov",
        "add",
        "sub",
        "and",
        "or",
        "xor",
        "not",
        "selp",
        "setp",
        "shl",
        "shr",
        "cvt",
        "mad",
        "mul",
    }
)


@dataclasses.dataclass(slots=True)
class Block:
    """Instructions ``instrs`` run in order; ``taken`` is the branch target, ``fall`` the next block.

    ``EXIT`` as a target ends the warp's lanes; None: no such target, and ``successors`` are the others. ``spin``: the
    block starts with a ``try_wait`` that does nothing but come back here while it is false.
    """

    index: int
    instrs: list[Instr]
    taken: int | None = None
    fall: int | None = None
    spin: bool = False
    successors: list[int] = dataclasses.field(default_factory=list)

    @property
    def guard(self) -> Reg | None:
        """The predicate of a conditional branch or exit at the end."""
        last = self.instrs[-1] if self.instrs else None
        return last.guard if last is not None and ends_flow(last) else None


@dataclasses.dataclass(slots=True)
class Graph:
    """Blocks with immediate post-dominators and live-in sets by block index; ``used``: registers anyone reads;
    ``mixes_groups``: tcgen05 instructions name both CTA groups.
    """

    kernel: Kernel
    blocks: list[Block]
    ipdom: list[int]
    live_in: list[int]
    used: int
    mixes_groups: bool

    def live_out(self, block: Block) -> int:
        live = 0
        for target in block.successors:
            live |= self.live_in[target] if target != EXIT else 0
        return live


def ends_flow(instr: Instr) -> bool:
    return instr.tokens[0] in ("bra", "ret", "exit", "trap")


def starts_block(instr: Instr) -> bool:
    """Operations that may have to be tried again stand first in their block, as do those of a clocked run that must not
    be reached before others have had their turn.
    """
    tokens = instr.tokens
    if tokens[0] == "timed":
        return tokens[1] == "memory"
    if tokens[0] == "mbarrier":
        return tokens[1] in POLLS
    if tokens[:3] == ("cp", "async", "bulk"):
        return tokens[3] == "wait_group"
    return tokens[:2] in (("tcgen05", "alloc"), ("setmaxnreg", "inc")) or (
        tokens[0] == "griddepcontrol" or tokens[:3] == ("barrier", "cluster", "wait")
    )


def ends_block(instr: Instr) -> bool:
    """Flow, and operations after which a warp may have to wait."""
    tokens = instr.tokens
    if ends_flow(instr) or tokens[0] == "nanosleep":
        return True
    return (
        tokens[0] == "bar" or tokens[:2] in (("barrier", "sync"), ("barrier", "red"), ("barrier", "cta"))
    ) and ("arrive" not in tokens)


def build_graph(kernel: Kernel) -> Graph:
    blocks = _split(kernel)
    for block in blocks:
        block.spin = _is_spin(block, blocks)
    used = 0
    for instr in kernel.instrs:
        used |= instr.read_bits
    return Graph(kernel, blocks, _post_dominators(blocks), _liveness(blocks), used, _mixes_groups(kernel))


def _mixes_groups(kernel: Kernel) -> bool:
    words = {word for instr in kernel.instrs if instr.tokens[0] == "tcgen05" for word in instr.tokens}
    return {"cta_group::1", "cta_group::2"} <= words


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
        block.successors = [target for target in (block.taken, block.fall) if target is not None]
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
    """True for ``L: try_wait p; ...pure...; @p bra D; bra L;`` in any of its spellings, with ``test_wait`` or a nap."""
    first = block.instrs[0]
    polls = first.tokens[0] == "mbarrier" and first.tokens[1] in POLLS
    if not (polls and first.guard is None and block.guard is not None):
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
    first = {members: index for index, members in reversed(list(enumerate(sets)))}
    return [first.get(members & ~(2 << index), EXIT) for index, members in enumerate(sets)]


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
        used |= instr.read_bits & ~killed
        if instr.guard is None:
            killed |= instr.written_bits
    return used, killed
