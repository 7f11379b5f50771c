"""``explain``: budget, legality, and where the kernel states them, its schedule and modelled time term by term."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal
from kernel_space.core.traits import ModelledTime, Schedule
from kernel_space.places import COMMAND, layers
from tuner.cli.look.chosen import Chosen, chosen_configs, legal_config
from tuner.cli.options import text
from tuner.cli.options.common import problems_of
from tuner.devices.device import Device
from tuner.devices.select import class_of_device, select_device
from tuner.report.data.tail_wave import schedule_of
from tuner.simulated.model import modelled_time
from tuner.stages.record import current
from tuner.tables.borrow import table_of
from tuner.tables.dispatch import DispatchTable
from tuner.tables.estimates import Estimate
from tuner.tables.merge import outdated_reason


def explain_command(args: argparse.Namespace) -> int:
    problems, device = problems_of(args), select_device(args.device, results=args.out)
    chosen = chosen_configs(args, problems, device, rows=False)
    explained = [(problem, *explain(problem, chosen[problem], device)) for problem in problems]
    estimates = {one[0]: estimate_of(one[1], one[0], device, args.out) for one in explained}
    stale = {problem: stale_row(problem, device, args.out) for problem in problems}
    if args.json:
        text.print_json(
            {
                "device": text.device_record(device),
                "results": [
                    {
                        **_record(*one),
                        "config_from": chosen[one[0]].source,
                        "estimated": _estimate_record(estimates[one[0]]),
                        "stale_row": stale[one[0]] or None,
                    }
                    for one in explained
                ],
            }
        )
        return 0
    for number, one in enumerate(explained):
        print("\n" * min(number, 1), end="")
        _print(*one, device, chosen[one[0]].source)
        if (found := estimates[one[0]]) is not None:
            text.print_block([("estimate", found)])
        if stale[one[0]]:
            text.print_block([("row", stale[one[0]])])
    return 0


def estimate_of(legal: Legal, problem: Problem, device: Device, out: Path) -> Estimate | None:
    """By constants fitted on measured times; None where there are none, as for kernels that have a formula. Raises
    ``InputError`` for a damaged file of them.
    """
    estimates = table_of(out, class_of_device(device, out)).table.estimates
    return None if estimates is None else estimates.fitted_of(legal.config, problem)


def _estimate_record(found: Estimate | None) -> dict[str, Any] | None:
    return None if found is None else dataclasses.asdict(found)


def stale_row(problem: Problem, device: Device, out: Path) -> str:
    """What has changed since the table's own row of ``problem`` was made, and when that was; empty for a fresh row and
    without one. A table that cannot be read is told of in its place."""
    try:
        rows = _table(out, device).own(problem)
    except InputError as error:
        return str(error)
    reason = outdated_reason(rows[0], current(device)) if rows else ""
    return f"of {rows[0].date}; changed since: {reason}; {COMMAND} retime times it anew" if reason else ""


def _table(out: Path, device: Device) -> DispatchTable:
    return DispatchTable.over([below(layer, device.name) for layer in layers(out)], arch=device.arch)


def explain(
    problem: Problem, chosen: Chosen, device: Device
) -> tuple[Legal, Schedule | None, ModelledTime | None]:
    """The legal form of ``chosen``, its schedule and its modelled time, both None for a kernel that does not state
    them. Raises ``InputError``.
    """
    legal = legal_config(problem, chosen, device)
    schedule = schedule_of(legal.config, problem, device.sm_count)
    return legal, schedule, modelled_time(legal.config, problem, device)


def _record(
    problem: Problem, legal: Legal, schedule: Schedule | None, time: ModelledTime | None
) -> dict[str, Any]:
    return {
        **text.problem_record(problem),
        "config": str(legal.config),
        "budget": text.budget_record(legal.budget),
        "schedule": schedule and {**dataclasses.asdict(schedule), "waves": schedule.waves},
        "modelled": time and _time_record(time),
    }


def _time_record(time: ModelledTime) -> dict[str, Any]:
    return {
        "us": time.us,
        "low_us": time.low_us,
        "high_us": time.high_us,
        "bound": time.bound,
        "terms_us": time.terms,
        "demands_us": time.demands,
    }


def _print(
    problem: Problem,
    legal: Legal,
    schedule: Schedule | None,
    time: ModelledTime | None,
    device: Device,
    source: str,
) -> None:
    text.print_block(
        [
            ("problem", text.describe_problem(problem)),
            ("device", text.describe_device(device)),
            ("config", legal.config),
            ("from", source),
            ("legal", "yes, every rule passes"),
        ]
    )
    if any(table.rows for table in legal.budget.tables):
        print(f"\n{legal.budget}\n")
    if schedule is not None:
        at_once = f"{schedule.pieces} pieces of work, {schedule.places} at once"
        turns = f"{schedule.waves} waves of {schedule.steps} turns of the main loop"
        text.print_block([("schedule", f"{at_once}: {turns}")])
    if time is not None:
        _print_time(time)


def _print_time(time: ModelledTime) -> None:
    text.print_block(
        [
            ("time", text.describe_time(time.us, time.low_us, time.high_us, "modelled")),
            ("bound", f"{time.bound}, {time.demands[time.bound]:.2f} us if nothing else took time"),
        ]
    )
    print(f"\nmodelled time by term\n{text.terms_lines(time.terms)}")
    print(f"\nneeded by each resource alone (modelled)\n{text.terms_lines(time.demands)}")
