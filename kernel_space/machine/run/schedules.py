"""Schedules: which warp runs next and when asynchronous operations complete.

Every schedule is a legal behaviour of the hardware, which promises no order among warps, nor when a copy or an MMA is
done. A kernel must give bitwise the same result under all of them.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kernel_space.core.errors import InputError

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cluster, Machine, Warp

SLICE = 20_000  # superblocks after which a warp that never waits makes room for others


class Schedule:
    """Eager: a warp runs until it waits, operations complete when issued, one cluster after the other.

    ``delayed``: kinds of operations ("tma", "store", "tensor") that complete only when ``step`` runs them. ``holds``: a
    warp that lets the next launch begin stands back until it has.
    """

    delayed: frozenset[str] = frozenset()
    holds = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def begin(self, machine: Machine) -> None:
        """Called once before the first step."""
        machine.start_cluster()

    def among(self, machines: list[Machine]) -> list[Machine]:
        """Launches that overlap, the one that is to move first: here the youngest, as early as it may."""
        return machines[::-1]

    def step(self, machine: Machine) -> bool:
        """Move something; False when nothing can move."""
        warp = self.next_warp(machine)
        if warp is None:
            return self.complete_something(machine)
        before = warp.executed
        machine.run_warp(warp, SLICE)
        if warp.wait is None and not warp.done:
            self._rotate(machine, warp, before)
        return True

    def next_warp(self, machine: Machine) -> Warp | None:
        for cluster in machine.resident:
            if cluster.ready:
                return cluster.ready.popleft()
        started = machine.start_cluster()
        return started.ready.popleft() if started is not None else None

    @staticmethod
    def _rotate(machine: Machine, warp: Warp, before: int) -> None:
        """A warp polls: let the other clusters, also those not started yet, move as well."""
        cluster = warp.cta.cluster
        if all(other is warp or other.wait is not None or other.done for other in cluster.warps):
            machine.start_cluster()
        machine.resident.remove(cluster)
        machine.resident.append(cluster)

    def complete_something(self, machine: Machine) -> bool:
        """Run one delayed operation: the youngest copy first, for copies are unordered."""
        if machine.pending:
            machine.run_pending()
        elif machine.pipes:
            machine.run_pipe(machine.pipes[0])
        else:
            return False
        return True


class RandomOrder(Schedule):
    """Any ready warp, for a random while; any issued operation at any time. Reproducible by its seed."""

    delayed = frozenset({"tma", "store", "tensor"})
    holds = False

    def begin(self, machine: Machine) -> None:
        self.random = random.Random(self.seed)
        while machine.start_cluster():
            pass

    def among(self, machines: list[Machine]) -> list[Machine]:
        return self.random.sample(machines, len(machines))

    def step(self, machine: Machine) -> bool:
        ready = [cluster for cluster in machine.resident if cluster.ready]
        waiting = len(machine.pending) + len(machine.pipes)
        if not ready and not waiting:
            return self._start(machine)
        if ready and self.random.random() * (len(ready) + waiting) < len(ready):
            self._run_some_warp(machine, self.random.choice(ready))
        elif waiting:
            self._complete_some(machine, self.random.randrange(waiting))
        return True

    def _start(self, machine: Machine) -> bool:
        started = False
        while machine.start_cluster():
            started = True
        return started

    def _run_some_warp(self, machine: Machine, cluster: Cluster) -> None:
        cluster.ready.rotate(self.random.randrange(len(cluster.ready)))
        machine.run_warp(cluster.ready.popleft(), self.random.choice((1, 2, 5, 50, SLICE)))

    @staticmethod
    def _complete_some(machine: Machine, at: int) -> None:
        if at < len(machine.pending):
            machine.pending[at], machine.pending[-1] = machine.pending[-1], machine.pending[at]
            machine.run_pending()
        else:
            machine.run_pipe(machine.pipes[at - len(machine.pending)])


class SlowTma(Schedule):
    """Copies complete only when nothing else can move, the youngest first."""

    delayed = frozenset({"tma", "store"})


class SlowTensor(Schedule):
    """The tensor pipe moves only when nothing else can."""

    delayed = frozenset({"tensor"})


class SlowEpilogue(Schedule):
    """Warps that read accumulators run only when no other warp can; bulk stores complete last of all."""

    delayed = frozenset({"store"})

    def next_warp(self, machine: Machine) -> Warp | None:
        late: Warp | None = None
        for cluster in machine.resident:
            for _ in range(len(cluster.ready)):
                warp = cluster.ready.popleft()
                if not (warp.loads_tmem or warp.role.startswith("epilogue")):
                    if late is not None:
                        late.cta.cluster.ready.append(late)
                    return warp
                if late is None:
                    late = warp
                else:
                    cluster.ready.append(warp)
        if late is not None:
            return late
        started = machine.start_cluster()
        return started.ready.popleft() if started is not None else None


SCHEDULES: dict[str, type[Schedule]] = {
    "eager": Schedule,
    "random": RandomOrder,
    "slow_tma": SlowTma,
    "slow_tensor": SlowTensor,
    "slow_epilogue": SlowEpilogue,
}


def make_schedule(name: str, seed: int) -> Schedule:
    """Raises ``InputError`` for a name that is not in ``SCHEDULES``."""
    if name not in SCHEDULES:
        raise InputError(f"schedule must be one of {', '.join(SCHEDULES)}, got {name!r}")
    return SCHEDULES[name](seed)
