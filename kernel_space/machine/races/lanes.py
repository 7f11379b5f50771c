"""Lanes of one warp and what they hand each other through shared memory.

What one lane writes another may read, and what one has read another may overwrite, once both have met: at a barrier of
the warp or of more than that. Every ``.sync`` instruction counts as a meeting here, though PTX lets only barriers order
memory: lanes that have met there run together on every card, and kernels count on it. A wait on an mbarrier brings what
lanes did that arrived before; where all have, it is a meeting. What ``ldmatrix`` itself reads comes before its meeting,
what ``stmatrix`` writes behind it, and what ``cp.async`` brings is written when its thread has waited for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kernel_space.machine.races.global_memory import GlobalRaces, words_of
from kernel_space.machine.races.shadow import Cells
from kernel_space.machine.values.lanes import FULL, LANES, lane_flags, ndarray

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Warp

SEVERAL = 63  # several lanes, at one place
MATRIX = 62  # lanes that ``stmatrix`` took a row from: no lane knows of all of it
_LANE_BITS, _MEETING_BITS = 6, 34
_NUMBERS = {size: np.repeat(np.arange(LANES, dtype=np.int64), max(1, size // 4)) for size in (4, 8, 16, 32)}


def _when(w: Warp) -> int:
    """The warp's slot and how often its lanes have met; a lane's number is added."""
    return ((w.clock.slot + 1) << _MEETING_BITS | w.meetings) << _LANE_BITS


def _code(when: int, offset: Any, size: int, mask: int) -> Any:
    """Who accesses each word, and when."""
    if type(offset) is not ndarray:
        return when | (mask.bit_length() - 1 if not mask & (mask - 1) else SEVERAL)
    if mask == FULL:
        return _NUMBERS[size] + when
    codes = _NUMBERS[4][lane_flags(mask)] + when
    return np.repeat(codes, size // 4) if size > 4 else codes


def _since(before: NDArray[np.int64], when: int) -> bool:
    """Was some lane of this warp there since they met last?"""
    return bool(np.count_nonzero((before ^ when) <= SEVERAL))


class LaneRaces(GlobalRaces):
    """Words of 4 bytes; smaller accesses of several lanes may share one, and are not looked at.

    ``copies_of``: of each warp, the ``cp.async`` that nobody has waited for yet: (number, CTA, words, lanes).
    """

    def __init__(self, program: Any, before: Any = None, *, in_a_row: bool = False) -> None:
        super().__init__(program, before, in_a_row=in_a_row)
        self.copies_of: dict[Warp, list[tuple[int, Cta, Any, Any]]] = {}

    def lanes_copied(self, w: Warp, cta: Cta, offset: int, size: int, number: int, mask: int) -> None:
        copy = (number, cta, words_of(offset, size), _code(0, offset, size, mask))
        self.copies_of.setdefault(w, []).append(copy)

    def lanes_waited(self, w: Warp, number: int) -> None:
        """For copies up to ``number``, which are written now."""
        pending = self.copies_of.get(w)
        while pending and pending[0][0] <= number:
            _, cta, cells, lanes = pending.pop(0)
            cta.shadow.lane_written[cells] = lanes | _when(w)

    def matrix_read(self, w: Warp, cta: Cta, rows: Any, site: int) -> None:
        """``ldmatrix``: each lane takes from rows that others point at, whoever wrote them."""
        cells, when = words_of(rows, 16), _when(w)
        written = cta.shadow.lane_written[cells]
        if _since(written, when):
            bad = ((written ^ when) <= SEVERAL) & (written & SEVERAL != SEVERAL)
            if np.count_nonzero(bad):
                self._lanes_conflict(w, cta, cells, bad, written, "RAW", "ldmatrix reads what", "wrote", site)

    @staticmethod
    def matrix_written(w: Warp, cta: Cta, rows: Any) -> None:
        """``stmatrix``: each row is of four lanes or more, at a place that another may point at."""
        cta.shadow.lane_written[words_of(rows, 16)] = _when(w) | MATRIX

    def lanes_read(self, w: Warp, cta: Cta, offset: Any, size: int, mask: int, site: int) -> None:
        if size < 4:
            return
        cells, when, shadow = words_of(offset, size), _when(w), cta.shadow
        now, written = _code(when, offset, size, mask), shadow.lane_written[cells]
        if _since(written, when):
            bad = ((written ^ when) <= SEVERAL) & (written != now) & (written & SEVERAL != SEVERAL)
            if np.count_nonzero(bad):
                self._lanes_conflict(
                    w, cta, cells, bad, written, "RAW", "ld.shared reads what", "wrote", site
                )
        shadow.lane_read[cells] = now

    def lanes_sent(self, w: Warp, cta: Cta, offset: int, size: int, lanes: int, site: int) -> None:
        """The source of a bulk store that ``lanes`` issue."""
        cells, when = words_of(offset, size), _when(w)
        written = cta.shadow.lane_written[cells]
        if _since(written, when):
            lane = written & SEVERAL
            bad = ((written ^ when) <= SEVERAL) & (lane != SEVERAL)
            bad &= (lane == MATRIX) | (np.int64(lanes) >> np.minimum(lane, LANES - 1) & 1 == 0)
            if np.count_nonzero(bad):
                self._lanes_conflict(
                    w, cta, cells, bad, written, "RAW", "a bulk store reads what", "wrote", site
                )

    def lanes_wrote(self, w: Warp, cta: Cta, offset: Any, size: int, mask: int, site: int) -> None:
        cells, shadow = words_of(offset, size), cta.shadow
        if size < 4:
            shadow.lane_written[cells] = 0
            return
        when = _when(w)
        now, read = _code(when, offset, size, mask), shadow.lane_read[cells]
        if (type(now) is ndarray or now & SEVERAL != SEVERAL) and _since(read, when):
            bad = ((read ^ when) <= SEVERAL) & (read != now)
            if np.count_nonzero(bad):
                self._lanes_conflict(
                    w, cta, cells, bad, read, "WAR", "a write overwrites what", "reads", site
                )
        shadow.lane_written[cells] = now

    def _lanes_conflict(
        self, w: Warp, cta: Cta, cells: Cells, bad: NDArray[np.bool_], codes: NDArray[np.int64], letters: str,
        what: str, did: str, site: int,
    ) -> None:  # fmt: skip
        if heard := w.clock.heard_of():
            bad = bad & (heard >> (codes & SEVERAL) & 1 == 0)
            if not np.count_nonzero(bad):
                return
        at = int(np.argmax(bad))
        word = cells.start + at if isinstance(cells, slice) else int(cells.reshape(-1)[at])
        lane = int(codes[at]) & SEVERAL
        whose = "other lanes" if lane >= MATRIX else f"lane {lane}"
        self.report(
            ("lanes", letters, site),
            f"{letters} on SMEM offset {word * 4:#x}{cta.suffix}: {what} {whose} of the same warp {did}; no "
            "bar.warp.sync or other meeting of the lanes lies between them",
            site, w.who, -1, "",
        )  # fmt: skip
