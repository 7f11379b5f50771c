"""One launch in cycles: the cluster with the most work, with the rest of the chip as traffic beside it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from kernel_space.core.errors import InputError
from kernel_space.launch.capture import Launch
from kernel_space.machine.clock.chip import Record, TimedCluster, TimedMachine
from kernel_space.machine.clock.clock import Clock, Times
from kernel_space.machine.clock.program import TimedProgram, timed_program


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedRun:
    """Cycles of one launch, without what the host and the launch itself take.

    ``cycles``     Times: first CTA starts -> last CTA has gone, under each set of constants
    ``account``    nominal cycles by cause; they add up to ``cycles[0]``
    ``rounds``     times the grid fills the chip: 1 for a persistent kernel
    ``clusters``   clusters of the launch; ``active_sms``: SMs that hold one in a full round
    ``filled``, ``stored``   bytes that entered and left one SM in one round
    ``record``     timeline of one cluster in nominal cycles, if asked for
    """

    cycles: Times
    account: dict[str, float]
    rounds: int
    clusters: int
    active_sms: int
    filled: int
    stored: int
    record: Record | None

    def __post_init__(self) -> None:
        total = sum(self.account.values())
        assert math.isclose(total, self.cycles[0], rel_tol=1e-6), (total, self.cycles[0])


def simulate_launch(
    launch: Launch,
    ptx: str,
    clock: Clock,
    *,
    sm_count: int,
    places: int,
    cold: bool = False,
    map_names: dict[int, str] | None = None,
    atomic_results: tuple[int, ...] = (0,),
    record: bool = False,
    cluster: int = 0,
) -> TimedRun:
    """How long ``launch`` of the kernel in ``ptx`` takes, for every set of constants in ``clock``.

    ``places``         clusters of the launch's shape that the chip holds at once
    ``cold``           nothing of the operands is in L2 at the start
    ``map_names``      parameter index -> operand of its TMA descriptor, for the account
    ``atomic_results`` what the atomics of a CTA return in turn: splits - 1 makes that piece the last to arrive
    ``cluster``        which cluster to run; 0 has as many tiles as any other in a round-robin tile walk

    Raises ``Unsupported`` for what the clock does not model, ``Fault`` for what the program does wrong.
    """
    if places < 1:
        raise InputError(f"the chip must hold at least one cluster, got places={places}")
    size = math.prod(launch.cluster)
    clusters = math.prod(launch.grid) // size
    active = min(clusters, places) * size
    program: TimedProgram = timed_program(ptx, launch.kernel_name)
    machine = TimedMachine(
        program, launch, clock, active_sms=active, sm_count=sm_count, cold=cold, map_names=map_names,
        atomic_results=atomic_results, record=record,
    )  # fmt: skip
    ran = machine.run(cluster)
    rounds = -(-clusters // places)
    end = np.max([warp.t for warp in ran.warps], axis=0) + clock.drain
    account = {cause: cycles * rounds for cause, cycles in account_of(ran, float(end[0])).items()}
    return TimedRun(
        cycles=end * rounds, account=account, rounds=rounds, clusters=clusters, active_sms=active,
        filled=ran.ctas[0].filled, stored=ran.ctas[0].stored, record=machine.record,
    )  # fmt: skip


def joined_runs(runs: Sequence[TimedRun]) -> TimedRun:
    """Launches that follow one another as one run: cycles, account and bytes add up, the timelines stand one behind the
    other. Rounds, clusters and SMs are those of the longest.
    """
    if len(runs) == 1:
        return runs[0]
    account: dict[str, float] = {}
    for run in runs:
        for cause, cycles in run.account.items():
            account[cause] = account.get(cause, 0.0) + cycles
    return dataclasses.replace(
        max(runs, key=lambda run: run.cycles[0]),
        cycles=np.sum([run.cycles for run in runs], axis=0),
        account=account,
        filled=sum(run.filled for run in runs),
        stored=sum(run.stored for run in runs),
        record=_joined_records(runs),
    )


def _joined_records(runs: Sequence[TimedRun]) -> Record | None:
    """In nominal cycles since the first launch began; None unless every run has one."""
    joined, begun = [], 0.0
    for run in runs:
        if run.record is None:
            return None
        joined += [(lane, what, begun + begin, begun + end) for lane, what, begin, end in run.record]
        begun += float(run.cycles[0])
    return joined


PROLOGUE, EPILOGUE, OTHER = "prologue", "epilogue exposed", "executing"


def account_of(cluster: TimedCluster, end: float) -> dict[str, float]:
    """Nominal cycles from 0 to ``end`` by what the first tensor pipe of the cluster did or waited for."""
    pipe = cluster.ctas[0].pipe
    if pipe.began < 0:
        return {OTHER: end}
    account = {PROLOGUE: pipe.began}
    account |= {f"tensor: {what}": cycles for what, cycles in pipe.busy.items()}
    account |= {f"wait: {cause}": cycles for cause, cycles in pipe.idle.items() if cycles}
    account[EPILOGUE] = end - float(pipe.free[0])
    return account
