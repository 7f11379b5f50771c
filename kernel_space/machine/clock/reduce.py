"""A kernel -> the part of it that decides when things happen.

Kept: barriers, fences, TMA, tensor-core and bulk-group operations (*events*), the branches that decide which of them
run, and the integer code that these need. Plain accesses to global memory keep their addresses, as far as no data
decide them (``accesses``). Everything else becomes ``timed.cost`` instructions that only move the clock. Operands that
no time depends on (shared-memory addresses of data, matrix descriptors) are replaced by 0, so that the code computing
them goes as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from kernel_space.machine.clock.accesses import access_of, unknown_registers, waiting_uses
from kernel_space.machine.clock.weights import Cost, Tally, elected_branches, memory_space
from kernel_space.machine.ptx.cfg import Block, Graph, build_graph, ends_flow
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Mem, Operand, Reg, Vec
from kernel_space.machine.ptx.parse import Kernel
from kernel_space.machine.ptx.uniformity import divergent_region
from kernel_space.machine.values.faults import Unsupported

LOADS = ("load", "strong")
ZERO = Imm(0)
NOWHERE = Mem(ZERO)
_SYNC = frozenset({"mbarrier", "bar", "barrier", "nanosleep"})
_TENSOR_EVENTS = frozenset({"alloc", "cp", "mma", "commit"})
_TENSOR_COSTS = frozenset({"dealloc", "relinquish_alloc_permit", "fence", "wait"})


@dataclasses.dataclass(frozen=True)
class Reduced:
    """``kernel`` runs in a ``TimedProgram``; operand of ``timed.cost`` is an index into ``costs``."""

    kernel: Kernel
    costs: tuple[Cost, ...]
    instructions: int


def reduce_kernel(kernel: Kernel) -> Reduced:
    """Raises ``Unsupported`` for control flow that data in global memory decide."""
    return _Reducer(build_graph(kernel)).run()


def event_of(instr: Instr) -> Instr | None:
    """The instruction as the clock sees it, or None if it is no event."""
    tokens = instr.tokens
    if tokens[0] in _SYNC and tokens[1:2] != ("warp",):
        return instr
    if tokens[0] == "tcgen05":
        return _tensor_event(instr)
    if tokens[:3] == ("cp", "async", "bulk"):
        return _bulk_event(instr)
    if tokens[:2] == ("cp", "async"):
        return _copy_event(instr)
    if tokens[:2] == ("st", "async"):
        return _async_store_event(instr)
    if tokens[:4] == ("cp", "reduce", "async", "bulk"):
        return _bulk_event(instr)
    if tokens[0] == "clusterlaunchcontrol":
        raise Unsupported("the clock has no dynamic tile scheduler", line=instr.line, opcode=instr.opcode)
    return None


def _tensor_event(instr: Instr) -> Instr | None:
    name = instr.tokens[1]
    if name in ("ld", "st"):
        data = instr.operands[0 if name == "ld" else -1]
        columns = len(data.items) if isinstance(data, Vec) else 1
        return dataclasses.replace(instr, opcode="timed.tmem", operands=(Imm(columns),))
    if name.split("::")[0] in _TENSOR_COSTS:
        return None
    if name not in _TENSOR_EVENTS:
        raise Unsupported("the clock does not know this operation", line=instr.line, opcode=instr.opcode)
    operands = instr.operands
    if name == "alloc":
        return dataclasses.replace(instr, operands=(NOWHERE, Imm(0)))
    if name == "cp":
        return dataclasses.replace(instr, operands=(NOWHERE, ZERO))
    if name == "mma":
        a: Operand = NOWHERE if isinstance(operands[1], Mem) else ZERO
        scales = (NOWHERE, NOWHERE) if "block_scale" in instr.tokens else ()
        return dataclasses.replace(instr, operands=(NOWHERE, a, ZERO, operands[3], *scales, Imm(1)))
    return instr


def _bulk_event(instr: Instr) -> Instr | None:
    tokens, operands = instr.tokens, instr.operands
    if "prefetch" in tokens:
        return dataclasses.replace(instr, opcode="timed.prefetch") if "tensor" in tokens else None
    if "commit_group" in tokens or "wait_group" in tokens:
        return instr
    if next(word for word in tokens if word.split("::")[0] in ("shared", "global")) != "global":
        return dataclasses.replace(instr, operands=(NOWHERE, *operands[1:]))
    target = operands[0]
    assert isinstance(target, Mem)
    coords = None if target.coords is None else tuple(ZERO for _ in target.coords)
    return dataclasses.replace(
        instr, operands=(Mem(target.base, target.offset, coords), NOWHERE, *operands[2:])
    )


def _async_store_event(instr: Instr) -> Instr:
    """What counts is which barrier learns of how many bytes."""
    value = instr.operands[1]
    data: Operand = Vec(tuple(ZERO for _ in value.items)) if isinstance(value, Vec) else ZERO
    return dataclasses.replace(instr, operands=(NOWHERE, data, instr.operands[2]))


def _copy_event(instr: Instr) -> Instr | None:
    """Groups and barriers of ``cp.async``; the copies themselves are accesses."""
    tokens = instr.tokens
    if "commit_group" in tokens:
        return dataclasses.replace(instr, opcode="timed.commit", operands=())
    if "wait_group" in tokens or "wait_all" in tokens:
        most = instr.operands[0] if "wait_group" in tokens else Imm(-1)
        return dataclasses.replace(instr, opcode="timed.wait", operands=(most,))
    return instr if "mbarrier" in tokens else None


class _Reducer:
    def __init__(self, graph: Graph) -> None:
        self.graph, self.kernel = graph, graph.kernel
        self.events = {
            id(instr): event for instr in self.kernel.instrs if (event := event_of(instr)) is not None
        }
        self.makers: dict[int, list[Instr]] = {}
        for instr in self.kernel.instrs:
            for register in instr.definitions:
                self.makers.setdefault(register.slot, []).append(instr)
        self.home = {id(instr): block.index for block in graph.blocks for instr in block.instrs}
        self.needed: set[int] = set()
        self.kept: set[int] = set()
        self.busy_blocks: set[int] = set()
        self.branches: set[int] = set()
        self.costs: dict[Cost, int] = {}
        self.elected = elected_branches(graph)
        self.events |= {id(instr): instr for instr in self._flag_stores()}
        self.accesses: dict[int, Instr] = {}
        self.waits: set[int] = set()
        self.open_accesses = False

    def run(self) -> Reduced:
        self._mark_events()
        self._mark_accesses()
        instrs: list[Instr] = []
        starts = []
        for block in self.graph.blocks:
            starts.append(len(instrs))
            instrs.extend(self._block(block))
        old_start, at = {}, 0
        for block, new in zip(self.graph.blocks, starts, strict=True):
            old_start[at] = new
            at += len(block.instrs)
        labels = {name: old_start.get(where, len(instrs)) for name, where in self.kernel.labels.items()}
        kernel = dataclasses.replace(self.kernel, instrs=instrs, labels=labels)
        return Reduced(kernel, tuple(self.costs), len(self.kernel.instrs))

    # -- what is needed ----------------------------------------------------------------------------------------
    def _mark_events(self) -> None:
        branches = [block for block in self.graph.blocks if block.guard is not None]
        self._mark(self.events, branches)

    def _mark_accesses(self) -> None:
        """After the events: branches that data decide are left as they are, so that an access is never a reason to
        refuse a kernel.
        """
        unknown = unknown_registers(self.kernel, self.needed)
        for instr in self.kernel.instrs:
            access = access_of(instr, unknown)
            if access is not None:
                self.accesses[id(instr)] = access
        loads = {number for number, access in self.accesses.items() if access.tokens[1] in LOADS}
        self.waits = waiting_uses(self.graph, loads)
        branches = [
            block
            for block in self.graph.blocks
            if block.guard is not None
            and block.index not in self.branches
            and not unknown >> block.guard.slot & 1
        ]
        self._mark(self.accesses, branches)

    def _mark(self, wanted: dict[int, Instr], open_branches: list[Block]) -> None:
        """Keep what ``wanted`` (id of an instruction -> what becomes of it) needs, and those branches that decide."""
        todo: list[Instr] = []
        for instr in self.kernel.instrs:
            event = wanted.get(id(instr))
            if event is not None:
                self.busy_blocks.add(self.home[id(instr)])
                self._want(event, todo)
        regions = {block.index: divergent_region(self.graph, block.index) for block in open_branches}
        while True:
            while todo:
                self._want(todo.pop(), todo)
            chosen = [block for block in open_branches if self._decides(block, regions[block.index])]
            if not chosen:
                return
            for block in chosen:
                self.branches.add(block.index)
                self._want(block.instrs[-1], todo)
            open_branches = [block for block in open_branches if block.index not in self.branches]

    def _decides(self, block: Block, region: set[int]) -> bool:
        """Does the branch choose between events, between values that are needed, or how often a loop runs?"""
        return block.spin or block.index in region or not region.isdisjoint(self.busy_blocks)

    def _want(self, instr: Instr, todo: list[Instr]) -> None:
        """Everything that computes the registers that ``instr`` reads."""
        for register in instr.uses:
            if register.slot in self.needed:
                continue
            self.needed.add(register.slot)
            for maker in self.makers.get(register.slot, ()):
                if id(maker) in self.kept:
                    continue
                self.kept.add(id(maker))
                self.busy_blocks.add(self.home[id(maker)])
                todo.append(self._value(maker))

    # -- writing -----------------------------------------------------------------------------------------------
    def _block(self, block: Block) -> list[Instr]:
        if block.spin:
            return block.instrs
        out: list[Instr] = []
        tally = Tally()
        for instr in block.instrs:
            event = self.events.get(id(instr))
            if id(instr) in self.waits:
                self._flush(tally, instr, out)
                out.append(Instr(instr.line, "timed.arrived", (), loc=instr.loc, text="timed.arrived"))
            if ends_flow(instr):
                self._end(block, instr, tally, out)
                return out
            tally.instruction(instr, elects=False)
            if event is not None:
                self._flush(tally, instr, out)
                out.append(event)
            elif (access := self.accesses.get(id(instr))) is not None:
                out.append(access)
                self.open_accesses = True
            elif id(instr) in self.kept:
                out.append(self._value(instr))
        self._flush(tally, block.instrs[-1], out)
        return out

    def _end(self, block: Block, last: Instr, tally: Tally, out: list[Instr]) -> None:
        tally.instruction(last, elects=block.index in self.elected)
        self._flush(tally, last, out)
        if last.guard is None or block.index in self.branches:
            out.append(last)

    def _flush(self, tally: Tally, instr: Instr, out: list[Instr]) -> None:
        cost = tally.take()
        if cost:
            number = self.costs.setdefault(cost, len(self.costs))
            out.append(
                Instr(
                    instr.line,
                    "timed.memory" if self.open_accesses else "timed.cost",
                    (Imm(number),),
                    loc=instr.loc,
                    text=f"timed.cost {cost}",
                )  # fmt: skip
            )
            self.open_accesses = False

    def _value(self, instr: Instr) -> Instr:
        """A needed definition; what comes from tensors or global memory is taken for 0."""
        tokens = instr.tokens
        if tokens[0] == "ld" and memory_space(tokens) not in ("param", "shared", "const"):
            raise Unsupported(
                "the control flow depends on global memory, which a clocked run does not hold",
                line=instr.line, opcode=instr.opcode,
            )  # fmt: skip
        if tokens[0] == "atom":
            return Instr(instr.line, "timed.atomic", instr.operands[:1], loc=instr.loc, text=instr.text)
        return instr

    def _flag_stores(self) -> Iterator[Instr]:
        """Stores of what an atomic returned: one thread tells the others, and they branch on it."""
        for instr in self.kernel.instrs:
            if instr.tokens[0] != "st" or memory_space(instr.tokens) != "shared":
                continue
            value = instr.operands[1]
            makers = self.makers.get(value.slot, []) if isinstance(value, Reg) else []
            if makers and all(maker.tokens[0] == "atom" for maker in makers):
                yield instr
