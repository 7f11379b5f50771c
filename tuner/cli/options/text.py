"""What commands print: JSON documents, and blocks of ``label value`` lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kernel_space.core.budget import Budget, Table
from kernel_space.core.problem import Problem
from kernel_space.operators import DEFAULT
from tuner.devices.device import Device

LABEL_WIDTH = 11


def print_json(document: Any) -> None:
    print(json.dumps(document, indent=1, allow_nan=False))


def print_block(pairs: Iterable[tuple[str, object]]) -> None:
    for label, value in pairs:
        print(f"{label:<{LABEL_WIDTH}}{value}")


def problem_record(problem: Problem) -> dict[str, str]:
    return {"op": problem.operator, "shape": str(problem), **problem.options}


def problem_arguments(problem: Problem) -> str:
    """Options of a command that name ``problem``; what a command takes to be so anyway is left out."""
    asked = [] if problem.operator == DEFAULT else [f"--op {problem.operator}"]
    asked.append(f"--shape {problem}")
    usual = type(problem).parse(str(problem)).options  # without those whose default goes unsaid
    asked += [
        f"--option {name}={value}" for name, value in problem.options.items() if value != usual.get(name)
    ]
    return " ".join(asked)


def device_record(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "arch": device.arch.name,
        "sm_count": device.sm_count,
        "kind": str(device.kind),
    }


def describe_problem(problem: Problem) -> str:
    return describe_problem_named(problem.operator, str(problem), problem.options)


def describe_problem_named(operator: str, sizes: str, options: Mapping[str, str]) -> str:
    words = ", ".join(f"{name}={value}" for name, value in options.items())
    return f"{operator} {sizes}" + (f" ({words})" if words else "")


def describe_device(device: Device) -> str:
    return f"{device.name} ({device.arch.name}, {device.sm_count} SMs), times are {device.kind}"


def describe_time(us: float, low_us: float, high_us: float, kind: object) -> str:
    return f"{us:.2f} us {kind} (interval {low_us:.2f} to {high_us:.2f})"


def budget_record(budget: Budget) -> dict[str, Any]:
    return {"smem": _table_record(budget.smem), "tmem": _table_record(budget.tmem)}


def _table_record(table: Table) -> dict[str, Any]:
    return {
        "unit": table.unit,
        "rows": [{"name": row.name, "each": row.each, "copies": row.copies} for row in table.rows],
        "used": table.total,
        "limit": table.limit,
        **dict(table.notes),
    }


def terms_lines(terms: Mapping[str, float]) -> str:
    """One line per term, microseconds, the largest first."""
    ordered = sorted(terms.items(), key=lambda item: -item[1])
    return "\n".join(f"  {name:<20}{us:>9.3f} us" for name, us in ordered)
