"""Options of the commands that compile on one machine and measure on another."""

from __future__ import annotations

import argparse
from pathlib import Path

from kernel_space.places import COMMAND
from tuner.cli.options.common import MOST_JOBS, add_out_option, folder, seconds_above_0, seed, whole
from tuner.cli.options.retime import add_runners_up_option

TRIALS = 64
STALE, EVERY = "stale", "all"  # rows


def add_compile_only_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device", default="h200", metavar="D", help="class of the card: h200 (default), h100, b200, ..."
    )
    parser.add_argument(
        "--out", type=folder, required=True, metavar="DIR", help="folder of objects; may hold some"
    )
    parser.add_argument(
        "--results",
        type=folder,
        metavar="DIR",
        help="results of earlier visits, from which candidates are chosen (yours and those that are shipped)",
    )
    parser.add_argument(
        "--trials", type=whole(1), default=TRIALS, metavar="N", help=f"candidates per problem ({TRIALS})"
    )
    parser.add_argument(
        "--retime",
        nargs="?",
        const=STALE,
        choices=(STALE, EVERY),
        metavar="stale|all",
        help=f"instead: what {COMMAND} retime asks of the table's rows below --results, stale ones (default) or all",
    )
    add_runners_up_option(parser)
    parser.set_defaults(op=None)
    parser.add_argument(
        "--jobs", type=whole(1, MOST_JOBS), metavar="N", help="compile workers (one per core)"
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="same seed, same candidates (0)")


def add_measure_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="what compile-only wrote")
    parser.add_argument(
        "--device", metavar="cuda:N", help="the card (cuda:0; with --cluster the class of the objects)"
    )
    add_out_option(parser)
    parser.add_argument(
        "--budget-seconds",
        type=seconds_above_0,
        metavar="S",
        help="stop after about so many seconds, shared out evenly; the next run goes on",
    )
    parser.add_argument(
        "--peers",
        action="store_true",
        help="also time cuBLAS and torch.compile on the same problems, in the same run",
    )


def add_peers_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", default="cuda:0", metavar="cuda:N", help="the card (cuda:0)")
    add_out_option(parser)
    parser.add_argument(
        "--objects", type=Path, metavar="DIR", help="folder of compile-only that holds the table's kernel"
    )


def add_merge_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="results that were made elsewhere")
    add_out_option(parser)
