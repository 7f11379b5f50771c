"""Inputs, and what the outputs must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from kernel_space.core.config import KernelConfig
from kernel_space.numerics.output_check import OutputCheck, check_equal


def inputs(problem: Any, seed: int, source: str, device: torch.device | str) -> dict[str, torch.Tensor]:
    """fp16 [M, K], Gaussian, with rows of zeros: neither 0 nor -0 is positive."""
    random = torch.Generator(device).manual_seed(seed)
    x = torch.randn(problem.m, problem.k, generator=random, device=device)
    x[::7] = 0.0
    x[3::7] = -0.0
    return {"x": x.half()}


def check(problem: Any, tensors: Mapping[str, torch.Tensor], config: KernelConfig) -> dict[str, OutputCheck]:
    x = tensors["x"]
    return {
        "y": check_equal(tensors["y"], x + x),
        "count": check_equal(tensors["count"], (x > 0).sum(dim=1, dtype=torch.int32)),
    }
