"""The problem that a record is about: an operator's name, printed sizes, and the options by name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator
from tuner.files.record_checks import shown

MIGRATE: Final = "python -m benchmarks.migrate_results migrates what an earlier version wrote"

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")


class NotInstalled(InputError):
    """A record of an operator that this machine does not have: somebody else's, and not damaged."""


def problem_type(op: Any) -> type[Problem]:
    """Of the operator ``op``, as a file names it. Raises ``NotInstalled``, ``InputError`` for what is no name."""
    if not isinstance(op, str) or not _NAME.fullmatch(op):
        raise InputError(f"op must be the name of an operator, got {shown(op)}")
    try:
        return operator(op).problem
    except InputError:
        raise NotInstalled(f"the operator {shown(op)} is not installed here") from None


def problem_from_record(op: Any, record: Any) -> Problem:
    """The problem of ``op`` whose ``record()`` this is. Raises ``NotInstalled`` and ``InputError``."""
    return problem_type(op).from_record(record)


def subject_of(op: Any, sizes: str, options: dict[str, str]) -> Problem:
    """The problem that prints as ``sizes``, with every one of its ``options`` that it says. Raises likewise."""
    found = problem_type(op)
    must = {name for name in found.option_names() if not found.forms()[name].unsaid}
    if not isinstance(options, dict) or not must <= set(options) <= set(found.option_names()):
        names = " ".join(found.option_names()) or "nothing"
        raise InputError(f"the options of a problem of {op} must name {names}, got {shown(options)}")
    if len(sizes) > 1000:
        raise InputError(f"sizes must be {found.form()}, got {shown(sizes)}")
    return found.parse(sizes, **options)


def foreign_lines(path: Path, records: Iterable[dict[str, Any]], what: str) -> list[str]:
    """About ``records`` of operators that are not installed here: a line for each operator."""
    counts = Counter(record["op"] for record in records)
    return [
        f"{path}: {count} {what}{'s' if count > 1 else ''} of the operator {shown(op)}, which is not installed here, "
        "passed over; --operators DIR names the folder that has it"
        for op, count in counts.items()
    ]
