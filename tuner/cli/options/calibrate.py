"""Options of ``calibrate``: apart from the command, so that reading them imports nothing slow."""

from __future__ import annotations

import argparse
from pathlib import Path

from tuner.cli.options.common import add_out_option


def add_calibrate_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "trials",
        nargs="+",
        type=Path,
        metavar="TRIALS",
        help="measured trials of one device: journals (.jsonl), trials.parquet, trials.csv, or a folder with those",
    )
    add_out_option(parser)
    parser.add_argument(
        "--noise",
        type=float,
        metavar="SHARE",
        help="what a measured time may differ from its simulated one; default: its own interval, at least the stored "
        "error of the machine",
    )
    parser.add_argument(
        "--spares",
        type=int,
        default=0,
        metavar="MOST",
        help="also choose at most so many kernels of each operator that are bundled without a row, for problems that "
        "nobody tuned (devices without simulated times)",
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would come out, write nothing")
