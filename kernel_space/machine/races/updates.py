"""Words that a thread loads, changes and stores again by strong accesses that are no atomic: these do not race, but
the update of another thread in between is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from kernel_space.machine.ptx.instruction import Instr, bits_of
from kernel_space.machine.ptx.operands import registers_of

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp
    from kernel_space.machine.values.clocks import Known

_STRONG = {"volatile", "relaxed", "acquire", "release", "mmio"}
_ELSEWHERE = {"param", "shared", "shared::cta", "shared::cluster", "local", "const"}


def update_sites(instrs: list[Instr]) -> dict[int, frozenset[int]]:
    """Strong stores of global memory -> the strong loads before them whose value goes into what they store."""
    found: dict[int, set[int]] = {}
    for load, instr in enumerate(instrs):
        if instr.tokens[0] == "ld" and _is_strong(instr):
            for store in _stores_of(instrs, load):
                found.setdefault(store, set()).add(load)
    return {store: frozenset(loads) for store, loads in found.items()}


def _is_strong(instr: Instr) -> bool:
    return bool(_STRONG & {*instr.tokens}) and not _ELSEWHERE & {*instr.tokens}


def _stores_of(instrs: list[Instr], load: int) -> list[int]:
    """In the order of the text; a branch backwards is not followed, nor what a predicate decides."""
    carriers, stores = instrs[load].written_bits, []
    for at in range(load + 1, len(instrs)):
        instr = instrs[at]
        if instr.tokens[0] == "st":
            if _is_strong(instr) and bits_of(registers_of(instr.operands[1])) & carriers:
                stores.append(at)
            continue
        written = bits_of(register for register in instr.definitions if register.width > 1)
        carriers = carriers | written if instr.source_bits & carriers else carriers & ~written
        if not carriers:
            break
    return stores


class Update(NamedTuple):
    """The last one of a warp: ``key`` of its cluster, and when in its clock."""

    key: int
    slot: int
    epoch: int
    site: int


class Updates:
    """Of one launch. ``loads``: what a warp knew when it last loaded a word; ``done``: word -> updates, by warp."""

    def __init__(self, instrs: list[Instr]) -> None:
        self.sites = update_sites(instrs)
        self.load_sites = frozenset(load for loads in self.sites.values() for load in loads)
        self.loads: dict[tuple[Warp, tuple[int, int]], tuple[int, NDArray[Any], Known]] = {}
        self.done: dict[tuple[int, int], dict[Warp, Update]] = {}

    def loaded(self, w: Warp, cell: tuple[int, int], site: int) -> None:
        if site in self.load_sites:
            self.loads[w, cell] = (site, w.clock.clock[0].copy(), w.clock.foreign)

    def stored(self, w: Warp, cell: tuple[int, int], site: int) -> Update | None:
        """An update of the word by another warp that the one of ``w`` may lose, or be lost by."""
        before = self.loads.get((w, cell))
        if before is None or before[0] not in self.sites.get(site, ()):
            return None
        updates, own = self.done.setdefault(cell, {}), w.cta.cluster.key
        lost = None
        for other, update in updates.items():
            seen = before[1] if update.key == own else before[2].get(update.key)
            row = seen if seen is None or seen.ndim == 1 else seen[0]
            if other is not w and (row is None or row[update.slot] < update.epoch):
                lost = update
        updates[w] = Update(own, w.clock.slot, w.clock.epoch, site)
        return lost
