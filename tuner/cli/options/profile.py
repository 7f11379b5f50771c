"""Options of ``profile``."""

from __future__ import annotations

import argparse
from pathlib import Path

from tuner.cli.options.common import add_out_option, seconds_above_0, whole

CALLS, LIMIT_S = 5, 300.0


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda:0", metavar="cuda:N", help="the card (cuda:0)")
    add_out_option(parser)
    parser.add_argument("--against", metavar="KNOBS", help="a second config, in the forms of --config")
    parser.add_argument(
        "--calls", type=whole(1, 100), default=CALLS, metavar="N", help=f"profiled calls of each ({CALLS})"
    )
    parser.add_argument(
        "--timeout",
        type=seconds_above_0,
        default=LIMIT_S,
        metavar="S",
        help=f"seconds that ncu may take for a config ({LIMIT_S:g})",
    )
    parser.add_argument(
        "--keep",
        type=Path,
        metavar="DIR",
        help="keep the profiler's reports (.ncu-rep), their export (.csv) and the tables (profile.md) there",
    )
