"""What a search of a problem may begin with that stands in dispatch tables: its own row, a sibling's, neighbours'."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import NamedTuple, cast

from kernel_space.composite.config import CompositeConfig
from kernel_space.composite.link import Link
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel, operator_of, parse_config
from kernel_space.places import layers
from tuner.devices.device import Device
from tuner.devices.select import class_of_device
from tuner.tables.borrow import lent_rows
from tuner.tables.dispatch import DispatchTable

NEIGHBOURS = 5  # winners of other problems that are tried first
LENT = 4  # of a sibling's, where there is none of the problem itself
ROWS = 2  # of a link: its own problem's, else the nearest


class NearRows(NamedTuple):
    """Printed configs, the most likely first. ``is_tuned``: the problem has a row of this device.

    ``own``: of the problem's row, whose journal may be of other kernel sources, or on another machine; without one of a
    sibling's rows, which runs the same objects. Of a chain what its links' rows make counts as its own.
    """

    own: list[str]
    others: list[str]
    is_tuned: bool


def near_rows(results: str | os.PathLike[str], problem: Problem, device: Device) -> NearRows:
    """Raises ``InputError`` for damaged files."""
    folders = [below(layer, device.name) for layer in layers(results)]
    table = DispatchTable.over(folders, arch=device.arch)
    tuned = table.own(problem)
    own = tuned or lent_rows(Path(results), class_of_device(device, results), problem, LENT)
    return NearRows(
        own=[*(row.config for row in own), *joined_rows(table, problem)],
        others=[row.config for row in table.neighbours(problem, NEIGHBOURS)],
        is_tuned=bool(tuned),
    )


def joined_rows(table: DispatchTable, problem: Problem) -> list[str]:
    """Printed configs of the chain, the winners of its links side by side, which need not be the winner of the chain;
    the nearest rows of all links first. None for an operator that is no chain.
    """
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
