"""What a kernel of ``rowstats`` could state of itself; tests give it to a kernel that states nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.core.traits import MachineTraits, ModelledTime, Schedule

SUITE = "tests.check.rowstats_mutations"


def exercise(config: Any, problem: Any) -> tuple[Any, int]:
    return dataclasses.replace(problem, m=3 * config.rows + 1, k=40 * config.vec), 2


def model(config: Any, problem: Any, chip: Any) -> ModelledTime:
    us = model_us(config, problem, chip)
    terms = {"bytes": us}
    return ModelledTime(us=us, low_us=us, high_us=us, terms=terms, demands=terms, bound="bytes")


def model_us(config: Any, problem: Any, chip: Any) -> float:
    """Half the bytes a turn take twice the turns."""
    return problem.m * problem.k / config.vec / chip.sm_count


TRAITS = MachineTraits(
    exercise=exercise,
    cut=lambda config, problem, limit_s: dataclasses.replace(problem, m=5),
    most_instructions=lambda config, problem, sms: 20_000,
    roles={number: f"row{number}" for number in range(4)},
    causes={"executing": "reading rows"},
    schedule=lambda config, problem, sm_count: Schedule(
        pieces=-(-problem.m // config.rows), places=sm_count, steps=1
    ),
    model=model,
    model_us=model_us,
    modelled=("sm_100a",),
)
