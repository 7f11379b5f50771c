"""What else was measured on the same machine for the same problem: ``peers.json`` and its table.

The file lies beside the trials, or one folder higher for all problems of a device:
``{"device", "driver", "date", "protocol", "rows": [{"problem", "peer", "us", "low_us", "high_us"}]}``. A row whose peer
is the operator is this project's kernel in the same run: ratios are against it. A row may also hold ``op``, the
problem's options by their names (their defaults if not), ``config`` (of this project's kernel) and ``evidence`` with
the median ``sm_mhz``.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from tuner.files.store import read_json
from tuner.report.data.sweep import Section, microseconds
from tuner.report.marks.svg import escape, number
from tuner.report.marks.text import html_table, markdown_table
from tuner.trials.outcome import Trial

FILE_NAME = "peers.json"
SAME_RUN = "Ratios are against {own} in the same run: above 1 the peer is slower."
OTHER_RUN = (
    "The run of the peers did not time this kernel: ratios are against the winner's time above, taken in another run, "
    "and clocks may have differed."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peer:
    """Microseconds of one call with the interval of the median; ``sm_mhz``: median clock meanwhile, if known."""

    name: str
    us: float
    low_us: float
    high_us: float
    sm_mhz: float | None = None
    config: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peers:
    """The peers of one problem in one run. ``own``: this project's kernel in that run, if it took part."""

    device: str
    driver: str
    date: str
    protocol: str
    rows: tuple[Peer, ...]
    own: Peer | None


def read_peers(folder: Path, problem: Problem) -> Peers | None:
    """Of a report folder; None without a file, or when it has nothing on ``problem``. Raises ``InputError`` for a file
    that is not one of peers."""
    path = next(
        (one for one in (folder / FILE_NAME, folder.parent / FILE_NAME) if os.path.lexists(one)), None
    )
    if path is None:
        return None
    try:
        document: Any = read_json(path)
        rows = [_peer(row) for row in document["rows"] if _is_about(row, problem)]
        about = {name: _words(str(document[name])) for name in ("device", "driver", "date", "protocol")}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise InputError(f"{path} is not a file of measured peers: {type(error).__name__}: {error}") from None
    others = tuple(row for row in rows if row.name != problem.operator)
    own = next((row for row in rows if row.name == problem.operator), None)
    return Peers(**about, rows=others, own=own) if others else None


def _words(text: str) -> str:
    """Records of options that older files hold as Python prints them, as words."""
    return re.sub(r"\b\w+\((\w+=[^()]*)\)", lambda found: found[1].replace("_", " ").replace("=", " "), text)


def _is_about(row: dict[str, Any], problem: Problem) -> bool:
    forms = problem.forms()
    same_operator = row.get("op", problem.operator) == problem.operator
    return (
        same_operator
        and row["problem"] == str(problem)
        and all(
            row.get(name, forms[name].choices[0]) == getattr(problem, name) for name in problem.option_names()
        )
    )


def _peer(row: dict[str, Any]) -> Peer:
    times = {name: float(row[name]) for name in ("us", "low_us", "high_us")}
    if not (0 < times["low_us"] <= times["us"] <= times["high_us"] and math.isfinite(times["high_us"])):
        raise ValueError(f"a row needs 0 < low_us <= us <= high_us, got {times}")
    clock = row.get("evidence", {}).get("sm_mhz")
    if clock is not None and not isinstance(clock, int | float):
        raise ValueError("sm_mhz must be a number")
    return Peer(name=str(row["peer"]), sm_mhz=clock, config=str(row.get("config", "")), **times)


def peers_section(peers: Peers, winner: Trial) -> Section:
    """Peers from fast to slow with their ratio to this project's kernel; all measured."""
    own_us = peers.own.us if peers.own else microseconds(winner)
    rows = [(row.name, *_figures(row), f"{row.us / own_us:.2f}") for row in sorted(peers.rows, key=_us)]
    if peers.own:
        rows.insert(0, (f"{peers.own.name}, this kernel", *_figures(peers.own), "1.00"))
    head = ("peer", "µs, measured", "interval", "SM clock, MHz", "ratio")
    about = (
        f"Measured on {peers.device}, driver {peers.driver}, {peers.date}. {peers.protocol}. "
        f"{SAME_RUN.format(own=peers.own.name) if peers.own else OTHER_RUN}"
    )
    if peers.own and peers.own.config not in ("", winner.resolved):
        about += f" That run timed another configuration than this page's winner: {peers.own.config}."
    body = f'<p class="about">{escape(about)}</p>' + html_table(
        head, [[escape(cell) for cell in row] for row in rows], css="numbers"
    )
    return Section(title="Peers, measured", body=body, markdown=f"{about}\n\n{markdown_table(head, rows)}")


def _us(row: Peer) -> float:
    return row.us


def _figures(row: Peer) -> tuple[str, str, str]:
    clock = number(row.sm_mhz) if row.sm_mhz else "–"
    return f"{row.us:.2f}", f"{row.low_us:.2f} to {row.high_us:.2f}", clock
