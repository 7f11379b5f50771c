"""``tune``: run the search for every problem and print what won, by how much, and where it is written down."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from kernel_space.build.cache import check_takes_entries, default_cache_dir
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from kernel_space.places import COMMAND, TO_TUNE
from tuner.cli.options import text
from tuner.cli.options.common import check_out, counted_problems
from tuner.cli.options.exits import INTERRUPTED, CommandError
from tuner.cli.tune.events import Events
from tuner.cli.tune.on_cluster import no_cluster, opened
from tuner.compile.given import ObjectsPool
from tuner.compile.manifest import check_objects
from tuner.compile.pool import CompilePool
from tuner.devices.device import Device
from tuner.devices.select import class_of_device, require_times, select_device
from tuner.files.store import make_folder
from tuner.report.data.sweep import differences
from tuner.search.progress import Progress
from tuner.stages.compile import Pool
from tuner.tables.borrow import table_of
from tuner.tables.dispatch import FILE_NAME
from tuner.tables.gain import gain_of
from tuner.trials.outcome import Kind, Trial
from tuner.trials.rank_stability import faster_in
from tuner.tune.driver import INTERRUPTED as STOPPED_BY_USER
from tuner.tune.driver import TuneOptions, TuneResult, tune
from tuner.tune.needs import missing_to_tune
from tuner.tune.turns import in_turn


def tune_command(args: argparse.Namespace) -> int:
    if args.json and args.json_lines:
        raise InputError("--json prints one document, --json-lines a line per event; leave one out")
    counted = counted_problems(args)
    progress: Callable[[Problem | None], Progress] = Events if args.json_lines else _lines
    if args.cluster is not None:
        return _tune_on_cluster(args, counted, progress)
    no_cluster(args)
    device = select_device(args.device, results=args.out)
    require_times(device)  # before anything is made in --out
    _check_compiler(device)
    check_out(args.out)
    if args.objects is not None:
        check_objects(args.objects)
        if device.kind is Kind.SIMULATED:
            raise InputError(
                f"--objects is for a card, --device cuda:N: {device.name} is simulated, and executes PTX, which "
                "such a folder does not hold; leave --objects out"
            )
    make_folder(below(args.out, device.name))  # before the first word
    if device.note:
        progress(None).say(device.note)
    problems = _most_gain_first(counted, device, args.out, progress(None).say)
    results = _tune_all(problems, device, _options(args), args.objects, progress)
    return show_results(results, device, as_json=args.json, as_lines=args.json_lines)


def _tune_on_cluster(
    args: argparse.Namespace,
    counted: dict[Problem, int | None],
    progress: Callable[[Problem | None], Progress],
) -> int:
    if args.jobs is not None:
        raise InputError(
            "--jobs is for this machine alone: a host of a cluster has those of tune.py worker --compile"
        )
    check_out(args.out)
    if args.objects is not None:
        check_objects(args.objects)
    with opened(args, progress) as cluster:
        _check_compiler(cluster.shown)
        problems = _most_gain_first(counted, cluster.shown, args.out, progress(None).say)

        def options(to_come: int, side: int) -> TuneOptions:
            return dataclasses.replace(_options(args), jobs=cluster.jobs(side))

        results = cluster.tune(problems, options, objects=args.objects)
        return show_results(results, cluster.shown, as_json=args.json, as_lines=args.json_lines)


def _most_gain_first(
    counted: dict[Problem, int | None], device: Device, out: Path, say: Callable[[str], None]
) -> list[Problem]:
    """The order in which a model gains most early; as given where no calls are counted."""
    calls = {problem: count for problem, count in counted.items() if count is not None}
    if not calls:
        return list(counted)
    device_class = class_of_device(device, out)
    table = table_of(out, device_class, checked_only=True).table
    gains = {problem: gain_of(problem, table, device_class) for problem in calls}
    ordered = sorted(calls, key=lambda problem: -calls[problem] * gains[problem].us)
    for problem in ordered:
        say(f"{problem.operator} {problem}: {calls[problem]} calls, {gains[problem]}")
    return [*ordered, *(problem for problem in counted if problem not in calls)]


def show_results(
    results: Iterable[TuneResult], device: Device, *, as_json: bool, as_lines: bool = False
) -> int:
    """Print each result when it is there, for people or as an event, or all as one document; returns the exit code.
    Raises ``CommandError`` when a problem has no winner."""
    found = []
    for result in results:
        found.append(result)
        if as_lines:
            Events(result.problem).write("result", **result_record(result, device))
        elif not as_json:
            print("\n" * min(len(found) - 1, 1), end="")
            print_result(result, device)
    if as_json:
        records = [result_record(result, device) for result in found]
        text.print_json({"device": text.device_record(device), "results": records})
    if any(result.stopped == STOPPED_BY_USER for result in found):
        return INTERRUPTED
    if lost := [result.failure_summary() for result in found if result.winner is None]:
        raise CommandError("; ".join(lost))
    return 0


def _options(args: argparse.Namespace) -> TuneOptions:
    options = TuneOptions(
        trials=args.trials, timeout_s=args.timeout, seed=args.seed, out=args.out, resume=not args.no_resume
    )
    return options if args.jobs is None else dataclasses.replace(options, jobs=args.jobs)


def _check_compiler(device: Device) -> None:
    """Raises ``InputError`` where nothing can be compiled or searched, and says what can be done there."""
    if missing := missing_to_tune():
        raise InputError(
            f"{missing} here: pip install {TO_TUNE}, or run {COMMAND} compile-only --device {device.name} --out DIR "
            f"where it is, then {COMMAND} measure DIR --device cuda:N on the machine with the card"
        )


def _lines(problem: Problem | None) -> Progress:
    return Progress("" if problem is None else str(problem))


def _tune_all(
    problems: list[Problem],
    device: Device,
    options: TuneOptions,
    objects: Path | None,
    progress: Callable[[Problem | None], Progress] = _lines,
) -> Iterator[TuneResult]:
    """One result per problem, until the user interrupts; workers that have compiled once serve all of them."""
    with compilers(device, options, objects) as pool:
        turns: Iterable[Problem] = problems
        if device.kind is Kind.MEASURED:
            turns = in_turn(problems, options.out, device.name, say=progress(None).say)
        for problem in turns:
            result = tune(problem, device, options, pool=pool, progress=progress(problem))
            yield result
            if result.stopped == STOPPED_BY_USER:
                return


@contextlib.contextmanager
def compilers(device: Device, options: TuneOptions, objects: Path | None) -> Iterator[Pool]:
    """Compile workers for several problems; ``objects``: a folder that answers before they do."""
    if objects is None:
        check_takes_entries(options.cache_dir or default_cache_dir())
    with CompilePool(options.jobs, options.compile_timeout_s, options.cache_dir) as pool:
        if device.kind is Kind.MEASURED:
            pool.start(device.arch)  # while the card's worker starts
        yield pool if objects is None else ObjectsPool(objects, otherwise=pool)


def result_record(result: TuneResult, device: Device) -> dict[str, Any]:
    """The result of one problem for ``--json``."""
    winner, legal = result.winner, result.legal
    return {
        **text.problem_record(result.problem),
        "winner": winner and _trial_record(winner),
        "runner_up": result.runner_up and winner and _beaten_record(result.runner_up, winner),
        "default": result.default and winner and _beaten_record(result.default, winner),
        "order_certainty": _certainty(result),
        "budget": legal and text.budget_record(legal.budget),
        "trials": {
            "planned": result.planned,
            "new": result.fresh,
            "known": result.known,
            "by_status": {str(status): count for status, count in result.counts.items()},
        },
        "stopped": result.stopped or None,
        "seconds": round(result.seconds, 3),
        "table": str(_table(result)),
        "row": result.decision and {"recorded": result.decision.recorded, "reason": result.decision.reason},
        "report": {name: str(path) for name, path in vars(result.report).items()},
        "journal": str(result.journal),
    }


def _trial_record(trial: Trial) -> dict[str, Any]:
    return {
        "config": trial.resolved,
        "kind": trial.kind and str(trial.kind),
        "us": trial.us,
        "low_us": trial.low_us,
        "high_us": trial.high_us,
        "validation": trial.validation,
        "evidence": trial.evidence,
        "build": trial.build,
    }


def _beaten_record(trial: Trial, winner: Trial) -> dict[str, Any]:
    return {"config": trial.resolved, "us": trial.us, "margin": _margin(trial, winner)}


def _margin(trial: Trial, winner: Trial) -> float | None:
    """By which share of the winner's time ``trial`` is slower."""
    return trial.us / winner.us - 1 if trial.us and winner.us else None


