"""Global memory accesses as the race checker sees them, of threads and of the async proxy, within a launch and between
launches in a row.

What a launch does is in the past of a warp of the next one once that warp has executed ``griddepcontrol.wait``, or is
ordered behind one that has. Nothing else orders launches that overlap. Between them strong accesses (atomics, volatile,
relaxed and ordered loads and stores) race with plain ones, not with each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.races.shadow import (
    ATOMIC,
    COPIED,
    POLLED,
    READ,
    Access,
    Cells,
    GlobalShadow,
    ended_key,
)
from kernel_space.machine.races.sync import SyncRaces
from kernel_space.machine.values.lanes import ndarray

if TYPE_CHECKING:
    from kernel_space.machine.memory.global_memory import Region
    from kernel_space.machine.memory.tma import TmaTensor
    from kernel_space.machine.races.former import Former
    from kernel_space.machine.run.machine import Machine, Warp

GENERIC, ASYNC = 0, 1
_DONE = {READ: "read", COPIED: "read", POLLED: "read", ATOMIC: "changed", "writer": "wrote"}
_LETTER = {READ: "R", COPIED: "R", POLLED: "R", ATOMIC: "W", "writer": "W"}


def words_of(offset: int | NDArray[np.int64], size: int) -> Cells:
    """4-byte words that accesses of ``size`` bytes touch."""
    if type(offset) is not ndarray:
        return slice(offset >> 2, (offset + size + 3) >> 2)
    if size <= 4:
        return offset >> 2
    return ((offset[:, None] + np.arange(0, size, 4)[None, :]) >> 2).reshape(-1)


class GlobalRaces(SyncRaces):
    """Checks happen when an operation is issued, with the clock of the warp that issues it."""

    def __init__(self, program: Any, before: Any = None, *, in_a_row: bool = False) -> None:
        super().__init__(program, before, in_a_row=in_a_row)
        self.shadows: dict[int, GlobalShadow] = before.shadows if before else {}

    # -- accesses of threads -------------------------------------------------------------------------------------
    def global_read(self, w: Warp, region: Region, at: Any, size: int, order: str, site: int) -> None:
        cells = words_of(at, size)
        if order != "weak":
            if type(at) is not ndarray:
                self.sync_load(w, (region.base, at), order)
            return self._strong(w, region, cells, POLLED, site, "strong load reads")
        self._plain_read(w, region, cells, GENERIC, READ, site, "ld.global reads")

    def global_write(self, w: Warp, region: Region, at: Any, size: int, order: str, site: int) -> None:
        cells = words_of(at, size)
        if order != "weak":
            if type(at) is not ndarray:
                self.sync_store(w, (region.base, at), order)
            return self._strong(w, region, cells, ATOMIC, site, "strong store overwrites")
        access = Access(w.clock.slot, w.clock.epoch, site)
        self._plain_write(w, region, cells, access, GENERIC, "st.global")

    def global_atomic(self, w: Warp, region: Region, at: int, size: int, order: str, site: int) -> None:
        self.sync_load(w, (region.base, at), order)
        self.sync_store(w, (region.base, at), order)
        self._strong(w, region, words_of(at, size), ATOMIC, site, "atomic changes")

    # -- accesses of copies --------------------------------------------------------------------------------------
    def copied_read(
        self, w: Warp, region: Region, at: int, size: int, site: int, *, bulk: bool = True
    ) -> None:
        """The source of a bulk copy or of ``cp.async``."""
        proxy = ASYNC if bulk else GENERIC
        self._plain_read(w, region, words_of(at, size), proxy, COPIED, site, "copy reads")

    def async_global_write(self, w: Warp, region: Region, at: int, size: int, how: str, site: int) -> None:
        cells = words_of(at, size)
        if how:
            return self._strong(w, region, cells, ATOMIC, site, "bulk reduction changes")
        access = Access(w.clock.write_slot, w.bulk_current + 1, site)
        self._plain_write(w, region, cells, access, ASYNC, "bulk store")

    def _box(
        self,
        w: Warp,
        tensor: TmaTensor,
        start: tuple[int, ...],
        writes: Access | None,
        site: int,
        reduces: bool = False,
    ) -> None:
        """The part of a TMA box that lies inside its tensor, as words of a region."""
        located = tensor.region_words(w.machine, start, stores=writes is not None)
        if located is None:
            return
        region, cells = located
        if reduces:
            self._strong(w, region, cells, ATOMIC, site, "TMA reduction changes")
        elif writes is not None:
            self._plain_write(w, region, cells, writes, ASYNC, "TMA store")
        else:
            self._plain_read(w, region, cells, ASYNC, COPIED, site, "TMA load reads")

    # -- checks --------------------------------------------------------------------------------------------------
    def _plain_read(
        self, w: Warp, region: Region, cells: Cells, proxy: int, kind: str, site: int, what: str
    ) -> None:
        shadow = self._global(region, make=self.in_a_row)
        if shadow is None:
            return
        self._check(w, region, shadow.writer, "writer", cells, proxy, site, what)
        if self.in_a_row:
            self._check_others(w, region, shadow, (ATOMIC,), cells, site, what)
        if kind == READ or self.in_a_row:
            self._note(w, shadow, kind, cells, site)

    def _plain_write(
        self, w: Warp, region: Region, cells: Cells, access: Access, proxy: int, what: str
    ) -> None:
        shadow = self._global(region, make=True)
        assert shadow is not None
        what, site = f"{what} overwrites", access.site
        self._check(w, region, shadow.writer, "writer", cells, proxy, site, what)
        read = shadow.tables.get((self.machine.number, READ))
        if read is not None:
            self._check(w, region, read, READ, cells, GENERIC, site, what)
        if self.in_a_row:
            self._check_others(w, region, shadow, (READ, COPIED, POLLED, ATOMIC), cells, site, what)
        shadow.note(shadow.writer, cells, w.cta.cluster.key, access)

    def _strong(self, w: Warp, region: Region, cells: Cells, kind: str, site: int, what: str) -> None:
        """Of other launches only plain accesses conflict; within a launch strong accesses only synchronise."""
        if not self.in_a_row:
            return
        shadow = self._global(region, make=True)
        assert shadow is not None
        self._check(w, region, shadow.writer, "writer", cells, GENERIC, site, what, others_only=True)
        if kind == ATOMIC:
            self._check_others(w, region, shadow, (READ, COPIED), cells, site, what)
        self._note(w, shadow, kind, cells, site)

    def _check_others(
        self, w: Warp, region: Region, shadow: GlobalShadow, kinds: tuple[str, ...], cells: Cells, site: int, what: str
    ) -> None:  # fmt: skip
        """Against accesses of other launches."""
        for kind, table in shadow.of_others(self.machine.number, kinds, w.clock.foreign):
            self._check(w, region, table, kind, cells, GENERIC, site, what)

    def _note(self, w: Warp, shadow: GlobalShadow, kind: str, cells: Cells, site: int) -> None:
        access = Access(w.clock.slot, w.clock.epoch, site)
        shadow.note(shadow.table(self.machine.number, kind), cells, w.cta.cluster.key, access)

    def _global(self, region: Region, *, make: bool) -> GlobalShadow | None:
        found = self.shadows.get(region.base)
        if found is None and make:
            found = self.shadows[region.base] = GlobalShadow(region.end - region.base)
        return found

    def _check(
        self, w: Warp, region: Region, table: NDArray[np.int32], kind: str, cells: Cells, proxy: int, site: int,
        what: str, *, others_only: bool = False,
    ) -> None:  # fmt: skip
        """Report an access in ``table`` that is not in the past of ``w``."""
        clock, own = w.clock, w.cta.cluster.key
        found = GlobalShadow.conflict(
            table, cells, own, clock.clock, proxy, clock.foreign, others_only=others_only
        )
        if found is None:
            return
        at, key, slot, other_site = found
        word = cells.start + at if isinstance(cells, slice) else int(cells.reshape(-1)[at])
        slots = self.clusters[key]
        other, where = slots.names[slot], f"byte {word * 4 - (region.start - region.base)} of {region.name}"
        letters = f"{'R' if 'reads' in what else 'W'}A{_LETTER[kind]}"
        machine, reason = slots.cluster.machine, "nothing orders the two"
        if machine is not self.machine:
            what, reason = (
                f"{what.rpartition(' ')[0]} of {w.who} {what.split()[-1]}",
                self._missing(w, machine),
            )
        self.report(
            (letters, machine.number, other_site, site),
            f"{letters} on global memory, {where}: {what} what {other} {_DONE[kind]}, and {reason}",
            site, w.who, other_site, other, machine,
        )  # fmt: skip

    def _missing(self, w: Warp, other: Machine | Former) -> str:
        """Which wait would order an access of ``w`` and one of another launch."""
        later, earlier = (
            (self.machine, other) if other.number < self.machine.number else (other, self.machine)
        )
        between, none = later.before, "no griddepcontrol.wait orders the two"
        assert between is not None
        if (
            between is not earlier
            and between.ended
            and ended_key(earlier.number) not in between.races.passed_on
        ):
            return (
                f"{none}: {later.label} may wait for the end of {between.label}, of which no thread has waited for the "
                f"end of {earlier.label}"
            )
        whose = f"{w.who} has" if later is self.machine else f"the warp of {later.label} had"
        return f"{none}: {whose} not executed it, nor is it ordered behind a thread of its launch that has"
