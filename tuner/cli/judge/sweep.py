"""``check --sweep``: every mutant of a config's PTX through the check of a candidate, in processes that it may kill."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from kernel_space.build.build import CompiledKernel
from kernel_space.check.problem import exercises
from kernel_space.check.result import CheckStatus
from kernel_space.check.sweep.coverage import Seen
from kernel_space.check.sweep.harmless import Facts
from kernel_space.check.sweep.mutant import Mutant
from kernel_space.check.sweep.run import (
    NOT_APPLICABLE,
    REPORTED,
    SURVIVES,
    Answer,
    Found,
    SweepTask,
    chosen,
    explained,
    judged,
    mutants_of,
    table,
)
from kernel_space.core.arch import arch
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal
from tuner.cli.options import text
from tuner.cli.options.exits import CommandError
from tuner.simulated.check_worker import LIMIT_S, CheckDied, CheckHung, CheckPool
from tuner.simulated.machine_check import run_task

LONGER = 10.0  # times what the kernel itself takes: a mutant that takes longer hangs
LEAST_S = 60.0
PERIOD_S = 10.0  # between lines of progress
HEADS = ("kind", "mutants", "reported", "harmless", "unexplained", "not applicable")
HUNG, DIED = "HUNG", "DIED"


def require_alone(args: argparse.Namespace) -> None:
    """Raises ``InputError`` for options that a sweep has no use for, or that need one."""
    others = {"--inject": args.inject, "--trace": args.trace, "--full": args.full or None}
    if args.sweep:
        for name, value in others.items():
            if value is not None:
                raise InputError(f"--sweep checks many kernels, {name} is about one; leave one of them out")
        return
    for name, value in {"--limit": args.limit, "--jobs": args.jobs}.items():
        if value is not None:
            raise InputError(f"{name} is for --sweep; add it, or leave {name} out")


class Sweep:
    """Of one config. ``found``: what came of the mutants that have been checked, also after an interruption."""

    def __init__(
        self, compiled: CompiledKernel, problem: Problem, legal: Legal, schedules: tuple[str, ...],
        args: argparse.Namespace,
    ) -> None:  # fmt: skip
        self._compiled, self._problem, self._legal = compiled, problem, legal
        self._schedules, self._args = schedules, args
        self._ptx = compiled.ptx
        self._exercises = exercises(legal.config, problem, arch(compiled.arch))
        self._jobs = args.jobs or os.cpu_count() or 1
        self._begun = self._shown = time.monotonic()
        self.total = 0
        self.found: list[Found] = []

    def run(self) -> None:
        """Raises ``CommandError`` when the kernel itself fails its check."""
        pool = CheckPool(self._jobs, f"{run_task.__module__}:{run_task.__name__}")
        self._say("the kernel itself")
        base = _answer(pool.submit(self._task(LIMIT_S, self._schedules, covers=True)))
        if base.status != CheckStatus.OK or base.seen is None:
            raise CommandError(
                f"the kernel itself fails its check, so a sweep says nothing: {base.status}: {base.reason}"
            )
        every = mutants_of(self._ptx, base.seen)
        mutants = chosen(every, self._args.limit, self._args.seed)
        self.total = len(mutants)
        self._say(f"{self.total} of {len(every)} mutants, {self._jobs} at once")
        limit_s = max(LEAST_S, LONGER * base.seconds)
        for mutant, answer in self._answers(pool, mutants, limit_s, base.seen):
            self.found.append(judged(mutant, answer, self._ptx, base.seen, self._facts()))
            self._progress()
        order = {id(mutant): number for number, mutant in enumerate(mutants)}
        self.found.sort(key=lambda one: order[id(one.mutant)])

    def _answers(
        self, pool: CheckPool, mutants: list[Mutant], limit_s: float, seen: Seen
    ) -> Iterator[tuple[Mutant, Answer]]:
        """What a rule explains runs under the first schedule only, where the rule is put to the test."""
        waiting: dict[Future[Answer], Mutant] = {}
        for mutant in mutants:
            if mutant.proof:
                yield mutant, Answer(status=str(CheckStatus.OK), reason="", seconds=0.0)
                continue
            known = explained(mutant, self._ptx, seen, self._facts())
            few = self._schedules[:1] if known else self._schedules
            waiting[pool.submit(self._task(limit_s, few, ptx=mutant.text))] = mutant
        while waiting:
            done, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in [one for one in waiting if one in done]:  # as they were sent
                yield waiting.pop(future), _answer(future)

    def _task(
        self, limit_s: float, schedules: tuple[str, ...], *, ptx: str | None = None, covers: bool = False
    ) -> SweepTask:
        return SweepTask(
            compiled=self._compiled, config=self._legal.config, problem=self._problem, seed=self._args.seed,
            limit_s=limit_s, schedules=schedules, ptx=ptx, covers=covers, exercises=self._exercises,
        )  # fmt: skip

    def _facts(self) -> Facts:
        config = self._legal.config
        return Facts(
            cluster_size=config.cluster_size,
            ctas_per_sm=config.ctas_per_sm,
            launches_early=config.launches_early,
        )

    # -- progress ------------------------------------------------------------------------------------------------
    def _progress(self) -> None:
        if time.monotonic() - self._shown < PERIOD_S and len(self.found) < self.total:
            return
        left = (time.monotonic() - self._begun) / len(self.found) * (self.total - len(self.found))
        counts = ", ".join(f"{self.count(verdict)} {name}" for verdict, name in _NAMES.items())
        self._say(f"{len(self.found)}/{self.total} mutants, {counts}, about {left:.0f} s left")

    def _say(self, line: str) -> None:
        self._shown = time.monotonic()
        if not self._args.quiet:
            print(f"sweep: {line}", file=sys.stderr, flush=True)

    def count(self, verdict: str) -> int:
        return sum(one.verdict == verdict for one in self.found)

    # -- output --------------------------------------------------------------------------------------------------
    def record(self, source: str) -> dict[str, Any]:
        return {
            **text.problem_record(self._problem),
            "config": str(self._legal.config),
            "config_from": source,
            "seed": self._args.seed,
            "schedules": list(self._schedules),
            "mutants": self.total,
            "checked": len(self.found),
            "kinds": table(self.found),
            "found": [one.record() for one in self.found],
        }

    def show(self, source: str) -> None:
        problem = text.describe_problem(self._problem)
        text.print_block([("problem", problem), ("config", self._legal.config), ("from", source)])
        if len(self.found) < self.total:
            print(f"\ninterrupted: {len(self.found)} of {self.total} mutants were checked")
        print(f"\n{_lines_of_table(table(self.found))}")
        survivors = [one for one in self.found if one.verdict == SURVIVES]
        for title, chosen_ones in (
            (
                "survive, and nothing here says why that is harmless",
                [one for one in survivors if not one.reason],
            ),
            ("harmless", [one for one in survivors if one.reason]),
        ):
            if chosen_ones:
                print(f"\n{title}:")
                print("\n".join(_line(one) for one in chosen_ones))


_NAMES = {REPORTED: "reported", SURVIVES: "survive", NOT_APPLICABLE: "not applicable"}


def _lines_of_table(rows: list[dict[str, Any]]) -> str:
    last: dict[str, Any] = {"kind": "all"}
    for name in list(rows[0])[1:] if rows else ():
        last[name] = sum(row[name] for row in rows)
    lines = ["  ".join((f"{HEADS[0]:<14}", *(f"{head:>{max(8, len(head))}}" for head in HEADS[1:])))]
    for row in [*rows, last] if rows else ():
        numbers = (f"{row[head.replace(' ', '_')]:>{max(8, len(head))}}" for head in HEADS[1:])
        lines.append("  ".join((f"{row['kind']:<14}", *numbers)))
    return "\n".join(lines)


def _line(one: Found) -> str:
    why = f"\n      {one.reason}" if one.reason else ""
    return f"  line {one.mutant.line}: {one.mutant.statement.text}\n      {one.mutant.kind}: {one.mutant.what}{why}"


def _answer(future: Future[Answer]) -> Answer:
    """What a worker found; a check that hangs or dies is a verdict, too."""
    try:
        return future.result()
    except CheckHung as error:
        return Answer(status=HUNG, reason=str(error), seconds=0.0)
    except CheckDied as error:
        return Answer(status=DIED, reason=str(error), seconds=0.0)


def sweeps(
    legals: list[tuple[Problem, Legal]], built: list[CompiledKernel], sources: list[str], schedules: tuple[str, ...],
    args: argparse.Namespace,
) -> int:  # fmt: skip
    """0 when every mutant is reported, harmless for a stated reason, or no program; 1 when one survives unexplained."""
    made = [
        Sweep(compiled, problem, legal, schedules, args)
        for (problem, legal), compiled in zip(legals, built, strict=True)
    ]
    try:
        for one in made:
            one.run()
    finally:
        _show([(one, source) for one, source in zip(made, sources, strict=True) if one.found], args)
    return 1 if any(found.unexplained for one in made for found in one.found) else 0


def _show(made: list[tuple[Sweep, str]], args: argparse.Namespace) -> None:
    if args.json:
        text.print_json({"sweeps": [one.record(source) for one, source in made]})
        return
    for number, (one, source) in enumerate(made):
        print("\n" * min(number, 1), end="")
        one.show(source)
