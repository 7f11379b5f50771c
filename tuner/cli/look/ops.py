"""``ops``: the operators there are, how their problems are written, their kernels, and the devices these are for."""

from __future__ import annotations

import argparse
from typing import Any

from kernel_space.core import registry
from kernel_space.core.arch import ARCHS
from kernel_space.core.operator import Operator
from tuner.cli.options import text
from tuner.devices.classes import DEVICE_CLASSES
from tuner.space.space import has_space


def ops_command(args: argparse.Namespace) -> int:
    operators = [registry.operator(name) for name in registry.operator_names()]
    if args.json:
        text.print_json({"operators": [_record(one) for one in operators]})
        return 0
    for number, operator in enumerate(operators):
        print("\n" * min(number, 1), end="")
        _print(operator)
    return 0


def _record(operator: Operator) -> dict[str, Any]:
    kernels = [registry.kernel(operator.name, name) for name in operator.kernels]
    return {
        "op": operator.name,
        "formula": operator.formula,
        "shape": operator.problem.form(),
        "options": {
            name: list(operator.problem.forms()[name].choices) for name in operator.problem.option_names()
        },
        "kernels": {kernel.name: list(kernel.archs) for kernel in kernels},
        "devices": _devices(operator),
    }


def _devices(operator: Operator) -> list[str]:
    """Classes that a search can drive."""
    archs = [arch.name for arch in ARCHS.values() if has_space(operator.name, arch)]
    return [one.name for one in DEVICE_CLASSES.values() if one.arch.name in archs]


def _print(operator: Operator) -> None:
    record = _record(operator)
    options = "; ".join(f"{name} {' or '.join(choices)}" for name, choices in record["options"].items())
    text.print_block(
        [
            ("operator", operator.name),
            ("formula", operator.formula),
            ("shape", record["shape"]),
            *([("options", options)] if options else []),
            *(("kernel", f"{name} ({', '.join(archs)})") for name, archs in record["kernels"].items()),
            ("devices", ", ".join(record["devices"]) or "none: it has no search space"),
        ]
    )