def _table(result: TuneResult) -> Path:
    return result.report.html.parents[2] / FILE_NAME


def _certainty(result: TuneResult) -> float | None:
    """Share of the simulator's constants under which the winner beats the runner-up; None unless simulated."""
    winner, second = result.winner, result.runner_up
    return None if winner is None or second is None else faster_in(winner, second)


def print_result(result: TuneResult, device: Device) -> None:
    """What won, by how much, and where it is written down."""
    text.print_block(
        [("problem", text.describe_problem(result.problem)), ("device", text.describe_device(device))]
    )
    if result.winner is not None:
        _print_winner(result, result.winner, device)
    text.print_block(_where(result))


def _print_winner(result: TuneResult, winner: Trial, device: Device) -> None:
    time = text.describe_time(winner.us or 0.0, winner.low_us or 0.0, winner.high_us or 0.0, winner.kind)
    pairs: list[tuple[str, object]] = [("winner", winner.resolved), ("time", time)]
    if winner.validation:
        pairs.append(("checked", winner.validation))
    if result.runner_up is not None:
        pairs.append(("runner-up", _compare(result.runner_up, winner) + _order(_certainty(result))))
    if result.default is not None:
        pairs.append(("default", _compare(result.default, winner)))
    text.print_block(pairs)
    if result.legal is not None:
        print(f"\n{result.legal.budget}\n" if result.legal.budget.tables else "")


