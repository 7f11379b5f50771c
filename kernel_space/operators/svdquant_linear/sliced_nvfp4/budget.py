"""SMEM budget of a configuration of ``sliced_nvfp4``, and its workspace."""

from __future__ import annotations

from typing import Any

from kernel_space.core.kernel import Room
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.sliced_nvfp4.config import SlicedNvfp4Config
from kernel_space.operators.svdquant_linear.staged_nvfp4.budget import HALF_BYTES
from kernel_space.operators.svdquant_linear_16bit.sliced.budget import budget, solve_stages
from kernel_space.operators.svdquant_linear_16bit.whole.spec import COUNTERS, TAGGED

__all__ = ["budget", "layouts", "room", "solve_stages", "zeroed_bytes"]

ALIGN = 256  # bytes, of x for TMA


def zeroed_bytes(m: Any, r: int) -> Any:
    """Of counters and pairs of lora_act_in; an int, or a number of the DSL."""
    return COUNTERS + (m * (TAGGED * r) + (ALIGN - 1)) // ALIGN * ALIGN


def room(config: SlicedNvfp4Config, problem: LinearProblem) -> Room:
    """Counters, then pairs of lora_act_in; then x as it is multiplied, ``[M, K]`` in 16 bits."""
    zeroed = zeroed_bytes(problem.m, problem.r)
    return Room(size=zeroed + problem.m * problem.k * HALF_BYTES, zeroed=zeroed)


def layouts(config: SlicedNvfp4Config, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_linear.sliced_nvfp4.layouts import SlicedNvfp4Layouts

    return SlicedNvfp4Layouts(config, problem_class)
