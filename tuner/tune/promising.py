"""Where a search of a problem without a row begins besides: points that estimates find best."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from kernel_space.composite.parts import parts_of
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from tuner.devices.classes import DeviceClass
from tuner.devices.device import Device
from tuner.devices.select import class_of_device
from tuner.search.ranked import Estimate, ranked
from tuner.space.space import SearchSpace
from tuner.tables.borrow import table_of
from tuner.tables.estimates import Estimates

# As many for a search of any length, so that one that is resumed with more trials goes on as a longer one would have.
LEAST, MOST = 4, 12
LEAST_TRIALS = 24  # a shorter search is not worth the look around
SMALL = 2000  # points, legal or not, of which a search sees most by itself


def promising(
    space: SearchSpace,
    problem: Problem,
    device: Device,
    results: str | os.PathLike[str],
    *,
    trials: int | None = None,
    limit: int = MOST,
    first: Sequence[KernelConfig] = (),
    seed: int = 0,
    check_time: Callable[[], None] = lambda: None,
) -> list[KernelConfig]:
    """Resolved configs, the one with the shortest estimate first; none for few trials, and where nothing is estimated.

    ``trials``: of the search, None for as many as usual; ``limit``: of the points, of few of which there are none.
    ``first``: configs of neighbours, from which is looked around too. ``check_time``: see ``ranked``. Raises
    ``InputError`` for damaged files.
    """
    if (trials or LEAST_TRIALS) < LEAST_TRIALS or limit < LEAST or space.raw_size <= SMALL:
        return []
    us = estimate_for(problem, class_of_device(device, results), results)
    return ranked(space, problem, device.arch, us, limit=limit, first=first, seed=seed, check_time=check_time)


def estimate_for(problem: Problem, device_class: DeviceClass, results: str | os.PathLike[str]) -> Estimate:
    """Microseconds of a resolved, legal config, None where nobody knows; of a chain those of the links of which
    somebody knows. Raises ``InputError`` for damaged files.
    """
    estimates = table_of(Path(results), device_class).table.estimates

    def us(config: KernelConfig) -> float | None:
        if estimates is None:
            return None
        found = estimates.of(config, problem)
        return found.us if found else _of_links(config, problem, estimates)

    return us


def _of_links(config: KernelConfig, problem: Problem, estimates: Estimates) -> float | None:
    """Of some links of a chain together. What is left out is the same for candidates that differ in these links alone;
    that it is not for others is an error of the estimate, which a search learns of as of any other.
    """
    parts = (estimates.of(part, own) for _, part, own in parts_of(config, problem))
    known = [found.us for found in parts if found is not None]
    return sum(known) if known else None
