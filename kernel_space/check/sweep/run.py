"""Mutants of one candidate, the check of each as a task for a process that may die of it, and what came of all."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from kernel_space.check.result import CheckResult, CheckStatus
from kernel_space.check.sweep.coverage import Coverage, Seen
from kernel_space.check.sweep.first import first_finding
from kernel_space.check.sweep.harmless import Facts, before_it_runs, why_harmless
from kernel_space.check.sweep.mutant import KINDS, Kernel, Mutant
from kernel_space.check.sweep.numbers import wrong_numbers
from kernel_space.check.sweep.place import misplaced, wrong_thread
from kernel_space.check.sweep.text import Source
from kernel_space.check.sweep.weaken import removed, weakened
from kernel_space.check.validate import ALL, check_candidate

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.config import KernelConfig
    from kernel_space.core.problem import Problem

REPORTED, SURVIVES, NOT_APPLICABLE = "reported", "survives", "not applicable"
REASON = 200  # characters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """Of one check: its status and reason; ``seen`` where it was asked for."""

    status: str
    reason: str
    seconds: float
    seen: Seen | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepTask:
    """One check, of the kernel itself (``covers``: and who executes what) or of a mutant's ``ptx`` on the ``exercises``
    of ``problem``."""

    compiled: CompiledKernel
    config: KernelConfig
    problem: Problem
    seed: int
    limit_s: float
    schedules: tuple[str, ...] = ALL
    ptx: str | None = None
    covers: bool = False
    exercises: tuple[tuple[Problem, int], ...] = ()

    def run(self) -> Answer:
        result = self._result()
        return Answer(
            status=str(result.status),
            reason=result.reason[:REASON],
            seconds=result.seconds,
            seen=self._coverage() if self.covers and result.ok else None,
        )

    def _result(self) -> CheckResult:
        if self.ptx is None:
            return check_candidate(
                self.compiled, self.config, self.problem, schedules=self.schedules, seed=self.seed
            )
        return first_finding(
            self.compiled, self.config, self.exercises, schedules=self.schedules, seed=self.seed, ptx=self.ptx
        )

    def _coverage(self) -> Seen:
        """Of every problem of the exercise, under one schedule."""
        coverage = Coverage()
        check_candidate(
            self.compiled, self.config, self.problem, schedules=("eager",), seed=self.seed, observer=coverage
        )
        return coverage.seen


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What came of a mutant: ``verdict``, the class of the report or "", and a line: the report's or the proof."""

    mutant: Mutant
    verdict: str
    status: str
    reason: str

    @property
    def unexplained(self) -> bool:
        return self.verdict == SURVIVES and not self.reason

    def record(self) -> dict[str, Any]:
        mutant = self.mutant
        return {
            "kind": mutant.kind,
            "line": mutant.line,
            "ptx": mutant.statement.text,
            "mutation": mutant.what,
            "verdict": self.verdict,
            "status": self.status,
            "reason": self.reason,
        }


def mutants_of(ptx: str, seen: Seen) -> list[Mutant]:
    """Every mutant of a text, in the order of kinds and lines; no text twice."""
    kernel = Kernel(source=Source(ptx), seen=seen)
    known: set[str] = set()
    found = []
    for mutant in _generated(kernel):
        proof = before_it_runs(kernel, ptx, mutant)
        if mutant.text not in known:
            known.add(mutant.text)
            found.append(dataclasses.replace(mutant, proof=proof))
    return sorted(found, key=lambda one: (KINDS.index(one.kind), one.line))


def _generated(kernel: Kernel) -> Iterator[Mutant]:
    for one in kernel.relevant:
        yield from removed(kernel, one)
        yield from weakened(kernel, one)
        yield from wrong_thread(kernel, one)
        yield from wrong_numbers(kernel, one)
    yield from misplaced(kernel)


def chosen(mutants: list[Mutant], limit: int | None, seed: int) -> list[Mutant]:
    """At most ``limit``, by ``seed``: of each kind as many as of any other while there are some; in their order."""
    if limit is None or limit >= len(mutants):
        return mutants
    order = random.Random(seed)
    piles = [[one for one in mutants if one.kind == kind] for kind in KINDS]
    for pile in piles:
        order.shuffle(pile)
    taken: list[Mutant] = []
    while len(taken) < limit:
        for pile in piles:
            if pile and len(taken) < limit:
                taken.append(pile.pop())
    keep = {id(one) for one in taken}
    return [one for one in mutants if id(one) in keep]


def explained(mutant: Mutant, ptx: str, seen: Seen, facts: Facts) -> str:
    """Why ``mutant`` does no harm, if it survives; empty if no rule knows."""
    return mutant.proof or why_harmless(Kernel(source=_source(ptx), seen=seen), mutant, facts)


def judged(mutant: Mutant, answer: Answer, ptx: str, seen: Seen, facts: Facts) -> Found:
    if answer.status == CheckStatus.OK:
        reason = explained(mutant, ptx, seen, facts)
        return Found(mutant=mutant, verdict=SURVIVES, status="", reason=reason)
    if answer.status == CheckStatus.UNSUPPORTED:
        return Found(mutant=mutant, verdict=NOT_APPLICABLE, status="", reason=answer.reason)
    return Found(mutant=mutant, verdict=REPORTED, status=answer.status, reason=answer.reason)


_SOURCES: dict[str, Source] = {}


def _source(ptx: str) -> Source:
    if ptx not in _SOURCES:
        _SOURCES.clear()
        _SOURCES[ptx] = Source(ptx)
    return _SOURCES[ptx]


def table(found: Iterable[Found]) -> list[dict[str, Any]]:
    """A row per kind that has mutants: how many, reported, harmless with a proof, survive without one, no program."""
    everything = list(found)
    rows = []
    for kind in KINDS:
        of_kind = [one for one in everything if one.mutant.kind == kind]
        if not of_kind:
            continue
        survivors = [one for one in of_kind if one.verdict == SURVIVES]
        rows.append(
            {
                "kind": kind,
                "mutants": len(of_kind),
                "reported": sum(one.verdict == REPORTED for one in of_kind),
                "harmless": sum(bool(one.reason) for one in survivors),
                "unexplained": sum(not one.reason for one in survivors),
                "not_applicable": sum(one.verdict == NOT_APPLICABLE for one in of_kind),
            }
        )
    return rows
