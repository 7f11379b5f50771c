"""The check of a mutant: the runs of ``check_candidate`` in the order in which a finding comes soonest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernel_space.check.one_problem import ProblemCheck
from kernel_space.check.problem import seconds
from kernel_space.check.result import CheckResult, joined

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.config import KernelConfig
    from kernel_space.core.problem import Problem


def first_finding(
    compiled: CompiledKernel,
    config: KernelConfig,
    problems: tuple[tuple[Problem, int], ...],
    *,
    schedules: tuple[str, ...],
    seed: int,
    ptx: str,
) -> CheckResult:
    """``problems``, those of ``exercises``, under the first schedule, the cheapest first, then the next one, until
    a run fails.

    Which run fails first may be another one than in ``check_candidate``; whether one does is the same. Most mutants of
    a kernel for sm_90a fail on the problem of one row, which takes a thirtieth of the time of the largest.
    """
    checks = [
        ProblemCheck(compiled, config, one, sms, check_races=True, seed=seed, ptx=ptx, in_a_row=True)
        for one, sms in sorted(problems, key=lambda one: seconds(one[0]))
    ]
    for schedule in schedules:
        for check in checks:
            check.run(schedule, None)
            if check.failed:
                return joined([check.result()])
    return joined([check.result() for check in checks])
