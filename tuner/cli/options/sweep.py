"""Options of ``check --sweep``."""

from __future__ import annotations

import argparse

from tuner.cli.options.common import MOST_JOBS, whole


def add_sweep_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sweep",
        action="store_true",
        help="break every synchronising, asynchronous or storing instruction in turn, and see what is reported",
    )
    parser.add_argument(
        "--limit",
        type=whole(1),
        metavar="N",
        help="with --sweep: N of the mutants, chosen by --seed, of each kind as many (all)",
    )
    parser.add_argument(
        "--jobs", type=whole(1, MOST_JOBS), metavar="N", help="with --sweep: processes (one per core)"
    )
