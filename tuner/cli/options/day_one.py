"""Options of ``day-one``: apart from the command, so that reading them imports nothing slow."""

from __future__ import annotations

import argparse
from pathlib import Path

from tuner.cli.options.common import folder, seconds_above_0

BUDGET_S = 840.0
SHARES = {"selfcheck": 0.2, "measure": 0.5, "calibrate": 0.15, "peers": 0.15}  # of the budget, in their order


def add_day_one_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda:0", metavar="cuda:N", help="the card (cuda:0)")
    parser.add_argument(
        "--folder", type=folder, metavar="DIR", help="what is to be shared (day-one-CLASS in this folder)"
    )
    parser.add_argument(
        "--budget",
        action="append",
        type=_budget,
        default=[],
        metavar="[STEP=]S",
        help=f"seconds of all steps together ({BUDGET_S:g}), or of one step; may be repeated",
    )
    parser.add_argument(
        "--objects",
        type=Path,
        metavar="DIR",
        help="measure what compile-only left there, where no compiler is",
    )
    parser.add_argument("--again", action="store_true", help="also run steps again that are done")


def _budget(text: str) -> tuple[str, float]:
    """(step, or nothing for all; seconds)"""
    step, equals, seconds = text.rpartition("=")
    if equals and step not in SHARES:
        raise argparse.ArgumentTypeError(
            f"must be S or STEP=S with STEP one of {', '.join(SHARES)}, got {text!r:.80}"
        )
    return step, seconds_above_0(seconds)
