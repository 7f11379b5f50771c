"""Configurations that others published for an operator, from its ``published.yaml``; most operators have none."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel as find_kernel
from kernel_space.core.registry import operator
from tuner.files.plain_yaml import load_yaml
from tuner.space.bounded import BoundedConfig, bounds
from tuner.space.files import space_file

FILE = "published.yaml"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """One configuration as this project spells it.

    ``stated``: printed knobs that the source gives; other knobs of ``config`` keep the default of the config class.
    ``beyond``: what no knob expresses, empty if nothing.
    """

    name: str
    kernel: str
    when: Mapping[str, int | str]
    config: KernelConfig
    stated: frozenset[str]
    source: str
    beyond: str = ""

    def holds(self, problem: Problem) -> bool:
        return BoundedConfig(when=self.when, config=self.config, reason="").holds(problem)


def published_config(problem: Problem, arch: Arch) -> Published | None:
    """The published configuration for ``problem`` on a kernel of ``arch``; None where nothing was published."""
    entries = (
        entry
        for entry in published(problem.operator)
        if arch.name in find_kernel(problem.operator, entry.kernel).archs
    )
    return next((entry for entry in entries if entry.holds(problem)), None)


@functools.cache
def published(operator_name: str) -> tuple[Published, ...]:
    """Every entry of an operator's file, in its order; none where it has no such file. Raises ``InputError``."""
    path = space_file(operator_name, FILE)
    return read_published(path, operator_name) if path.is_file() else ()


def read_published(path: Path, operator_name: str) -> tuple[Published, ...]:
    """Every entry of the file. Raises ``InputError`` that names the entry which is wrong."""
    try:
        entries = load_yaml(path)["published"]
        return tuple(_entry(entry, operator_name) for entry in entries)
    except (KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path.name} is not a list of published configurations: {error!r}") from None


def _entry(entry: dict[str, Any], operator_name: str) -> Published:
    try:
        config = find_kernel(operator_name, entry["kernel"]).config_class.parse(entry["config"])
        when = bounds(entry["when"], operator(operator_name).problem)
    except InputError as error:
        raise InputError(f"published configuration {entry['name']!r}: {error}") from None
    return Published(
        name=entry["name"],
        kernel=entry["kernel"],
        when=when,
        config=config,
        stated=frozenset(item.partition("=")[0] for item in entry["config"].split()),
        source=entry["source"],
        beyond=entry.get("beyond", ""),
    )
