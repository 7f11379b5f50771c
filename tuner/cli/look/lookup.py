"""``lookup``: what the dispatch table launches for a problem, and why."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_space.build.cache import default_cache_dir
from kernel_space.build.key import toolchain
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from kernel_space.places import COMMAND
from tuner.cli.options import text
from tuner.cli.options.common import problems_of, results_of
from tuner.devices.device import Device
from tuner.devices.select import class_of_device, select_device
from tuner.stages.record import current as current_provenance
from tuner.tables.borrow import Source, table_of
from tuner.tables.bundle import Bundle
from tuner.tables.dispatch import Lookup, table_path
from tuner.tables.row import Row

if TYPE_CHECKING:
    from tuner.runtime.choice.choose import Choice

ALL_RULES = "every rule passes"
KNOB_RULES = (
    "the rules on knobs and sizes pass; budgets were not looked at, as the CuTe DSL is not installed here"
)


def lookup_command(args: argparse.Namespace) -> int:
    problems, results = problems_of(args), results_of(args)
    device = select_device(args.device, results=results)
    current = current_provenance(device) if _has_toolchain() else None
    found = table_of(
        results, class_of_device(device, args.out), current=current, thorough=current is not None
    )
    bundle = found.bundle()
    legal = ALL_RULES if current is not None else KNOB_RULES
    answers = [_answer(problem, found, bundle, legal) for problem in problems]
    if current is None:
        print("stale rows are not told from fresh ones: the CuTe DSL is not installed here", file=sys.stderr)
    if args.json:
        records = [_record(answer) for answer in answers]
        text.print_json(
            {
                "device": text.device_record(device),
                "table": str(table_path(found.folder)),
                "borrowed": found.borrowed or None,
                "results": records,
            }
        )
        return 0
    for number, answer in enumerate(answers):
        print("\n" * min(number, 1), end="")
        _print(answer, device)
    return 0


def _has_toolchain() -> bool:
    """Is there a compiler, whose version tells which rows are stale?"""
    try:
        toolchain()
    except InputError:
        return False
    return True


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Answer:
    """``table``: whose row it is, None for the default rule. ``legal``: which rules were asked of the config, and pass.
    ``path``: the object, in the bundle or in the build cache, whose bytes are those recorded; None when it must be
    compiled. ``damage``: what is wrong with the bundled one.

    ``instead``: where any object is at hand, what the run time launches when that is another kernel or another problem,
    or why it launches nothing. Where the problem has no row of its own, ``lookup`` is what the run time launches.
    """

    problem: Problem
    lookup: Lookup
    table: Path | None
    legal: str
    path: Path | None
    damage: str
    instead: Choice | str | None

    @property
    def state(self) -> str:
        return "whole" if self.path else "damaged" if self.damage else "missing"


def _answer(problem: Problem, found: Source, bundle: Bundle, legal: str) -> _Answer:
    lookup = _with_owner(found.table.lookup(problem), found)
    path, damage = _object(lookup, problem, bundle)
    instead = None
    launched = path and lookup.source == "exact" and lookup.row is not None and lookup.row.check
    if not launched and (bundle.entries or _is_any_built(found)):
        instead = _at_run_time(problem, found, bundle)
        if not isinstance(instead, str) and _answers(instead, lookup, damage):
            lookup, path, damage = _launched(instead, found), instead.object.path, ""
            instead = instead if instead.is_padded else None
    return _Answer(
        problem=problem,
        lookup=lookup,
        table=None if lookup.row is None else table_path(found.folder_of(lookup.row)),
        legal=ALL_RULES if lookup.source == "default" else legal,
        path=path,
        damage=damage,
        instead=instead,
    )


def _answers(choice: Choice, lookup: Lookup, damage: str) -> bool:
    """Whether the run time answers: for a problem without a row, or one whose kernel is another object."""
    if lookup.source == "exact":
        return not damage and _is_same(choice, lookup)
    return choice.source != "exact"


def _is_same(choice: Choice, lookup: Lookup) -> bool:
    return choice.config == lookup.config and not choice.is_padded


def _launched(choice: Choice, found: Source) -> Lookup:
    """What the run time launches, as the table's answer."""
    return Lookup(
        config=choice.config,
        problem_class=choice.launched.problem_class,
        arch=found.table.arch,
        source=choice.source,
        row=choice.row,
        reason=choice.reason,
    )


