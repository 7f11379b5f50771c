"""Shared and tensor memory of a configuration of ``lora_tcgen05``, and its stage solver."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint, Row, Table
from kernel_space.core.config import AUTO
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.nvfp4_quantize.lora_mma.budget import share_of_smem
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.config import LoraTcgen05Config
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.layouts import LoraTcgen05Layouts

LEAST_STAGES, MOST_STAGES = 2, 8


@dataclasses.dataclass(frozen=True)
class LoraTcgen05Footprint(Footprint):
    """Rings are ``x`` and ``one``. ``columns``: of tensor memory that the sums take, ``allocated`` for them."""

    columns: int
    allocated: int


@dataclasses.dataclass(frozen=True)
class LoraTcgen05Budget(Budget):
    """What a resolved configuration takes on one SM; tensor memory is that of all CTAs which must fit on it."""

    footprint: LoraTcgen05Footprint
    config: LoraTcgen05Config

    @property
    def slots(self) -> dict[str, int]:
        return {"x": int(self.config.num_stage), "one": 1}

    @property
    def smem_limit(self) -> int:
        return share_of_smem(self.config.ctas_per_sm, self.arch)

    @property
    def tmem_columns_used(self) -> int:
        return self.footprint.allocated * self.config.ctas_per_sm

    @property
    def tmem_columns_allocated(self) -> int:
        return self.tmem_columns_used

    @property
    def tmem(self) -> Table:
        foot, ctas = self.footprint, self.config.ctas_per_sm
        rows = [Row("sums", foot.columns, ctas)]
        if foot.allocated > foot.columns:
            rows.append(Row("to a power of two", foot.allocated - foot.columns, ctas))
        return Table("TMEM per SM", "columns", tuple(rows), self.arch.tmem_columns)


def layouts(config: LoraTcgen05Config, problem_class: ProblemClass) -> Any:
    """What the kernel allocates."""
    return LoraTcgen05Layouts(config, problem_class)


def budget(config: LoraTcgen05Config, problem_class: ProblemClass, arch: Arch) -> LoraTcgen05Budget:
    """Budget of a config whose slots are a number."""
    one = LoraTcgen05Layouts(config.replace(num_stage=1), problem_class)
    foot = LoraTcgen05Footprint(**one.footprint(), columns=one.columns_used, allocated=one.columns_allocated)
    return LoraTcgen05Budget(foot, config, arch)


def solve_stages(config: LoraTcgen05Config, problem_class: ProblemClass, arch: Arch) -> LoraTcgen05Config:
    """Replace ``auto`` by the most slots that fit, up to 8; by the least there can be where those do not fit."""
    if config.num_stage != AUTO:
        return config
    tried = [config.replace(num_stage=n) for n in range(LEAST_STAGES, MOST_STAGES + 1)]
    budgets = [budget(one, problem_class, arch) for one in tried] if problem_class.r else []
    fits = [one.config for one in budgets if one.smem_bytes <= one.smem_limit]
    return fits[-1] if fits else tried[0]
