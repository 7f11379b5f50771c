"""``space``: how many points there are, how many are legal, and which rules reject the rest."""

from __future__ import annotations

import argparse

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.cli.options import text
from tuner.cli.options.common import check_out, problems_of
from tuner.devices.select import select_device
from tuner.space.space import SearchSpace


def space_command(args: argparse.Namespace) -> int:
    problems = problems_of(args)
    device = select_device(args.device, results=args.out)
    check_out(args.out)
    space = SearchSpace.load(GemmProblem.operator, device.arch)
    counts = [(problem, space.count(problem, device.arch)) for problem in problems]
    if args.json:
        results = [
            {
                **text.problem_record(problem),
                "size": count.raw,
                "legal_points": count.spelled,
                "legal_kernels": count.legal,
                "rejected": count.rejected,
            }
            for problem, count in counts
        ]
        text.print_json({"device": text.device_record(device), "kernel": space.kernel, "results": results})
        return 0
    for problem, count in counts:
        text.print_block(
            [
                ("problem", text.describe_problem(problem)),
                ("kernel", f"{space.kernel} ({device.arch.name})"),
                ("points", f"{count.raw:,}"),
                ("legal", f"{count.spelled:,} points, {count.legal:,} distinct kernels"),
            ]
        )
        print("rejected by the first rule that does not hold")
        for rule, points in sorted(count.rejected.items(), key=lambda item: -item[1]):
            print(f"  {rule:<20}{points:>15,}")
    return 0
