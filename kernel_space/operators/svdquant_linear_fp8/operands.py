"""Random operands of a problem in the layout the kernels take."""

from __future__ import annotations

import torch

from kernel_space.core.registry import operator
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_fp8.peaks import row_peaks
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem


def make_inputs(
    problem: Fp8LinearProblem, seed: int, source: str = "gaussian", device: torch.device | str = "cpu"
) -> dict[str, torch.Tensor]:
    """Input tensors by name, the same for the same seed and kind of device: those of ``svdquant_linear_16bit``, and the
    peaks of their rows. Raises ``InputError`` for another source.
    """
    same = HalfLinearProblem(**{name: getattr(problem, name) for name in problem.forms()})
    found = operator(same.operator).inputs(same, seed, source, device)
    peaks = row_peaks(found["wscales"], found["smooth"], found["lora_down"], found["lora_up"])
    return {**found, "wpeak": peaks}
