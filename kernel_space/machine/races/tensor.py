"""The tensor pipe and tensor memory as the race checker sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.races.memory import ASYNC, MemoryRaces
from kernel_space.machine.races.shadow import Access, Cells, Conflict
from kernel_space.machine.units.tensor_pipe import accumulator_columns
from kernel_space.machine.values.clocks import ALWAYS, Clock

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.units.mbarrier import MBarrier
    from kernel_space.machine.units.tensor_pipe import Mma, TensorPipe

ALL_LANES = slice(
    0, 8
)  # the shadow of TMEM has rows of 16 lanes: an M = 64 accumulator takes every other one


class TensorRaces(MemoryRaces):
    """Operations of one pipe are in order; everything else must be ordered by clocks."""

    def tensor_mma(
        self, w: Warp, pipe: TensorPipe, part: Mma, operands: list[tuple[Cta, NDArray[np.int64]]], site: int
    ) -> None:
        access = Access(pipe.slot, pipe.sequence + 1, site)
        for cta, chunks in operands:
            self._read(w, cta, self._words(chunks), access, ASYNC, "tcgen05.mma")
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
            self._columns(w, pipe, cta, sfb, -(-part.shape.n // 32), False, access, "SFB of tcgen05.mma")
        column, count = part.d & 0xFFFF, accumulator_columns(part)
        lanes = slice(part.d >> 20, None, 2) if part.shape.m == 64 else ALL_LANES
        if part.accumulate:
            self._columns(w, pipe, cta, column, count, False, access, "accumulating tcgen05.mma", lanes)
        self._columns(w, pipe, cta, column, count, True, access, "tcgen05.mma", lanes)

    def tensor_copy(
        self, w: Warp, pipe: TensorPipe, ctas: tuple[Cta, ...], chunks: NDArray[np.int64], column: int, count: int,
        site: int,
    ) -> None:  # fmt: skip
        access = Access(pipe.slot, pipe.sequence + 1, site)
        for cta in ctas:
            self._read(w, cta, self._words(chunks), access, ASYNC, "tcgen05.cp")
            self._columns(w, pipe, cta, column, count, True, access, "tcgen05.cp")

    def tensor_columns(
        self,
        w: Warp,
        pipe: TensorPipe,
        ctas: tuple[Cta, ...],
        column: int,
        count: int,
        writes: bool,
        site: int,
    ) -> None:
        for cta in ctas:
            self._columns(
                w, pipe, cta, column, count, writes, Access(pipe.slot, pipe.sequence + 1, site), "tcgen05"
            )

    def tensor_commit(
        self, w: Warp, pipe: TensorPipe, barriers: list[MBarrier], site: int
    ) -> tuple[Clock, dict[int, Clock]]:
        """The clock that the commit will bring to its barriers, and what its warp knows of other clusters."""
        for barrier in barriers:
            self.check_made(w, barrier, site)
        clock = w.clock.release()
        clock[:, pipe.slot] = pipe.sequence
        return clock, w.clock.foreign

    def commit_arrives(self, barrier: MBarrier, clocks: tuple[Clock, dict[int, Clock]]) -> None:
        barrier.clock.gather(*clocks)

    def _words(self, chunks: NDArray[np.int64]) -> Cells:
        return (chunks.reshape(-1, 1) * 4 + np.arange(4)).reshape(-1)

    def _columns(
        self, w: Warp, pipe: TensorPipe, cta: Cta, column: int, count: int, writes: bool, access: Access, what: str,
        rows: slice = ALL_LANES,
    ) -> None:  # fmt: skip
        """The pipe touches columns; it is in order with itself."""
        seen = w.clock.clock[0]
        saved, seen[pipe.slot] = seen[pipe.slot], ALWAYS
        self._tmem(w, cta, (rows, slice(column, column + count)), writes, access, what)
        seen[pipe.slot] = saved

    def _tmem(self, w: Warp, cta: Cta, cells: Any, writes: bool, access: Access, what: str) -> None:
        shadow, seen = cta.tmem_shadow, w.clock.clock[0]
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
        cells = (slice(lane // 16, (lane + lanes) // 16), slice(column, column + count))
        self._tmem(w, w.cta, cells, False, Access(w.clock.slot, w.clock.epoch, site), "tcgen05.ld")

    def tmem_write(self, w: Warp, lane: int, lanes: int, column: int, count: int, site: int) -> None:
        cells = (slice(lane // 16, (lane + lanes) // 16), slice(column, column + count))
        self._tmem(w, w.cta, cells, True, Access(w.clock.slot, w.clock.epoch, site), "tcgen05.st")

    def tmem_wait(self, w: Warp, what: str) -> None:
        """Registers of a load are used only behind its wait in compiled code; nothing to order."""

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
