"""One cluster's clocked record as lanes that a picture can show: what each engine did, and what each role waited for.

All times are simulated microseconds since the launch under the nominal set of constants.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tuner.report.data.words import LOAD_WAITS, LOADS, MMAS, Words

if TYPE_CHECKING:
    from kernel_space.machine.clock.chip import Record

Span = tuple[float, float]

TENSOR_LANE: Final = "CTA 0 tensor"
# Words of the machine's record that are those of every kernel -> key.
_ENGINES: Final = {
    (TENSOR_LANE, "scale factor copy"): "copy",
    (TENSOR_LANE, "kind switch"): "switch",
    ("CTA 0 stores", "store"): "store",
}
PAUSES: Final = (*LOAD_WAITS, "wait_acc", "wait_tensor")  # what the MMA warp waits for
KEYS: Final = (
    *LOADS, *MMAS, *PAUSES, "copy", "switch", "epilogue", "store", "wait_slot", "wait_result", "issue"
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timeline:
    """``spans``: key of ``KEYS`` -> (begin, end) in the order of their begin; microseconds since the launch.
    ``pauses``: key of ``PAUSES`` or ``issue`` -> when the tensor pipe stood still for it, between its first and last
    operation. ``words``: what they are called.

    ``launch_us``: the first CTA starts. ``end_us``: the last one has gone. ``tiles``: where the MMAs of each output
    tile begin, empty where they cannot be told apart. ``loads_per_turn``: TMA loads of CTA 0 that fill one slot of
    the first operand's ring, 0 where they cannot be told apart.
    """

    spans: Mapping[str, tuple[Span, ...]]
    pauses: Mapping[str, tuple[Span, ...]]
    launch_us: float
    end_us: float
    words: Words
    tiles: tuple[float, ...] = ()
    loads_per_turn: int = 0

    @property
    def tells(self) -> bool:
        """Whether there is anything to draw: a kernel may use none of the engines that have a lane."""
        return any(self.spans.values())

    @property
    def first_mma_us(self) -> float:
        return min((self.spans[key][0][0] for key in MMAS if self.spans[key]), default=0.0)

    @property
    def last_mma_us(self) -> float:
        return max((self.spans[key][-1][1] for key in MMAS if self.spans[key]), default=0.0)


def timeline_of(
    record: Record,
    *,
    words: Words,
    us_per_cycle: float,
    launch_us: float,
    end_us: float,
    pieces: int = 0,
    turns: int = 0,
) -> Timeline:
    """Lanes of a record in cycles. ``pieces``: of equal work that the cluster does in turn, ``turns``: of the main loop
    in each; 0 where unknown."""
    known = _known(words)
    found: dict[str, list[Span]] = {key: [] for key in KEYS}
    for lane, what, begin, end in record:
        if key := known.get((lane, what)):
            found[key].append((begin, end))
    spans = {key: _microseconds(sorted(items), us_per_cycle, launch_us) for key, items in found.items()}
    spans["epilogue"] = _between(spans["wait_result"], spans["store"])
    loads, slots = len(spans[LOADS[0]]), pieces * turns
    pauses = _pauses(record, words.mma_warp, known)
    return Timeline(
        spans=spans,
        pauses={key: _microseconds(items, us_per_cycle, launch_us) for key, items in pauses.items()},
        launch_us=launch_us,
        end_us=end_us,
        words=words,
        tiles=_tile_starts(next((spans[key] for key in MMAS if spans[key]), ()), pieces),
        loads_per_turn=loads // slots if slots and loads % slots == 0 else 0,
    )


def _known(words: Words) -> dict[tuple[str, str], str]:
    """Words of the record -> key. The epilogue's warps work in step, so one of them stands for all; the MMA warp of a
    pair of CTAs is in CTA 0."""
    mma, tma, epilogue = (_lane(warp) for warp in (words.mma_warp, words.tma_warp, words.epilogue_warp))
    found = dict(_ENGINES)
    for name, load, wait in words.load_keys():
        found |= {("CTA 0 TMA", name): load, (mma, f"wait tma {name}"): wait}
    found |= {(TENSOR_LANE, kind): key for kind, _, key in words.mma_keys()}
    found |= {(mma, "wait arrive"): "wait_acc", (mma, "wait tensor"): "wait_tensor"}
    return found | {(tma, "wait tensor"): "wait_slot", (epilogue, "wait tensor"): "wait_result"}


def _lane(warp: int | None) -> str:
    return f"CTA 0 warp {warp}"  # of no warp, it is in no record


def _microseconds(spans: Sequence[Span], us_per_cycle: float, launch_us: float) -> tuple[Span, ...]:
    return tuple((launch_us + begin * us_per_cycle, launch_us + end * us_per_cycle) for begin, end in spans)


def _pauses(
    record: Record, mma_warp: int | None, known: Mapping[tuple[str, str], str]
) -> dict[str, list[Span]]:
    """Gaps of the tensor pipe by cause, by the rule of the clock's account: what the MMA warp waited for since the last
    operation, the latest wait first; the rest it spent on instructions. In cycles; the record is in that warp's order.
    """
    found: dict[str, list[Span]] = {key: [] for key in (*PAUSES, "issue")}
    blame: dict[str, float] = {}
    free = math.inf
    for lane, what, begin, end in record:
        if lane == _lane(mma_warp) and (key := known.get((lane, what))):
            blame[key] = blame.pop(key, 0.0) + end - begin
        elif lane == TENSOR_LANE:
            for key in reversed(blame):
                if free < begin:
                    until = min(begin, free + blame[key])
                    found[key].append((free, until))
                    free = until
            if free < begin:
                found["issue"].append((free, begin))
            blame, free = {}, end
    return found


def _between(waits: Sequence[Span], stores: Sequence[Span]) -> tuple[Span, ...]:
    """The epilogue works from one finished accumulator to the next wait, and after the last one to its last store."""
    if not waits:
        return ()
    ends = [begin for begin, _ in waits[1:]] + [max((end for _, end in stores), default=waits[-1][1])]
    return tuple((ready, end) for (_, ready), end in zip(waits, ends, strict=True) if end > ready)


def _tile_starts(mmas: Sequence[Span], pieces: int) -> tuple[float, ...]:
    """Every piece has as many MMAs, unless a split of K is ragged: then nothing is marked."""
    if not pieces or len(mmas) % pieces:
        return ()
    each = len(mmas) // pieces
    return tuple(mmas[number * each][0] for number in range(pieces)) if each else ()


def shares(spans: Iterable[Span], start: float, stop: float, bins: int) -> np.ndarray:
    """float64 [bins]: covered time of each of ``bins`` equal parts of ``start`` .. ``stop`` over its length; spans that
    overlap count each."""
    width = (stop - start) / bins
    edges = start + width * np.arange(bins + 1)
    covered = np.zeros(bins + 1)  # microseconds covered before each edge
    for begin, end in spans:
        covered += np.clip(edges - begin, 0.0, max(0.0, end - begin))
    return np.diff(covered) / width


def merged(spans: Sequence[Span], gap: float = 0.0) -> list[Span]:
    """Spans sorted by begin; those less than ``gap`` apart as one."""
    joined: list[Span] = []
    for begin, end in spans:
        if joined and begin - joined[-1][1] <= gap:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def slots(spans: Sequence[Span], together: int) -> list[Span]:
    """Loads of one slot of a ring as one span: from the first request until the last byte has come."""
    size = max(1, together)
    groups = [spans[at : at + size] for at in range(0, len(spans), size)]
    return [(group[0][0], max(end for _, end in group)) for group in groups]


def packed(spans: Sequence[Span]) -> list[int]:
    """A row for each span so that no two of a row overlap, as few rows as possible, lowest first."""
    free: list[float] = []
    rows = []
    for begin, end in spans:
        row = next((number for number, until in enumerate(free) if until <= begin), len(free))
        free[row : row + 1] = [end]
        rows.append(row)
    return rows
