"""Variants of a problem whose edges fall elsewhere, which the operator names: one object serves all of them."""

from __future__ import annotations

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from kernel_space.core.rules import Legal, knob_rejection, legalize


def ragged_problems(config: KernelConfig, problem: Problem, arch: Arch) -> list[Problem]:
    """Problems of the same class for which ``config`` (resolved) is legal as it is, without ``problem`` itself."""
    found = []
    for variant in _variants(config, problem):
        legal = legalize(config, variant, arch)
        if isinstance(legal, Legal) and str(legal.config) == str(config):
            found.append(variant)
    return found


def ragged_of_object(config: KernelConfig, problem: Problem, arch: Arch) -> list[Problem]:
    """As ``ragged_problems``, of a config that was compiled: its budget, the same for all sizes, was looked at then.

    Asks no layouts, so it needs no DSL.
    """
    return [one for one in _variants(config, problem) if knob_rejection(config, one, arch) is None]


def _variants(config: KernelConfig, problem: Problem) -> list[Problem]:
    ragged = operator_of(problem).ragged
    found = ragged(config, problem) if ragged else []
    return [one for one in found if one != problem and one.problem_class == problem.problem_class]
