"""Groups of ``cp.async``, which belong to threads. PTX ISA "cp.async.commit_group", "cp.async.wait_group".

The bytes are there at once in this machine; when a thread may count on them is what the race checker asks here.
"""

from __future__ import annotations

import numpy as np

from kernel_space.machine.values.lanes import FULL, LANES, Array, lane_flags


class CopyGroups:
    """Of one warp. ``issued``: copies so far; ``current``: the open group of each lane; ``over``: those it has waited
    for."""

    __slots__ = ("current", "issued", "over", "pending")

    def __init__(self) -> None:
        self.issued = 0
        self.current, self.over = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
        self.pending: list[tuple[int, Array, Array]] = []  # number, lanes, their groups

    def open(self, lanes: int) -> int:
        """The number of one more copy by ``lanes``."""
        self.issued += 1
        flags = lane_flags(lanes) if lanes != FULL else np.ones(LANES, bool)
        self.pending.append((self.issued, flags, self.current[flags]))
        return self.issued

    def commit(self, lanes: int) -> None:
        self.current[lane_flags(lanes)] += 1

    def waited(self, most: int, lanes: int) -> int:
        """``lanes`` have waited until ``most`` groups of each are left: the number up to which all copies are over."""
        flags = lane_flags(lanes)
        self.over[flags] = np.maximum(self.over[flags], self.current[flags] - most)
        while self.pending and (self.pending[0][2] < self.over[self.pending[0][1]]).all():
            self.pending.pop(0)
        return self.pending[0][0] - 1 if self.pending else self.issued
