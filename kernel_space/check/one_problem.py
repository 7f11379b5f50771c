"""One problem in memory, and the runs of a candidate on it."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from kernel_space.check.memory import CheckMemory
from kernel_space.check.problem import most_instructions
from kernel_space.check.regions import RegionWatch, barrier_names
from kernel_space.check.result import CheckResult, CheckStatus, ScheduleRun
from kernel_space.core.arch import arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.operator import Comparison
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of
from kernel_space.core.traits import traits_of
from kernel_space.machine.observe.trace import Chain, Observer
from kernel_space.machine.run.run import SimResult, run_compiled

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel

REASON_CHARACTERS = 300
CALLS, CHAIN_CALLS = 3, 2  # in a row, of what may begin early: three launches or more


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One thing that is wrong: its class, a line, and the same in full."""

    status: CheckStatus
    line: str
    text: str

    @classmethod
    def of_line(cls, status: CheckStatus, line: str) -> Verdict:
        return cls(status, line, f"{status}: {line}")


class ProblemCheck:
    """``compiled``, the kernel of the resolved ``config``, on one problem and a chip of ``sms`` SMs.

    ``ptx`` runs in place of the compiled text, with its launch. ``in_a_row``: the first run of a config that may begin
    before the launch before it has ended is of several calls on the same memory, as a chain of layers makes them.
    """

    def __init__(
        self,
        compiled: CompiledKernel,
        config: KernelConfig,
        problem: Problem,
        sms: int,
        *,
        check_races: bool,
        seed: int,
        ptx: str | None,
        in_a_row: bool = False,
    ) -> None:
        self._begun = time.perf_counter()
        self._compiled, self._config, self._problem, self._sms = compiled, config, problem, sms
        self._races, self._seed, self._ptx = check_races, seed, ptx
        kernel = kernel_of(config, problem)
        self._traits = traits_of(kernel)
        self._calls = 1
        if in_a_row and config.launches_early:
            self._calls = CHAIN_CALLS if kernel.parts else CALLS
        self._budget = kernel.budget(config, problem.problem_class, arch(compiled.arch))
        self._memory = CheckMemory(config, problem, seed)
        self._first: dict[str, torch.Tensor] = {}
        self._outputs: Mapping[str, Comparison] = {}
        self._runs: list[ScheduleRun] = []
        self._verdicts: list[Verdict] = []

    @property
    def failed(self) -> bool:
        return bool(self._verdicts)

    def run(self, schedule: str, observer: Observer | None) -> None:
        begun = time.perf_counter()
        self._memory.poison(len(self._runs))
        watch = RegionWatch(self._budget, self._traits.barriers) if self._traits.barriers else None
        watching = [one for one in (watch, observer) if one is not None]
        calls = 1 if self._runs else self._calls
        found = self._simulate(schedule, Chain(*watching) if watching else None, calls)
        verdicts = _of_machine(found)
        digest = ""
        if found.status in ("OK", "RACE"):  # the run came to its end
            outputs = self._memory.outputs()
            digest = _digest(outputs)
            verdicts += self._of_outputs(schedule, outputs)
        stray = [*(watch.findings if watch else ()), *self._memory.illegal_writes()]
        verdicts += [Verdict.of_line(CheckStatus.ILLEGAL_ACCESS, line) for line in stray]
        self._verdicts += [
            dataclasses.replace(one, text=f"schedule {schedule}: {one.text}") for one in verdicts
        ]
        self._runs.append(
            ScheduleRun(
                problem=self._problem,
                schedule=schedule,
                calls=calls,
                status=verdicts[0].status if verdicts else CheckStatus.OK,
                instructions=found.instructions,
                seconds=time.perf_counter() - begun,
                digest=digest,
            )
        )

    def _simulate(self, schedule: str, observer: Observer | None, calls: int) -> SimResult:
        config, barriers = self._config, self._traits.barriers
        return run_compiled(
            self._compiled,
            *self._memory.values(max(1, config.max_active_clusters(self._sms))),
            sms=self._sms * config.ctas_per_sm,
            schedule=schedule,
            seed=self._seed,
            check_races=self._races,
            ptx=self._ptx,
            max_instructions=calls * most_instructions(config, self._problem, self._sms),
            barrier_names=barrier_names(self._budget, barriers) if barriers else None,
            roles=dict(self._traits.roles),
            observer=observer,
            times=calls,
            former=self._memory.unfinished() if calls > 1 else (),
        )

    def _of_outputs(self, schedule: str, outputs: dict[str, torch.Tensor]) -> list[Verdict]:
        verdicts = []
        if not self._first:
            self._first = outputs
            self._outputs = self._memory.check()
            verdicts = self._of_errors(self._outputs)
        elif different := _different(self._first, outputs):
            what = " and ".join(f"{count} elements of {name}" for name, count in different.items())
            line = f"{what} differ between schedules {self._runs[0].schedule} and {schedule}"
            verdicts = self._of_errors(self._memory.check()) or [Verdict.of_line(CheckStatus.RACE, line)]
        if left := self._memory.left_counters():
            verdicts.append(Verdict.of_line(CheckStatus.WRONG_RESULT, left))
        return verdicts

    def _of_errors(self, checks: Mapping[str, Comparison]) -> list[Verdict]:
        """Of every output that is wrong."""
        verdicts = []
        for name, check in checks.items():
            if check.ok:
                continue
            unwritten = self._memory.unwritten(name)
            never = f"; {unwritten} elements were never written" if unwritten else ""
            verdicts.append(Verdict.of_line(CheckStatus.WRONG_RESULT, f"{name}: {check}{never}"))
        return verdicts

    def _others(self, first: CheckStatus) -> str:
        """Other classes of findings: a deadlock with races is often the races' doing."""
        others = [str(one.status) for one in self._verdicts if one.status is not first]
        counted = ", ".join(f"{others.count(one)} {one}" for one in dict.fromkeys(others))
        return f" (and {counted})" if counted else ""

    def result(self) -> CheckResult:
        first = self._verdicts[0] if self._verdicts else Verdict(CheckStatus.OK, "", "")
        digests = [run.digest for run in self._runs if run.digest]
        return CheckResult(
            status=first.status,
            reason=first.line + self._others(first.status),
            problem=self._problem,
            sms=self._sms,
            races=self._races,
            runs=tuple(self._runs),
            outputs=self._outputs,
            bitwise=len(set(digests)) == 1 if len(digests) > 1 else None,
            instructions=sum(run.instructions for run in self._runs),
            seconds=time.perf_counter() - self._begun,
            findings="\n".join(one.text for one in self._verdicts),
        )


def _of_machine(found: SimResult) -> list[Verdict]:
    verdicts = []
    for finding in found.findings:
        line = finding.text.splitlines()[0][:REASON_CHARACTERS]
        cause = next((text.strip() for text in finding.text.splitlines() if "likely cause" in text), "")
        status = CheckStatus(finding.status)
        verdicts.append(Verdict(status, f"{line}; {cause}" if cause else line, str(finding)))
    return verdicts


def _digest(outputs: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for data in outputs.values():
        digest.update(data.numpy().tobytes())
    return digest.hexdigest()


def _different(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Output -> elements whose bytes differ, of outputs that have any."""
    counts = {name: int((data != second[name]).any(dim=1).sum()) for name, data in first.items()}
    return {name: count for name, count in counts.items() if count}
