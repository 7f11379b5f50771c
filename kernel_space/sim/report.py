"""Findings in words: deadlocks, faults, exhausted budgets, races."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

from kernel_space.sim.faults import SimStatus

if TYPE_CHECKING:
    from kernel_space.sim.machine import Machine, Warp


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


def race_findings(races: Any) -> list[Finding]:
    return list(races.findings()) if races is not None else []


def deadlock_finding(machine: Machine) -> Finding:
    """Every waiting warp, what it waits for and, for each barrier, the likely cause."""
    waiting = list(machine.waiting)
    ended = sum(warp.done for cluster in machine.resident for warp in cluster.warps)
    lines = [f"nothing can move: {len(waiting)} warps wait, {ended} have ended"]
    lines += [f"  {_waits(machine, warp)}" for warp in waiting[:48]]
    causes = list(dict.fromkeys(cause for warp in waiting for cause in [_cause(machine, warp)] if cause))
    # Wrong counts explain themselves; that nobody arrives is often only what follows from them.
    causes.sort(key=lambda cause: not re.search(r"bytes more|\d+ of \d+ ", cause))
    lines += [f"  likely cause: {cause}" for cause in causes[:8]]
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


def _cause(machine: Machine, warp: Warp) -> str:
    assert warp.wait is not None
    kind, thing, value, _ = warp.wait
    if kind == "mbarrier":
        return _mbarrier_cause(thing, value)
    if kind == "bar":
        missing = thing.expected - thing.arrived
        return f"{missing} of {thing.expected} threads never arrive at bar {thing.number}"
    if kind == "cluster":
        return f"{thing.left - thing.arrived} warps never arrive at the cluster barrier"
    if kind == "alloc":
        return f"no allocation of {value} TMEM columns fits, and nobody frees any"
    return ""


def _mbarrier_cause(barrier: Any, parity: int) -> str:
    """One sentence from the state of the barrier."""
    if barrier.tx > 0 and barrier.pending == 0:
        return f"{barrier.label} expects {barrier.tx} bytes more than arrived"
    if barrier.tx < 0:
        return f"{barrier.label} received {-barrier.tx} bytes more than it expects"
    if barrier.arrivals == 0 and barrier.phase == 0:
        return f"nobody ever arrives on {barrier.label}"
    if barrier.pending < barrier.count:
        return f"{barrier.label} has {barrier.count - barrier.pending} of {barrier.count} arrivals of phase {barrier.phase}"
    ahead = "" if barrier.phase == 0 else f"; it has completed {barrier.phase} phases, so a waiter that is one phase " \
        "ahead or behind asks for the wrong parity"  # fmt: skip
    return f"no arrival on {barrier.label} in phase {barrier.phase}, and parity {parity & 1} has not completed{ahead}"
