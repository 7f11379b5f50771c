"""Shadow state of memory: who wrote and who read each cell last, as (slot, value) of the cluster's clocks."""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.values.clocks import Clock

Cells = slice | NDArray[np.int64]
NOBODY = -1


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

    def readers_before(self, cells: Cells, seen: NDArray[np.int64], own: int) -> Conflict | None:
        """A read of the cells that ``seen`` does not include; reads by slot ``own`` are in order anyway."""
        for slot, (values, sites) in self.readers.items():
            if slot == own:
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


class GlobalShadow:
    """Shadow of one global region in words of 4 bytes, made when something first writes there.

    Keeps the last writer and the last generic reader of each word, with their cluster.
    """

    def __init__(self, size: int) -> None:
        words = -(-size // 4)
        self.writer = np.full((4, words), NOBODY, np.int32)  # cluster, slot, value, site
        self.reader = np.full((4, words), NOBODY, np.int32)

    def conflict(
        self,
        which: NDArray[np.int32],
        cells: Cells,
        own: int,
        seen: Clock,
        row: int,
        foreign: dict[int, Clock],
    ) -> tuple[int, int, int, int] | None:
        """(word, cluster, slot, site) of an access that the clocks do not include, or None."""
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
            known = seen if number == own else foreign.get(number)
            bad = clusters == number if several else np.ones(len(clusters), bool)
            if known is not None:
                bad &= known[row][slots] < values
            if np.count_nonzero(bad):
                at = int(np.argmax(bad))
                return at, number, int(slots[at]), int(sites[at])
        return None

    def note(self, which: NDArray[np.int32], cells: Cells, cluster: int, access: Access) -> None:
        which[:, cells] = np.array([[cluster], [access.slot], [access.value], [access.site]], np.int32)
