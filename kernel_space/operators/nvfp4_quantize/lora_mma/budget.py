"""Shared memory of a configuration of ``lora_mma``, and its stage solver."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint
from kernel_space.core.config import AUTO
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.config import LoraMmaConfig
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import LEAST_STAGES, LoraMmaLayouts

MOST_STAGES = 4
RESERVED_PER_CTA = 1024  # of the system (CUDA programming guide)


@dataclasses.dataclass(frozen=True)
class LoraMmaBudget(Budget):
    """What a resolved configuration takes on one SM."""

    @property
    def slots(self) -> dict[str, int]:
        return {"b": int(self.config.num_b_stage), "one": 1}  # type: ignore[attr-defined]  # of LoraMmaConfig

    @property
    def smem_limit(self) -> int:
        return share_of_smem(self.config.ctas_per_sm, self.arch)


def share_of_smem(ctas_per_sm: int, arch: Arch) -> int:
    """Bytes one CTA may take where ``ctas_per_sm`` must fit."""
    if ctas_per_sm == 1:
        return arch.smem_capacity
    return (arch.smem_capacity + RESERVED_PER_CTA) // ctas_per_sm - RESERVED_PER_CTA


def layouts(config: LoraMmaConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates."""
    return LoraMmaLayouts(config, problem_class)


def footprint(config: LoraMmaConfig, problem_class: ProblemClass) -> Footprint:
    """Of one slot."""
    return Footprint(**LoraMmaLayouts(config.replace(num_b_stage=1), problem_class).footprint())


def budget(config: LoraMmaConfig, problem_class: ProblemClass, arch: Arch) -> LoraMmaBudget:
    """Budget of a config whose slots are a number."""
    return LoraMmaBudget(footprint(config, problem_class), config, arch)


def solve_stages(config: LoraMmaConfig, problem_class: ProblemClass, arch: Arch) -> LoraMmaConfig:
    """Replace ``auto`` by the most slots that fit, up to 4; by the least there can be where those do not fit."""
    if config.num_b_stage != AUTO or not problem_class.r:
        return config if config.num_b_stage != AUTO else config.replace(num_b_stage=LEAST_STAGES)
    foot, limit = footprint(config, problem_class), share_of_smem(config.ctas_per_sm, arch)
    fits = [n for n in range(LEAST_STAGES, MOST_STAGES + 1) if foot.smem_bytes({"b": n, "one": 1}) <= limit]
    return config.replace(num_b_stage=max(fits, default=LEAST_STAGES))
