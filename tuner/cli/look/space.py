"""``space``: how many points there are, how many are legal, and which rules reject the rest; kernel by kernel."""

from __future__ import annotations

import argparse
from typing import Any

from tuner.cli.options import text
from tuner.cli.options.common import problems_of, results_of
from tuner.devices.select import select_device
from tuner.space.count import Count, total
from tuner.space.space import SearchSpace


def space_command(args: argparse.Namespace) -> int:
    problems = problems_of(args)
    device = select_device(args.device, results=args.out)
    results_of(args)
    space = SearchSpace.load(problems[0].operator, device.arch)
    counts = [(problem, space.counts(problem, device.arch)) for problem in problems]
    if args.json:
        results = [
            {**text.problem_record(problem), **_record(total(found.values()))}
            | {"kernels": {kernel: _record(count) for kernel, count in found.items()}}
            for problem, found in counts
        ]
        text.print_json(
            {"device": text.device_record(device), "kernels": [*space.kernels], "results": results}
        )
        return 0
    for problem, found in counts:
        text.print_block([("problem", text.describe_problem(problem))])
        for kernel, count in found.items():
            _print(f"{kernel} ({device.arch.name})", count)
        if len(found) > 1:
            _print(f"all {len(found)} of {device.arch.name}", total(found.values()), rules=False)
    return 0


def _record(count: Count) -> dict[str, Any]:
    return {
        "size": count.raw,
        "legal_points": count.spelled,
        "legal_kernels": count.legal,
        "rejected": count.rejected,
    }


def _print(title: str, count: Count, *, rules: bool = True) -> None:
    text.print_block(
        [
            ("kernel", title),
            ("points", f"{count.raw:,}"),
            ("legal", f"{count.spelled:,} points, {count.legal:,} distinct candidates"),
        ]
    )
    if not rules or not count.rejected:
        return
    print("rejected by the first rule that does not hold")
    for rule, points in sorted(count.rejected.items(), key=lambda item: -item[1]):
        print(f"  {rule:<20}{points:>15,}")