def _compare(trial: Trial, winner: Trial) -> str:
    if trial.resolved == winner.resolved:
        return "is the winner"
    margin = _margin(trial, winner)
    changed = differences(trial.resolved, winner.resolved)
    knobs = " ".join(f"{name}={value}" for name, value in changed.items())
    time = f"{trial.us:.2f} us, {_slower(margin)}" if margin is not None else str(trial.status)
    return f"{time}: {knobs}"


def _slower(margin: float) -> str:
    """A runner-up may be nominally faster: the winner is then ahead under more of the constants, or by a final."""
    return f"{-margin:.1%} faster" if margin <= -0.0005 else f"{margin:z.1%} slower"


def _order(certainty: float | None) -> str:
    return "" if certainty is None else f" (slower in {certainty:.0%} of the admissible constants)"


def _where(result: TuneResult) -> list[tuple[str, object]]:
    counts = ", ".join(f"{count} {status}" for status, count in result.counts.items())
    stopped = f", stopped by {result.stopped}" if result.stopped else ""
    pairs: list[tuple[str, object]] = [
        (
            "trials",
            f"{result.fresh} new and {result.known} known of {result.planned} in {result.seconds:.1f} s{stopped}; "
            f"journal: {counts or 'none'}",
        )
    ]
    if result.decision is not None:
        state = "row recorded" if result.decision.recorded else "row not recorded"
        pairs.append(("table", f"{_table(result)}: {state}, {result.decision.reason}"))
    return [*pairs, ("report", result.report.html), ("", result.report.markdown)]
