"""Options of what works on a cluster of hosts: ``--cluster`` and ``worker``."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from tuner.cli.options.common import MOST_JOBS, add_operators_option, whole

LOCAL = re.compile(r"local:([0-9]{1,4})")


def cluster(text: str) -> str:
    """``local:N``, or an address, which is looked at where it is used."""
    if text.startswith("local") and (
        (match := LOCAL.fullmatch(text)) is None or not 0 < int(match[1]) <= MOST_JOBS
    ):
        raise argparse.ArgumentTypeError(
            f"must be local:N with N from 1 to {MOST_JOBS}, or an address, got {text!r:.80}"
        )
    return text


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cluster",
        type=cluster,
        metavar="ADDRESS|local:N",
        help="work on the hosts of a dask scheduler (tcp:// or tls://HOST:PORT), or on N processes of this machine",
    )
    add_tls_options(parser)


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """As ``dask scheduler`` calls them."""
    for name, what in (
        ("ca-file", "authority's certificate"),
        ("cert", "certificate"),
        ("key", "private key"),
    ):
        parser.add_argument(
            f"--tls-{name}", type=Path, metavar="FILE", help=f"TLS of the cluster: the {what} (PEM)"
        )


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "address", metavar="ADDRESS", help="of the dask scheduler: tcp://HOST:PORT or tls://HOST:PORT"
    )
    parser.add_argument(
        "--compile",
        type=whole(0, MOST_JOBS),
        metavar="N",
        help="compilers and simulators at a time (one per core; 0 for a host of cards alone)",
    )
    parser.add_argument(
        "--card", type=cards, default=[], metavar="N,N", help="cards that it offers, as in cuda:N"
    )
    parser.add_argument(
        "--host",
        default=None,
        metavar="IP",
        help="address of this machine that the scheduler reaches (127.0.0.1 for a scheduler on this machine)",
    )
    add_tls_options(parser)
    add_operators_option(parser)


def cards(text: str) -> list[int]:
    if not re.fullmatch(r"[0-9]{1,3}(,[0-9]{1,3})*", text):
        raise argparse.ArgumentTypeError(f"must be cards such as 0,1, got {text!r:.80}")
    return sorted({int(part) for part in text.split(",")})
