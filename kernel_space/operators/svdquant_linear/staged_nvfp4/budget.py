"""SMEM budget of a configuration of ``staged_nvfp4``, and its workspace."""

from __future__ import annotations

import math
from typing import Any

from kernel_space.core.kernel import Room
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.staged_nvfp4.config import StagedNvfp4Config
from kernel_space.operators.svdquant_linear_16bit.staged.budget import budget, solve_stages, zeroed_bytes

__all__ = ["budget", "layouts", "room", "solve_stages", "zeroed_bytes"]

WORDS = 8  # of a tile of rows of x: CTAs that are ready, that have seen it; parts that are done; one spare; parts taken
COUNTERS, HALF_BYTES = 4 * WORDS, 2  # bytes of all of them, of a number of x


def room(config: StagedNvfp4Config, problem: LinearProblem) -> Room:
    """Counters; then x as it is multiplied, ``[M, K]`` in 16 bits."""
    zeroed = zeroed_bytes(math.ceil(problem.m / config.tile_mnk[0]), COUNTERS)
    return Room(size=zeroed + problem.m * problem.k * HALF_BYTES, zeroed=zeroed)


def layouts(config: StagedNvfp4Config, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_linear.staged_nvfp4.layouts import StagedNvfp4Layouts

    return StagedNvfp4Layouts(config, problem_class)
