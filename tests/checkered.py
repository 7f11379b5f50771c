"""Cases for the quick run where several axes meet and all combinations are too many."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def checkered(*axes: Sequence[Any]) -> list[Any]:
    """All combinations, every second one slow, as on a board: of two that differ by one step along one axis, one.

    A value that is a tuple is several arguments. Of two axes half of the pairs are left in the quick run; of three, if
    the third has two values or more, all pairs of any two.
    """
    cases = []
    for places in itertools.product(*(range(len(axis)) for axis in axes)):
        values = [axis[place] for axis, place in zip(axes, places, strict=True)]
        arguments = [part for value in values for part in (value if isinstance(value, tuple) else (value,))]
        cases.append(pytest.param(*arguments, marks=[pytest.mark.slow] if sum(places) % 2 else []))
    return cases
