"""Is a candidate right? Run its compiled PTX in the sm_100a machine and compare with the operator's oracle.

``check_candidate``  small problems that exercise the candidate, under all schedules, with race checking; the first run
                     of a config with programmatic launch is of several calls in a row that overlap
``check_full``       the real problem once, without race checking

Every element of every output must be right for the oracle, the outputs bitwise the same under every schedule, no byte
outside of outputs and workspace changed, the counters of the workspace zero again. What fails is a value, never an
exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.check.one_problem import ProblemCheck
from kernel_space.check.problem import cut, exercises
from kernel_space.check.result import CheckResult, CheckStatus, ScheduleRun, joined, worst_errors
from kernel_space.core.arch import arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.machine.observe.trace import Observer
from kernel_space.machine.run.schedules import SCHEDULES

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel

__all__ = [
    "ALL",
    "CheckResult",
    "CheckStatus",
    "ScheduleRun",
    "check_candidate",
    "check_full",
    "exercises",
    "worst_errors",
]

ALL = tuple(SCHEDULES)
FULL_LIMIT_S = 300.0
FULL_SMS = 148


def check_candidate(
    compiled: CompiledKernel,
    config: KernelConfig,
    problem: Problem,
    *,
    schedules: tuple[str, ...] = ALL,
    check_races: bool = True,
    seed: int = 0,
    ptx: str | None = None,
    observer: Observer | None = None,
    keep_going: bool = False,
) -> CheckResult:
    """Run each problem of ``exercises`` under each schedule until one fails (``keep_going``: under all).

    ``config`` is resolved, ``compiled`` its kernel for the class of ``problem``. ``seed`` makes operands and the random
    schedule. ``ptx`` runs in place of the compiled text, with its launch. ``observer`` sees the first run.
    """
    results = []
    for small, sms in exercises(config, problem, arch(compiled.arch)):
        check = ProblemCheck(
            compiled, config, small, sms, check_races=check_races, seed=seed, ptx=ptx, in_a_row=True
        )
        for schedule in schedules:
            check.run(schedule, observer)
            observer = None
            if check.failed and not keep_going:
                break
        results.append(check.result())
        if check.failed:
            break
    return joined(results)


def check_full(
    compiled: CompiledKernel,
    config: KernelConfig,
    problem: Problem,
    *,
    limit_s: float = FULL_LIMIT_S,
    sms: int = FULL_SMS,
    seed: int = 0,
    ptx: str | None = None,
) -> CheckResult:
    """Run ``problem`` once, eagerly and without race checking, and compare every element of every output.

    A problem that would take more than about ``limit_s`` seconds is cut to one of the same class with fewer tiles;
    ``result.problem`` says which one ran.
    """
    small = cut(config, problem, arch(compiled.arch), limit_s)
    check = ProblemCheck(compiled, config, small, sms, check_races=False, seed=seed, ptx=ptx)
    check.run("eager", None)
    return check.result()
