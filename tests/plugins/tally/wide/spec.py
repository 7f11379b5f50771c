"""Tiles of ``columns`` in a ring: it has stages to solve, and a tile may be too large."""

from __future__ import annotations

import dataclasses

from kernel_space.core.budget import Budget, Footprint
from kernel_space.core.config import AUTO, KernelConfig, number, stages, word
from kernel_space.core.kernel import Kernel

BYTES = 1024  # of a column
MOST_STAGES = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class WideConfig(KernelConfig, kernel="wide"):
    columns: int = number(32)
    order: str = word("row", "column")
    unroll: int = number(1)
    num_stage: int | str = stages()


class WideBudget(Budget):
    @property
    def slots(self) -> dict[str, int]:
        return {"tile": self.config.num_stage}  # type: ignore[attr-defined]


def budget(config: WideConfig, problem_class: object, arch: object) -> WideBudget:
    return WideBudget(Footprint(smem=(("columns", BYTES * config.columns, "tile"),)), config, arch)  # type: ignore[arg-type]


def solve_stages(config: WideConfig, problem_class: object, arch: object) -> WideConfig:
    if config.num_stage != AUTO:
        return config
    fit = arch.smem_capacity // (BYTES * config.columns)  # type: ignore[attr-defined]
    return config.replace(num_stage=max(1, min(MOST_STAGES, fit)))


def columns_divide(config: WideConfig, problem: object) -> str | None:
    width = problem.width  # type: ignore[attr-defined]
    return f"columns must divide {width}, got {config.columns}" if width % config.columns else None


def unroll_fits(config: WideConfig, problem: object) -> str | None:
    most = config.columns // 32
    return f"unroll must be at most {most}, got {config.unroll}" if config.unroll > most else None


KERNEL = Kernel(
    name="wide",
    operator="tally",
    archs=("sm_90a", "sm_100a"),
    source=f"{__package__}.kernel",
    config_class=WideConfig,
    rules=__name__,
    knob_rules={"columns_divide": columns_divide, "unroll_fits": unroll_fits},
    canonical=lambda config, problem: config.replace(order="row") if problem.rows == 1 else config,
    solve_stages=solve_stages,
    budget=budget,
    capacities=("smem",),
    layouts=lambda config, problem_class: None,
)
