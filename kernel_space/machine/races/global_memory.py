"""Global memory accesses as the race checker sees them, of threads and of the async proxy, within a launch and between
launches in a row.

What a launch does is in the past of a warp of the next one once that warp has executed ``griddepcontrol.wait``, or is
ordered behind one that has. Nothing else orders launches that overlap. Strong accesses (atomics, volatile, relaxed and
ordered loads and stores) race with plain ones, of which one writes, and with each other if the scope of one does not
hold the other's thread: PTX calls two accesses morally strong only if both are strong and each scope includes the other
thread (memory consistency model, data races).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.races.shadow import (
    ATOMIC,
    COPIED,
    COPIED_BEFORE,
    NC,
    POLLED,
    POLLED_BEFORE,
    READ,
    READ_BEFORE,
    Access,
    Cells,
    GlobalShadow,
    ended_key,
    of_scope,
)
from kernel_space.machine.races.sync import SyncRaces, narrower, scope_of
from kernel_space.machine.races.updates import Updates
from kernel_space.machine.values.clocks import ASYNC_GLOBAL, SCOPES
from kernel_space.machine.values.lanes import ndarray

if TYPE_CHECKING:
    from kernel_space.machine.memory.bulk_groups import BulkOp
    from kernel_space.machine.memory.global_memory import Region
    from kernel_space.machine.memory.tma import TmaTensor
    from kernel_space.machine.races.former import Former
    from kernel_space.machine.run.machine import Machine, Warp

GENERIC = 0
_DONE = {kind: "read" for kind in (READ, READ_BEFORE, COPIED, COPIED_BEFORE, POLLED, POLLED_BEFORE)} | {
    ATOMIC: "changed",
    "writer": "wrote",
}
_LETTER = {kind: "W" if kind in (ATOMIC, "writer") else "R" for kind in _DONE}


def words_of(offset: int | NDArray[np.int64], size: int) -> Cells:
    """4-byte words that accesses of ``size`` bytes touch."""
    if type(offset) is not ndarray:
        return slice(offset >> 2, (offset + size + 3) >> 2)
    first, last = int(offset[0]), int(offset[-1])
    if last - first == (len(offset) - 1) * size and not (size | first) & 3:  # noqa: SIM102  # the cheap part first
        # Lanes side by side are the usual case: a slice is several times as fast as indices.
        if np.count_nonzero(offset[1:] - offset[:-1] == size) == len(offset) - 1:
            return slice(first >> 2, (last + size) >> 2)
    if size <= 4:
        return offset >> 2
    return ((offset[:, None] + np.arange(0, size, 4)[None, :]) >> 2).reshape(-1)


def places_of(at: Any) -> list[int]:
    """The places that the lanes of an access mean."""
    return [at] if isinstance(at, int) else np.unique(at).tolist()


def _name(slots: Any, slot: int) -> str:
    """Who has made an access; of a copy only the barrier is known that counts its bytes."""
    name = str(slots.names[slot])
    if not name.startswith("mbarrier "):
        return name
    machine = slots.cluster.machine
    launch = f"{machine.label}, " if machine.in_a_row else ""
    return f"a copy ({launch}counted by {name})"


def _box_words(tensor: TmaTensor, machine: Machine, start: tuple[int, ...]) -> Cells:
    located = tensor.region_words(machine, start)
    assert located is not None
    return located[1]


class GlobalRaces(SyncRaces):
    """Checks happen when an operation is issued, with the clock of the warp that issues it.

    ``unread``: reads of regions that nothing has written to yet. ``read_only``: the program has ``ld.global.nc``.
    """

    def __init__(self, program: Any, before: Any = None, *, in_a_row: bool = False) -> None:
        super().__init__(program, before, in_a_row=in_a_row)
        self.shadows: dict[int, GlobalShadow] = before.shadows if before else {}
        self.unread: dict[int, list[tuple[str, Callable[[], Cells], int, Access]]] = {}
        instrs = program.kernel.instrs
        self.read_only = any(instr.tokens[0] == "ld" and "nc" in instr.tokens for instr in instrs)
        self.updates = Updates(instrs)

    @staticmethod
    def now(w: Warp, site: int) -> Access:
        return Access(w.clock.slot, w.clock.epoch, site)

    # -- accesses of threads -------------------------------------------------------------------------------------
    def global_read(
        self, w: Warp, region: Region, at: Any, size: int, order: str, scope: str, mask: int, site: int
    ) -> None:
        cells = words_of(at, size)
        if order in ("weak", NC):
            access = Access(w.clock.slot, w.clock.epoch, site)
            with w.clock.known_to(mask):
                self._plain_read(w, region, cells, GENERIC, READ, access, "ld.global reads")
            if order == NC:
                self._read_only(w, region, cells, access)
            return
        for place in places_of(at):
            self.updates.loaded(w, (region.base, place), site)
            self.sync_load(w, (region.base, place), order, scope, mask)
        self._strong(w, region, cells, POLLED, site, "strong load reads", scope)

    def global_write(
        self, w: Warp, region: Region, at: Any, size: int, order: str, scope: str, mask: int, site: int
    ) -> None:
        cells = words_of(at, size)
        if order == "weak":
            w.clock.wrote(at, mask)
            access = Access(w.clock.slot, w.clock.epoch, site)
            with w.clock.known_to(mask):
                return self._plain_write(w, region, cells, access, GENERIC, "st.global")
        self._strong(w, region, cells, ATOMIC, site, "strong store overwrites", scope)
        for place in places_of(at):
            self._update(w, region, place, site)
            self.sync_store(w, (region.base, place), order, scope, mask)

    def global_atomic(
        self, w: Warp, region: Region, at: int, size: int, order: str, scope: str, mask: int, site: int
    ) -> None:
        self.sync_load(w, (region.base, at), order, scope, mask)
        self._strong(w, region, words_of(at, size), ATOMIC, site, "atomic changes", scope)
        self.sync_store(w, (region.base, at), order, scope, mask)

    def _update(self, w: Warp, region: Region, at: int, site: int) -> None:
        lost = self.updates.stored(w, (region.base, at), site)
        if lost is not None:
            other = self.clusters[lost.key].names[lost.slot]
            where = f"byte {at - (region.start - region.base)} of {region.name}"
            self.report(
                ("update", lost.site, site),
                f"lost update on global memory, {where}: {w.who} and {other} load it, change it and store it, and "
                "nothing orders one before the other; only an atomic does that in one step",
                site, w.who, lost.site, other,
            )  # fmt: skip

    # -- accesses of copies --------------------------------------------------------------------------------------
    def copied_read(
        self, w: Warp, region: Region, at: int, size: int, access: Access, *, bulk: bool = True
    ) -> None:
        """The source of a bulk copy or of ``cp.async``; ``access``: when it has been read."""
        proxy = ASYNC_GLOBAL if bulk else GENERIC
        self._plain_read(w, region, words_of(at, size), proxy, COPIED, access, "copy reads")

    def async_global_write(
        self, w: Warp, region: Region, at: int, size: int, how: str, operation: BulkOp, site: int
    ) -> None:
        cells = words_of(at, size)
        if how:
            return self._strong(w, region, cells, ATOMIC, site, "bulk reduction changes")
        access = Access(w.clock.bulk_slots(operation.lanes)[1], operation.number, site)
        self._plain_write(w, region, cells, access, ASYNC_GLOBAL, "bulk store")

    def _box_read(self, w: Warp, tensor: TmaTensor, start: tuple[int, ...], access: Access) -> None:
        """The part of a TMA box that lies inside its tensor; its words are of interest once somebody writes there."""
        machine, what = self.machine, "TMA load reads"
        region = tensor.region_of(machine, start)
        if region is None:
            return
        if self._global(region, make=self.in_a_row) is None:
            return self._read_later(w, region, COPIED, lambda: _box_words(tensor, machine, start), access)
        self._plain_read(w, region, _box_words(tensor, machine, start), ASYNC_GLOBAL, COPIED, access, what)

    def _box_write(
        self, w: Warp, tensor: TmaTensor, start: tuple[int, ...], writes: Access, site: int, reduces: bool
    ) -> None:
        located = tensor.region_words(w.machine, start, stores=True)
        if located is None:
            return
        region, cells = located
        if reduces:
            self._strong(w, region, cells, ATOMIC, site, "TMA reduction changes")
        else:
            self._plain_write(w, region, cells, writes, ASYNC_GLOBAL, "TMA store")

    # -- checks --------------------------------------------------------------------------------------------------
    def _plain_read(
        self, w: Warp, region: Region, cells: Cells, proxy: int, kind: str, access: Access, what: str
    ) -> None:
        shadow = self._global(region, make=self.in_a_row)
        if shadow is None:
            return self._read_later(w, region, kind, lambda: cells, access)
        self._check(w, region, shadow.writer, "writer", cells, proxy, access.site, what)
        changed = shadow.tables.get((self.machine.number, ATOMIC))
        if changed is not None:
            self._check(w, region, changed, ATOMIC, cells, proxy, access.site, what)
        if self.in_a_row:
            self._check_others(w, region, shadow, (ATOMIC,), cells, access.site, what)
        shadow.note_read(self.machine.number, kind, cells, w.cta.cluster.key, access)

    def _plain_write(
        self, w: Warp, region: Region, cells: Cells, access: Access, proxy: int, what: str
    ) -> None:
        shadow = self._global(region, make=True)
        assert shadow is not None
        what, site = f"{what} overwrites", access.site
        self._check(w, region, shadow.writer, "writer", cells, proxy, site, what)
        for kind in (READ, READ_BEFORE, COPIED, COPIED_BEFORE, POLLED, POLLED_BEFORE, ATOMIC):
            read = shadow.tables.get((self.machine.number, kind))
            if read is not None:
                self._check(w, region, read, kind, cells, GENERIC, site, what)
        if self.in_a_row:
            self._check_others(w, region, shadow, (READ, COPIED, POLLED, ATOMIC), cells, site, what)
        self._written_though_constant(w, region, shadow, cells, site)
        shadow.note(shadow.writer, cells, w.cta.cluster.key, access)

    def _strong(
        self, w: Warp, region: Region, cells: Cells, kind: str, site: int, what: str, scope: str = "gpu"
    ) -> None:
        """Strong accesses synchronise; plain ones conflict with them, and those out of scope, loads with those that
        write.
        """
        shadow = self._global(region, make=True)
        assert shadow is not None
        self._check(w, region, shadow.writer, "writer", cells, GENERIC, site, what)
        if kind == ATOMIC:
            for plain in (READ, READ_BEFORE, COPIED, COPIED_BEFORE):
                read = shadow.tables.get((self.machine.number, plain))
                if read is not None:
                    self._check(w, region, read, plain, cells, GENERIC, site, what)
            self._written_though_constant(w, region, shadow, cells, site)
            if self.in_a_row:
                self._check_others(w, region, shadow, (READ, COPIED), cells, site, what)
        access = Access(w.clock.slot, w.clock.epoch, site)
        shadow.note_read(self.machine.number, kind, cells, w.cta.cluster.key, access)
        if self.narrow:
            scope = scope_of(scope)
            self._out_of_scope(w, region, shadow, cells, kind, scope, site, what)
            narrowed = shadow.table(self.machine.number, of_scope(kind, scope))
            shadow.note(narrowed, cells, w.cta.cluster.key, access)

    def _out_of_scope(
        self, w: Warp, region: Region, shadow: GlobalShadow, cells: Cells, kind: str, scope: str, site: int, what: str
    ) -> None:  # fmt: skip
        """Of two strong accesses, where the scope of one does not hold the other's thread, each counts as plain."""
        kinds = (ATOMIC, POLLED) if kind == ATOMIC else (ATOMIC,)
        for other_kind, other_scope in itertools.product(kinds, SCOPES):
            common = narrower(scope, other_scope)
            table = shadow.tables.get((self.machine.number, of_scope(other_kind, other_scope)))
            if table is None or common == "gpu":
                continue
            ctas = [w.cta] if common == "cta" else w.cta.cluster.ctas
            beside = [warp.clock.slot for cta in ctas for warp in cta.warps]
            reason = f"nothing orders the two: scope .{common} of one does not hold the other"
            self._check(
                w, region, table, other_kind, cells, GENERIC, site, what, beside=beside, reason=reason
            )

    def _read_later(
        self, w: Warp, region: Region, kind: str, cells: Callable[[], Cells], access: Access
    ) -> None:
        """Nothing has written to the region yet; should something, the read counts."""
        self.unread.setdefault(region.base, []).append((kind, cells, w.cta.cluster.key, access))

    # -- ld.global.nc --------------------------------------------------------------------------------------------
    def _read_only(self, w: Warp, region: Region, cells: Cells, access: Access) -> None:
        """What it reads must not change while the launch runs, whatever orders the two."""
        shadow = self._global(region, make=self.in_a_row)
        if shadow is None:
            return self._read_later(w, region, NC, lambda: cells, access)
        tables = [shadow.writer, shadow.tables.get((self.machine.number, ATOMIC))]
        for table in tables:
            if table is not None:
                self._constant_changes(w, region, table, cells, access.site, reads=True)
        shadow.note(shadow.table(self.machine.number, NC), cells, w.cta.cluster.key, access)

    def _written_though_constant(
        self, w: Warp, region: Region, shadow: GlobalShadow, cells: Cells, site: int
    ) -> None:
        table = shadow.tables.get((self.machine.number, NC))
        if table is not None:
            self._constant_changes(w, region, table, cells, site, reads=False)

    def _constant_changes(
        self, w: Warp, region: Region, table: NDArray[np.int32], cells: Cells, site: int, *, reads: bool
    ) -> None:
        found = GlobalShadow.first_of(table, cells, self.machine.number)
        if found is None:
            return
        at, key, slot, other_site = found
        other = self.clusters[key].names[slot]
        what = (
            f"ld.global.nc reads what {other} writes"
            if reads
            else f"a write to what {other} reads by ld.global.nc"
        )
        self.report(
            ("nc", other_site, site),
            f"{what}, {self._byte(region, cells, at)}: .nc is for memory that nobody writes while the kernel runs",
            site, w.who, other_site, other,
        )  # fmt: skip

    @staticmethod
    def _byte(region: Region, cells: Cells, at: int) -> str:
        word = cells.start + at if isinstance(cells, slice) else int(cells.reshape(-1)[at])
        return f"byte {word * 4 - (region.start - region.base)} of {region.name}"

    def _check_others(
        self, w: Warp, region: Region, shadow: GlobalShadow, kinds: tuple[str, ...], cells: Cells, site: int, what: str
    ) -> None:  # fmt: skip
        """Against accesses of other launches."""
        for kind, table in shadow.of_others(self.machine.number, kinds, w.clock.foreign):
            self._check(w, region, table, kind, cells, GENERIC, site, what)

    def _global(self, region: Region, *, make: bool) -> GlobalShadow | None:
        found = self.shadows.get(region.base)
        if found is None and make:
            found = self.shadows[region.base] = GlobalShadow(region.end - region.base)
            for kind, cells, key, access in self.unread.pop(region.base, ()):
                found.note_read(self.machine.number, kind, cells(), key, access)
        return found

    def _check(
        self, w: Warp, region: Region, table: NDArray[np.int32], kind: str, cells: Cells, proxy: int, site: int,
        what: str, *, beside: Sequence[int] | None = None, reason: str = "nothing orders the two",
    ) -> None:  # fmt: skip
        """Report an access in ``table`` that is not in the past of ``w``, nor by a slot ``beside``."""
        clock, own = w.clock, w.cta.cluster.key
        found = GlobalShadow.conflict(table, cells, own, clock.clock, proxy, clock.foreign, beside=beside)
        if found is None:
            return
        at, key, slot, other_site = found
        slots = self.clusters[key]
        other, where = _name(slots, slot), self._byte(region, cells, at)
        letters = f"{'R' if 'reads' in what else 'W'}A{_LETTER[kind]}"
        machine = slots.cluster.machine
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
