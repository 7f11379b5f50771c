"""Compile what a search will try first, before it can begin: a card's worker takes seconds to start."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING

from kernel_space.core.arch import Arch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.search.loop import Pool
from tuner.space.candidate import Asks

if TYPE_CHECKING:
    from tuner.compile.pool import CompileResult


def compile_ahead(
    pool: Pool, scout: Asks, problem: GemmProblem, arch: Arch, most: int
) -> dict[str, concurrent.futures.Future[CompileResult]]:
    """Begin with the first ``most`` candidates of ``scout``, as far as it asks without being told anything: a search of
    the same seed, which is thrown away. What comes of each by resolved config."""
    begun: dict[str, concurrent.futures.Future[CompileResult]] = {}
    while len(begun) < most and (candidate := scout.ask()):
        begun[candidate.resolved] = pool.submit(candidate.legal.config, problem.problem_class, arch)
    return begun
