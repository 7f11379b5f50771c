"""The order of kernels for any M of one layer, found in microseconds: all but M's part is known beforehand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

Candidate = TypeVar("Candidate")


class Nearest(Generic[Candidate]):
    """``candidates`` of one layer by distance.

    ``distance``: of a candidate if the problem had the candidate's own M: what comes first, then powers of two between
    the other sizes, less the candidate's M, and a name. ``order`` adds the powers of two between the Ms.
    """

    def __init__(
        self, candidates: Iterable[Candidate], distance: Callable[[Candidate], tuple[Any, ...]]
    ) -> None:
        groups: dict[tuple, list[tuple[float, int, str, Candidate]]] = {}
        for one in candidates:
            *first, doublings, less_m, name = distance(one)
            groups.setdefault(tuple(first), []).append((doublings, less_m, name, one))
        self._groups = [groups[first] for first in sorted(groups)]

    def order(self, m: int) -> Iterator[Candidate]:
        """Nearest first, of two equally near the larger M first. The first ones come at the least cost."""
        for group in self._groups:
            nearest = [
                (doublings + abs(math.log2(-less_m / m)), less_m, name, index)
                for index, (doublings, less_m, name, _) in enumerate(group)
            ]
            nearest.sort()
            yield from (group[index][-1] for *_, index in nearest)
