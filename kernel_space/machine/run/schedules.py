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

SLICE = 4_000  # superblocks after which a warp that never waits makes room for others
POLL = 50  # the same, of one that has done so before and has not waited since: it may poll for what others do


class Schedule:
    """Eager: a warp runs until it waits, operations complete when issued, one cluster after the other.

    ``delayed``: kinds of operations ("tma", "store", "tensor") that complete only when ``step`` runs them. ``holds``: a
    warp that lets the next launch begin stands back until it has.
    """

    delayed: frozenset[str] = frozenset()
    holds = True

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.polling: set[Warp] = set()
        self.polled = False  # by the last step
        self._polls = 0  # in a row, without a warp between them that came to a wait or its end

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
        self._runs_on(machine, warp, self._slice(warp))
        if warp.wait is None and not warp.done:
            self._rotate(machine, warp)
        return True

    def _slice(self, warp: Warp) -> int:
        return POLL if warp in self.polling else SLICE

    def _runs_on(self, machine: Machine, warp: Warp, limit: int) -> None:
        """Run up to ``limit`` superblocks, all that a warp may: if it still can run, it polls."""
        self.polled = machine.run_warp(warp, limit)
        if self.polled:
            self.polling.add(warp)
            self._polls += 1
        else:
            self.polling.discard(warp)
            self._polls = 0

    def next_warp(self, machine: Machine) -> Warp | None:
        for cluster in machine.resident:
            if cluster.ready:
                return cluster.ready.popleft()
        started = machine.start_cluster()
        return started.ready.popleft() if started is not None else None

    def _rotate(self, machine: Machine, warp: Warp) -> None:
        """A warp polls or stands back: let the other clusters, also those not started yet, move as well. Where all that
        can run have polled, who stands back moves, then what is delayed: no card's copies wait for a loop to end that
        waits for them.
        """
        cluster = warp.cta.cluster
        if all(other in self.polling or other.wait is not None or other.done for other in cluster.warps):
            machine.start_cluster()
        machine.resident.remove(cluster)
        machine.resident.append(cluster)
        if self._polls > sum(len(one.ready) for one in machine.resident):
            self._polls = 0
            if not machine.release_held(for_good=False):
                self.complete_something(machine)

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
        warp, limit = cluster.ready.popleft(), self.random.choice((1, 2, 5, POLL, SLICE))
        if limit < self._slice(warp):
            machine.run_warp(warp, limit)
        else:
            self._runs_on(machine, warp, self._slice(warp))

    @staticmethod
    def _complete_some(machine: Machine, at: int) -> None:
        if at < len(machine.pending):
            machine.pending[at], machine.pending[-1] = machine.pending[-1], machine.pending[at]
            machine.run_pending()
        else:
            machine.run_pipe(machine.pipes[at - len(machine.pending)])


class SlowTma(Schedule):
    """Copies complete only when all that can still run polls, the youngest first."""

    delayed = frozenset({"tma", "store"})


class SlowTensor(Schedule):
    """The tensor pipe moves only when all that can still run polls."""

    delayed = frozenset({"tensor"})


class SlowEpilogue(Schedule):
    """Warps that read accumulators run only when all others wait or poll; bulk stores complete last of all."""

    delayed = frozenset({"store"})

    def next_warp(self, machine: Machine) -> Warp | None:
        late: Warp | None = None
        for cluster in machine.resident:
            for _ in range(len(cluster.ready)):
                warp = cluster.ready.popleft()
                if not (warp.loads_tmem or warp.role.startswith("epilogue") or warp in self.polling):
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
