"""What torch needs of the operator: which problem a tensor is, and the outputs where no kernel runs."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from kernel_space.numerics.tensors import require_matrix
from rowstats.operator import RowstatsProblem


def problem_of(tensors: Mapping[str, torch.Tensor]) -> RowstatsProblem:
    x = tensors["x"]
    m = x.shape[0] if x.ndim == 2 else 0
    return RowstatsProblem(m=m, k=require_matrix(x, "x", (torch.float16,), m))


def reference(tensors: Mapping[str, torch.Tensor], problem: RowstatsProblem) -> dict[str, torch.Tensor]:
    x = tensors["x"]
    return {"y": x + x, "count": (x > 0).sum(dim=1, dtype=torch.int32)}
