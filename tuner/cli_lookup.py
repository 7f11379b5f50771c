"""``lookup``: what the dispatch table launches for a problem, and why."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernel_space.build_cache import default_cache_dir
from kernel_space.build_key import toolchain
from kernel_space.errors import InputError
from kernel_space.problem import GemmProblem
from tuner import cli_text as text
from tuner import results
from tuner.bundle import FOLDER, Bundle
from tuner.cli_options import check_out, problems_of
from tuner.device import Device, select_device
from tuner.dispatch import DispatchTable, Lookup, table_path
from tuner.dispatch_row import Row

if TYPE_CHECKING:
    from tuner.runtime.choose import Choice


def lookup_command(args: argparse.Namespace) -> int:
    problems = problems_of(args)
    device = select_device(args.device)
    folder = check_out(args.out) / device.name
    current = results.current(device) if _has_toolchain() else None
    table = DispatchTable.load(folder, arch=device.arch, current=current)
    bundle = Bundle.load(folder / FOLDER, device.arch)
    answers = [_answer(problem, table, bundle) for problem in problems]
    if current is None:
        print("stale rows are not told from fresh ones: the CuTe DSL is not installed here", file=sys.stderr)
    if args.json:
        records = [_record(answer) for answer in answers]
        text.print_json(
            {"device": text.device_record(device), "table": str(table_path(folder)), "results": records}
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
    """``path``: the object, in the bundle or in the build cache; None when it must be compiled.

    ``instead``: where there is a bundle, what the run time launches when it does not have that, or why it launches
    nothing.
    """

    problem: GemmProblem
    lookup: Lookup
    path: Path | None
    instead: Choice | str | None


def _answer(problem: GemmProblem, table: DispatchTable, bundle: Bundle) -> _Answer:
    lookup = table.lookup(problem)
    bundled = bundle.find(lookup.config, problem)
    path = bundled.path if bundled else lookup.object_path(default_cache_dir())
    instead = None
    if bundle.entries and not (path and lookup.source == "exact"):
        instead = _at_run_time(problem, table, bundle)
        if not isinstance(instead, str) and instead.config == lookup.config and not instead.is_padded:
            instead = None
    return _Answer(problem=problem, lookup=lookup, path=path, instead=instead)


def _at_run_time(problem: GemmProblem, table: DispatchTable, bundle: Bundle) -> Choice | str:
    from tuner.runtime.choose import Library  # seconds: it imports torch

    try:
        return Library(table, bundle, default_cache_dir()).choose(problem)
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
        "check": str(row.check),
        "checked": row.evidence.get("checked"),
    }
    return {
        **text.problem_record(found.problem),
        "source": answer.source,
        "config": str(answer.config),
        "problem_class": str(answer.problem_class),
        "reason": answer.reason,
        "row": times,
        "object": found.path and str(found.path),
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
    command = f'tune.py compile --device {device.name} --shape {problem} --config "{answer.config}"'
    missing = f"neither bundled nor in the build cache; make it: {command}"
    pairs.append(("object", found.path or missing))
    if isinstance(found.instead, str):
        pairs.append(("run time", f"launches nothing: {found.instead}"))
    elif found.instead is not None:
        instead = found.instead
        pairs.append(("run time", f"launches {instead.launched} ({instead.source}): {instead.reason}"))
        pairs.append(("", f"{instead.config} from {instead.object.path}"))
    text.print_block(pairs)
