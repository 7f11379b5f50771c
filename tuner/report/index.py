"""``index.html`` of a device: every problem with its time, its ratios to others and its page, in one table."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from typing import Any

from kernel_space.core.problem import Problem
from tuner.report.data.peers import Peers
from tuner.report.data.sweep import knobs_of, speed
from tuner.report.marks.svg import escape, number
from tuner.report.page import PAGE_FILE, document
from tuner.trials.checked import Check

PEERS = "peers' time / ours"
HEAD = ("operator", "problem", "kind", "µs", "speed", "times the default", PEERS, "kernel", "date", "files")
ABOUT = (
    "The winner of each problem, as the dispatch table launches it. Times of different kinds, cards or drivers do not "
    "compare. Times the default: how much faster than the default rule's config. Peers' time over ours: above 1, "
    "this project's kernel is faster; from one run on one card."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One problem. ``page``: the folder of its report below the device's, empty without one. ``us``, ``low_us``,
    ``high_us``: microseconds; None where the table has no row. ``speedup``: over the default rule's config."""

    problem: Problem
    page: str = ""
    kind: str = ""
    us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    config: str = ""
    speedup: float | None = None
    peers: Peers | None = None
    checked: str = ""
    date: str = ""

    @property
    def ratios(self) -> list[tuple[str, float]]:
        """Peers with their time over this project's kernel in the same run, the fastest first."""
        if self.peers is None or self.peers.own is None:
            return []
        own = self.peers.own.us
        return sorted(((row.name, row.us / own) for row in self.peers.rows), key=lambda one: one[1])


def ordered(entries: Iterable[Entry]) -> list[Entry]:
    return sorted(entries, key=lambda one: (one.problem.operator, _sizes(one), *one.problem.options.values()))


def _sizes(entry: Entry) -> tuple[int, ...]:
    """The batch last: problems of one layer stand beside one another."""
    first, *others = entry.problem.sizes.values()
    return (*others, first)


def problems_script(entries: Sequence[Entry]) -> str:
    """What pages ask for their neighbours: a script, because a page of a disk may not read files."""
    known = [
        {"page": one.page, "name": f"{one.problem.operator} {one.problem}"} for one in entries if one.page
    ]
    return f"window.problems = {json.dumps(known, indent=0)};\n"


def render_index(device: str, entries: Sequence[Entry], links: Sequence[str]) -> str:
    """``links``: files of the device's folder that the page names."""
    counts: dict[str, int] = {}
    for one in entries:
        counts[one.kind or "no row"] = counts.get(one.kind or "no row", 0) + 1
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    named = "".join(f'<a href="{escape(link)}">{escape(link)}</a>' for link in links)
    head = (
        f"<header><h1>Results of {escape(device)}</h1><p>{len(entries)} problems: {escape(told)}.</p>"
        f'<p class="about">{escape(ABOUT)}</p><nav class="way">{named}</nav></header>'
    )
    top = "".join(f"<th>{escape(name)}</th>" for name in HEAD)
    rows = "".join(map(_row, entries))
    table = f'<table class="rows full index" id="problems"><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table>'
    body = f'<section><div class="bar" id="controls"></div><div class="scroll">{table}</div></section>'
    return document(f"Results of {device}", [head, body])


def _row(entry: Entry) -> str:
    problem = entry.problem
    sizes = [*map(str, problem.sizes.values()), *(f"{name}={size}" for name, size in problem.sizes.items())]
    marks = {"operator": problem.operator, "kind": entry.kind or "no row", "sizes": " ".join(sizes)}
    data = "".join(f' data-{name}="{escape(value)}"' for name, value in marks.items())
    return f"<tr{data}>{''.join(_cells(entry))}</tr>"


def _cells(entry: Entry) -> Iterable[str]:
    problem = entry.problem
    shape = escape(problem)
    if entry.page:
        shape = f'<a href="{escape(_href(entry, PAGE_FILE))}">{shape}</a>'
    yield _cell(escape(problem.operator).replace("_", "_<wbr>"), sort=problem.operator)
    options = escape(" ".join(problem.options.values()))
    yield _cell(f"{shape} <small>{options}</small>", sort=str(problem))
    yield _cell(
        f'<span class="kind {entry.kind}">{entry.kind}</span>' if entry.kind else "no row", sort=entry.kind
    )
    yield _cell(*_time(entry))
    yield _cell(*_speed(entry))
    yield _cell(f"{entry.speedup:.2f}×", sort=entry.speedup) if entry.speedup else _cell("")
    ratios = entry.ratios
    chips = "".join(f"<code>{ratio:.2f} {escape(name)}</code>" for name, ratio in ratios)
    yield _cell(f'<div class="chips">{chips}</div>' if chips else "", sort=ratios[0][1] if ratios else "")
    yield _cell(escape(knobs_of(entry.config).get("kernel", "")).replace("_", "_<wbr>"))
    doubt = "" if entry.checked in ("", str(Check.WINNER)) else f" <small>{escape(entry.checked)}</small>"
    yield _cell(escape(entry.date[:10]) + doubt, sort=entry.date)
    yield _cell(_links(entry))


def _cell(content: str, sort: Any = None) -> str:
    key = "" if sort is None else f' data-sort="{escape(sort)}"'
    return f"<td{key}>{content}</td>"


def _time(entry: Entry) -> tuple[str, Any]:
    if entry.us is None:
        return "", ""
    low, high = entry.low_us, entry.high_us
    interval = f" <small>{number(low)}–{number(high)}</small>" if low and high else ""
    return f"{number(entry.us)}{interval}", entry.us


def _speed(entry: Entry) -> tuple[str, Any]:
    if entry.us is None:
        return "", ""
    value, unit = speed(entry.problem, entry.us)
    return f"{number(value)} <small>{escape(unit.removeprefix('useful '))}</small>", value


def _links(entry: Entry) -> str:
    if not entry.page:
        return ""
    names = {"text": "report.md", "trials": "trials.csv"}
    return " ".join(f'<a href="{escape(_href(entry, file))}">{name}</a>' for name, file in names.items())


def _href(entry: Entry, file: str) -> str:
    return f"{entry.page}/{file}"
