"""Member masks of ``.sync`` instructions among the lanes of a warp. PTX ISA 9.7.9 "shfl.sync", 9.7.13 "vote.sync",
"match.sync", "redux.sync", "elect.sync", "bar.warp.sync".

A lane must be named by its own mask, and waits for every named lane that has not exited. In this machine lanes that
went different ways meet again at the post-dominator; one that is named before that counts as one that never comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.machine.ptx.cfg import EXIT, ends_flow
from kernel_space.machine.values.faults import ProtocolError, Unsupported
from kernel_space.machine.values.lanes import Value, first_lane, lane_flags, lane_list, ndarray

if TYPE_CHECKING:
    from kernel_space.machine.ptx.cfg import Graph
    from kernel_space.machine.run.machine import Warp


def members(w: Warp, named: Value, mask: int, site: int) -> None:
    """Lanes ``mask`` execute an instruction with member mask ``named``. Raises ``ProtocolError``."""
    w.site = site
    opcode = w.machine.program.sites[site].opcode
    lanes = first_lane(named, mask)
    if type(named) is ndarray and (named[lane_flags(mask)] != lanes).any():
        raise Unsupported("member masks that differ between lanes are not modelled", opcode=opcode)
    outside = mask & ~lanes
    if outside:
        raise ProtocolError(
            f"{opcode} is executed by {_text(outside)} of {w.who}, which its member mask {lanes:#x} does not name"
        )
    absent = lanes & w.alive & ~mask
    if absent:
        absent &= ~_about_to_exit(w)
    if absent:
        raise ProtocolError(
            f"{opcode} names {_text(absent)} of {w.who} in its member mask {lanes:#x}, which went another way and "
            "never come"
        )


def one_value(w: Warp, value: Value, mask: int, site: int) -> int:
    """The value that lanes ``mask`` have in common. Raises ``Unsupported`` where they have none."""
    first = first_lane(value, mask)
    if mask & (mask - 1) and type(value) is ndarray and (value[lane_flags(mask)] != first).any():
        w.site = site
        what = "an operand that differs between lanes is not modelled"
        raise Unsupported(what, opcode=w.machine.program.sites[site].opcode)
    return first


def base_address(w: Warp, value: Value, mask: int, site: int) -> int:
    """Of a ``tcgen05.ld`` or ``st``, which is collective: "all the threads in the warp must specify the same value of
    taddr", else the behaviour is undefined. Raises ``ProtocolError``.
    """
    first = first_lane(value, mask)
    if type(value) is ndarray and (value[lane_flags(mask)] != first).any():
        w.site = site
        other = next(lane for lane in lane_list(mask) if value[lane] != first)
        opcode = w.machine.program.sites[site].opcode
        raise ProtocolError(
            f"{opcode} needs one address for the whole warp; lane {other} of {w.who} names lane "
            f"{int(value[other]) >> 16}, column {int(value[other]) & 0xFFFF} of tensor memory, the first one lane "
            f"{first >> 16}, column {first & 0xFFFF}"
        )
    return first


def aligned(w: Warp, mask: int, site: int) -> None:
    """Lanes ``mask`` execute what is ``.aligned``: all lanes of the warp have to. Raises ``ProtocolError``."""
    absent = w.alive & ~mask
    if absent:
        absent &= ~_about_to_exit(w)
    if absent:
        w.site = site
        opcode = w.machine.program.sites[site].opcode
        raise ProtocolError(
            f"{opcode} needs the whole warp together; {_text(absent)} of {w.who} went another way"
        )


def _about_to_exit(w: Warp) -> int:
    """Lanes whose next instruction but branches is the end of the program."""
    exiting = 0
    for pc, lanes, _ in w.frames:
        if _ends(w.machine.program.graph, pc):
            exiting |= lanes
    return exiting


def _ends(graph: Graph, index: int) -> bool:
    seen = set()
    while index != EXIT and index not in seen:
        seen.add(index)
        block = graph.blocks[index]
        if len(block.instrs) != 1 or not ends_flow(block.instrs[0]) or len(block.successors) != 1:
            return False
        index = block.successors[0]
    return index == EXIT


def _text(mask: int) -> str:
    lanes = lane_list(mask)
    return (
        f"lane {lanes[0]}" if len(lanes) == 1 else f"{len(lanes)} lanes (first {lanes[0]}, last {lanes[-1]})"
    )
