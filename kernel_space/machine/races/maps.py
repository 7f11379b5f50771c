"""Tensor maps that a kernel changes: each change must be released, then acquired by the warp that uses the map.

The maps are read through a proxy of their own, which sees generic writes only across ``fence.proxy.tensormap``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from kernel_space.machine.races.exit import ExitRaces

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp


@dataclasses.dataclass
class Update:
    """The last change of one tensor map. ``acquired``: warps that have fenced since."""

    warp: Warp
    epoch: int
    site: int
    released: bool = False
    acquired: set[Warp] = dataclasses.field(default_factory=set)


class MapRaces(ExitRaces):
    def __init__(self, program: Any, before: Any = None, *, in_a_row: bool = False) -> None:
        super().__init__(program, before, in_a_row=in_a_row)
        self.map_updates: dict[int, Update] = {}

    def map_written(self, w: Warp, address: int, site: int) -> None:
        self.map_updates[address] = Update(w, w.clock.epoch, site)

    def map_released(self, w: Warp, address: int | None) -> None:
        """Of one map, or of all that the warp knows to be changed."""
        for where, update in self.map_updates.items():
            if address in (None, where) and self._knows(w, update):
                update.released = True

    def map_acquired(self, w: Warp, address: int) -> None:
        update = self.map_updates.get(address)
        if update is not None and update.released and self._knows(w, update):
            update.acquired.add(w)

    def map_used(self, w: Warp, address: int, site: int) -> None:
        update = self.map_updates.get(address)
        if update is None or w in update.acquired:
            return
        if not update.released:
            missing = "no release fence of the tensor-map proxy follows the change"
        elif not self._knows(w, update):
            missing = "nothing orders the two"
        else:
            missing = "this warp has not executed fence.proxy.tensormap::generic.acquire on it since"
        self.report(
            ("map", update.site, site),
            f"{w.who} uses the tensor map at {address:#x}, which {update.warp.who} has changed: {missing}",
            site, w.who, update.site, update.warp.who,
        )  # fmt: skip

    @staticmethod
    def _knows(w: Warp, update: Update) -> bool:
        """Is the change in the past of ``w``?"""
        if w is update.warp:
            return True
        other = update.warp
        if other.cta.cluster is w.cta.cluster:
            return bool(w.clock.clock[0, other.clock.slot] >= update.epoch)
        known = w.clock.foreign.get(other.cta.cluster.key)
        return known is not None and bool(known[0, other.clock.slot] >= update.epoch)
