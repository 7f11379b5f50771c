"""Which registers hold the same value in every lane of a warp.

A register is varying when some definition reads a varying value, a lane-dependent source or a guard that varies, or
when it is defined where the warp may be split and its value is still wanted by lanes that were elsewhere: at the
point where the lanes meet again, or on the other side of the branch.
"""

from __future__ import annotations

from kernel_space.machine.ptx.cfg import EXIT, Graph
from kernel_space.machine.ptx.instruction import Instr, bits_of
from kernel_space.machine.ptx.operands import Imm, Operand, Special, registers_of

LANE_SPECIALS = frozenset({"tid.x", "tid.y", "tid.z", "laneid", "lanemask_lt", "lanemask_le", "lanemask_gt",
                           "lanemask_ge", "lanemask_eq"})  # fmt: skip
SHARED_SPACES = frozenset({"global", "shared", "shared::cta", "shared::cluster", "const", "param"})
LANE_SOURCES = frozenset({"elect", "match", "atom", "ldmatrix"})
LANE_SOURCE_PAIRS = frozenset(
    {("tcgen05", "ld"), ("tcgen05", "ld_red"), ("wgmma", "mma_async"), ("mma", "sync")}
)


def varying_registers(graph: Graph) -> int:
    """The set of registers (bits by slot) that may differ between lanes."""
    varying = 0
    flows: list[tuple[int, int]] = []
    for instr in graph.kernel.instrs:
        if not instr.written_bits:
            continue
        if _differs_by_lane(instr):
            varying |= instr.written_bits
        else:
            flows.append((_inputs(instr), instr.written_bits))
    while True:
        before = varying
        varying = _by_data(flows, varying)
        varying |= _by_control(graph, varying)
        if varying == before:
            return varying


def _by_data(flows: list[tuple[int, int]], varying: int) -> int:
    """``flows``: (registers that decide, registers that they decide) of each instruction."""
    while True:
        before = varying
        for inputs, written in flows:
            if inputs & varying:
                varying |= written
        if varying == before:
            return varying


def _differs_by_lane(instr: Instr) -> bool:
    """Is the result another one in every lane, whatever the inputs are?"""
    tokens = instr.tokens
    if tokens[0] == "ld" and SHARED_SPACES.isdisjoint(tokens):
        return True  # local memory is each lane's own, and a generic address may be local
    if tokens[0] in LANE_SOURCES or tokens[:2] in LANE_SOURCE_PAIRS:
        return True
    if tokens[0] in ("shfl", "mbarrier") and tokens[:2] != ("mbarrier", "arrive"):
        return False
    return any(isinstance(operand, Special) and operand.name in LANE_SPECIALS for operand in instr.operands)


def _inputs(instr: Instr) -> int:
    """The set of registers that decide whether the result varies."""
    if instr.tokens[0] == "shfl" and instr.tokens[2] == "idx" and _whole_warp(instr.operands[3]):
        lane_and_clamp = instr.operands[2:]
        return bits_of(register for operand in lane_and_clamp for register in registers_of(operand))
    return instr.source_bits


def _whole_warp(clamp: Operand) -> bool:
    """One segment of 32 lanes: each narrower one has a source of its own, and beyond a limit lanes keep theirs."""
    return isinstance(clamp, Imm) and clamp.value & 0x1F1F == 31


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
                extra |= instr.written_bits & wanted
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
