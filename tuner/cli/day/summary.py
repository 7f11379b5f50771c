"""The page of a ``day-one`` folder: what was done, what came out, and what to do with the folder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kernel_space.places import COMMAND
from tuner.cli.day.steps import CAPTURE, RESULTS, Visit

FILES = {
    RESULTS: f"tables, reports and trials; `{COMMAND} merge {RESULTS}` takes them over",
    CAPTURE: f"what the card did in the self check; `{COMMAND} selfcheck --replay {CAPTURE}` compares without it",
    "*.json, *.log": "what each step printed, and said on the way",
}


def summary(record: Mapping[str, Any], visit: Visit) -> str:
    """Markdown."""
    return "\n".join(_lines(record, visit)) + "\n"


def _lines(record: Mapping[str, Any], visit: Visit) -> Iterator[str]:
    device = record["device"]
    yield f"# Day one of a {device['card']}"
    yield ""
    yield f"Class {device['class']} ({visit.device.sm_count} SMs), driver {device['driver']}."
    yield f"{COMMAND} {record['version']}."
    yield ""
    yield "| step | ended | what came out | s |"
    yield "|---|---|---|---|"
    for name, step in record["steps"].items():
        yield f"| {name} | {step['status']} | {_cell(step['what'])} | {step['seconds']:.0f} |"
    yield ""
    yield "## Problems"
    yield ""
    for one in visit.problems:
        page = f"{RESULTS}/{visit.device.name}/{one.operator}/{one.slug}/report.html"
        there = (visit.folder / page).is_file()
        yield f"- {one.operator} {one}" + (f": [report]({page})" if there else ": no report")
    yield ""
    yield "## What is in this folder"
    yield ""
    for name, what in FILES.items():
        yield f"- `{name}`: {what}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
