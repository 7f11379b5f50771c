"""Shared memory of a configuration of ``lora_tma``, and its stage solver."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint
from kernel_space.core.config import AUTO
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.budget import share_of_smem
from kernel_space.operators.nvfp4_quantize.lora_tma.config import LoraTmaConfig
from kernel_space.operators.nvfp4_quantize.lora_tma.layouts import LoraTmaLayouts

LEAST_STAGES, MOST_STAGES = 2, 8


@dataclasses.dataclass(frozen=True)
class LoraTmaBudget(Budget):
    """What a resolved configuration takes on one SM."""

    @property
    def slots(self) -> dict[str, int]:
        return {"x": int(self.config.num_stage), "one": 1}  # type: ignore[attr-defined]  # of LoraTmaConfig

    @property
    def smem_limit(self) -> int:
        return share_of_smem(self.config.ctas_per_sm, self.arch)


def layouts(config: LoraTmaConfig, problem_class: ProblemClass) -> Any:
    """What the kernel allocates."""
    return LoraTmaLayouts(config, problem_class)


def budget(config: LoraTmaConfig, problem_class: ProblemClass, arch: Arch) -> LoraTmaBudget:
    """Budget of a config whose slots are a number."""
    one_slot = LoraTmaLayouts(config.replace(num_stage=1), problem_class)
    return LoraTmaBudget(Footprint(**one_slot.footprint()), config, arch)


def solve_stages(config: LoraTmaConfig, problem_class: ProblemClass, arch: Arch) -> LoraTmaConfig:
    """Replace ``auto`` by the most slots that fit, up to 8, as many for each turn of the quantizing warps; by the least
    there can be where those do not fit, or where 8 are too few.
    """
    if config.num_stage != AUTO:
        return config
    turns = max(1, config.turns)  # less is illegal, as a rule says
    least = -(-LEAST_STAGES // turns) * turns
    tried = [config.replace(num_stage=n) for n in range(least, max(MOST_STAGES, least) + 1, turns)]
    budgets = [budget(one, problem_class, arch) for one in tried] if problem_class.r else []
    fits = [one.config for one in budgets if one.smem_bytes <= one.smem_limit]
    return fits[-1] if fits else tried[0]  # type: ignore[return-value]  # of this config class
