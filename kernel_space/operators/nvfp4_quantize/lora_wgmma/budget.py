"""Shared memory of a configuration of ``lora_wgmma``, and its stage solver."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint
from kernel_space.core.config import AUTO
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.budget import share_of_smem
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import LEAST_STAGES
from kernel_space.operators.nvfp4_quantize.lora_wgmma.config import LoraWgmmaConfig
from kernel_space.operators.nvfp4_quantize.lora_wgmma.layouts import LoraWgmmaLayouts

MOST_STAGES = 4


@dataclasses.dataclass(frozen=True)
class LoraWgmmaBudget(Budget):
    """What a resolved configuration takes on one SM."""

    @property
    def slots(self) -> dict[str, int]:
        return {"one": 1}

    @property
    def smem_limit(self) -> int:
        return share_of_smem(self.config.ctas_per_sm, self.arch)


def layouts(config: LoraWgmmaConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates."""
    return LoraWgmmaLayouts(config, problem_class)


def budget(config: LoraWgmmaConfig, problem_class: ProblemClass, arch: Arch) -> LoraWgmmaBudget:
    """Budget of a config whose slots are a number."""
    return LoraWgmmaBudget(Footprint(**LoraWgmmaLayouts(config, problem_class).footprint()), config, arch)


def solve_stages(config: LoraWgmmaConfig, problem_class: ProblemClass, arch: Arch) -> LoraWgmmaConfig:
    """Replace ``auto`` by the most slots that fit, up to 4; by the least there can be where those do not fit."""
    if config.num_b_stage != AUTO:
        return config
    tried = [config.replace(num_b_stage=n) for n in range(LEAST_STAGES, MOST_STAGES + 1)]
    budgets = [budget(one, problem_class, arch) for one in tried] if problem_class.r else []
    fits = [one.config for one in budgets if one.smem_bytes <= one.smem_limit]
    return fits[-1] if fits else tried[0]  # type: ignore[return-value]  # of this config class
