"""Which registers hold the same value in every lane of a warp.

A register is varying when some definition reads a varying value, a lane-dependent source or a guard that varies, or
when it is defined where the warp may be split and its value is still wanted by lanes that were elsewhere: at the
point where the lanes meet again, or on the other side of the branch.
"""

from __future__ import annotations

from kernel_space.sim.cfg import EXIT, Graph, definitions, uses
from kernel_space.sim.operands import Special
from kernel_space.sim.parse import Instr

LANE_SPECIALS = frozenset({"tid.x", "tid.y", "tid.z", "laneid", "lanemask_lt", "lanemask_le", "lanemask_gt",
                           "lanemask_ge", "lanemask_eq"})  # fmt: skip
SHARED_SPACES = frozenset({"global", "shared", "shared::cta", "shared::cluster", "const", "param"})
LANE_SOURCES = frozenset({"elect", "match", "atom"})


def varying_registers(graph: Graph) -> int:
    """The set of registers (bits by slot) that may differ between lanes."""
    varying = 0
    while True:
        before = varying
        varying = _by_data(graph, varying)
        varying |= _by_control(graph, varying)
        if varying == before:
            return varying


def _by_data(graph: Graph, varying: int) -> int:
    changed = True
    while changed:
        changed = False
        for instr in graph.kernel.instrs:
            new = 0
            for register in definitions(instr):
                new |= 1 << register.slot
            if new & ~varying and _varies(instr, varying):
                varying |= new
                changed = True
    return varying


def _varies(instr: Instr, varying: int) -> bool:
    tokens = instr.tokens
    if tokens[0] == "ld" and not set(tokens) & SHARED_SPACES:
        return True  # local memory is each lane's own, and a generic address may be local
    if tokens[0] in LANE_SOURCES or tokens[:2] in (("tcgen05", "ld"), ("tcgen05", "ld_red")):
        return True
    if tokens[0] in ("ldmatrix", "shfl", "mbarrier") and tokens[:2] != ("mbarrier", "arrive"):
        return _shared_source(instr, varying)
    if any(isinstance(operand, Special) and operand.name in LANE_SPECIALS for operand in instr.operands):
        return True
    return any(varying >> register.slot & 1 for register in _inputs(instr))


def _shared_source(instr: Instr, varying: int) -> bool:
    if instr.tokens[0] == "ldmatrix":
        return True
    if instr.tokens[0] == "shfl" and instr.tokens[2] == "idx":
        lane_and_clamp = instr.operands[2:]
        registers = [register for operand in lane_and_clamp for register in uses_of(operand)]
        return any(varying >> register.slot & 1 for register in registers)
    return any(varying >> register.slot & 1 for register in _inputs(instr))


def uses_of(operand: object) -> list:
    from kernel_space.sim.cfg import registers_of

    return list(registers_of(operand))  # type: ignore[arg-type]


def _inputs(instr: Instr) -> list:
    own = {register.slot for register in definitions(instr)}
    guard = instr.guard
    return [
        register
        for register in uses(instr)
        if register.slot not in own or register is guard or _reads(instr, register)
    ]


def _reads(instr: Instr, register: object) -> bool:
    return any(register in uses_of(operand) for operand in instr.operands[1:])


def _by_control(graph: Graph, varying: int) -> int:
    extra = 0
    for block in graph.blocks:
        guard = block.guard
        if guard is None or not varying >> guard.slot & 1:
            continue
        wanted = 0
        meeting = graph.ipdom[block.index]
        if meeting != EXIT:
            wanted |= graph.live_in[meeting]
        for target in block.successors:
            wanted |= graph.live_in[target] if target not in (EXIT, meeting) else 0
        for index in divergent_region(graph, block.index):
            for instr in graph.blocks[index].instrs:
                for register in definitions(instr):
                    extra |= (1 << register.slot) & wanted
    return extra


def divergent_region(graph: Graph, branch: int) -> set[int]:
    """Blocks that lanes may run between the branch at the end of ``branch`` and the meeting point."""
    meeting = graph.ipdom[branch]
    region: set[int] = set()
    todo = [target for target in graph.blocks[branch].successors if target not in (EXIT, meeting)]
    while todo:
        index = todo.pop()
        if index in region:
            continue
        region.add(index)
        todo.extend(target for target in graph.blocks[index].successors if target not in (EXIT, meeting))
    return region
