"""``compile-only``: choose candidates and compile them, for ``measure`` on a machine with a card."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kernel_space.build.cache import check_takes_entries, default_cache_dir
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.operators import DEFAULT
from kernel_space.places import COMMAND, user_results
from tuner.cli.options import text
from tuner.cli.options.card import EVERY
from tuner.cli.options.common import check_out, problems_of
from tuner.cli.options.retime import rows_named
from tuner.cli.tune.on_cluster import compilers, no_cluster
from tuner.compile.manifest import Entry, Folder, fill
from tuner.compile.pool import CompilePool
from tuner.devices.device import Device
from tuner.devices.select import select_device
from tuner.search.offline_search import choose_candidates
from tuner.search.progress import Progress, State
from tuner.space.space import SearchSpace
from tuner.stages.record import current
from tuner.stages.run import COMPILE_TIMEOUT_S
from tuner.trials.candidate import Candidate
from tuner.trials.outcome import Status
from tuner.tune.earlier import Earlier, earlier_visits
from tuner.tune.near_rows import NearRows, near_rows
from tuner.tune.prepare import readable_configs
from tuner.tune.promising import promising
from tuner.tune.retime import candidates_of, outdated_rows, table_of_device

BEST = 8  # of an earlier visit, around which new candidates are looked for


def compile_only_command(args: argparse.Namespace) -> int:
    """0 when every problem has an object; Ctrl-C keeps what is compiled. Raises ``InputError`` and ``StoreError``."""
    if args.device.startswith("cuda"):
        raise InputError(
            f"--device must be a class of card such as h200, got {args.device}; measure takes cuda:N"
        )
    if args.cluster is None:
        no_cluster(args)
    elif args.jobs is not None:
        raise InputError(
            "--jobs is for this machine alone: a host of a cluster has those of tune.py worker --compile"
        )
    results = _results_folder(args.results)
    device = select_device(args.device, results=results)
    check_out(args.out)
    chooser = _retimed(results, device, args) if args.retime else _searched(results, device, args)
    if not chooser:
        Progress().say(f"no row of {device.name} in {results} is stale: nothing is compiled")
        if args.json:
            text.print_json({"device": text.device_record(device), "folder": None, "results": []})
        return 0
    folder = Folder(
        args.out, device.name, device.arch
    )  # made last: what is wrong above leaves nothing behind
    jobs = args.jobs or os.cpu_count() or 1
    records = []
    with _compilers(args, jobs) as pool:
        for problem, choose in chooser.items():
            candidates = choose()
            entries = _fill(folder, problem, candidates, pool, device)
            records.append(_record(problem, entries))
            if not args.json:
                _print(problem, entries)
    if args.json:
        text.print_json({"device": text.device_record(device), "folder": str(args.out), "results": records})
    elif all(record["objects"] for record in records):
        then = (
            f"retime --device cuda:0 --objects {args.out}"
            if args.retime
            else f"measure {args.out} --device cuda:0"
        )
        print(f"next, on a machine with the card and these sources: {COMMAND} {then}")
    return 0 if all(record["objects"] for record in records) else 1


def _compilers(args: argparse.Namespace, jobs: int) -> contextlib.AbstractContextManager[Any]:
    if args.cluster is None:
        check_takes_entries(default_cache_dir())
        return CompilePool(jobs, COMPILE_TIMEOUT_S)
    return compilers(args, Progress().say)


Chooser = dict[Problem, Callable[[], list[Candidate]]]


def _searched(results: Path, device: Device, args: argparse.Namespace) -> Chooser:
    """Candidates of each problem named. Raises ``InputError`` for damaged results before anything is chosen."""
    args.op = args.op or DEFAULT
    known = {problem: _known(results, problem, device) for problem in problems_of(args)}
    return {
        problem: functools.partial(_candidates, problem, about, device, args)
        for problem, about in known.items()
    }


def _retimed(results: Path, device: Device, args: argparse.Namespace) -> Chooser:
    """What a retime asks of the rows named, or of all. A class has no driver: ``all`` is for a change of that."""
    problems = rows_named(args)
    rows = outdated_rows(
        table_of_device(results, device),
        current(device),
        operator=args.op,
        problems=problems,
        fresh_too=args.retime == EVERY,
    )
    return {
        one.problem: functools.partial(
            candidates_of,
            one.row,
            results,
            device,
            runners_up=args.runners_up,
            say=Progress(str(one.problem)).say,
        )
        for one in rows
    }


def _results_folder(named: Path | None) -> Path:
    """Raises ``InputError`` for a folder that was named and is not there; the default one need not be."""
    if named is not None and not named.is_dir():
        raise InputError(f"--results must be a folder, got {named}; name one that is there, or leave it out")
    return user_results() if named is None else named


class _Known(NamedTuple):
    """What candidates are chosen from."""

    visits: Earlier
    rows: NearRows


def _known(results: Path, problem: Problem, device: Device) -> _Known:
    """Raises ``InputError`` for damaged files."""
    return _Known(earlier_visits(results, problem, device), near_rows(results, problem, device))


def _candidates(problem: Problem, known: _Known, device: Device, args: argparse.Namespace) -> list[Candidate]:
    space = SearchSpace.load(problem.operator, device.arch)
    first = list(readable_configs(problem.operator, known.rows.others, device.arch))
    best = list(readable_configs(problem.operator, (*known.rows.own, *known.visits.best[:BEST]), device.arch))
    results = _results_folder(args.results)
    found = promising(
        space, problem, device, results, limit=args.trials // 2, first=[*best, *first], seed=args.seed
    )
    return choose_candidates(
        space,
        problem,
        device.arch,
        trials=args.trials,
        seed=args.seed,
        first=first,
        best=best,
        known=known.visits.known,
        ranked=found,
    )


def _fill(
    folder: Folder, problem: Problem, candidates: list[Candidate], pool: Any, device: Device
) -> list[Entry]:
    """Compile with a line that says how far it is."""
    progress, state = Progress(str(problem)), State(total=len(candidates), compiling=len(candidates))

    def tell(entry: Entry) -> None:
        nonlocal state
        failed = state.failed + (entry.status is not Status.OK)
        state = dataclasses.replace(state, done=state.done + 1, compiling=state.compiling - 1, failed=failed)
        progress.update(state)

    entries = fill(folder, problem, candidates, pool, device.arch, tell=tell)
    progress.finish(state)
    return entries


def _record(problem: Problem, entries: list[Entry]) -> dict[str, Any]:
    counts = collections.Counter(str(entry.status) for entry in entries)
    return {
        **text.problem_record(problem),
        "candidates": len(entries),
        "objects": counts[str(Status.OK)],
        "by_status": dict(counts),
    }


def _print(problem: Problem, entries: list[Entry]) -> None:
    record = _record(problem, entries)
    counts = ", ".join(f"{count} {status}" for status, count in record["by_status"].items())
    print(f"{text.describe_problem(problem)}: {counts}")
    for entry in entries:
        if entry.status is not Status.OK:
            print(f"  {entry.status}: {entry.reason}: {entry.resolved}")
