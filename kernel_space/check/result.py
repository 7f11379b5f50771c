"""What a check of a candidate found: one verdict with a reason, the runs it is made of, the errors of each output."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from enum import StrEnum

from kernel_space.core.operator import Comparison
from kernel_space.core.problem import Problem


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
    """One run, of so many ``calls`` in a row that may overlap. ``digest``: SHA-256 of the bytes of all outputs, empty
    if the run did not end.
    """

    problem: Problem
    schedule: str
    status: CheckStatus
    instructions: int
    seconds: float
    calls: int = 1
    digest: str = ""

    @property
    def name(self) -> str:
        return f"{self.schedule} of {self.calls} calls in a row" if self.calls > 1 else self.schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckResult:
    """``problem`` ran on ``sms`` SMs under the schedules of ``runs``, which end with the first that failed.

    ``also``       further problems that ran before it, and were right
    ``reason``     one line; empty when OK
    ``outputs``    by name, how each compares with the oracle; empty if no run ended
    ``bitwise``    the outputs were the same under all schedules; None if fewer than two ended
    ``instructions``, ``seconds``  warp-instructions simulated in all runs, wall time of the whole check
    ``findings``   everything the machine reports, in words
    """

    status: CheckStatus
    reason: str
    problem: Problem
    sms: int
    races: bool
    runs: tuple[ScheduleRun, ...]
    outputs: Mapping[str, Comparison]
    bitwise: bool | None
    instructions: int
    seconds: float
    findings: str = ""
    also: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        return self.status is CheckStatus.OK

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Every problem that ran."""
        return (*self.also, self.problem)

    def __str__(self) -> str:
        schedules = ", ".join(dict.fromkeys(run.name for run in self.runs))
        races = f"races {'on' if self.races else 'off'}"
        what = f"{'; '.join(map(str, self.problems))} on {self.sms} SMs ({schedules}; {races})"
        if not self.ok:
            return f"{self.status}: {self.reason}; {what}"
        worst = worst_errors(self.outputs)
        return f"OK: {what}, {worst}, {self.instructions} warp-instructions in {self.seconds:.1f} s"


def worst_errors(outputs: Mapping[str, Comparison]) -> str:
    """The error of every output in a few words: ``worst error 0.43 x tolerance``, or ``y and count to the bit``."""
    exact = [name for name, check in outputs.items() if not check.tolerance]
    parts = []
    for name, check in outputs.items():
        if name not in exact:
            of = f" of {name}" if len(outputs) > 1 else ""
            parts.append(f"worst error{of} {check.max_ratio:.2f} x tolerance")
    if exact:
        right = all(outputs[name].ok for name in exact)
        parts.append(f"{' and '.join(exact)} {'to the bit' if right else 'not to the bit'}")
    return ", ".join(parts) or "no output"


def joined(results: Sequence[CheckResult]) -> CheckResult:
    """Of a check on several problems: the verdict of the first that failed, else of the last."""
    chosen = next((one for one in results if not one.ok), results[-1])
    if len(results) == 1:
        return chosen
    bitwise = [one.bitwise for one in results if one.bitwise is not None]
    return dataclasses.replace(
        chosen,
        also=tuple(one.problem for one in results if one is not chosen),
        runs=tuple(run for one in results for run in one.runs),
        outputs=functools.reduce(_joined_outputs, (one.outputs for one in results)),
        bitwise=all(bitwise) if bitwise else None,
        instructions=sum(one.instructions for one in results),
        seconds=sum(one.seconds for one in results),
        findings="\n".join(one.findings for one in results if one.findings),
    )


def _joined_outputs(
    first: Mapping[str, Comparison], second: Mapping[str, Comparison]
) -> dict[str, Comparison]:
    both = {name: first[name].merged(second[name]) for name in first if name in second}
    return {**first, **second, **both}
