"""Shadow state of memory: who wrote and who read each cell last, as (slot, value) of the cluster's clocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.values.clocks import Clock

Cells = slice | NDArray[np.int64]
NOBODY = -1
READ, COPIED, POLLED, ATOMIC, NC = "read", "copied", "polled", "atomic", "nc"
READ_BEFORE, COPIED_BEFORE, POLLED_BEFORE = "read before", "copied before", "polled before"
_BEFORE = {READ: READ_BEFORE, COPIED: COPIED_BEFORE, POLLED: POLLED_BEFORE}
_CLUSTERS = 1 << 20  # more than a launch in a row has


def cluster_key(launch: int, number: int) -> int:
    """A cluster among those of all launches in a row."""
    return launch * _CLUSTERS + number


def launch_of(key: int) -> int:
    return key // _CLUSTERS if key >= 0 else -1 - key


def ended_key(launch: int) -> int:
    """The key that stands for all clusters of a launch, once they have ended."""
    return -1 - launch


def is_ended_key(key: int) -> bool:
    return key < 0


@dataclasses.dataclass(frozen=True)
class Access:
    """Something that touches cells: (slot, value) in the clocks, and where in the program."""

    slot: int
    value: int
    site: int


@dataclasses.dataclass(frozen=True)
class Conflict:
    """``kind``: "write" or "read" of the earlier access; ``cell``: the first one in conflict."""

    kind: str
    cell: int
    slot: int
    site: int


class Shadow:
    """``cells`` in one dimension (words of SMEM) or two (quarters x columns of TMEM).

    The writer of a cell is one; readers are kept per slot, so that none is forgotten.
    """

    def __init__(self, shape: int | tuple[int, int]) -> None:
        self.shape = shape
        self.write_slot = np.full(shape, NOBODY, np.int32)
        self.write_value = np.zeros(shape, np.int32)
        self.write_site = np.zeros(shape, np.int32)
        self.readers: dict[int, tuple[NDArray[np.int32], NDArray[np.int32]]] = {}
        self.lane_written, self.lane_read = (
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
        )  # races/lanes.py

    def writers_before(self, cells: Cells, seen: NDArray[np.int64]) -> Conflict | None:
        """A write to the cells that ``seen`` (one row of a clock) does not include."""
        slots = self.write_slot[cells]
        bad = seen[slots] < self.write_value[cells]
        if not np.count_nonzero(bad):  # five times as fast as any() on few elements
            return None
        at = int(np.argmax(bad))
        return Conflict(
            "write", self._cell(cells, at), int(slots.flat[at]), int(np.ravel(self.write_site[cells])[at])
        )

    def readers_before(
        self, cells: Cells, seen: NDArray[np.int64], own: int, only: Container[int] | None = None
    ) -> Conflict | None:
        """A read of the cells that ``seen`` does not include; reads by slot ``own`` are in order anyway. ``only``: by
        one of these slots."""
        for slot, (values, sites) in self.readers.items():
            if slot == own or (only is not None and slot not in only):
                continue
            bad = values[cells] > seen[slot]
            if np.count_nonzero(bad):
                at = int(np.argmax(bad))
                return Conflict("read", self._cell(cells, at), slot, int(np.ravel(sites[cells])[at]))
        return None

    def note_write(self, cells: Cells, access: Access) -> None:
        self.write_slot[cells] = access.slot
        self.write_value[cells] = access.value
        self.write_site[cells] = access.site

    def note_read(self, cells: Cells, access: Access) -> None:
        found = self.readers.get(access.slot)
        if found is None:
            found = self.readers[access.slot] = (
                np.zeros(self.shape, np.int32),
                np.zeros(self.shape, np.int32),
            )
        values, sites = found
        values[cells] = access.value
        sites[cells] = access.site

    def forget(self, cells: Cells) -> None:
        """The cells begin a new life: unwritten and unread."""
        self.write_slot[cells] = NOBODY
        self.write_value[cells] = 0
        for values, _ in self.readers.values():
            values[cells] = 0

    def _cell(self, cells: Cells, at: int) -> int:
        """Number of the cell behind position ``at`` of a flattened selection."""
        numbers = np.arange(int(np.prod(self.shape))).reshape(self.shape)[cells]
        return int(np.ravel(numbers)[at])


def of_scope(kind: str, scope: str) -> str:
    """The kind of strong accesses of one scope."""
    return f"{kind}.{scope}"


class GlobalShadow:
    """Shadow of one global region in words of 4 bytes, made when something first writes there.

    ``writer``: the last plain write of each word. ``tables``: (launch, kind) -> the last access of that kind by that
    launch. ``READ``: plain reads; ``COPIED``: reads by copies; ``POLLED``: strong loads; of these also the one
    ``_BEFORE`` the last, by somebody else; ``NC``: reads by ``ld.global.nc``; ``ATOMIC``: strong writes. Strong ones
    also by their scope, where a program has scopes below the GPU (``of_scope``). An access is four numbers: key of the
    cluster, slot, value, site.
    """

    def __init__(self, size: int) -> None:
        self.words = -(-size // 4)
        self.writer = np.full((4, self.words), NOBODY, np.int32)
        self.tables: dict[tuple[int, str], NDArray[np.int32]] = {}

    def table(self, launch: int, kind: str) -> NDArray[np.int32]:
        found = self.tables.get((launch, kind))
        if found is None:
            found = self.tables[launch, kind] = np.full((4, self.words), NOBODY, np.int32)
        return found

    def of_others(self, launch: int, kinds: Container[str], foreign: dict[int, Clock]) -> list[Any]:
        """(kind, table) of launches other than ``launch`` that are not known to have ended."""
        return [
            (kind, table)
            for (number, kind), table in self.tables.items()
            if number != launch and kind in kinds and ended_key(number) not in foreign
        ]

    @staticmethod
    def conflict(
        which: NDArray[np.int32],
        cells: Cells,
        own: int,
        seen: Clock,
        row: int,
        foreign: dict[int, Clock],
        *,
        beside: Sequence[int] | None = None,
    ) -> tuple[int, int, int, int] | None:
        """(word, cluster, slot, site) of an access that the clocks do not include, or None; ``beside``: by no slot of
        these of the own cluster.
        """
        clusters = which[0][cells].ravel()
        first = int(clusters[0])
        # One cluster, often nobody, is the usual case and worth a short way.
        several = np.count_nonzero(clusters != first)
        numbers = np.unique(clusters).tolist() if several else [first]
        if numbers == [NOBODY]:
            return None
        slots, values, sites = (part[cells].ravel() for part in which[1:])
        for number in numbers:
            if number == NOBODY:
                continue
            if number != own and ended_key(launch_of(number)) in foreign:
                continue
            known = seen if number == own else foreign.get(number)
            bad = clusters == number if several else np.ones(len(clusters), bool)
            if known is not None:
                bad &= known[row][slots] < values
            if beside is not None and number == own:
                bad &= ~np.isin(slots, beside)
            if np.count_nonzero(bad):
                at = int(np.argmax(bad))
                return at, number, int(slots[at]), int(sites[at])
        return None

    @staticmethod
    def first_of(which: NDArray[np.int32], cells: Cells, launch: int) -> tuple[int, int, int, int] | None:
        """(word, cluster, slot, site) of any access by a launch."""
        keys, slots, _, sites = (part[cells].ravel() for part in which)
        own = (keys != NOBODY) & (keys // _CLUSTERS == launch)
        if not np.count_nonzero(own):
            return None
        at = int(np.argmax(own))
        return at, int(keys[at]), int(slots[at]), int(sites[at])

    def note_read(self, launch: int, kind: str, cells: Cells, cluster: int, access: Access) -> None:
        """A read; the last one by somebody else is kept too: of a flag, which all warps of a CTA poll, by another
        cluster.
        """
        table, earlier = self.table(launch, kind), _BEFORE.get(kind)
        if earlier is not None:
            old = table[:, cells]
            others = (old[0] != NOBODY) & ((old[0] != cluster) | ((old[1] != access.slot) & (kind != POLLED)))
            if np.count_nonzero(others):
                second = self.table(launch, earlier)
                second[:, cells] = np.where(others, old, second[:, cells])
        self.note(table, cells, cluster, access)

    def note(self, which: NDArray[np.int32], cells: Cells, cluster: int, access: Access) -> None:
        which[:, cells] = np.array([[cluster], [access.slot], [access.value], [access.site]], np.int32)
