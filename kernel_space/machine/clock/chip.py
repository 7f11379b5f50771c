"""One cluster with a clock: warps run until they wait; the one whose nominal time is earliest runs next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from kernel_space.core.errors import InputError
from kernel_space.launch.capture import Launch
from kernel_space.machine.clock.clock import Clock, Times
from kernel_space.machine.clock.engines import TimedMap, timed_map
from kernel_space.machine.clock.occupancy import l1_sectors
from kernel_space.machine.clock.pipe import TimedPipe
from kernel_space.machine.clock.plain import Touched
from kernel_space.machine.clock.program import TimedProgram
from kernel_space.machine.clock.sync import TimedBarrier, TimedNamed, warp_exits
from kernel_space.machine.ptx.cfg import EXIT
from kernel_space.machine.run.lockstep import Lockstep
from kernel_space.machine.translate.translate import AGAIN, LATER, SPLIT
from kernel_space.machine.values.faults import Fault, IllegalAccess, SimStatus, Unsupported
from kernel_space.machine.values.lanes import FULL, LANES

Record = list[tuple[str, str, float, float]]
"""(lane, what, begin, end) in cycles of the nominal set."""


ISSUED = frozenset({"issue", "vector", "special"})  # costs that are counts of instructions


class TimedDeadlock(Fault):
    """Warps wait for what nobody will do. The functional machine names the barrier and who is missing."""

    status = SimStatus.DEADLOCK


class TimedWarp(Lockstep):
    """32 lanes. ``t``: now; ``blame``: nominal cycles waited since the tensor pipe last took something, by cause.

    ``issued``: instructions, ``special``: special functions among them, ``visits``: how often it was at each run of
    them. Of plain accesses that are not charged yet:
    ``loaded``, ``stored``, ``copied``: sectors that pass L2; ``found``: those in L1, which are there at ``found_at``;
    ``coming``: what L1 will hold; ``fresh_*``: bytes that pass DRAM, of the whole chip. ``copies_at``,
    ``loads_at``: when the copies and the loads so far have come.
    """

    def __init__(self, cta: TimedCta, number: int) -> None:
        self.cta, self.machine, self.number = cta, cta.cluster.machine, number
        self.clock = self.machine.clock
        self.costs, self.slots, self.specials = self.machine.costs, self.machine.slots, self.machine.specials
        self.issued = self.special = 0.0
        self.visits = [0] * len(self.costs)
        self.loaded = self.stored = self.copied = 0
        self.fresh_loads = self.fresh_stores = self.fresh_copies = 0
        self.found = 0
        self.found_at: Times = self.machine.zero
        self.coming: set[int] = set()
        self.R = [0] * len(self.machine.program.kernel.registers)
        self.pc, self.rpc = 0, EXIT
        self.frames = []
        self.executed = 0
        self.site = 0
        self.done = self.waits = False
        self.cluster_phase = 0
        self.t: Times = self.clock.start
        self.blame: dict[str, float] = {}
        self.bulk_open: Times | None = None
        self.bulk_groups: list[Times] = []
        self.copies_at = self.loads_at = self.machine.zero
        self.copy_groups: list[Times] = []
        self.shared_base = cta.rank << 24
        self.alive = self.mask = self._special_registers(self.machine.launch.block, cta.special)

    def waited(self, cause: str, cycles: float) -> None:
        if cycles > 0:
            self.blame[cause] = self.blame.pop(cause, 0.0) + cycles
            if self.machine.record is not None:
                lane = f"CTA {self.cta.rank} warp {self.number}"
                self.machine.record.append(
                    (lane, f"wait {cause}", float(self.t[0]), float(self.t[0]) + cycles)
                )

    def read_clock(self, short: bool) -> int:
        raise Unsupported("the control flow depends on %clock, which differs between sets of constants")

    def wake(self) -> None:
        self.waits = False
        self.machine.push(self)

    def advance(self, horizon: float) -> bool:
        """Run until it waits, ends, or is later than ``horizon``; True if it can still run."""
        full, part, registers = self.machine.program.full, self.machine.program.part, self.R
        while True:
            if self.mask == FULL:
                following = full[self.pc](self, registers)
            elif self.pc == self.rpc:
                self.pop()
                continue
            else:
                following = part[self.pc](self, registers, self.mask)
            if following >= 0:
                self.pc = following
            elif following in (AGAIN, LATER):
                if self.waits:
                    return False
            elif following != SPLIT and self.leave_lanes():
                self.done = True
                self.t = np.maximum(self.t, self.loads_at)
                warp_exits(self)
                return False
            if self.t.item(0) > horizon:
                return True


class TimedCta:
    """``fill_free``, ``l2_free``, ``store_free``: when its port, its L2 share and its store queue are free again;
    ``plain_free``, ``l1_free``: when what plain accesses have asked for has passed L2, and L1. ``l1``: sector ->
    when it is there.
    """

    def __init__(self, cluster: TimedCluster, rank: int, position: tuple[int, int, int]) -> None:
        self.cluster, self.rank = cluster, rank
        machine = self.machine = cluster.machine
        self.mbarriers: dict[int, TimedBarrier] = {}
        self.named: dict[int, TimedNamed] = {}
        self.words: dict[int, int] = {}
        self.released = machine.zero
        self.fill_free = self.l2_free = self.store_free = self.plain_free = self.l1_free = machine.zero
        self.l1: dict[int, Times] = {}
        self.filled = self.stored = self.plain_bytes = self.l1_bytes = self.atomics = 0
        self.descriptors_at = machine.clock.start + machine.clock.tensor_map
        threads = int(np.prod(machine.launch.block))
        self.running = -(-threads // LANES) * LANES
        self.special = self._special(position)
        self.pipe = TimedPipe(self)
        self.warps = [TimedWarp(self, number) for number in range(self.running // LANES)]

    def _special(self, position: tuple[int, int, int]) -> dict[str, int]:
        machine, launch = self.machine, self.machine.launch
        size = int(np.prod(launch.cluster))
        triples = {
            "ctaid": position, "nctaid": launch.grid, "ntid": launch.block, "nclusterid": machine.cluster_counts,
            "cluster_nctaid": launch.cluster,
            "cluster_ctaid": tuple(p % c for p, c in zip(position, launch.cluster, strict=True)),
            "clusterid": tuple(p // c for p, c in zip(position, launch.cluster, strict=True)),
        }  # fmt: skip
        special = {
            f"sr_{name}_{axis}": value[at] for name, value in triples.items() for at, axis in enumerate("xyz")
        }
        return special | {
            "sr_cluster_ctarank": self.rank, "sr_cluster_nctarank": size, "sr_smid": self.rank, "sr_nsmid": 148,
            "sr_nwarpid": 64, "sr_gridid": 1, "sr_is_explicit_cluster": FULL if size > 1 else 0,
            "sr_dynamic_smem_size": launch.smem_bytes, "sr_total_smem_size": launch.smem_bytes,
        }  # fmt: skip

    def atomic(self) -> int:
        """What the next atomic of this CTA returns."""
        results = self.machine.atomic_results
        self.atomics += 1
        return results[min(self.atomics, len(results)) - 1]

    def peer(self, rank: int) -> TimedCta:
        if rank >= len(self.cluster.ctas):
            raise IllegalAccess(f"a shared address names CTA {rank} of a cluster of {len(self.cluster.ctas)}")
        return self.cluster.ctas[rank]


class TimedCluster:
    def __init__(self, machine: TimedMachine, number: int) -> None:
        self.machine = machine
        self.phase = self.arrived = 0
        self.latest = self.released = machine.zero
        self.waiters: list[TimedWarp] = []
        self.ctas: list[TimedCta] = []
        counts = machine.cluster_counts
        at = (number % counts[0], number // counts[0] % counts[1], number // (counts[0] * counts[1]))
        cx, cy, cz = machine.launch.cluster
        for rank, (z, y, x) in enumerate(itertools.product(range(cz), range(cy), range(cx))):
            self.ctas.append(TimedCta(self, rank, (at[0] * cx + x, at[1] * cy + y, at[2] * cz + z)))
        self.warps = [warp for cta in self.ctas for warp in cta.warps]

    def settle(self) -> None:
        left = sum(not warp.done for warp in self.warps)
        if self.arrived < left or not left:
            return
        self.phase += 1
        self.arrived = 0
        self.released = self.latest + self.machine.clock.cluster_barrier
        waiters, self.waiters = self.waiters, []
        for warp in waiters:
            warp.wake()


class TimedMachine:
    """Runs one cluster of a launch.

    ``active_sms`` share the chip's L2, ``clusters_active`` read DRAM at the same time, ``share`` CTAs stand on an SM
    and do the same; ``cold``: L2 holds nothing at the start; ``tensors``: address -> bytes of what plain accesses
    reach. ``map_names``: parameter index -> what its descriptor describes. ``atomic_results``: what the atomics
    of a CTA return, one after the other; the last one from then on. ``l2_cycles``, ``fill_cycles``: of one box of each
    descriptor; ``targets``: where the loads so far go, valid until a barrier is initialised.
    """

    def __init__(
        self, program: TimedProgram, launch: Launch, clock: Clock, *, active_sms: int, sm_count: int,
        clusters_active: int, share: int = 1, tensors: Mapping[int, int] | None = None, cold: bool = False,
        map_names: dict[int, str] | None = None, atomic_results: tuple[int, ...] = (0,),
        record: bool = False,
    ) -> None:  # fmt: skip
        if launch.kernel_name != program.kernel.name:
            raise InputError(f"the launch is of {launch.kernel_name}, the program of {program.kernel.name}")
        self.program, self.launch, self.clock = program, launch, clock
        self.zero: Times = np.zeros(clock.sets)
        self.costs = [self._cost(cost) for cost in program.costs]
        self.slots = [sum(amount for field, amount in cost if field in ISSUED) for cost in program.costs]
        self.specials = [dict(cost).get("special", 0.0) for cost in program.costs]
        self.param_bytes = self._params()
        names = map_names or {}
        self.maps: dict[int, TimedMap] = {
            program.param_offsets[index]: timed_map(index, tensor, names.get(index, f"parameter {index}"))
            for index, tensor in launch.tensor_maps.items()
        }
        self.cluster_counts = tuple(g // c for g, c in zip(launch.grid, launch.cluster, strict=True))
        self.clusters_active, self.share = clusters_active, share
        self.l2_rate = clock.l2_rate * (sm_count / active_sms / share)
        self.fill_narrow = clock.fill_narrow / share
        self.plain_rate = np.minimum(self.l2_rate, self.fill_narrow)
        self.l1_rate = clock.l1_rate / share
        self.l1_sectors = l1_sectors(launch.smem_bytes, share)
        self.sf_copy = clock.sf_copy * share
        self.dram_extra = clock.tma_latency_cold - clock.tma_latency
        self.touched = Touched(tensors or {}, clusters_active)
        self.l2_cycles = {info.index: info.box_bytes / self.l2_rate for info in self.maps.values()}
        self.fill_cycles = {
            i.index: i.box_bytes / clock.fill_rate(i.rows) * share for i in self.maps.values()
        }
        self.targets: dict[Any, list[tuple[TimedCta, TimedBarrier]]] = {}
        self.cold, self.atomic_results = cold, atomic_results
        self.seen: set[Any] = set()
        self.unread = {info.index: info.tensor_bytes for info in self.maps.values()}
        self.dram_free = self.plain_dram = self.zero
        self.dram_bytes = self.dram_written = 0
        self.record: Record | None = [] if record else None
        self._queue: list[tuple[float, int, TimedWarp]] = []
        self._pushed = 0
        self._cache: dict[Any, Times] = {}

    def _cost(self, cost: tuple[tuple[str, float], ...]) -> Times:
        return sum((amount * getattr(self.clock, field) for field, amount in cost), start=self.zero)

    def _params(self) -> bytes:
        data = bytearray(self.program.param_bytes)
        for offset, value in zip(self.program.param_offsets, self.launch.params, strict=True):
            data[offset : offset + len(value)] = value
        return bytes(data)

    def mma_cycles(self, group: int, m: int, n: int) -> Times:
        return self._kept(("mma", group, m, n), lambda: self.clock.mma_cycles(group, m, n) * self.share)

    def tmem_cycles(self, columns: int) -> Times:
        return self._kept(columns, lambda: self.clock.tmem_latency + columns * self.clock.tmem_column)

    def _kept(self, key: Any, make: Any) -> Times:
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = make()
        return found

    def dram_cycles(self) -> Times:
        """What DRAM needs for all that has passed it, first touches of the whole chip."""
        both = min(self.dram_written, self.dram_bytes - self.dram_written)
        return (self.dram_bytes + 2 * both * (1 / self.clock.dram_mixed - 1)) / self.clock.dram_rate

    def push(self, warp: TimedWarp) -> None:
        self._pushed += 1
        heapq.heappush(self._queue, (warp.t.item(0), self._pushed, warp))

    def run(self, number: int = 0) -> TimedCluster:
        """Run cluster ``number`` from its start to its end. Raises ``Fault`` for what the program does wrong."""
        cluster = TimedCluster(self, number)
        for warp in cluster.warps:
            self.push(warp)
        while self._queue:
            _, _, warp = heapq.heappop(self._queue)
            horizon = self._queue[0][0] if self._queue else float("inf")
            if warp.advance(horizon):
                self.push(warp)
            elif warp.done:
                cluster.settle()
        asleep = [f"CTA {warp.cta.rank} warp {warp.number}" for warp in cluster.warps if not warp.done]
        if asleep:
            raise TimedDeadlock(f"nothing can move any more; asleep: {', '.join(asleep)}")
        return cluster
