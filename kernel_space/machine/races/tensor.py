"""The tensor pipe and tensor memory as the race checker sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.races.memory import MemoryRaces
from kernel_space.machine.races.shadow import Access, Cells, Conflict
from kernel_space.machine.units.tensor_core import scale_b_columns
from kernel_space.machine.units.tensor_pipe import accumulator_columns
from kernel_space.machine.values.clocks import ALWAYS, ASYNC_SHARED, Clock, Known

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.units.mbarrier import MBarrier
    from kernel_space.machine.units.tensor_pipe import Mma, TensorPipe

ALL_LANES = slice(
    0, 8
)  # the shadow of TMEM has rows of 16 lanes: an M = 64 accumulator takes every other one


class TensorRaces(MemoryRaces):
    """Operations that one thread gives to a pipe are in order; everything else must be ordered by clocks.

    ``issuers``: of each warp, (pipe, lane) -> the slot that counts what that thread has issued, and how much it is.
    """

    def __init__(self, program: Any, before: Any = None, *, in_a_row: bool = False) -> None:
        super().__init__(program, before, in_a_row=in_a_row)
        self.issuers: dict[Warp, dict[tuple[TensorPipe, int], list[int]]] = {}

    def _issue(self, w: Warp, pipe: TensorPipe, lane: int, site: int) -> Access:
        """The next operation of a thread."""
        threads = self.issuers.setdefault(w, {})
        found = threads.get((pipe, lane))
        if found is None:
            first = all((pipe, at) not in other for other in self.issuers.values() for _, at in other)
            slot = pipe.slot if first else self._new_issuer(w, pipe, lane)
            found = threads[pipe, lane] = [slot, 0]
        found[1] = pipe.sequence + 1
        return Access(found[0], found[1], site)

    @staticmethod
    def _new_issuer(w: Warp, pipe: TensorPipe, lane: int) -> int:
        return int(w.clock.slots.new(f"tensor pipe{pipe.cta.suffix}, fed by lane {lane} of {w.who}"))

    def tensor_mma(
        self, w: Warp, pipe: TensorPipe, part: Mma, operands: list[tuple[Cta, NDArray[np.int64]]], lane: int, site: int
    ) -> None:  # fmt: skip
        access = self._issue(w, pipe, lane, site)
        for cta, chunks in operands:
            self._read(w, cta, self._words(chunks), access, ASYNC_SHARED, "tcgen05.mma")
        for number, cta in enumerate(part.ctas):
            self._mma_columns(w, pipe, part, cta, number, access)

    def _mma_columns(
        self, w: Warp, pipe: TensorPipe, part: Mma, cta: Cta, number: int, access: Access
    ) -> None:
        rows = part.shape.m // part.group
        if part.a_in_tmem:
            self._columns(w, pipe, cta, part.a & 0xFFFF, 8, False, access, "A of tcgen05.mma")
        if part.scales is not None:
            sfa, sfb = (address & 0xFFFF for address in part.scales)
            self._columns(w, pipe, cta, sfa, -(-rows // 32), False, access, "SFA of tcgen05.mma")
            columns = scale_b_columns(part.shape, part.group)
            self._columns(w, pipe, cta, sfb, columns, False, access, "SFB of tcgen05.mma")
        column, count = part.d & 0xFFFF, accumulator_columns(part)
        lanes = slice(part.d >> 20, None, 2) if part.shape.m == 64 else ALL_LANES
        if part.accumulate:
            self._columns(w, pipe, cta, column, count, False, access, "accumulating tcgen05.mma", lanes)
        self._columns(w, pipe, cta, column, count, True, access, "tcgen05.mma", lanes)

    def tensor_copy(
        self, w: Warp, pipe: TensorPipe, ctas: tuple[Cta, ...], chunks: NDArray[np.int64], column: int, count: int,
        lane: int, site: int,
    ) -> None:  # fmt: skip
        access = self._issue(w, pipe, lane, site)
        for cta in ctas:
            self._read(w, cta, self._words(chunks), access, ASYNC_SHARED, "tcgen05.cp")
            self._columns(w, pipe, cta, column, count, True, access, "tcgen05.cp")

    def tensor_columns(
        self,
        w: Warp,
        pipe: TensorPipe,
        ctas: tuple[Cta, ...],
        column: int,
        count: int,
        writes: bool,
        lane: int,
        site: int,
    ) -> None:
        access = self._issue(w, pipe, lane, site)
        for cta in ctas:
            self._columns(w, pipe, cta, column, count, writes, access, "tcgen05")

    def tensor_commit(
        self, w: Warp, pipe: TensorPipe, barriers: list[MBarrier], lane: int, site: int
    ) -> tuple[Clock, Known]:
        """The clock that the commit will bring to its barriers, and what its warp knows of other clusters.

        It is for operations of the thread that executes it alone.
        """
        for barrier in barriers:
            self.check_made(w, barrier, site)
        clock = w.clock.release(1 << lane)
        issued = self.issuers.get(w, {}).get((pipe, lane))
        if issued is not None:
            clock[:, issued[0]] = issued[1]
        return clock, w.clock.foreign

    def tensor_fence(self, w: Warp, before: bool, mask: int) -> None:
        """``tcgen05.fence::before_thread_sync`` and ``after_thread_sync``."""
        if not before:
            return w.clock.after_thread_sync()
        issued = {
            slot: number for (_, lane), (slot, number) in self.issuers.get(w, {}).items() if mask >> lane & 1
        }
        w.clock.before_thread_sync(issued)

    def commit_arrives(self, barrier: MBarrier, clocks: tuple[Clock, Known]) -> None:
        barrier.clock.gather(*clocks)

    def _words(self, chunks: NDArray[np.int64]) -> Cells:
        return (chunks.reshape(-1, 1) * 4 + np.arange(4)).reshape(-1)

    def _columns(
        self, w: Warp, pipe: TensorPipe, cta: Cta, column: int, count: int, writes: bool, access: Access, what: str,
        rows: slice = ALL_LANES,
    ) -> None:  # fmt: skip
        """The pipe touches columns; what one thread gives it is in order."""
        seen = w.clock.seen_by_tensor()
        saved, seen[access.slot] = seen[access.slot], ALWAYS
        self._tmem(w, cta, (rows, slice(column, column + count)), writes, access, what, seen)
        seen[access.slot] = saved

    def _tmem(
        self, w: Warp, cta: Cta, cells: Any, writes: bool, access: Access, what: str, seen: NDArray[np.int64]
    ) -> None:
        shadow = cta.tmem_shadow
        conflict = shadow.writers_before(cells, seen)
        if conflict is not None:
            self._tmem_conflict(w, cta, conflict, access, what, "WAW" if writes else "RAW")
        if writes:
            conflict = shadow.readers_before(cells, seen, access.slot)
            if conflict is not None:
                self._tmem_conflict(w, cta, conflict, access, what, "WAR")
            return shadow.note_write(cells, access)
        shadow.note_read(cells, access)

    def _tmem_conflict(
        self, w: Warp, cta: Cta, conflict: Conflict, access: Access, what: str, kind: str
    ) -> None:
        other = cta.cluster.slots.names[conflict.slot]
        lane = conflict.cell // 512 * 16
        where = f"TMEM column {conflict.cell % 512}, lanes {lane}..{lane + 15}"
        past = "wrote" if conflict.kind == "write" else "reads"
        self.report(
            (kind, conflict.site, access.site),
            f"{kind} on {where}{cta.suffix}: {what} touches what {other} {past}; that {conflict.kind} is not known to "
            "be complete",
            access.site, w.who, conflict.site, other,
        )  # fmt: skip

    # -- tensor memory accesses of warps -------------------------------------------------------------------------
    def tmem_read(self, w: Warp, lane: int, lanes: int, column: int, count: int, site: int) -> None:
        """The read is over when it is waited for, or when its registers are used: then, not now, others may write."""
        clock = w.clock
        clock.loads += 1
        cells = (slice(lane // 16, (lane + lanes) // 16), slice(column, column + count))
        access = Access(clock.load_slot, clock.loads, site)
        self._tmem(w, w.cta, cells, False, access, "tcgen05.ld", clock.seen_by_tensor())

    def tmem_write(self, w: Warp, lane: int, lanes: int, column: int, count: int, site: int) -> None:
        """The write is there when it is waited for; stores of a warp are in order."""
        clock = w.clock
        clock.stores += 1
        cells = (slice(lane // 16, (lane + lanes) // 16), slice(column, column + count))
        seen = clock.seen_by_tensor()
        saved, seen[clock.store_slot] = seen[clock.store_slot], ALWAYS
        access = Access(clock.store_slot, clock.stores, site)
        self._tmem(w, w.cta, cells, True, access, "tcgen05.st", seen)
        seen[clock.store_slot] = saved

    def tmem_wait(self, w: Warp, what: str) -> None:
        if what == "st":
            w.clock.raise_slot(w.clock.store_slot, w.clock.stores)

    def tmem_granted(self, cta: Cta, base: int, columns: int) -> None:
        cta.tmem_shadow.forget((ALL_LANES, slice(base, base + columns)))

    def tmem_alloc(self, w: Warp, ctas: list[Cta]) -> None:
        """Warps that allocate together have waited for each other."""
        for cta in ctas:
            if cta.tmem.clock is not None:
                w.clock.join(cta.tmem.clock)

    def tmem_dealloc(self, w: Warp, base: int, columns: int, group: int, site: int) -> None:
        """Everything that touched the columns must be over, in this CTA."""
        shadow, seen = w.cta.tmem_shadow, w.clock.clock[0]
        cells = (ALL_LANES, slice(base, base + columns))
        access = Access(w.clock.slot, w.clock.epoch, site)
        for conflict in (
            shadow.writers_before(cells, seen),
            shadow.readers_before(cells, seen, w.clock.slot),
        ):
            if conflict is not None:
                self._tmem_conflict(w, w.cta, conflict, access, "tcgen05.dealloc", "deallocation race")
