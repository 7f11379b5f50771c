"""``lanes`` of 8 rows each: it cannot serve a problem of many rows at all."""

from __future__ import annotations

import dataclasses

from kernel_space.core.config import KernelConfig, flag, number, word
from kernel_space.core.kernel import Kernel

ROWS = 8  # of a lane


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeepConfig(KernelConfig, kernel="deep"):
    lanes: int = number(8)
    order: str = word("column", "row", "block")
    unroll: int = number(1)
    fold: bool = flag()


def few_rows(config: DeepConfig, problem: object) -> str | None:
    rows, most = problem.rows, ROWS * config.lanes  # type: ignore[attr-defined]
    return f"{config.lanes} lanes take {most} rows, got {rows}" if rows > most else None


def fold_unrolled(config: DeepConfig, problem: object) -> str | None:
    return "fold takes unroll of up to 2, got 8" if config.fold and config.unroll == 8 else None


def canonical(config: DeepConfig, problem: object) -> DeepConfig:
    """A block of one is a row."""
    return config.replace(order="row") if config.order == "block" and config.unroll == 1 else config


KERNEL = Kernel(
    name="deep",
    operator="tally",
    archs=("sm_90a",),
    source=f"{__package__}.kernel",
    config_class=DeepConfig,
    knob_rules={"few_rows": few_rows, "fold_unrolled": fold_unrolled},
    canonical=canonical,
)
