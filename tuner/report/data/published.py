"""How the winner differs from the configuration that others published, knob by knob, and what that does."""

from __future__ import annotations

from tuner.report.data.causes import why
from tuner.report.data.clock import PUBLISHED, WINNER, Clocks, resolved_published
from tuner.report.data.sweep import ABSENT, Section, Sweep, knobs_of, microseconds, timed
from tuner.report.marks.svg import escape, number
from tuner.report.marks.text import html_table, markdown_table
from tuner.space.published import Published
from tuner.trials.outcome import Trial

TITLE = "Against the published configuration"
HEAD = ("knob", "winner", "published", "where the published value comes from")


def published_trial(sweep: Sweep) -> Trial | None:
    """The timed trial of the published configuration."""
    found = resolved_published(sweep)
    return next((one for one in timed(sweep.trials) if found and one.resolved == found[1]), None)


def published_section(sweep: Sweep, winner: Trial) -> Section | None:
    """None where nothing was published for the problem on this kernel."""
    if (found := resolved_published(sweep)) is None:
        return None
    entry, config = found
    about = f"{entry.name}: {entry.source}."
    if entry.beyond:
        about += (
            f" No knob expresses that {entry.beyond}; times here are of this project's kernel so configured."
        )
    rows = knob_rows(winner.resolved, config, entry)
    same = [name for name in knobs_of(winner.resolved) if name not in {row[0] for row in rows}]
    told = [_times(sweep, winner, config), _reason(sweep.clocks)]
    told += [f"The same in both: {', '.join(same)}."] if rows and same else []
    body = f'<p class="about">{escape(about)}</p>'
    body += "".join(f"<p>{escape(line)}</p>" for line in told if line)
    body += html_table(HEAD, [[escape(cell) for cell in row] for row in rows]) if rows else ""
    text = [about, *(line for line in told if line), *([markdown_table(HEAD, rows)] if rows else [])]
    return Section(title=TITLE, body=body, markdown="\n\n".join(text))


def knob_rows(winner: str, published: str, entry: Published) -> list[tuple[str, str, str, str]]:
    """(knob, winner's value, published value, its origin) of each knob on which the two differ."""
    theirs = knobs_of(published)
    asked = entry.config.fields()
    rows = []
    for name, value in knobs_of(winner).items():
        if theirs.get(name) == value:
            continue
        if name not in theirs:
            origin = "that kernel has no such knob"
        elif name not in entry.stated:
            origin = "not stated; the default of the config"
        elif asked[name] == theirs[name]:
            origin = "stated by the source"
        else:
            origin = f"{asked[name]}, resolved by the budget"
        rows.append((name, value, theirs.get(name, ABSENT), origin))
    return rows


def _times(sweep: Sweep, winner: Trial, config: str) -> str:
    if winner.resolved == config:
        return "The winner is the published configuration."
    best = microseconds(winner)
    if (trial := published_trial(sweep)) is None:
        return "The published configuration is not among the timed trials of this sweep."
    us = microseconds(trial)
    return (
        f"The published configuration takes {number(us)} µs, the winner {number(best)} µs ({winner.kind}): "
        f"{us / best:.2f}x as fast."
    )


def _reason(clocks: Clocks | None) -> str:
    if clocks is None:
        return ""
    winner, published = clocks.of(WINNER), clocks.of(PUBLISHED)
    return why(winner, published) if winner and published else ""
