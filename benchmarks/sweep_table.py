"""Sweeps as a page tells of them: figures by kind and by kernel, and what survives.

python tune.py check --sweep --json ... > one.json
python -m benchmarks.sweep_table add one.json [NAME]      # into docs/evidence/sweeps.json
python -m benchmarks.sweep_table                          # prints the tables of docs/evidence/sweeps.md

A survivor that no rule explains is judged by a person: ``by_hand`` of the file holds the reason, if there is one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "docs" / "evidence" / "sweeps.json"
COUNTS = ("mutants", "reported", "harmless", "by_hand", "missed", "not_applicable")
HEAD = "mutants | reported | harmless by a rule | harmless by hand | missed | no program"


def condensed(document: dict[str, Any], name: str) -> dict[str, Any]:
    """Of a document of ``check --sweep --json`` with one sweep: counts, and what survived."""
    (sweep,) = document["sweeps"]
    survivors = [
        {key: one[key] for key in ("kind", "line", "ptx", "mutation", "reason")}
        for one in sweep["found"]
        if one["verdict"] == "survives"
    ]
    kept = {key: sweep[key] for key in ("op", "shape", "config", "seed", "kinds")}
    return {"name": name, **kept, "survivors": survivors}


def by_kind(sweeps: list[dict[str, Any]]) -> list[str]:
    rows: dict[str, list[int]] = {}
    for sweep in sweeps:
        for row in sweep["kinds"]:
            sums = rows.setdefault(row["kind"], [0] * len(COUNTS))
            rows[row["kind"]] = [a + b for a, b in zip(sums, _counts(sweep, row), strict=True)]
    rows["all"] = [sum(column) for column in zip(*rows.values(), strict=True)] if rows else []
    return _table("kind", rows)


def _counts(sweep: dict[str, Any], row: dict[str, Any]) -> list[int]:
    """By ``COUNTS``, of one kind."""
    survivors = [one for one in sweep["survivors"] if one["kind"] == row["kind"]]
    rule = sum(bool(one["reason"]) for one in survivors)
    hand = sum(not one["reason"] and bool(one.get("by_hand")) for one in survivors)
    missed = len(survivors) - rule - hand
    return [row["mutants"], row["reported"], rule, hand, missed, row["not_applicable"]]


def by_kernel(sweeps: list[dict[str, Any]]) -> list[str]:
    rows = {}
    for sweep in sweeps:
        columns = zip(*(_counts(sweep, row) for row in sweep["kinds"]), strict=True)
        rows[f"{sweep['name']} (`{sweep['op']}`)"] = [sum(column) for column in columns]
    return _table("kernel", rows)


def _table(first: str, rows: dict[str, list[int]]) -> list[str]:
    lines = [f"| {first} | {HEAD} |", "|---|" + "---|" * len(COUNTS)]
    return [*lines, *(f"| {name} | {' | '.join(map(str, row))} |" for name, row in rows.items())]


def reasons(sweeps: list[dict[str, Any]]) -> list[str]:
    """Each reason with how many it stands for, the most frequent first."""
    counts: dict[str, int] = {}
    for sweep in sweeps:
        for one in sweep["survivors"]:
            why = _general(one["reason"]) or one.get("by_hand", "")
            if why:
                counts[why] = counts.get(why, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ["| survivors | why harmless |", "|---|---|", *(f"| {count} | {why} |" for why, count in ordered)]


def _general(reason: str) -> str:
    """Without the numbers of lines and warps."""
    words = ("…" if word.strip(",.:").isdigit() else word for word in reason.split())
    return " ".join(words)


def tables(sweeps: list[dict[str, Any]]) -> str:
    return "\n".join([*by_kind(sweeps), "", *by_kernel(sweeps), "", *reasons(sweeps)])


def read() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(DATA.read_text()) if DATA.exists() else []
    return found


def main(argv: list[str]) -> None:
    if argv[:1] == ["add"]:
        path = Path(argv[1])
        name = argv[2] if len(argv) > 2 else path.stem
        kept = [one for one in read() if one["name"] != name]
        DATA.write_text(json.dumps([*kept, condensed(json.loads(path.read_text()), name)], indent=1) + "\n")
    print(tables(read()))


if __name__ == "__main__":
    main(sys.argv[1:])
