"""``svdquant_linear_fp8`` for the run time: the tensors of ``svdquant_linear`` and wpeak, and the torch reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import cast

import torch

from kernel_space.core.stand_in import StandIn
from kernel_space.numerics.tensors import require_tensor
from kernel_space.operators.svdquant_linear import runtime as linear
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem
from kernel_space.operators.svdquant_linear_fp8.reference import layer

OPTIONS, STEADY, KEYS, WIDEST, EARLY = linear.OPTIONS, linear.STEADY, linear.KEYS, linear.WIDEST, linear.EARLY

Tensors = Mapping[str, torch.Tensor]


def problem_of(tensors: Tensors, *, activation: str = "none") -> Fp8LinearProblem:
    """The problem of these inputs. Raises ``InputError`` for what does not fit."""
    found = linear.problem_of(tensors, activation=activation)
    require_tensor(tensors["wpeak"], "wpeak", (torch.float32,), (found.n,))
    return Fp8LinearProblem(**{name: getattr(found, name) for name in found.forms()})


def stand_in(problem: Fp8LinearProblem, known: Fp8LinearProblem) -> StandIn | None:
    """A kernel of the rank of ``known`` for ``problem``, as for ``svdquant_linear``; None for a smaller rank."""
    found = linear.stand_in(problem, cast(LinearProblem, known))
    return found and dataclasses.replace(found, problem=dataclasses.replace(problem, r=known.r))


def reference(tensors: Tensors, problem: Fp8LinearProblem) -> dict[str, torch.Tensor]:
    """The layer in plain torch: rows and merged weights in FP8, products and sums in fp32, one rounding."""
    return {"y": layer(problem, tensors)}
