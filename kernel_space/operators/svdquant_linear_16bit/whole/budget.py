"""SMEM of a configuration of ``whole``: budget and stage solver are those of ``narrow``, of other layouts."""

from __future__ import annotations

from typing import Any

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm_16bit.narrow.budget import budget, solve_stages
from kernel_space.operators.svdquant_linear_16bit.whole.config import WholeConfig

__all__ = ["budget", "layouts", "solve_stages"]


def layouts(config: WholeConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_linear_16bit.whole.layouts import WholeLayouts

    return WholeLayouts(config, problem_class)
