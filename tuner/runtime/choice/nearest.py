"""The order of kernels for any batch of one layer, found in microseconds: all but the batch's part is known before."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from kernel_space.core.problem import Form, Problem
from tuner.runtime.choice.choice import Candidate
from tuner.runtime.choice.contract import runtime_of
from tuner.tables.distance import OTHER_OPTIONS, OTHERS_TO_ONE

Item = TypeVar("Item")


class Nearest(Generic[Item]):
    """``candidates`` of one layer by distance.

    ``distance``: of a candidate if the problem had the candidate's own batch sizes: what comes first, then powers of
    two between the other sizes, the candidate's batch sizes times -1, and a name. ``order`` adds the powers of two
    between the batch sizes.
    """

    def __init__(self, candidates: Iterable[Item], distance: Callable[[Item], tuple[Any, ...]]) -> None:
        groups: dict[tuple, list[tuple[float, tuple[int, ...], str, Item]]] = {}
        for one in candidates:
            *first, doublings, less, name = distance(one)
            groups.setdefault(tuple(first), []).append((doublings, less, name, one))
        self._groups = [groups[first] for first in sorted(groups)]

    def order(self, batch: tuple[int, ...]) -> Iterator[Item]:
        """Nearest first, of two equally near the larger batch first. The first ones come at the least cost."""
        add = _add_one if len(batch) == 1 else _add
        for group in self._groups:
            nearest = [
                (add(doublings, less, batch), less, name, index)
                for index, (doublings, less, name, _) in enumerate(group)
            ]
            nearest.sort()
            yield from (group[index][-1] for *_, index in nearest)


def distance(problem: Problem, candidate: Candidate) -> tuple[bool, float, tuple[int, ...], str]:
    """For ``Nearest``: powers of two between the sizes that are run-time arguments, as ``tables.distance`` counts them,
    and what standing in costs.

    What was made for any shape, and not timed, comes last.
    """
    known = candidate.known
    stand_in = runtime_of(problem.operator).stand_in(problem, known)
    assert stand_in is not None, "it was a candidate because it may stand in"
    names = [name for name, form in problem.forms().items() if not (form.batch or form.compiled)]
    sizes = [(getattr(known, name), getattr(problem, name)) for name in names]
    doublings = sum(abs(math.log2(a / b)) for a, b in sizes) / OTHERS_TO_ONE + stand_in.distance
    if known.options != problem.options:
        doublings += OTHER_OPTIONS
    return (
        candidate.is_for_any_shape,
        doublings,
        tuple(-size for size in batch_of(known)),
        str(known),
    )


_class_of: Callable[[Problem], Hashable] = type  # mypy takes a ``type[Problem]`` for what cannot be hashed


def batch_of(problem: Problem) -> tuple[Any, ...]:
    """The sizes that change from call to call."""
    return _values(_class_of(problem), "batch")(problem)


def bucket_of(problem: Problem) -> tuple[Any, ...]:
    """``problem.bucket``, quicker: what a layer's candidates are remembered by."""
    return _values(_class_of(problem), "bucket")(problem)


def compiled_of(problem: Problem) -> tuple[Any, ...]:
    """The values of ``problem.problem_class``, quicker."""
    return _values(_class_of(problem), "compiled")(problem)


@functools.cache
def _values(problem: type[Problem], which: str) -> Callable[[Problem], tuple[Any, ...]]:
    """Reads the fields of a problem that are batch sizes, all others, or compiled in."""
    wanted = {"batch": lambda form: form.batch, "bucket": lambda form: not form.batch, "compiled": _compiled}
    names = [name for name, form in problem.forms().items() if wanted[which](form)]
    read = operator.attrgetter(*names) if names else None
    if read is None:
        return lambda one: ()
    return read if len(names) > 1 else lambda one: (read(one),)


def _compiled(form: Form) -> bool:
    return form.compiled


def _add_one(doublings: float, less: tuple[int, ...], batch: tuple[int, ...]) -> float:
    return doublings + abs(math.log2(-less[0] / batch[0]))


def _add(doublings: float, less: tuple[int, ...], batch: tuple[int, ...]) -> float:
    return doublings + sum(abs(math.log2(-a / b)) for a, b in zip(less, batch, strict=True))
