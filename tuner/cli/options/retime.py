"""Options of ``retime``."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.operators import DEFAULT
from tuner.cli.options.common import (
    MOST_JOBS,
    add_operators_option,
    add_problem_selectors,
    named_problems,
    seconds_above_0,
    whole,
)

RUNNERS_UP = 3  # beside the row's config and the default


def add_retime_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--op", metavar="NAME", help="rows of this operator only (all operators)")
    add_operators_option(parser)
    add_problem_selectors(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--stale-only",
        action="store_true",
        help="rows made with other sources, toolchain, judge or driver than today's (default)",
    )
    which.add_argument("--all", action="store_true", help="fresh rows too; these are timed anew")
    parser.add_argument(
        "--same-code",
        action="store_true",
        help="time nothing: a row whose kernel, built again, is what was timed, to the byte, is fresh; needs no card",
    )
    add_runners_up_option(parser)
    parser.add_argument(
        "--timeout", type=seconds_above_0, metavar="S", help="stop each row after so many seconds; it stays"
    )
    parser.add_argument(
        "--jobs", type=whole(1, MOST_JOBS), metavar="N", help="compile workers (one per core)"
    )
    parser.add_argument(
        "--no-resume", action="store_true", help="evaluate anew what an interrupted retime has done"
    )
    parser.add_argument(
        "--objects",
        type=Path,
        metavar="DIR",
        help="take what compile-only --retime left there instead of compiling it; needs no compiler",
    )


def add_runners_up_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--runners-up",
        type=whole(0),
        default=RUNNERS_UP,
        metavar="N",
        help=f"next best configs beside the row's and the default ({RUNNERS_UP})",
    )


def rows_named(args: argparse.Namespace) -> list[Problem]:
    """Problems that ``--shape`` and ``--shapes`` name, of the usual operator without ``--op``; none: all rows."""
    if not args.shape and args.shapes is None:
        if args.dtype is not None or args.option:
            raise InputError("--dtype and --option are about a problem: name it with --shape")
        return []
    if args.op is None:
        args.op = DEFAULT
    return named_problems(args)
