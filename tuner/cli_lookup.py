"""``lookup``: what the dispatch table launches for a problem, and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kernel_space.build_cache import default_cache_dir
from kernel_space.problem import GemmProblem
from tuner import cli_text as text
from tuner import results
from tuner.cli_options import check_out, problems_of
from tuner.device import Device, select_device
from tuner.dispatch import DispatchTable, Lookup, table_path


def lookup_command(args: argparse.Namespace) -> int:
    problems = problems_of(args)
    device = select_device(args.device)
    folder = check_out(args.out) / device.name
    table = DispatchTable.load(folder, arch=device.arch, current=results.current(device))
    answers = [(problem, table.lookup(problem)) for problem in problems]
    if args.json:
        records = [_record(problem, answer) for problem, answer in answers]
        text.print_json(
            {"device": text.device_record(device), "table": str(table_path(folder)), "results": records}
        )
        return 0
    for number, (problem, answer) in enumerate(answers):
        print("\n" * min(number, 1), end="")
        _print(problem, answer, device)
    return 0


def _object_path(answer: Lookup) -> Path | None:
    return answer.object_path(default_cache_dir())


def _record(problem: GemmProblem, answer: Lookup) -> dict[str, Any]:
    row, path = answer.row, _object_path(answer)
    times = row and {
        "kind": str(row.kind),
        "time_us": row.time_us,
        "low_us": row.low_us,
        "high_us": row.high_us,
        "problem": str(row.key.problem),
    }
    return {
        **text.problem_record(problem),
        "source": answer.source,
        "config": str(answer.config),
        "problem_class": str(answer.problem_class),
        "reason": answer.reason,
        "row": times,
        "object": path and str(path),
    }


def _print(problem: GemmProblem, answer: Lookup, device: Device) -> None:
    row, path = answer.row, _object_path(answer)
    pairs: list[tuple[str, object]] = [
        ("problem", text.describe_problem(problem)),
        ("source", f"{answer.source} ({answer.reason})"),
        ("config", answer.config),
    ]
    if row is not None:
        time = text.describe_time(row.time_us, row.low_us, row.high_us, row.kind)
        pairs.append(("time", f"{time} at {row.key.problem}"))
    command = f'tune.py compile --device {device.name} --shape {problem} --config "{answer.config}"'
    missing = f"not in the build cache; make it: {command}"
    pairs.append(("object", path or missing))
    text.print_block(pairs)
