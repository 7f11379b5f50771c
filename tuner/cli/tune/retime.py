"""``retime``: what the rows of a device's table are worth after a change, and what won now; minutes, not a sweep."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from kernel_space.build.key import toolchain
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.places import COMMAND
from tuner.cli.options import text
from tuner.cli.options.common import check_out
from tuner.cli.options.exits import INTERRUPTED, CommandError
from tuner.cli.options.retime import rows_named
from tuner.cli.tune.same_code import same_code_command
from tuner.cli.tune.tune import compilers
from tuner.compile.given import GivenCandidates, ObjectsPool
from tuner.compile.manifest import Manifest, check_objects
from tuner.devices.device import Device
from tuner.devices.select import require_times, select_device
from tuner.search.progress import Progress
from tuner.stages.compile import Pool
from tuner.stages.record import current
from tuner.tables.dispatch import FILE_NAME
from tuner.trials.candidate import Listed
from tuner.tune.driver import INTERRUPTED as STOPPED_BY_USER
from tuner.tune.driver import TuneOptions, tune
from tuner.tune.retime import Outdated, candidates_of, outdated_rows, table_of_device
from tuner.tune.retimed import PAGE, SLOWER, Retimed, log_retime, shown_us
from tuner.tune.turns import in_turn


def retime_command(args: argparse.Namespace) -> int:
    """0 when every row has a winner, or none was to be retimed."""
    start = time.monotonic()
    if args.same_code:
        return same_code_command(args)
    device = select_device(args.device, results=args.out)
    require_times(device)
    check_out(args.out)
    if args.objects is not None:
        check_objects(args.objects)
    manifest = None if _has_compiler() else _adopted(args, device)
    work = _Work(args, device, manifest)
    rows = work.rows()
    if device.note:
        Progress().say(device.note)
    found, interrupted = [], False
    for one in _retime_all(rows, work) if rows else ():
        found.append(one)
        if not args.json:
            _print(one, device)
        interrupted = one.stopped == STOPPED_BY_USER
    _summary(found, work, time.monotonic() - start)
    if interrupted:
        return INTERRUPTED
    if lost := [f"{one.op} {one.problem}" for one in found if one.us_after is None]:
        raise CommandError(f"no candidate could be used for {'; '.join(lost)}: the rows stay as they were")
    return 0


def _has_compiler() -> bool:
    try:
        toolchain()
    except InputError:
        return False
    return True


def _adopted(args: argparse.Namespace, device: Device) -> Manifest:
    """What another machine compiled. Raises ``InputError`` without it."""
    if args.objects is None:
        raise InputError(
            f"the CuTe DSL is not installed here: run {COMMAND} compile-only --retime --device {device.name} --out DIR "
            f"where it is, then {COMMAND} retime --device cuda:N --objects DIR on the machine with the card"
        )
    manifest = Manifest.load(args.objects)
    manifest.adopt(device.arch)
    return manifest


class _Work:
    """Which rows, and how one of them is retimed. ``manifest``: of the objects, where there is no compiler."""

    def __init__(self, args: argparse.Namespace, device: Device, manifest: Manifest | None) -> None:
        self.args, self.device, self.manifest = args, device, manifest
        self.problems = rows_named(args)
        options = TuneOptions(
            timeout_s=args.timeout, out=args.out, count_space=manifest is None, retimes=True
        )
        self.options = options if args.jobs is None else dataclasses.replace(options, jobs=args.jobs)
        self.table_rows = 0

    def rows(self) -> list[Outdated]:
        """As the table is now. Raises ``InputError``."""
        table = table_of_device(self.args.out, self.device)
        self.table_rows = len(table.rows)
        found = outdated_rows(
            table,
            current(self.device),
            operator=self.args.op,
            problems=self.problems,
            fresh_too=self.args.all,
        )
        there = None if self.manifest is None else self.manifest.problems
        if missing := [one.problem for one in found if there is not None and one.problem not in there]:
            Progress().say(f"{self.args.objects} has nothing for {'; '.join(map(str, missing))}: not retimed")
        return [one for one in found if there is None or one.problem in there]

    def still(self, outdated: Outdated) -> Outdated | None:
        """The row as it is now, when it is this process's turn; None if somebody else has retimed it meanwhile."""
        again = [one for one in self.rows() if one.problem == outdated.problem]
        return again[0] if again else None

    def retime(self, outdated: Outdated, pool: Pool) -> Retimed:
        problem, progress = outdated.problem, Progress(str(outdated.problem))
        search = self._search(outdated, progress.say)
        resume = bool(outdated.reason) and not self.args.no_resume
        options = dataclasses.replace(self.options, resume=resume)
        if self.manifest is not None:
            pool = ObjectsPool(self.args.objects, self.manifest.problems[problem])
        result = tune(problem, self.device, options, pool=pool, search=search, progress=progress)
        done = Retimed.of(outdated, result, search.planned)
        log_retime(self.args.out, self.device.name, done, say=progress.say)
        return done

    def _search(self, outdated: Outdated, say: Callable[[str], None]) -> Listed:
        if self.manifest is not None:
            return GivenCandidates(
                self.manifest.problems[outdated.problem], outdated.problem, self.device.arch
            )
        most = self.args.runners_up
        return Listed(candidates_of(outdated.row, self.args.out, self.device, runners_up=most, say=say))


