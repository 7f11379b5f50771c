"""The launch before the first of a row: nothing is known of it but what it may still be writing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kernel_space.machine.races.shadow import Access, GlobalShadow, cluster_key
from kernel_space.machine.values.clocks import Known

if TYPE_CHECKING:
    from kernel_space.machine.memory.global_memory import GlobalMemory


class Former:
    """Launch number 0, as the machine and the race checker of launch 1 see it. Whoever waits for its end finds it over;
    to all others it writes ``extents``, each an address and a number of bytes, at any time.
    """

    number, ended, lets_the_next_begin = 0, True, True
    label = "the launch before the first"

    def __init__(self, memory: GlobalMemory, extents: Iterable[tuple[int, int]]) -> None:
        self.machine = self.races = self.cluster = self
        self.names = [self.label]
        self.end_waiters: list[Any] = []
        self.before: Any = None
        self.cells: dict[Any, Known] = {}
        self.clusters: dict[int, Any] = {cluster_key(0, 0): self}
        self.passed_on: Known = {}
        self.shadows: dict[int, GlobalShadow] = {}
        for address, size in extents:
            if size > 0:
                self._writes(memory, address, size)

    def _writes(self, memory: GlobalMemory, address: int, size: int) -> None:
        region = memory.find(address, address + size, "the launch before")
        shadow = self.shadows.setdefault(region.base, GlobalShadow(region.end - region.base))
        words = slice(address - region.base >> 2, (address - region.base + size + 3) >> 2)
        shadow.note(shadow.writer, words, cluster_key(0, 0), Access(0, 1, -1))

    def release_held(self, *, for_good: bool) -> bool:
        return False

    def __str__(self) -> str:
        return f"the end of {self.label}"
