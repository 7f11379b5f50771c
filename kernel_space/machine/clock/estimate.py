"""One launch in cycles: the cluster with the most work, with the rest of the chip as traffic beside it."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Mapping, Sequence

import numpy as np

from kernel_space.core.errors import InputError
from kernel_space.launch.capture import Launch
from kernel_space.machine.clock.chip import Record, TimedCluster, TimedCta, TimedMachine
from kernel_space.machine.clock.clock import SPECIAL_CLK, Clock, Times
from kernel_space.machine.clock.occupancy import quarter_loads
from kernel_space.machine.clock.program import TimedProgram, timed_program
from kernel_space.machine.clock.spills import Spills, spills_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimedRun:
    """Cycles of one launch, without what the host and the launch itself take.

    ``cycles``     Times: first CTA starts -> last CTA has gone, under each set of constants
    ``account``    nominal cycles by cause; they add up to ``cycles[0]``
    ``rounds``     times the grid fills the chip: 1 for a persistent kernel
    ``clusters``   clusters of the launch; ``active_sms``: SMs that hold one in a full round
    ``filled``, ``stored``   bytes that entered and left one CTA in one round by TMA and bulk copies
    ``plain``  bytes of the sectors that its plain accesses touched; ``dram``: bytes of the chip that passed DRAM in
        one round; ``share``: CTAs that stood on an SM at once
    ``record``     timeline of one cluster in nominal cycles, if asked for
    ``spills``     what of it spilled registers take, if there are any
    """

    cycles: Times
    account: dict[str, float]
    rounds: int
    clusters: int
    active_sms: int
    filled: int
    stored: int
    plain: int
    dram: int
    share: int
    record: Record | None
    spills: Spills | None = None

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
    resident: int = 1,
    tensors: Mapping[int, int] | None = None,
    cold: bool = False,
    map_names: dict[int, str] | None = None,
    atomic_results: tuple[int, ...] = (0,),
    record: bool = False,
    cluster: int = 0,
    spill_bytes: int = 0,
) -> TimedRun:
    """How long ``launch`` of the kernel in ``ptx`` takes, for every set of constants in ``clock``.

    ``places``         clusters of the launch's shape that the chip holds at once, ``resident`` CTAs on each SM
    ``tensors``        address -> bytes of the tensors that plain accesses reach, where known
    ``cold``           nothing of the operands is in L2 at the start
    ``map_names``      parameter index -> operand of its TMA descriptor, for the account
    ``atomic_results`` what the atomics of a CTA return in turn: splits - 1 makes that piece the last to arrive
    ``cluster``        which cluster to run; 0 has as many tiles as any other in a round-robin tile walk
    ``spill_bytes``    of a thread: ``Resources.spill_bytes``

    Raises ``Unsupported`` for what the clock does not model, ``Fault`` for what the program does wrong.
    """
    if places < 1:
        raise InputError(f"the chip must hold at least one cluster, got places={places}")
    size = math.prod(launch.cluster)
    clusters = math.prod(launch.grid) // size
    program: TimedProgram = timed_program(ptx, launch.kernel_name)
    sms = max(1, places * size // resident)

    def ran_with(held: int, record: bool) -> _Ran:
        """Beside ``held - 1`` other clusters, spread over the SMs."""
        machine = TimedMachine(
            program, launch, clock, active_sms=min(held * size, sms), sm_count=sm_count, clusters_active=held,
            share=-(-held * size // sms), tensors=tensors, cold=cold, map_names=map_names,
            atomic_results=atomic_results, record=record,
        )  # fmt: skip
        return _Ran(machine, machine.run(cluster))

    full = ran_with(min(clusters, places), record)
    end, rounds = full.end, -(-clusters // places)
    account = account_of(full.cluster, float(end[0]))
    if rounds > 1:
        # CTAs begin as others end, so that rounds overlap: each takes what its latencies take, or the chip is busy.
        alone = ran_with(1, False)
        further = np.maximum((rounds - 1) * alone.end, (clusters / places - 1) * full.busy)
        account = {cause: cycles * float(1 + further[0] / end[0]) for cause, cycles in account.items()}
        end = end + further
    cta, machine = full.cluster.ctas[0], full.machine
    spills = spills_of(machine, cta, spill_bytes, rounds) if spill_bytes else None
    if spills is not None:
        account[SPILLS] = float(spills.cycles[0])
        end = end + spills.cycles
    return TimedRun(
        cycles=end, account=account, rounds=rounds, clusters=clusters, active_sms=min(clusters * size, sms),
        filled=cta.filled, stored=cta.stored, plain=cta.plain_bytes, dram=machine.dram_bytes, share=machine.share,
        record=machine.record, spills=spills,
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class _Ran:
    """One cluster, from the start of its CTAs to their end."""

    machine: TimedMachine
    cluster: TimedCluster

    @functools.cached_property
    def busy(self) -> Times:
        """Cycles that the busiest of DRAM, L2, ports, issue slots and tensor pipes needs for what was asked of it."""
        machine, clock = self.machine, self.machine.clock
        needs = [machine.dram_cycles()]
        for cta in self.cluster.ctas:
            needs.append((cta.filled + cta.plain_bytes) / machine.l2_rate)
            needs.append(
                cta.filled / clock.fill_narrow * machine.share + cta.plain_bytes / machine.plain_rate
            )
            needs.append(cta.stored / machine.fill_narrow)
            needs.append(machine.zero + sum(cta.pipe.busy.values()))
            needs.append(cta.l1_bytes / machine.l1_rate)
            needs.append(machine.zero + self._schedulers(cta))
        return np.max(needs, axis=0)

    def _schedulers(self, cta: TimedCta) -> float:
        """Cycles of the busiest scheduler of the SM of ``cta``: of its issue slots or its special functions."""
        slots = quarter_loads([warp.issued for warp in cta.warps], self.machine.share)
        special = quarter_loads([warp.special for warp in cta.warps], self.machine.share)
        return max(*slots, SPECIAL_CLK * max(special))

    @functools.cached_property
    def end(self) -> Times:
        """When the last CTA has gone: not before what warps do not wait for is done, such as plain stores."""
        machine = self.machine
        floor = [machine.dram_cycles(), *(cta.plain_free for cta in self.cluster.ctas)]
        for cta in self.cluster.ctas:
            floor += [cta.l1_free, machine.zero + self._schedulers(cta)]
        return np.max([*floor, *(warp.t for warp in self.cluster.warps)], axis=0) + machine.clock.drain


def joined_runs(runs: Sequence[TimedRun]) -> TimedRun:
    """Launches that follow one another as one run: cycles, account and bytes add up, the timelines stand one behind the
    other. Rounds, clusters and SMs are those of the longest.
    """
    if len(runs) == 1:
        return runs[0]
    account: dict[str, float] = {}
    spills = [run.spills for run in runs if run.spills is not None]
    for run in runs:
        for cause, cycles in run.account.items():
            account[cause] = account.get(cause, 0.0) + cycles
    return dataclasses.replace(
        max(runs, key=lambda run: run.cycles[0]),
        cycles=np.sum([run.cycles for run in runs], axis=0),
        account=account,
        filled=sum(run.filled for run in runs),
        stored=sum(run.stored for run in runs),
        plain=sum(run.plain for run in runs),
        dram=sum(run.dram for run in runs),
        record=_joined_records(runs),
        spills=functools.reduce(operator.add, spills) if spills else None,
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


PROLOGUE, EPILOGUE, OTHER, SPILLS = "prologue", "epilogue exposed", "executing", "spilled registers"


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
