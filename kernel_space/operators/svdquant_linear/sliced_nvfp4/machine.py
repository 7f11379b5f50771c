"""What is known of ``sliced_nvfp4`` beside its sources: how its work is dealt out, how long the machine may run it, a
problem for its ring.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.traits import Effort, Rates
from kernel_space.operators.svdquant_gemm.sm90a_parts import machine as others
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear.sliced_nvfp4.config import SlicedNvfp4Config
from kernel_space.operators.svdquant_linear_16bit.sliced import machine as sliced
from kernel_space.operators.svdquant_linear_16bit.sliced.machine import TURNS

__all__ = ["TRAITS", "TURNS"]


def effort(config: SlicedNvfp4Config, problem: LinearProblem, rates: Rates) -> Effort:
    """Of one launch: that of ``sliced``, and x that is there a meeting of all CTAs later."""
    sizes: Any = problem
    found = sliced.effort(config, sizes, rates)
    return dataclasses.replace(found, once={**found.once, "quantize": others.MEETING_US})


TRAITS = dataclasses.replace(sliced.TRAITS, effort=effort)
