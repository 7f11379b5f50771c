"""A call whose rank R has no near kernel launches one of a larger rank, with zeros for what is missing.

Zero columns of lora_act_in and lora_up add nothing to the product: +0.0 terms in the kernel's accumulator. The copies
and the larger product cost time, so a padded kernel competes with those of the exact rank at a distance.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from kernel_space.operators.svdquant_gemm.problem import GemmProblem

WORK = 3.0
"""Distance for each doubling of the work of a row of K and R, in doublings of M. A doubling of M between the problem
and the one that a config was tuned for costs a third of a doubling of time (median of 14 pairs of a row of
``results/h200`` and its config's time in a tune of the same layer at another M)."""
PADDING = 2.0
"""Distance for padding at all: an estimate of what two more small kernels in front of the launch cost."""
_LORA_BYTES = 4  # of one element of R, over one of K: 16 bits against 4


def padded(problem: GemmProblem, rank: int) -> GemmProblem:
    return problem if rank == problem.r else dataclasses.replace(problem, r=rank)


def rank_distance(problem: GemmProblem, rank: int) -> float:
    """What ``rank`` adds to a kernel's distance from ``problem``, up to what is the same for all ranks.

    Without the work of the exact rank: so the padded problem orders kernels of its rank and larger ones as the problem
    itself does, and both launch the same one.
    """
    work = WORK * math.log2(problem.k + _LORA_BYTES * rank)
    return work if rank == problem.r else PADDING + work


def pad_rank(tensor: torch.Tensor, rank: int) -> torch.Tensor:
    """``[rows, R]`` -> a new ``[rows, rank]``, zeros behind."""
    return torch.nn.functional.pad(tensor, (0, rank - tensor.shape[1]))
