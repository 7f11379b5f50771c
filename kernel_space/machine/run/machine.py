"""The chip: SMs with resident clusters, their CTAs and warps, and the loop that runs them.

A warp runs until it has to wait or its slice ends. Asynchronous operations are issued by warps and completed either
at once or when the schedule says so. When nothing can move any more, the kernel has ended or is deadlocked.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.launch.capture import SMEM_OPTIN_BYTES
from kernel_space.machine.memory.bulk_groups import BulkGroups, BulkOp
from kernel_space.machine.memory.copy_groups import CopyGroups
from kernel_space.machine.memory.global_memory import GlobalMemory
from kernel_space.machine.memory.smem import FIRST_OFFSET, Smem
from kernel_space.machine.memory.tmem import Tmem
from kernel_space.machine.ptx.cfg import EXIT
from kernel_space.machine.races.shadow import cluster_key
from kernel_space.machine.run.lockstep import Lockstep
from kernel_space.machine.translate.translate import AGAIN, LATER, SPLIT, Program
from kernel_space.machine.units.barriers import NamedBarrier, warp_exits
from kernel_space.machine.units.mbarrier import MBarrier
from kernel_space.machine.units.tensor_loads import TensorLoad
from kernel_space.machine.units.tensor_pipe import TensorPipe
from kernel_space.machine.units.wgmma_order import EVERY_REGISTER, WgmmaGroups
from kernel_space.machine.values.faults import IllegalAccess, ProtocolError, SimStatus
from kernel_space.machine.values.lanes import FULL, LANES, Value
from kernel_space.machine.values.undefined import Birth, Carried, Held, first_undefined

if TYPE_CHECKING:
    from kernel_space.machine.observe.trace import Observer
    from kernel_space.machine.races.former import Former
    from kernel_space.machine.run.schedules import Schedule

Triple = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grid:
    """What a launch says. Triples are x, y, z; ``params``: bytes of each kernel parameter."""

    grid: Triple
    block: Triple
    cluster: Triple
    smem_bytes: int
    params: tuple[bytes, ...]


class Warp(Lockstep):
    """32 lanes in lockstep. ``wait``: (kind, object, value, site) while asleep; ``sr_*``: special registers."""

    def __init__(self, cta: Cta, number: int, registers: int) -> None:
        self.cta, self.machine, self.number = cta, cta.machine, number
        self.races = cta.machine.races
        self.R: list[Value] = [0] * registers
        self.births: dict[int, Birth] = {}  # these six: values/undefined.py
        self.undefined: dict[int, Held] = first_undefined(self)
        self.loaded: Carried | None = None
        self.storing: Carried | None = None
        self.operand_rows: dict[str, tuple[Any, Birth]] = {}
        self.local_undefined: Any = None
        self.pc = 0
        self.rpc = EXIT
        self.frames = []
        self.executed = 0
        self.site: int = 0
        self.wait: tuple[str, Any, int, int] | None = None
        self.done = self.resting = self.loads_tmem = self.looked_in_vain = self.held = False
        self.cluster_phase, self.cluster_open = 0, False  # open: it has arrived, and not waited yet
        self.meetings = 0  # how often lanes have waited for others of the warp
        self.deposited = (0, 0)  # of the last bar.red: units/barriers.py
        self.bulk, self.bulk_waits, self.copies = BulkGroups(), False, CopyGroups()
        self.carry: Value = 0
        self.local: Any = None
        self.wgmma, self.wgmma_registers = WgmmaGroups(), 0  # wgmma_order.py
        self.unfenced = EVERY_REGISTER
        self.tensor_loads: list[TensorLoad] = []
        self.open_loads: dict[int, frozenset[int]] = {}  # shared_loads.py
        self.clock: Any = None
        self.slot = -1
        self.shared_base = cta.rank << 24
        self.role = cta.machine.roles.get(number, f"warp{number}")
        self.who: str = f"{self.role}{cta.suffix}"
        self.alive = self.mask = self._special_registers(self.machine.launch.block, cta.special)

    # -- waiting -----------------------------------------------------------------------------------------------
    def sleep(self, wait: tuple[str, Any, int, int]) -> None:
        self.wait = wait
        if self.machine.observer is not None:
            self.machine.observer.waits(self)

    def wake(self) -> None:
        if self.wait is not None:
            if self.machine.observer is not None:
                self.machine.observer.wakes(self)
            self.wait = None
            self.cta.cluster.ready.append(self)

    # -- loads and bulk groups ---------------------------------------------------------------------------------
    def fence_loads(self, before: int) -> None:
        """A proxy fence came behind the reads up to ``before``."""
        late = {slot: {n for n in numbers if n > before} for slot, numbers in self.open_loads.items()}
        self.open_loads = {slot: frozenset(numbers) for slot, numbers in late.items() if numbers}

    def bulk_done(self, operation: BulkOp) -> None:
        self.bulk.done(operation)
        if self.bulk_waits:
            self.bulk_waits = False
            self.wake()

    def read_clock(self, short: bool) -> int:
        return self.executed & (0xFFFFFFFF if short else (1 << 64) - 1)

    def __str__(self) -> str:
        return self.who


class Cta:
    """One thread block on its SM. ``mbarriers`` by shared offset, ``named`` barriers by number."""

    def __init__(self, cluster: Cluster, rank: int, position: Triple) -> None:
        self.cluster, self.machine, self.rank, self.position = cluster, cluster.machine, rank, position
        machine = cluster.machine
        self.smem = Smem(machine.smem_limit, tracks=machine.races is not None)
        self.tmem = Tmem(tracks=machine.races is not None)
        self.pipe = TensorPipe(self)
        self.mbarriers: dict[int, MBarrier] = {}
        self.named: dict[int, NamedBarrier] = {}
        self.registers: Any = None  # the pool of setmaxnreg, made by the first one
        self.shadow: Any = None  # these two belong to the race checker
        self.tmem_shadow: Any = None
        self.signalled = False  # griddepcontrol.launch_dependents
        self.suffix = self._suffix()
        self.special = self._special()
        warps = -(-int(np.prod(machine.launch.block)) // LANES)
        self.running = warps * LANES  # threads that have not exited
        if machine.races is not None:
            machine.races.add_cta(self)
        registers = len(machine.program.kernel.registers)
        self.warps = [Warp(self, number, registers) for number in range(warps)]
        if machine.races is not None:
            for warp in self.warps:
                machine.races.add_warp(warp)

    def _suffix(self) -> str:
        size = int(np.prod(self.machine.launch.cluster))
        parts = [self.machine.label] if self.machine.in_a_row else []
        parts += [f"CTA {self.rank}"] if size > 1 else []
        if self.machine.cluster_count > 1:
            parts.append(f"cluster {self.cluster.number}")
        return f" ({', '.join(parts)})" if parts else ""

    def _special(self) -> dict[str, int]:
        launch, cluster = self.machine.launch, self.cluster
        inside = tuple(p % c for p, c in zip(self.position, launch.cluster, strict=True))
        triples = {
            "ctaid": self.position, "nctaid": launch.grid, "ntid": launch.block, "clusterid": cluster.position,
            "nclusterid": cluster.counts, "cluster_ctaid": inside, "cluster_nctaid": launch.cluster,
        }  # fmt: skip
        special = {
            f"sr_{name}_{axis}": value[at] for name, value in triples.items() for at, axis in enumerate("xyz")
        }
        size = int(np.prod(launch.cluster))
        special |= {
            "sr_cluster_ctarank": self.rank, "sr_cluster_nctarank": size, "sr_smid": cluster.home * size + self.rank,
            "sr_nsmid": self.machine.resident_limit * size, "sr_nwarpid": 64, "sr_gridid": 1,
            "sr_is_explicit_cluster": FULL if size > 1 else 0, "sr_dynamic_smem_size": launch.smem_bytes,
            "sr_total_smem_size": self.machine.smem_limit,
        }  # fmt: skip
        return special

    def signal_dependents(self) -> None:
        """For this CTA the next launch may begin; a second time changes nothing."""
        if not self.signalled:
            self.signalled = True
            self.machine.unsignalled -= 1

    def peer(self, rank: int) -> Cta:
        """The CTA of a cluster rank. Raises ``IllegalAccess``."""
        if rank == self.rank:
            return self
        if rank >= len(self.cluster.ctas):
            raise IllegalAccess(f"a shared address names CTA {rank} of a cluster of {len(self.cluster.ctas)}")
        return self.cluster.ctas[rank]


class Cluster:
    """CTAs that run together. ``phase`` counts completed cluster barriers, ``arrived`` warps of the current one."""

    def __init__(self, machine: Machine, number: int, home: int) -> None:
        self.machine, self.number, self.home = machine, number, home
        self.key = cluster_key(machine.number, number)
        self.counts = machine.cluster_counts
        nx, ny, _ = self.counts
        self.position = (number % nx, number // nx % ny, number // (nx * ny))
        self.ready: deque[Warp] = deque()
        self.phase = self.arrived = 0
        self.waiters: list[Warp] = []
        self.slots: Any = None  # these two belong to the race checker
        self.sync: Any = None
        self.ctas: list[Cta] = []
        cx, cy, cz = machine.launch.cluster
        for rank, (z, y, x) in enumerate(itertools.product(range(cz), range(cy), range(cx))):
            px, py, pz = self.position
            self.ctas.append(Cta(self, rank, (px * cx + x, py * cy + y, pz * cz + z)))
        self.warps = [warp for cta in self.ctas for warp in cta.warps]
        self.left = len(self.warps)
        self.ready.extend(self.warps)

    def settle(self) -> None:
        """Complete the cluster barrier when every warp that still runs has arrived."""
        if self.left and self.arrived == self.left:
            self.phase += 1
            self.arrived = 0
            if self.machine.races is not None:
                self.machine.races.cluster_done(self)
            waiters, self.waiters = self.waiters, []
            for warp in waiters:
                warp.wake()

    def __str__(self) -> str:
        return f"cluster barrier: phase {self.phase}, {self.arrived} of {self.left} warps arrived"


class Machine:
    """Runs one launch of a translated program. ``pending``: issued copies; ``pipes``: tensor pipes with work.

    Of launches in a row: ``number`` from 1; ``before``: the launch whose end ``griddepcontrol.wait`` waits for;
    ``unsignalled``: CTAs on the chip that still keep the next launch from beginning; ``held``: warps that have let it
    begin and stand back until it has, None where nobody is to.
    """

    def __init__(
        self, program: Program, launch: Grid, memory: GlobalMemory, schedule: Schedule, *, sms: int, races: Any = None,
        barrier_names: dict[int, str] | None = None, roles: dict[int, str] | None = None, max_instructions: int,
        observer: Observer | None = None, before: Machine | Former | None = None, in_a_row: bool = False,
    ) -> None:  # fmt: skip
        self.before, self.in_a_row = before, in_a_row
        self.number: int = before.number + 1 if before is not None else 1
        self.label = f"launch {self.number}"
        self.begun = self.ended = False
        self.unsignalled = 0
        self.end_waiters: list[Warp] = []
        self.held: list[Warp] | None = None
        self.program, self.launch, self.memory, self.schedule = program, launch, memory, schedule
        self.races, self.max_instructions = races, max_instructions
        self.barrier_names, self.roles = barrier_names or {}, roles or {}
        self.param_bytes = self._layout_params()
        self.smem_limit = program.layout.dynamic + launch.smem_bytes
        self.tensors: dict[bytes, Any] = {}
        self.global_version = 0
        self.executed = 0
        self.pending: list[Any] = []
        self.current_warp: Warp | None = None
        self.pipes: list[TensorPipe] = []
        self.cluster_counts = tuple(g // c for g, c in zip(launch.grid, launch.cluster, strict=True))
        self.cluster_count = int(np.prod(self.cluster_counts))
        self.resident_limit = max(1, sms // int(np.prod(launch.cluster)))
        self.next_cluster = 0
        self.resident: list[Cluster] = []
        self.finished = 0
        if races is not None:
            races.attach(self)
        self.observer = observer
        if observer is not None:
            observer.attach(self)

    def _layout_params(self) -> bytes:
        data = bytearray(self.program.param_bytes)
        for offset, value in zip(self.program.param_offsets, self.launch.params, strict=True):
            data[offset : offset + len(value)] = value
        return bytes(data)

    def barrier_name(self, offset: int) -> str:
        """The kernel's name of the mbarrier at a shared offset; offsets count from the dynamic base."""
        relative = offset - self.program.layout.dynamic
        return self.barrier_names.get(relative, f"mbar@{relative:#x}")

    # -- asynchronous work ---------------------------------------------------------------------------------------
    def issue(self, operation: Any, cta: Cta) -> None:
        if self.observer is not None:
            operation = self.observer.issued(operation, cta)
        if operation.kind in self.schedule.delayed:
            self.pending.append(operation)
        else:
            operation.run()

    def run_pending(self) -> None:
        """Run the last delayed copy. No warp executes it, so a fault of it must not name the one that ran before."""
        self.current_warp = None
        self.pending.pop().run()

    def issue_pipe(self, pipe: TensorPipe) -> None:
        if "tensor" not in self.schedule.delayed:
            pipe.drain()
        elif pipe not in self.pipes:
            self.pipes.append(pipe)

    def run_pipe(self, pipe: TensorPipe) -> None:
        pipe.run()
        if not pipe.queue:
            self.pipes.remove(pipe)

    # -- clusters ------------------------------------------------------------------------------------------------
    def start_cluster(self) -> Cluster | None:
        """Put the next cluster of the grid on free SMs, if there are both."""
        if self.next_cluster >= self.cluster_count or len(self.resident) >= self.resident_limit:
            return None
        home = next(n for n in itertools.count() if all(cluster.home != n for cluster in self.resident))
        cluster = Cluster(self, self.next_cluster, home)
        self.next_cluster += 1
        self.unsignalled += len(cluster.ctas)
        self.resident.append(cluster)
        return cluster

    def _finish(self, warp: Warp) -> None:
        warp.done = True
        if self.races is not None:
            self.races.warp_done(warp)
        warp_exits(warp)
        cluster = warp.cta.cluster
        cluster.left -= 1
        if warp.cluster_phase > cluster.phase:
            cluster.arrived -= 1
        cluster.settle()
        if cluster.left == 0:
            for cta in cluster.ctas:
                cta.signal_dependents()
                cta.pipe.close()
                cta.tmem.close()
                if cta.registers is not None:
                    cta.registers.close(cta)
                if self.races is not None:
                    self.races.cta_done(cta)
            self.resident.remove(cluster)
            self.finished += 1

    @property
    def waiting(self) -> Iterator[Warp]:
        """Warps that have neither ended nor can run."""
        return (
            warp
            for cluster in self.resident
            for warp in cluster.warps
            if not warp.done and warp.wait is not None
        )

    # -- launches in a row ---------------------------------------------------------------------------------------
    def begin(self) -> None:
        """Raises ``ProtocolError`` for a launch that a card refuses."""
        self.begun = True
        wanted = self.smem_limit - FIRST_OFFSET
        if wanted > SMEM_OPTIN_BYTES:
            raise ProtocolError(
                f"the launch asks for {wanted} bytes of shared memory, a CTA has {SMEM_OPTIN_BYTES} at most"
            )
        self.schedule.begin(self)

    @property
    def lets_the_next_begin(self) -> bool:
        """Every CTA has said so, or has ended."""
        return self.begun and not self.unsignalled and self.next_cluster >= self.cluster_count

    def release_held(self, *, for_good: bool) -> bool:
        """``for_good``: the next launch has begun, so nobody stands back any more."""
        held, self.held = self.held or [], None if for_good or self.held is None else []
        for warp in held:
            warp.cta.cluster.ready.append(warp)
        return bool(held)

    def end_if_done(self) -> None:
        """All CTAs have ended and all that they issued has been performed: whoever waits for that goes on."""
        if self.resident or self.pending or self.pipes or self.next_cluster < self.cluster_count:
            return
        self.ended = True
        waiters, self.end_waiters = self.end_waiters, []
        for warp in waiters:
            warp.wake()

    def __str__(self) -> str:
        return f"the end of {self.label}"

    # -- the loop ------------------------------------------------------------------------------------------------
    def run(self) -> SimStatus:
        """Run to the end. Faults of the program are raised as ``Fault``."""
        self.begin()
        while self.schedule.step(self):
            if self.executed > self.max_instructions:
                return SimStatus.BUDGET_EXCEEDED
        done = not self.resident and self.next_cluster >= self.cluster_count
        return SimStatus.OK if done else SimStatus.DEADLOCK

    def run_warp(self, warp: Warp, limit: int) -> bool:
        """Run up to ``limit`` superblocks of a ready warp; True: it still can run, and goes back to the queue."""
        before = warp.executed
        self.current_warp = warp
        still_ready = self._advance(warp, limit)
        self.executed += warp.executed - before
        if self.observer is not None:
            self.observer.ran(warp, before)
        if still_ready:
            warp.cta.cluster.ready.append(warp)
        return still_ready

    def _advance(self, warp: Warp, limit: int) -> bool:
        full, part, registers = self.program.full, self.program.part, warp.R
        pc = warp.pc
        while limit > 0:
            if warp.mask == FULL:
                following = full[pc](warp, registers)
                while following >= 0 and limit > 0:
                    pc = following
                    limit -= 1
                    following = full[pc](warp, registers)
                if following >= 0:
                    pc = following
                    break
            else:
                if pc == warp.rpc:
                    warp.pop()
                    pc = warp.pc
                    continue
                limit -= 1
                following = part[pc](warp, registers, warp.mask)
                if following >= 0:
                    pc = following
                    continue
            if following == AGAIN:
                warp.pc = pc
                return False
            if following == LATER:
                return warp.wait is None
            if following != SPLIT and warp.leave_lanes():
                self._finish(warp)
                return False
            pc = warp.pc
        warp.pc = pc
        return True
