"""``report``: write the report of a problem again, from its journal or else from the trials beside the old report."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from tuner.cli.options import text
from tuner.cli.options.common import named_problems, problems_of, results_of
from tuner.devices.device import Device
from tuner.devices.select import select_device
from tuner.report.index_files import problems_with_trials
from tuner.report.write import ReportFiles, read_facts, read_trials, report_folder
from tuner.stages.journal import STUDY_FOLDER, identity, open_study
from tuner.stages.report import recorded_provenance, write_sweep
from tuner.tables.dispatch import DispatchTable
from tuner.tables.row import Row
from tuner.trials.outcome import NEVER_COMPILED, Trial
from tuner.trials.renewed import JOINED, RENEWED, renewed

TRIALS = "trials.parquet"


def report_command(args: argparse.Namespace) -> int:
    device = select_device(args.device, results=args.out)
    out = results_of(args)
    problems = _all(args, device) if args.all else problems_of(args)
    sources = [(problem, _trials(out, problem, device)) for problem in problems]
    written = [(problem, len(found[0]), _write(out, device, problem, *found)) for problem, found in sources]
    if args.json:
        records = [_record(*one) for one in written]
        text.print_json({"device": text.device_record(device), "results": records})
        return 0
    for problem, count, files in written:
        text.print_block([("problem", text.describe_problem(problem)), ("trials", count)])
        text.print_block(
            (("report" if path is files.html else ""), path) for path in (files.html, files.markdown)
        )
        text.print_block(("", path) for path in (files.csv, files.parquet))
    return 0


def _all(args: argparse.Namespace, device: Device) -> list[Problem]:
    """Raises ``InputError`` beside options that name problems, and where there are none."""
    if named_problems(args):
        raise InputError("--all stands for every problem there is: leave out --shape, --shapes and --model")
    found = list(problems_with_trials(args.out, device.name))
    if not found:
        raise InputError(
            f"there are no trials of {device.name} in {args.out}; tune first, or name another --out"
        )
    return found


def write_again(out: Path, problem: Problem, device: Device) -> ReportFiles | None:
    """The report of ``problem`` below ``out`` with what lies beside it today (peers, finals); None where there is none.

    Raises ``StoreError`` when the disk refuses.
    """
    if not (report_folder(out, device.name, problem) / TRIALS).is_file():
        return None
    return _write(out, device, problem, *_trials(out, problem, device))


def _write(
    out: Path,
    device: Device,
    problem: Problem,
    trials: list[Trial],
    source: str,
    provenance: dict[str, str] | None,
) -> ReportFiles:
    return write_sweep(
        out,
        problem,
        device,
        trials,
        facts={"trials from": source},
        provenance=provenance,
        earlier=read_facts(report_folder(out, device.name, problem) / TRIALS),
        row=_row(out, problem, device),
        pages_only=provenance is not None,
    )


def _trials(out: Path, problem: Problem, device: Device) -> tuple[list[Trial], str, dict[str, str] | None]:
    """(trials, where they come from, ``provenance`` of ``write_sweep``). Raises ``InputError`` when there are none.

    A journal holds what was evaluated; the points that its sweep rejected lie beside the page.
    """
    parquet = report_folder(out, device.name, problem) / TRIALS
    beside = read_trials(parquet) if parquet.is_file() else []
    about = identity(problem, device)
    if below(about.folder(below(out, STUDY_FOLDER)), about.file_name).is_file():
        trials = list(open_study(out, problem, device).trials.values())
        if trials:
            if {RENEWED, JOINED} & read_facts(parquet).keys():
                return renewed(beside, {trial.resolved: trial for trial in trials}), str(parquet), None
            rejected = [trial for trial in beside if trial.status in NEVER_COMPILED]
            return [*trials, *rejected], f"journal {about.file_name}", None
    if parquet.is_file():  # of another judge or other sources than today's, or their journal is gone
        return beside, str(parquet), recorded_provenance(beside)
    raise InputError(
        f"there are no trials of {problem} on {device.name} in {out}; tune it first: "
        f"{text.problem_arguments(problem)}"
    )


def _row(out: Path, problem: Problem, device: Device) -> Row | None:
    """What the dispatch table launches, from any journal."""
    own = DispatchTable.load(below(out, device.name), arch=device.arch).own(problem)
    return own[0] if own else None


def _record(problem: Problem, count: int, files: ReportFiles) -> dict[str, object]:
    paths = {name: str(path) for name, path in vars(files).items()}
    return {**text.problem_record(problem), "trials": count, **paths}
