"""What became of trials and points that are no candidates for the winner: counts, rules, reasons."""

from __future__ import annotations

from tuner.report.data.standing import status_rows
from tuner.report.data.sweep import Sweep, failures
from tuner.report.marks.svg import escape
from tuner.report.marks.text import html_table
from tuner.report.page import section

MAX_REASONS = 60  # the most frequent; trials.parquet has every rejected point
MAX_REASON = 400  # characters


def rejected_sections(sweep: Sweep) -> list[str]:
    """How the trials ended, beside the knobs' importance; the space and its rules; reasons."""
    head = ["status", "trials", "meaning"]
    counts = html_table(head, status_rows(sweep.trials)) if sweep.trials else "<p>Nothing was counted.</p>"
    if filtered := sweep.filtered:
        about = f"{len(filtered)} legal proposals, never compiled; the first: {filtered[0].reason}."
        counts += f"<h3>Hopeless by the timing model</h3><p>{escape(about)}</p>"
    parts = [section("How the trials ended", counts, css="half")]
    if failures(sweep.evaluated):
        parts.append(section("Trials that failed", failure_table(sweep)))
    if sweep.space:
        parts.append(section("The whole space", _space_table(sweep), css="half"))
    if sweep.illegal:
        css = "half" if sweep.space else ""
        parts.append(section("Illegal points that the search proposed", _proposed(sweep), css=css))
    return parts


def failure_table(sweep: Sweep) -> str:
    groups = failures(sweep.evaluated)
    if not groups:
        return "<p>None.</p>"
    rows = [
        [
            escape(group.status),
            str(group.count),
            escape(group.reason[:MAX_REASON]),
            f"#{group.example.number}",
        ]
        for group in groups
    ]
    return html_table(["status", "trials", "reason (of the first)", "first"], rows)


def _space_table(sweep: Sweep) -> str:
    space = sweep.space
    if space is None:
        return ""
    rows = [
        [escape(rule), f"{count:,}", f"{count / space.raw:.1%}"]
        for rule, count in sorted(space.rejected.items(), key=lambda item: -item[1])
        if count
    ]
    about = f"{space.raw:,} points, {space.legal:,} distinct legal kernels."
    if rows:
        about += " A point counts for the first rule it breaks."
    return f"<p>{about}</p>" + (html_table(["rule", "points it rejects", "share"], rows) if rows else "")


def _proposed(sweep: Sweep) -> str:
    groups = failures(sweep.illegal)
    counts: dict[str, int] = {}
    for group in groups:
        rule = group.reason.split(":")[0]
        counts[rule] = counts.get(rule, 0) + group.count
    told = ", ".join(
        f"{escape(rule)} {count}" for rule, count in sorted(counts.items(), key=lambda item: -item[1])
    )
    shown = [[str(group.count), escape(group.reason)] for group in groups[:MAX_REASONS]]
    more = f"<p>and {len(groups) - MAX_REASONS} rarer ones.</p>" if len(groups) > MAX_REASONS else ""
    return (
        f"<p>{len(sweep.illegal)}, never compiled: {told}.</p>"
        f"{html_table(['points', 'rule: reason (of the first)'], shown)}{more}"
    )
