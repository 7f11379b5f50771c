"""Bulk async-groups, which belong to threads. PTX ISA "cp.async.bulk.commit_group", "cp.async.bulk.wait_group".

A commit closes the group of the thread that executes it, a wait is for groups of that thread alone. One store by
several lanes is one operation here; it belongs to a group of each of them.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from kernel_space.machine.values.lanes import LANES, Array, lane_flags


@dataclasses.dataclass(slots=True, eq=False)
class BulkOp:
    """``groups``: of each lane; ``number``: among the operations of these ``lanes``; ``left``: parts under way."""

    lanes: int
    groups: Array
    number: int
    left: int

    def before(self, limits: Array, lanes: int) -> Array:
        """Of ``lanes``: whose group here is older than its limit."""
        flags = lane_flags(self.lanes & lanes)
        return self.groups[flags] < limits[flags]


class BulkGroups:
    """Of one warp. ``current``: the open group of each lane; ``read_to``, ``written_to``: groups known to be over."""

    def __init__(self) -> None:
        self.current = np.zeros(LANES, np.int64)
        self.read_to, self.written_to = np.zeros(LANES, np.int64), np.zeros(LANES, np.int64)
        self.issued: dict[int, int] = {}
        self.pending: list[BulkOp] = []
        self.unwaited: list[BulkOp] = []

    def open(self, lanes: int, parts: int) -> BulkOp:
        """One more operation in the open group of each of ``lanes``."""
        number = self.issued[lanes] = self.issued.get(lanes, 0) + 1
        operation = BulkOp(lanes, self.current.copy(), number, parts)
        self.pending.append(operation)
        self.unwaited.append(operation)
        return operation

    def done(self, operation: BulkOp) -> None:
        operation.left -= 1
        if not operation.left:
            self.pending.remove(operation)

    def commit(self, lanes: int) -> None:
        self.current[lane_flags(lanes)] += 1

    def must_wait(self, most: int, lanes: int) -> bool:
        """Has one of ``lanes`` more than ``most`` groups under way?"""
        limits = self.current - most
        return any(operation.before(limits, lanes).any() for operation in self.pending)

    def waited(self, most: int, reads: bool, lanes: int) -> list[tuple[int, int, bool]]:
        """A wait has ended: (lanes, number, written too) of operations that all their threads know to be over."""
        flags = lane_flags(lanes)
        for limits in (self.read_to,) if reads else (self.read_to, self.written_to):
            limits[flags] = np.maximum(limits[flags], self.current[flags] - most)
        known = []
        for operation in list(self.unwaited):
            written = bool(operation.before(self.written_to, operation.lanes).all())
            if written or operation.before(self.read_to, operation.lanes).all():
                known.append((operation.lanes, operation.number, written))
            if written:
                self.unwaited.remove(operation)
        return known
