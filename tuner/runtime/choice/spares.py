"""Spares: bundled kernels that no row names, which trials and estimates say are fast where rows are not."""

from __future__ import annotations

import platform
from collections.abc import Iterable

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import parse_config
from kernel_space.core.stand_in import compiled_sizes
from tuner.runtime.choice.choice import Candidate
from tuner.runtime.choice.contract import runtime_of
from tuner.tables.bundle import Bundle


def spares_of(
    bundle: Bundle, problem: Problem, others: Iterable[Candidate], *, borrowed: str = ""
) -> list[Candidate]:
    """Objects of ``bundle`` that may stand in for ``problem`` and are none of ``others``.

    ``borrowed``: as of ``Candidate``. An object whose config this version cannot read is passed over.
    """
    stand_in = runtime_of(problem.operator).stand_in
    taken = {(one.config, *compiled_sizes(one.known).values()) for one in others}
    found = []
    for entry in bundle.entries:
        known = entry.problem
        if (known.operator, entry.host) != (problem.operator, platform.machine()):
            continue
        instead = stand_in(problem, known)
        if instead is None or instead.problem.problem_class != known.problem_class:
            continue
        try:
            config = str(parse_config(known.operator, bundle.arch, entry.config))
        except InputError:
            continue
        key = (config, *compiled_sizes(known).values())
        if key not in taken:
            taken.add(key)
            found.append(Candidate(known=known, config=config, borrowed=borrowed, spare=True))
    return found
