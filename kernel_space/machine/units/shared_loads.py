"""Which reads of shared memory are over when their warp gives the place to somebody else: those whose registers were
used.

PTX ISA, memory consistency model, "proxies": accesses through two proxies need a proxy fence between them. Kernels that
read a slot and then let the next copy into it have none, NVIDIA's neither: what they rely on is that a load whose
register was used has happened. One that has not may still be under way when the copy arrives: on an H200 ``sm90a_ring``
was wrong so. A later load that was used says nothing: ptxas may turn their order round.

``Program.open_loads`` are the loads that some path leads to a release without a use; only these, and what touches their
registers, cost anything while a kernel runs. A ``mov`` only gives a register another name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.machine.ptx.cfg import EXIT, build_graph
from kernel_space.machine.ptx.parse import parse_ptx

if TYPE_CHECKING:
    from kernel_space.machine.opcodes.writer import Writer
    from kernel_space.machine.ptx.cfg import Block, Graph
    from kernel_space.machine.ptx.instruction import Instr
    from kernel_space.machine.ptx.operands import Reg
    from kernel_space.machine.run.machine import Warp

_RELEASES = frozenset({"atom", "bar", "barrier", "fence", "mbarrier", "membar", "red"})
_NOT_SHARED = frozenset({"param", "global", "const", "local"})
_Held = dict[
    int, frozenset[int]
]  # register -> the loads of which it may have a result that nobody has needed


def open_loads(graph: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """(loads of shared memory that may be open at a release, instructions that touch a register of one)."""
    site_of = {id(instr): site for site, instr in enumerate(graph.kernel.instrs)}
    entering: list[_Held] = [{} for _ in graph.blocks]
    opened: set[int] = set()
    waiting = list(range(len(graph.blocks)))
    while waiting:
        block = graph.blocks[waiting.pop(0)]
        leaving = _through(block, dict(entering[block.index]), opened, site_of)
        for target in block.successors:
            if target != EXIT and _merge(entering[target], leaving) and target not in waiting:
                waiting.append(target)
    instrs = graph.kernel.instrs
    needed = frozenset(site for site in opened if instrs[site].written_bits & graph.used)
    return needed, frozenset(_touching(graph, needed))


def lines_of_open_loads(ptx: str, entry: str) -> set[int]:
    """Lines of loads of shared memory that may be under way at some release."""
    kernel = parse_ptx(ptx, entry)
    return {kernel.instrs[site].line for site in open_loads(build_graph(kernel))[0]}


def reads_shared(instr: Instr) -> bool:
    """May it be a weak load from shared memory?"""
    return instr.tokens[0] == "ldmatrix" or (instr.tokens[0] == "ld" and not _NOT_SHARED & {*instr.tokens})


def _is_fence(instr: Instr) -> bool:
    return instr.tokens[:3] == ("fence", "proxy", "async") and "global" not in instr.tokens


def _releases(instr: Instr) -> bool:
    """May others come behind what this warp has done, once they have seen this?"""
    tokens = instr.tokens
    if tokens[0] in _RELEASES or "release" in tokens:
        return not _is_fence(instr)
    return tokens[:3] == ("cp", "async", "bulk") or tokens[:2] == ("tcgen05", "commit")


def _through(block: Block, held: _Held, opened: set[int], site_of: dict[int, int]) -> _Held:
    """What is held at the end of the block; adds to ``opened``."""
    for instr in block.instrs:
        if reads_shared(instr):
            loads = frozenset({site_of[id(instr)]})
        elif not held:
            continue
        else:
            if _releases(instr):
                opened.update(*held.values())
            elif _is_fence(instr):
                held.clear()
            loads = _taken(instr, held)
        for register in instr.definitions:
            if instr.guard is not None:
                held[register.slot] = held.get(register.slot, frozenset()) | loads
            else:
                held[register.slot] = loads
            if not held[register.slot]:
                del held[register.slot]
    return held


def _taken(instr: Instr, held: _Held) -> frozenset[int]:
    """The loads that a ``mov`` takes on to its destination. Any other instruction needs its sources, and what it needs
    is over, in all registers where it is known which load that was."""
    found = [loads for register in instr.uses if (loads := held.get(register.slot))]
    if instr.tokens[0] == "mov":
        return frozenset().union(*found)
    if instr.guard is None and found:
        over = frozenset().union(*(loads for loads in found if len(loads) == 1))
        for register in instr.uses:
            held.pop(register.slot, None)
        for slot in [slot for slot, loads in held.items() if loads & over]:
            held[slot] -= over
            if not held[slot]:
                del held[slot]
    return frozenset()


def _merge(into: _Held, other: _Held) -> bool:
    """Has it become more?"""
    changed = False
    for slot, loads in other.items():
        old = into.get(slot, frozenset())
        if not loads <= old:
            into[slot] = old | loads
            changed = True
    return changed


def _touching(graph: Graph, opened: frozenset[int]) -> set[int]:
    """Instructions that need, move or overwrite a register which may have come from an open load."""
    instrs = graph.kernel.instrs
    bits = 0
    for site in opened:
        bits |= instrs[site].written_bits
    moves = [instr for instr in instrs if instr.tokens[0] == "mov"]
    before = -1
    while bits != before:
        before = bits
        for instr in moves:
            if instr.read_bits & bits:
                bits |= instr.written_bits
    return {
        site
        for site, instr in enumerate(instrs)
        if (instr.read_bits | instr.written_bits) & bits and site not in opened
    }


def emit_use(c: Writer) -> None:
    """Before an instruction; no text unless it may need a register of a load that may be open."""
    if c.site in c.shared_users:
        assert c.instr is not None
        how = "moved" if c.instr.tokens[0] == "mov" else "used"
        c.emit(f"if w.open_loads: shared_{how}(w, {c.site})")


def load_opened(w: Warp, site: int, number: int) -> None:
    """A read that may not be over for a while. ``w.open_loads``: register -> numbers, with race checking alone."""
    for register in w.machine.program.sites[site].definitions:
        w.open_loads[register.slot] = frozenset({number})


def shared_moved(w: Warp, site: int) -> None:
    instr = w.machine.program.sites[site]
    numbers = _numbers(w, instr.uses)
    for register in instr.definitions:
        if numbers:
            w.open_loads[register.slot] = numbers
        else:
            w.open_loads.pop(register.slot, None)


def shared_used(w: Warp, site: int) -> None:
    """Its sources are there, and what it overwrites; with one register of a load all of them."""
    instr = w.machine.program.sites[site]
    over = _numbers(w, (*instr.uses, *instr.definitions))
    if over:
        left = {slot: numbers - over for slot, numbers in w.open_loads.items()}
        w.open_loads = {slot: numbers for slot, numbers in left.items() if numbers}


def _numbers(w: Warp, registers: tuple[Reg, ...]) -> frozenset[int]:
    return frozenset().union(*(w.open_loads.get(register.slot, ()) for register in registers))
