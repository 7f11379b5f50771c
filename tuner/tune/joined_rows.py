"""What a chain may begin with: the winners of its links, side by side. They need not be the winner of the chain."""

from __future__ import annotations

import itertools
from typing import cast

from kernel_space.composite.config import CompositeConfig
from kernel_space.composite.link import Link
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel, operator_of, parse_config
from tuner.tables.dispatch import DispatchTable

ROWS = 2  # of a link: its own problem's, else the nearest


def joined_rows(table: DispatchTable, problem: Problem) -> list[str]:
    """Printed configs of the chain, the nearest rows of all links first; none for an operator that is no chain."""
    if (composed := operator_of(problem).composed) is None:
        return []
    found = []
    for parts in itertools.product(*(_configs(table, link, problem) for link in composed.links)):
        name = composed.name_of([part.kernel for part in parts])
        if name in composed.kernels:
            config_class = cast(type[CompositeConfig], kernel(problem.operator, name).config_class)
            named = zip((link.name for link in composed.links), parts, strict=True)
            found.append(str(config_class.join(dict(named))))
    return found


def _configs(table: DispatchTable, link: Link, problem: Problem) -> list[KernelConfig]:
    """Of rows that this version can read."""
    part = link.problem(problem)
    found: list[KernelConfig] = []
    for row in (*table.own(part), *table.neighbours(part, ROWS)):
        try:
            found.append(parse_config(part.operator, table.arch, row.config))
        except InputError:
            continue
    return found[:ROWS]
