"""Which problems a candidate is checked on: small ones that exercise it, and the full one, cut if it must be.

A kernel may choose by itself (``core.traits``). For any other the operator's own problems are made small: the problem,
its ragged variants, few clusters on the chip. Cut to a second they have few rows, and nothing says how many turns a CTA
takes: a kernel that knows its tiles states a problem with several (``TURNS`` beside its ``TRAITS``).
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of, operator_of
from kernel_space.core.rules import Legal, legalize
from kernel_space.core.traits import MachineTraits, traits_of

EXERCISE_S = 1.0  # about how long one run of a small problem may take
MOST_CUT = 8  # times: of a ragged problem that is cut further no edge is left, and ``TURNS`` has ragged ones of its own
CLUSTERS = 3  # on the chip of a small problem: a number that divides few grids
STEPS = (
    256,
    32,
    1,
)  # sizes are halved in whole steps, so that what is left beyond them stays: edges cut as before
# Of the machine: 30,000 to 60,000 warp-instructions per second, with race checking half of that (plain loads, fp32).
INSTRUCTIONS_PER_S = 3e4
# A kernel for fp32 or integers issues one warp-instruction for 32 operations, one for matrices for 2048 or more.
SCALAR_PIPES = ("fp32", "fp64", "int32", "int64")
SCALAR_OPERATIONS, MATRIX_OPERATIONS = 32, 2048
BYTES = 8  # of all tensors per warp-instruction: loads, arithmetic and addresses of an elementwise kernel
ORACLE_S = 1.4e-10  # of an operation of a matrix product, in float64 on one core
# A bound for live-locks and run-away loops, not a guess at what the kernel takes.
LEAST_INSTRUCTIONS, PER_SM, MARGIN = 100_000, 20_000, 50


def exercises(config: KernelConfig, problem: Problem, arch: Arch) -> tuple[tuple[Problem, int], ...]:
    """(problem, SMs of the chip) of every small problem on which ``check_candidate`` runs a resolved config.

    All are of the class of ``problem`` and legal for ``config``.
    """
    traits = _traits(config, problem)
    if traits.exercise:
        return (traits.exercise(config, problem),)
    sms, variants = CLUSTERS * config.cluster_size, [*_variants(config, problem, arch)]
    chosen = []
    if (choose := _turns(config, problem)) and _is_legal(config, (turns := choose(config, problem))[0], arch):
        chosen, variants = [turns], [one for one in variants[1:] if seconds(one) <= MOST_CUT * EXERCISE_S]
    small = (_cut(config, variant, arch, EXERCISE_S) for variant in variants)
    return tuple(dict.fromkeys([*chosen, *((one, sms) for one in small)]))


def cut(config: KernelConfig, problem: Problem, arch: Arch, limit_s: float) -> Problem:
    """``problem`` itself if ``check_full`` takes at most about ``limit_s`` seconds, else one of the same class that is
    cut where it may be: sizes halved, batches first, as often as needed.
    """
    if own := _traits(config, problem).cut:
        return own(config, problem, limit_s)
    return _cut(config, problem, arch, limit_s)


def most_instructions(config: KernelConfig, problem: Problem, sms: int) -> int:
    """Warp-instructions that no correct run needs."""
    if own := _traits(config, problem).most_instructions:
        return own(config, problem, sms)
    return LEAST_INSTRUCTIONS + PER_SM * sms + MARGIN * _instructions(problem)


def _turns(config: KernelConfig, problem: Problem) -> Callable[[Any, Any], tuple[Any, int]] | None:
    """``TURNS`` beside the kernel's ``TRAITS``: (config, problem) -> (problem, SMs). Not a trait: chains are hashed by
    those, and what is measured on a card does not depend on it.
    """
    module = kernel_of(config, problem).machine
    return (
        getattr(importlib.import_module(module), "TURNS", None)
        if module and isinstance(module, str)
        else None
    )


def _traits(config: KernelConfig, problem: Problem) -> MachineTraits:
    return traits_of(kernel_of(config, problem))


def _variants(config: KernelConfig, problem: Problem, arch: Arch) -> Iterator[Problem]:
    """The problem and those that cut tiles elsewhere, as far as they are legal for ``config``."""
    yield problem
    ragged = operator_of(problem).ragged
    for variant in ragged(config, problem) if ragged else _odd_sizes(problem):
        if variant.problem_class == problem.problem_class and _is_legal(config, variant, arch):
            yield variant


def _odd_sizes(problem: Problem) -> Iterator[Problem]:
    """Each size that is not compiled in one step smaller, and as small as it can be."""
    for name in _run_time_sizes(problem):
        form, size = problem.forms()[name], getattr(problem, name)
        least = -(-max(form.least, 1) // form.multiple) * form.multiple
        for smaller in (size - form.multiple, least):
            if least <= smaller < size and (found := _with_size(problem, name, smaller)):
                yield found


def _cut(config: KernelConfig, problem: Problem, arch: Arch, limit_s: float) -> Problem:
    while seconds(problem) > limit_s:
        smaller = next(
            (one for one in _halves(problem) if _is_legal(config, one, arch)),
            None,
        )
        if smaller is None:
            return problem
        problem = smaller
    return problem


def _halves(problem: Problem) -> Iterator[Problem]:
    """Problems with one size halved: in the largest steps first, batches before others, the largest first."""
    for step in STEPS:
        for name in _run_time_sizes(problem):
            size = getattr(problem, name)
            whole, rest = divmod(size, step * problem.forms()[name].multiple)
            half = (whole + 1) // 2 * step * problem.forms()[name].multiple + rest
            if whole > 1 and (found := _with_size(problem, name, half)):
                yield found


def _run_time_sizes(problem: Problem) -> list[str]:
    """Sizes that are not compiled in, batches first, then the largest first."""
    forms = problem.forms()
    names = [name for name in problem.size_names() if not forms[name].compiled]
    return sorted(names, key=lambda name: (not forms[name].batch, -getattr(problem, name)))


def _with_size(problem: Problem, name: str, size: int) -> Problem | None:
    """None where the operator's contract has no such problem."""
    try:
        return dataclasses.replace(problem, **{name: size})
    except InputError:
        return None


def _is_legal(config: KernelConfig, problem: Problem, arch: Arch) -> bool:
    legal = legalize(config, problem, arch)
    return isinstance(legal, Legal) and legal.config == config


def _instructions(problem: Problem) -> int:
    """About how many warp-instructions any kernel takes for ``problem``."""
    operator = operator_of(problem)
    count = sum(operator.tensor_bytes(problem).values()) / BYTES
    for pipe, operations in operator.work(problem).operations.items():
        count += operations / (SCALAR_OPERATIONS if pipe in SCALAR_PIPES else MATRIX_OPERATIONS)
    return int(count)


def seconds(problem: Problem) -> float:
    """About how long one run and its comparison take: the figure only decides what is worth starting."""
    operations = operator_of(problem).work(problem).operations
    matrix = sum(count for pipe, count in operations.items() if pipe not in SCALAR_PIPES)
    return _instructions(problem) / INSTRUCTIONS_PER_S + matrix * ORACLE_S
