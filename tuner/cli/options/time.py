"""Options of ``tune.py time``, apart from the command: parsing them must not load what simulates."""

from __future__ import annotations

import argparse
from pathlib import Path

from tuner.cli.options.common import whole

DEFAULT_CHANGES = 8


def add_time_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write the clocked timeline for Perfetto")
    parser.add_argument(
        "--changes",
        type=whole(0),
        default=DEFAULT_CHANGES,
        metavar="N",
        help=f"neighbours to compile and simulate for the next-best change ({DEFAULT_CHANGES}, 0 for none)",
    )
    parser.add_argument(
        "--warm", action="store_true", help="operands are in L2 at the start; otherwise DRAM brings them"
    )