def _retime_all(rows: list[Outdated], work: _Work) -> Iterator[Retimed]:
    """One after another, each by one tuner at a time, until the user interrupts."""
    device, options = work.device, work.options
    by_problem = {one.problem: one for one in rows}
    with contextlib.ExitStack() as stack:
        objects = work.args.objects
        pool = (
            stack.enter_context(compilers(device, options, objects))
            if work.manifest is None
            else ObjectsPool(objects)
        )
        turns = in_turn(by_problem, options.out, device.name, say=Progress().say)
        stack.enter_context(contextlib.closing(turns))
        for problem in turns:
            if (outdated := work.still(by_problem[problem])) is None:
                Progress(str(problem)).say("another tuner has made its row fresh meanwhile")
                continue
            done = work.retime(outdated, pool)
            yield done
            if done.stopped == STOPPED_BY_USER:
                return


def _print(one: Retimed, device: Device) -> None:
    pairs: list[tuple[str, object]] = [
        ("problem", text.describe_problem_named(one.op, one.problem, one.options)),
        ("row of", f"{one.since}; since then: {one.reason or 'nothing has changed'}"),
        ("before", f"{shown_us(one.us_before)} us {one.kind_before}: {one.config_before}"),
    ]
    if one.winner_changed:
        now = f"{shown_us(one.config_us)} us" if one.config_us is not None else one.config_status
        pairs.append(("", f"now {now}"))
    if one.us_after is not None:
        ratio = "" if one.ratio is None else f", {one.ratio:.4f} of the time before"
        what = f": {one.config_after}" if one.winner_changed else ""
        pairs.append(("now", f"{shown_us(one.us_after)} us {one.kind_after}{ratio}{what}"))
    pairs.append(("verdict", f"{one.verdict} ({one.candidates} candidates in {one.seconds:.1f} s)"))
    if one.search_again and not one.stopped:
        pairs.append(("next", f"{COMMAND} --device {device.name} {one.search_command}"))
    text.print_block([*pairs, ("table", one.table)])
    print()


def _summary(found: list[Retimed], work: _Work, seconds: float) -> None:
    folder = below(work.args.out, work.device.name)
    whole = [one for one in found if one.is_whole]
    again = [one for one in found if one.search_again and not one.stopped]
    if work.args.json:
        text.print_json(
            {
                "device": text.device_record(work.device),
                "table": str(folder / FILE_NAME),
                "table_rows": work.table_rows,
                "seconds": round(seconds, 3),
                "page": str(folder / PAGE) if found else None,
                "results": [_record(one) for one in found],
            }
        )
        return
    if not found:
        which = "rows named are" if work.problems else f"{work.table_rows} rows of the table are"
        print(f"nothing is stale: the {which} of today's sources, toolchain and judge; --all times them anew")
        return
    changed = sum(one.winner_changed for one in whole)
    print(
        f"{len(whole)} of {len(found)} rows retimed in {seconds:.1f} s: {len(whole) - changed} with the same winner, "
        f"{changed} with another; {len(again)} slower by more than {SLOWER - 1:.0%} or without a winner, "
        f"to be searched again\n{folder / PAGE}"
    )


def _record(one: Retimed) -> dict[str, Any]:
    return {
        **dataclasses.asdict(one),
        "ratio": one.ratio,
        "winner_changed": one.winner_changed,
        "search_again": one.search_again,
        "verdict": one.verdict,
    }
