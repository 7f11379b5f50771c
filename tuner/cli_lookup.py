"""``lookup``: what the dispatch table launches for a problem, and why."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from kernel_space.build_cache import default_cache_dir
from kernel_space.build_key import toolchain
from kernel_space.errors import InputError
from kernel_space.plain_files import below
from kernel_space.problem import GemmProblem
from tuner import cli_text as text
from tuner import results
from tuner.bundle import FOLDER, Bundle
from tuner.cli_options import check_out, problems_of
from tuner.device import Device, select_device
from tuner.dispatch import DispatchTable, Lookup, table_path

ALL_RULES = "every rule passes"
KNOB_RULES = (
    "the rules on knobs and sizes pass; budgets were not looked at, as the CuTe DSL is not installed here"
)


def lookup_command(args: argparse.Namespace) -> int:
    problems = problems_of(args)
    device = select_device(args.device)
    folder = below(check_out(args.out), device.name)
    current = results.current(device) if _has_toolchain() else None
    table = DispatchTable.load(folder, arch=device.arch, current=current, thorough=current is not None)
    bundle = Bundle.load(folder / FOLDER, device.arch)
    legal = ALL_RULES if current is not None else KNOB_RULES
    answers = [_answer(problem, table.lookup(problem), bundle, legal) for problem in problems]
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
    """``legal``: which rules were asked of the config, and pass. ``path``: the object, in the bundle or in the build
    cache, whose bytes are those recorded; None when it must be compiled. ``damage``: what is wrong with the bundled
    one.
    """

    problem: GemmProblem
    lookup: Lookup
    legal: str
    path: Path | None
    damage: str

    @property
    def state(self) -> str:
        return "whole" if self.path else "damaged" if self.damage else "missing"


def _answer(problem: GemmProblem, lookup: Lookup, bundle: Bundle, legal: str) -> _Answer:
    path, damage = None, ""
    try:
        if (bundled := bundle.find(lookup.config, problem)) is not None:
            bundled.read()
            path = bundled.path
    except InputError as error:
        damage = str(error)
    return _Answer(
        problem=problem,
        lookup=lookup,
        legal=ALL_RULES if lookup.row is None else legal,
        path=path or lookup.object_path(default_cache_dir()),
        damage=damage,
    )


def _record(found: _Answer) -> dict[str, Any]:
    answer = found.lookup
    row = answer.row
    times = row and {
        "kind": str(row.kind),
        "time_us": row.time_us,
        "low_us": row.low_us,
        "high_us": row.high_us,
        "problem": str(row.key.problem),
    }
    return {
        **text.problem_record(found.problem),
        "source": answer.source,
        "config": str(answer.config),
        "problem_class": str(answer.problem_class),
        "reason": answer.reason,
        "row": times,
        "legal": found.legal,
        "object": found.path and str(found.path),
        "object_state": found.state,
        "object_damage": found.damage or None,
    }


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
    command = f'tune.py compile --device {device.name} --shape {problem} --config "{answer.config}"'
    missing = f"{found.damage or 'neither bundled nor in the build cache'}; make it: {command}"
    pairs.append(("legal", found.legal))
    pairs.append(("object", f"{found.path} (its SHA-256 is the one recorded)" if found.path else missing))
    text.print_block(pairs)
