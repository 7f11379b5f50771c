"""``selfcheck``: the same small PTX programs on this machine's card and in the PTX machine, byte against byte."""

from __future__ import annotations

import argparse
import datetime
import json
from pathlib import Path

AGREED, DIFFERED = 0, 1


def add_selfcheck_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--capture",
        type=Path,
        metavar="FILE",
        help="also keep what the card did, as JSON, to compare with later",
    )
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="compare with a capture instead of a card; needs no GPU"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PREFIX",
        help="probes whose name starts so; may be repeated",
    )


def selfcheck_command(args: argparse.Namespace) -> int:
    """0 if every probe agrees or its difference is known; 1 if one differs that is not.

    Raises ``InputError`` (exit code 2) without a card, for an unknown prefix or an unreadable capture.
    """
    from kernel_space.selfcheck.report import judge_all

    probes = _chosen(args.only)
    card, results = _replayed(args.replay, probes) if args.replay else _measured(args.capture, probes)
    report = judge_all(probes, card, results)
    if args.json:
        print(json.dumps(report.record(), indent=1, allow_nan=False))
    else:
        print("\n".join(report.lines()))
    return DIFFERED if report.news else AGREED


def _chosen(prefixes: list[str]) -> tuple:
    from kernel_space.core.errors import InputError
    from kernel_space.selfcheck.catalogue import catalogue

    found = tuple(probe for probe in catalogue() if not prefixes or probe.name.startswith(tuple(prefixes)))
    if not found:
        topics = ", ".join(sorted({probe.topic for probe in catalogue()}))
        raise InputError(f"no probe starts with {' or '.join(prefixes)}; the topics are {topics}")
    return found


def _measured(capture: Path | None, probes: tuple) -> tuple:
    from kernel_space.selfcheck.card import run_on_card
    from kernel_space.selfcheck.fixture import save

    card, results = run_on_card(probes)
    if capture:
        save(capture, card, datetime.date.today().isoformat(), probes, results)
    return card, results


def _replayed(path: Path, probes: tuple) -> tuple:
    from kernel_space.selfcheck.fixture import load

    captured = load(path)
    found = {probe.name: captured.result(probe) for probe in probes}
    return captured.card, {name: result for name, result in found.items() if result is not None}