def _with_owner(lookup: Lookup, found: Source) -> Lookup:
    """An answer that rests on a row says whose it is."""
    if lookup.row is None or not (borrowed := found.borrowed_for(lookup.row)):
        return lookup
    return dataclasses.replace(lookup, reason=f"{lookup.reason}; {borrowed}")


def _object(lookup: Lookup, problem: Problem, bundle: Bundle) -> tuple[Path | None, str]:
    """Where the object is whose bytes are those recorded, and what is wrong with the bundled one."""
    damage = ""
    try:
        if (bundled := bundle.find(lookup.config, problem)) is not None:
            bundled.read()
            return bundled.path, ""
    except InputError as error:
        damage = str(error)
    return lookup.object_path(default_cache_dir()), damage


def _is_any_built(found: Source) -> bool:
    """Whether a row's object may be in the build cache. Without any the run time, whose import takes seconds, is not
    asked: it launches nothing.
    """
    keys = {row.object.key for row in found.table.rows.values() if row.object is not None}
    return any(below(default_cache_dir(), key).is_dir() for key in keys)


def _at_run_time(problem: Problem, found: Source, bundle: Bundle) -> Choice | str:
    from tuner.runtime.choice.choose import Library  # seconds: it imports torch

    library = Library.of_source(found, bundle, cache_dir=default_cache_dir())
    try:
        return library.choose(problem)
    except InputError as error:
        return str(error)


def _record(found: _Answer) -> dict[str, Any]:
    answer = found.lookup
    row = answer.row
    times = row and {
        "kind": str(row.kind),
        "time_us": row.time_us,
        "low_us": row.low_us,
        "high_us": row.high_us,
        "problem": str(row.key.problem),
        "date": row.date,
        "check": str(row.check),
        "checked": row.evidence.get("checked"),
    }
    return {
        **text.problem_record(found.problem),
        "source": answer.source,
        "config": str(answer.config),
        "problem_class": str(answer.problem_class),
        "reason": answer.reason,
        "table": found.table and str(found.table),
        "row": times,
        "legal": found.legal,
        "object": found.path and str(found.path),
        "object_state": found.state,
        "object_damage": found.damage or None,
        "run_time": _instead_record(found.instead),
    }


def _instead_record(instead: Choice | str | None) -> dict[str, Any] | None:
    if instead is None:
        return None
    if isinstance(instead, str):
        return {"launches": None, "reason": instead}
    return {
        "launches": str(instead.launched),
        "source": instead.source,
        "config": str(instead.config),
        "reason": instead.reason,
        "object": str(instead.object.path),
    }


def _checked(row: Row) -> str:
    """In a line's width; the row has the rest of the words."""
    return str(row.check) + ("" if row.check else ": the run time does not launch it; tune again to its end")


def _print(found: _Answer, device: Device) -> None:
    problem, answer, row = found.problem, found.lookup, found.lookup.row
    pairs: list[tuple[str, object]] = [
        ("problem", text.describe_problem(problem)),
        ("source", f"{answer.source} ({answer.reason})"),
        ("config", answer.config),
    ]
    if row is not None:
        time = text.describe_time(row.time_us, row.low_us, row.high_us, row.kind)
        pairs.append(("time", f"{time} at {row.key.problem}"))
        pairs.append(("checked", _checked(row)))
        pairs.append(("table", found.table))
    asked = text.problem_arguments(problem)
    command = f'{COMMAND} compile --device {device.name} {asked} --config "{answer.config}"'
    missing = f"{found.damage or 'neither bundled nor in the build cache'}; make it: {command}"
    pairs.append(("legal", found.legal))
    pairs.append(("object", f"{found.path} (its SHA-256 is the one recorded)" if found.path else missing))
    if isinstance(found.instead, str):
        pairs.append(("run time", f"launches nothing: {found.instead}"))
    elif found.instead is not None:
        instead = found.instead
        pairs.append(("run time", f"launches {instead.launched} ({instead.source}): {instead.reason}"))
        if instead.object.path != found.path:
            pairs.append(("", f"{instead.config} from {instead.object.path}"))
    text.print_block(pairs)
