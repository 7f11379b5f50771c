"""Run a mutated kernel the way a candidate is validated, and read the classes off the report."""

from __future__ import annotations

import dataclasses
import functools
import re

from kernel_space.build.build import CompiledKernel, build
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM100A
from kernel_space.operators.svdquant_gemm.mutations.suite import CASES, Mutation, MutationContext
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.compiled_cases import resolved


@dataclasses.dataclass(frozen=True)
class CaseKernel:
    compiled: CompiledKernel
    ptx: str
    config: KernelConfigSm100a
    problem: GemmProblem
    context: MutationContext


@dataclasses.dataclass(frozen=True)
class Verdict:
    """``classes``: of every finding of one run, empty when there is none; ``text``: the whole report."""

    classes: frozenset[str]
    text: str


@functools.cache
def case_kernel(name: str) -> CaseKernel:
    config, problem = resolved(CASES[name].config, CASES[name].shape)
    compiled = build(config, problem.problem_class, SM100A)
    context = MutationContext.of(config, problem.problem_class)
    return CaseKernel(compiled, compiled.ptx, config, problem, context)


def run_text(case: str, ptx: str | None, *schedules: str) -> Verdict:
    kernel = case_kernel(case)
    result = check_candidate(kernel.compiled, kernel.config, kernel.problem, schedules=schedules, ptx=ptx)
    if result.ok:
        return Verdict(frozenset(), "")
    named = re.findall(r"^schedule \w+: ([A-Z_]+):", result.findings, flags=re.M)
    return Verdict(frozenset({str(result.status), *named}), result.findings)


def run_mutation(mutation: Mutation, schedule: str) -> Verdict:
    kernel = case_kernel(mutation.case)
    return run_text(mutation.case, mutation.apply(kernel.ptx, kernel.context), schedule)


def failure(mutation: Mutation, verdict: Verdict) -> str:
    """Why the report is not the right one; empty if it is."""
    if not verdict.classes & set(mutation.expected):
        return f"expected {' or '.join(mutation.expected)}, found {sorted(verdict.classes) or 'nothing'}"
    if "UNSUPPORTED" in verdict.classes:
        return "the mutated text is not a program the machine runs"
    if mutation.expected[0] not in verdict.classes:
        return ""
    for words in (mutation.barrier, mutation.cause):
        if words not in verdict.text:
            return f"the report does not say {words!r}:\n{verdict.text}"
    return ""
