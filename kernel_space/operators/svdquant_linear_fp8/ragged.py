"""Variants of a problem whose edges fall elsewhere: as ``svdquant_gemm``'s."""

from __future__ import annotations

from typing import cast

from kernel_space.operators.svdquant_gemm import ragged as gemm
from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem


def ragged(config: GemmConfig, problem: Fp8LinearProblem) -> list[Fp8LinearProblem]:
    """Problems of the same class, legal for ``config`` or not."""
    sizes = cast(GemmProblem, problem)  # only sizes are read and replaced, and both have the same
    return cast(list[Fp8LinearProblem], gemm.ragged(config, sizes))
