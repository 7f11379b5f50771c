"""Findings in words: deadlocks, faults, exhausted budgets, races."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.machine.values.faults import SimStatus

if TYPE_CHECKING:
    from kernel_space.machine.memory.global_memory import GlobalMemory, Region
    from kernel_space.machine.memory.undefined import UndefinedBytes
    from kernel_space.machine.run.machine import Machine, Warp


MOST_CAUSES, MOST_WAITERS = 6, 48


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong, with everything a reader needs in ``text``."""

    status: SimStatus
    text: str

    def __str__(self) -> str:
        return f"{self.status}: {self.text}"


def place(machine: Machine, site: int) -> str:
    """PTX line and, where the compiler left one, source line of an instruction."""
    instr = machine.program.sites[site]
    source = ""
    if instr.loc is not None:
        source = f", {machine.program.kernel.files.get(instr.loc[0], 'source')}:{instr.loc[1]}"
    return f"PTX line {instr.line}{source}: {instr.text.strip()[:100]}"


def fault_finding(machine: Machine, status: SimStatus, reason: str) -> Finding:
    warp = getattr(machine, "current_warp", None)
    where = f"\n  by {warp.who} at {place(machine, warp.site)}" if warp is not None else ""
    return Finding(status=status, text=reason + where)


def budget_finding(machine: Machine) -> Finding:
    lines = [f"no end after {machine.executed} warp-instructions"]
    for cluster in machine.resident:
        for warp in cluster.warps:
            if not warp.done:
                state = "waits" if warp.wait is not None else "runs"
                lines.append(f"  {warp.who} {state}; last at {place(machine, warp.site)}")
    return Finding(status=SimStatus.BUDGET_EXCEEDED, text="\n".join(lines[:40]))


def undefined_findings(memory: GlobalMemory) -> list[Finding]:
    """Undefined bytes that the host would find, one finding per tensor."""
    texts = [
        _undefined_in(region, region.undefined) for region in memory.regions if region.undefined is not None
    ]
    return [Finding(status=SimStatus.ILLEGAL_ACCESS, text=text) for text in texts if text]


def _undefined_in(region: Region, undefined: UndefinedBytes) -> str:
    """How the first of them got there; '' if there are none."""
    begin = region.start - region.base
    bad = np.flatnonzero(undefined.u8[begin : region.end - region.base])
    if undefined.trails is None or not len(bad):
        return ""
    numbers = undefined.trails.numbers[(bad + begin) >> 2]
    trail, others = undefined.trails.known[numbers[0]], len(np.unique(numbers)) - 1
    assert trail is not None
    return (
        f"{region.name} holds {len(bad)} undefined bytes at the end of the launch, the first at byte {bad[0]}\n"
        f"  stored {trail.stored}\n  born as {trail.birth}"
        + (f"\n  the rest by {others} other stores" if others else "")
    )


def race_findings(races: Any) -> list[Finding]:
    return list(races.findings()) if races is not None else []


def deadlock_finding(machine: Machine) -> Finding:
    """Every waiting warp, what it waits for and, for each barrier, the likely cause."""
    waiting = list(machine.waiting)
    ended = sum(warp.done for cluster in machine.resident for warp in cluster.warps)
    lines = [f"nothing can move: {len(waiting)} warps wait, {ended} have ended"]
    causes = sorted({cause for warp in waiting if (cause := _cause(warp)) is not None})
    lines += [f"  likely cause: {text}" for _, text in causes[:MOST_CAUSES]]
    lines += [f"  {_waits(machine, warp)}" for warp in waiting[:MOST_WAITERS]]
    return Finding(status=SimStatus.DEADLOCK, text="\n".join(lines))


def _waits(machine: Machine, warp: Warp) -> str:
    assert warp.wait is not None
    kind, thing, value, site = warp.wait
    at = place(machine, site)
    if kind == "mbarrier":
        return f"{warp.who} waits for parity {value & 1} on {thing}, last arrival: {thing.last}; {at}"
    if kind == "bulk":
        return f"{warp.who} waits until at most {value} bulk groups are pending; {at}"
    if kind == "alloc":
        return f"{warp.who} waits for {value} free TMEM columns; {at}"
    return f"{warp.who} waits at {thing}; {at}"


def _cause(warp: Warp) -> tuple[int, str] | None:
    """(rank, one sentence). A wrong count explains itself (0); that nobody arrives often only follows from it (2)."""
    assert warp.wait is not None
    kind, thing, value, _ = warp.wait
    match kind:
        case "mbarrier":
            return _mbarrier_cause(thing, value)
        case "bar":
            missing = thing.expected - thing.arrived
            return 1, f"{missing} of {thing.expected} threads never arrive at bar {thing.number}"
        case "cluster":
            return 1, f"{thing.left - thing.arrived} warps never arrive at the cluster barrier"
        case "alloc":
            return 1, f"no allocation of {value} TMEM columns fits, and nobody frees any"
        case "registers":
            return 0, f"setmaxnreg.inc needs {value} registers of {thing}, and nobody releases any"
    return None


def _mbarrier_cause(barrier: Any, parity: int) -> tuple[int, str]:
    """From the state of the barrier."""
    label, phase = barrier.label, barrier.phase
    if barrier.tx > 0 and barrier.pending == 0:
        return 0, f"{label} expects {barrier.tx} bytes more than arrived"
    if barrier.tx < 0:
        return 0, f"{label} received {-barrier.tx} bytes more than it expects"
    if barrier.pending < barrier.count:
        return (
            0,
            f"{label} has {barrier.count - barrier.pending} of {barrier.count} arrivals of phase {phase}",
        )
    if barrier.arrivals == 0 and phase == 0:
        return 2, f"nobody ever arrives on {label}"
    text = f"no arrival on {label} in phase {phase}, and parity {parity & 1} has not completed"
    if phase:
        text += (
            f"; {phase} phases have, so a waiter that is one phase ahead or behind asks for the wrong parity"
        )
    return 1, text
