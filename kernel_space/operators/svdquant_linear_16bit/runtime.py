"""``svdquant_linear_16bit`` for the run time: the tensors of ``svdquant_linear``, and the torch reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

import torch

from kernel_space.core.stand_in import StandIn
from kernel_space.operators.smooth_lora_down import runtime as smooth
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.svdquant_gemm_16bit import runtime as gemm
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_linear import runtime as linear
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

OPTIONS, STEADY, KEYS, WIDEST, EARLY = linear.OPTIONS, linear.STEADY, linear.KEYS, linear.WIDEST, linear.EARLY

Tensors = Mapping[str, torch.Tensor]


def problem_of(tensors: Tensors, *, activation: str = "none") -> HalfLinearProblem:
    """The problem of these inputs, those of ``svdquant_linear``. Raises ``InputError`` for what does not fit."""
    found = linear.problem_of(tensors, activation=activation)
    return HalfLinearProblem(**{name: getattr(found, name) for name in found.forms()})


def stand_in(problem: HalfLinearProblem, known: HalfLinearProblem) -> StandIn | None:
    """A kernel of the rank of ``known`` for ``problem``, as for ``svdquant_linear``; None for a smaller rank."""
    found = linear.stand_in(problem, cast(LinearProblem, known))
    return found and dataclasses.replace(found, problem=dataclasses.replace(problem, r=known.r))


def reference(tensors: Tensors, problem: HalfLinearProblem) -> dict[str, torch.Tensor]:
    """The layer in plain torch, by the references of its links."""
    part = SmoothProblem(m=problem.m, k=problem.k, r=problem.r, x_dtype=problem.dtype)
    made = smooth.reference(tensors, part)
    sizes = {name: getattr(problem, name) for name in problem.forms()}
    return {**made, **gemm.reference({**tensors, **made}, HalfGemmProblem(**sizes))}
