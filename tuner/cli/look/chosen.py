"""Which config a command is about: the one that is written out, or one that has a name.

``winner``     this problem's row of the dispatch table
``default``    what the search space's default rule gives
``published``  what others published for the problem
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from kernel_space.core import registry
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.places import COMMAND
from tuner.cli.options.common import results_of
from tuner.cli.options.text import problem_arguments
from tuner.devices.device import Device
from tuner.devices.select import class_of_device
from tuner.space.published import published_config
from tuner.space.space import SearchSpace
from tuner.tables.borrow import table_of
from tuner.tables.dispatch import table_path

MOST_CHARACTERS = 4096  # of --config
DEFAULT, PUBLISHED, WINNER = "default", "published", "winner"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chosen:
    """``config``, not yet legalized; ``source``: for people, where it comes from."""

    config: KernelConfig
    source: str


def chosen_configs(
    args: argparse.Namespace, problems: list[Problem], device: Device, *, rows: bool = True
) -> dict[Problem, Chosen]:
    """What ``--config`` means for each problem. Without it the problem's row where it has one and ``rows`` are asked
    for, else the default rule. Raises ``InputError``."""
    out = results_of(args)
    return {problem: _chosen(args.config, problem, device, out, rows) for problem in problems}


def legal_config(problem: Problem, chosen: Chosen, device: Device) -> Legal:
    """Raises ``InputError`` with the rule and its reason for a config that is not legal."""
    legal = legalize(chosen.config, problem, device.arch)
    if isinstance(legal, Rejection):
        raise InputError(f"the config is not legal for {problem} by rule {legal.rule}: {legal.reason}")
    return legal


def _chosen(asked: str | None, problem: Problem, device: Device, out: Path, rows: bool) -> Chosen:
    if asked == PUBLISHED:
        return _published(problem, device)
    if asked == WINNER or (asked is None and rows):
        if (row := _row(problem, device, out)) is not None:
            return row
        if asked == WINNER:
            raise InputError(
                f"--config {WINNER}: no row of {problem} on {device.name} in {out}; tune it first with "
                f"{COMMAND} {problem_arguments(problem)} --device {device.name}, or take --config {DEFAULT}"
            )
    if asked in (None, DEFAULT):
        config = SearchSpace.load(problem.operator, device.arch).default(problem)
        return Chosen(config=config, source="default rule")
    if not asked.strip():
        raise InputError(f"--config must be knobs, {WINNER}, {DEFAULT} or {PUBLISHED}, got {asked!r}")
    if len(asked) > MOST_CHARACTERS:
        raise InputError(f"--config must have at most {MOST_CHARACTERS} characters, got {len(asked)}")
    return Chosen(config=registry.parse_config(problem.operator, device.arch, asked), source="--config")


def _published(problem: Problem, device: Device) -> Chosen:
    found = published_config(problem, device.arch)
    if found is None:
        raise InputError(
            f"--config {PUBLISHED}: nothing was published for {problem} on {device.arch.name}; take {DEFAULT}"
        )
    return Chosen(config=found.config, source=f"published: {found.name}")


def _row(problem: Problem, device: Device, out: Path) -> Chosen | None:
    """Of the problem itself, as ``lookup`` finds it."""
    found = table_of(out, class_of_device(device, out))
    answer = found.table.lookup(problem) if found.table.own(problem) else None
    if answer is None or answer.row is None or answer.source != "exact":
        return None
    lent = found.borrowed_for(answer.row)
    borrowed = f", {lent}" if lent else ""
    source = f"row of {table_path(found.folder_of(answer.row))}{borrowed}"
    return Chosen(config=answer.config, source=source)
