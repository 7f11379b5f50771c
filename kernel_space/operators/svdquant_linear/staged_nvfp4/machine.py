"""What is known of ``staged_nvfp4`` beside its sources: how its work is dealt out, a problem for its rings."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from kernel_space.core.traits import Effort, MachineTraits, Rates
from kernel_space.operators.svdquant_gemm.sm90a_parts import machine as others
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.staged_nvfp4.config import StagedNvfp4Config
from kernel_space.operators.svdquant_linear_16bit.staged import machine as staged

__all__ = ["TRAITS", "TURNS"]


def turns(config: StagedNvfp4Config, problem: LinearProblem) -> tuple[LinearProblem, int]:
    """(problem, SMs of the chip), as of ``staged``: only sizes are read."""
    sizes: Any = problem
    return cast("tuple[LinearProblem, int]", staged.turns(config, sizes))


def effort(config: StagedNvfp4Config, problem: LinearProblem, rates: Rates) -> Effort:
    """Of one launch: that of ``staged``, and x that is there a meeting of all CTAs later."""
    sizes: Any = problem
    found = staged.effort(config, sizes, rates)
    return dataclasses.replace(found, once={**found.once, "quantize": others.MEETING_US})


TRAITS = MachineTraits(schedule=others.schedule, effort=effort)
TURNS = turns
