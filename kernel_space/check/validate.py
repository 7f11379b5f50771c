"""Is a candidate right? Run its compiled PTX in the sm_100a machine and compare with the float64 reference.

``check_candidate``  a small problem that exercises the candidate, under all schedules, with race checking
``check_full``       the real problem once, without race checking

Every element must be within the derived tolerance, the output bitwise the same under every schedule, no byte outside
of y and workspace changed, the split-K counters zero again. What fails is a value, never an exception.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from enum import StrEnum
from typing import TYPE_CHECKING

import torch

from kernel_space.check.memory import CheckMemory
from kernel_space.check.problem import cut, exercise, tiles_per_cta
from kernel_space.check.regions import ROLES, RegionWatch, barrier_names
from kernel_space.core.arch import arch
from kernel_space.machine.observe.trace import Chain, Observer
from kernel_space.machine.run.run import SimResult, run_compiled
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import OutputCheck
from kernel_space.operators.svdquant_gemm.sm100a.budget import budget
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel

__all__ = ["ALL", "CheckResult", "CheckStatus", "check_candidate", "check_full", "exercise"]

ALL = tuple(SCHEDULES)
FULL_LIMIT_S = 300.0
FULL_SMS = 148
INSTRUCTIONS_PER_CTA_TILE = 40_000  # about ten times what the largest tile takes; per k-tile a tenth of it
INSTRUCTIONS_PER_K_TILE = 2_000
REASON_CHARACTERS = 300


class CheckStatus(StrEnum):
    """Verdict of a check; the machine's own, and ``WRONG_RESULT``."""

    OK = "OK"
    WRONG_RESULT = "WRONG_RESULT"
    DEADLOCK = "DEADLOCK"
    RACE = "RACE"
    ILLEGAL_ACCESS = "ILLEGAL_ACCESS"
    PROTOCOL_ERROR = "PROTOCOL_ERROR"
    UNSUPPORTED = "UNSUPPORTED"
    BUDGET_EXCEEDED = (
        "BUDGET_EXCEEDED"  # more instructions than any correct run: a live-lock or a run-away loop
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScheduleRun:
    """One run. ``digest``: SHA-256 of y's bytes, empty if the run did not end."""

    schedule: str
    status: CheckStatus
    instructions: int
    seconds: float
    digest: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckResult:
    """``problem`` ran on ``sms`` SMs under the schedules of ``runs``, which end with the first that failed.

    ``reason``     one line; empty when OK
    ``output``     error figures against the float64 reference, None if no run ended
    ``bitwise``    y was the same under all schedules; None if fewer than two ended
    ``instructions``, ``seconds``  warp-instructions simulated in all runs, wall time of the whole check
    ``findings``   everything the machine reports, in words
    """

    status: CheckStatus
    reason: str
    problem: GemmProblem
    sms: int
    races: bool
    runs: tuple[ScheduleRun, ...]
    output: OutputCheck | None
    bitwise: bool | None
    instructions: int
    seconds: float
    findings: str = ""

    @property
    def ok(self) -> bool:
        return self.status is CheckStatus.OK

    def __str__(self) -> str:
        schedules = ", ".join(run.schedule for run in self.runs)
        what = f"{self.problem} on {self.sms} SMs ({schedules}; races {'on' if self.races else 'off'})"
        if not self.ok:
            return f"{self.status}: {self.reason}; {what}"
        worst = f"worst error {self.output.max_ratio:.2f} x tolerance" if self.output else "no output"
        return f"OK: {what}, {worst}, {self.instructions} warp-instructions in {self.seconds:.1f} s"


def check_candidate(
    compiled: CompiledKernel,
    config: KernelConfigSm100a,
    problem: GemmProblem,
    *,
    schedules: tuple[str, ...] = ALL,
    check_races: bool = True,
    seed: int = 0,
    ptx: str | None = None,
    observer: Observer | None = None,
    keep_going: bool = False,
) -> CheckResult:
    """Run ``exercise(config, problem)`` under each schedule until one fails (``keep_going``: under all).

    ``config`` is resolved, ``compiled`` its kernel for the class of ``problem``. ``seed`` makes operands and the random
    schedule. ``ptx`` runs in place of the compiled text, with its launch. ``observer`` sees the first run.
    """
    small, sms = exercise(config, problem)
    check = _Check(compiled, config, small, sms, check_races=check_races, seed=seed, ptx=ptx)
    for number, schedule in enumerate(schedules):
        check.run(schedule, observer if number == 0 else None)
        if check.failed and not keep_going:
            break
    return check.result()


def check_full(
    compiled: CompiledKernel,
    config: KernelConfigSm100a,
    problem: GemmProblem,
    *,
    limit_s: float = FULL_LIMIT_S,
    sms: int = FULL_SMS,
    seed: int = 0,
    ptx: str | None = None,
) -> CheckResult:
    """Run ``problem`` once, eagerly and without race checking, and compare all of y.

    A problem that would take more than about ``limit_s`` seconds is cut: same K, R and ragged edges, fewer whole tiles
    along M and N; ``result.problem`` says which one ran.
    """
    check = _Check(
        compiled, config, cut(config, problem, limit_s), sms, check_races=False, seed=seed, ptx=ptx
    )
    check.run("eager", None)
    return check.result()


class _Check:
    """One problem in memory and the runs on it."""

    def __init__(
        self,
        compiled: CompiledKernel,
        config: KernelConfigSm100a,
        problem: GemmProblem,
        sms: int,
        *,
        check_races: bool,
        seed: int,
        ptx: str | None,
    ) -> None:
        self._begun = time.perf_counter()
        self._compiled, self._config, self._problem, self._sms = compiled, config, problem, sms
        self._races, self._seed, self._ptx = check_races, seed, ptx
        self._budget = budget(config, problem.problem_class, arch(compiled.arch))
        self._names = barrier_names(self._budget)
        self._memory = CheckMemory(config, problem, seed)
        self._first: torch.Tensor | None = None
        self._output: OutputCheck | None = None
        self._runs: list[ScheduleRun] = []
        self._verdicts: list[tuple[CheckStatus, str, str]] = []

    @property
    def failed(self) -> bool:
        return bool(self._verdicts)

    def run(self, schedule: str, observer: Observer | None) -> None:
        begun = time.perf_counter()
        self._memory.poison()
        watch = RegionWatch(self._budget)
        found = self._simulate(schedule, watch if observer is None else Chain(watch, observer))
        verdicts = _machine_verdict(found)
        digest = ""
        if found.status in ("OK", "RACE"):  # the run came to its end
            digest = hashlib.sha256(self._memory.operands.y.view(torch.uint8).numpy().tobytes()).hexdigest()
            verdicts += self._output_verdicts(schedule)
        stray = [*watch.findings, *self._memory.illegal_writes()]
        verdicts += [_verdict(CheckStatus.ILLEGAL_ACCESS, line) for line in stray]
        self._verdicts += [
            (status, reason, f"schedule {schedule}: {text}") for status, reason, text in verdicts
        ]
        self._runs.append(
            ScheduleRun(
                schedule=schedule,
                status=verdicts[0][0] if verdicts else CheckStatus.OK,
                instructions=found.instructions,
                seconds=time.perf_counter() - begun,
                digest=digest,
            )
        )

    def _simulate(self, schedule: str, observer: Observer) -> SimResult:
        problem, config = self._problem, self._config
        clusters = max(1, self._sms // config.cluster_size)
        return run_compiled(
            self._compiled,
            *self._memory.arguments(),
            problem.m,
            problem.n,
            problem.k,
            clusters,
            0,
            sms=self._sms,
            schedule=schedule,
            seed=self._seed,
            check_races=self._races,
            ptx=self._ptx,
            max_instructions=self._most_instructions(),
            barrier_names=self._names,
            roles=ROLES,
            observer=observer,
        )

    def _most_instructions(self) -> int:
        """What no correct run needs."""
        config, problem = self._config, self._problem
        clusters = max(1, self._sms // config.cluster_size)
        cta_tiles = (tiles_per_cta(config, problem, self._sms) + 1) * clusters * config.cluster_size
        k_tiles = -(-problem.k // config.mma_tiler_k)
        return cta_tiles * (INSTRUCTIONS_PER_CTA_TILE + INSTRUCTIONS_PER_K_TILE * k_tiles)

    def _output_verdicts(self, schedule: str) -> list[tuple[CheckStatus, str, str]]:
        memory = self._memory
        verdicts = []
        if self._first is None:
            self._first = memory.operands.y.clone()
            self._output = memory.operands.check(split_k=self._config.partial_sums)
            verdicts = self._error_verdict(self._output)
        elif (different := _different(self._first, memory.operands.y)) > 0:
            line = (
                f"{different} elements of y differ between schedules {self._runs[0].schedule} and {schedule}"
            )
            check = memory.operands.check(split_k=self._config.partial_sums)
            verdicts = self._error_verdict(check) or [_verdict(CheckStatus.RACE, line)]
        if left := memory.left_counters():
            verdicts.append(_verdict(CheckStatus.WRONG_RESULT, left))
        return verdicts

    def _error_verdict(self, check: OutputCheck) -> list[tuple[CheckStatus, str, str]]:
        if check.ok:
            return []
        unwritten = self._memory.unwritten()
        never = f"; {unwritten} elements were never written" if unwritten else ""
        return [_verdict(CheckStatus.WRONG_RESULT, f"{check}{never}")]

    def _others(self, first: CheckStatus) -> str:
        """Other classes of findings: a deadlock with races is often the races' doing."""
        others = [str(status) for status, _, _ in self._verdicts if status is not first]
        return (
            f" (and {', '.join(f'{others.count(one)} {one}' for one in dict.fromkeys(others))})"
            if others
            else ""
        )

    def result(self) -> CheckResult:
        first = self._verdicts[0] if self._verdicts else (CheckStatus.OK, "", "")
        digests = [run.digest for run in self._runs if run.digest]
        return CheckResult(
            status=first[0],
            reason=first[1] + self._others(first[0]),
            problem=self._problem,
            sms=self._sms,
            races=self._races,
            runs=tuple(self._runs),
            output=self._output,
            bitwise=len(set(digests)) == 1 if len(digests) > 1 else None,
            instructions=sum(run.instructions for run in self._runs),
            seconds=time.perf_counter() - self._begun,
            findings="\n".join(text for _, _, text in self._verdicts),
        )


def _verdict(status: CheckStatus, line: str) -> tuple[CheckStatus, str, str]:
    """Of a finding that is one line."""
    return status, line, f"{status}: {line}"


def _machine_verdict(found: SimResult) -> list[tuple[CheckStatus, str, str]]:
    verdicts = []
    for finding in found.findings:
        line = finding.text.splitlines()[0][:REASON_CHARACTERS]
        cause = next((text.strip() for text in finding.text.splitlines() if "likely cause" in text), "")
        verdicts.append((CheckStatus(finding.status), f"{line}; {cause}" if cause else line, str(finding)))
    return verdicts


def _different(first: torch.Tensor, second: torch.Tensor) -> int:
    """Elements whose bits differ."""
    return int((first.view(torch.int16) != second.view(torch.int16)).sum())
