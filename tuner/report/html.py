"""``report.html``: one self-contained page of a sweep. No script, no external reference; tooltips are SVG titles."""

from __future__ import annotations

from kernel_space.core.budget import Table
from tuner.report.charts.charts import (
    budget_chart,
    convergence_chart,
    importance_chart,
    knob_panel,
    terms_chart,
)
from tuner.report.charts.compare import compared_sections
from tuner.report.charts.roofline import roofline_chart, roofline_legend
from tuner.report.charts.style import STYLE
from tuner.report.data.published import published_trial
from tuner.report.data.roofline import counts_fill, l2_note, roofs
from tuner.report.data.standing import standing, status_rows
from tuner.report.data.sweep import (
    Importance,
    Sweep,
    default_trial,
    differences,
    failures,
    knob_importance,
    knob_of,
    knobs_of,
    microseconds,
    numerical_check,
    operations,
    speed,
    timed,
    varying_knobs,
    winner_and_runner_up,
    winner_first,
)
from tuner.report.marks.svg import escape, number
from tuner.report.marks.text import html_table
from tuner.trials.outcome import Kind, Trial

TOP = 10
MAX_REASONS = 60  # the most frequent; trials.parquet has every rejected point
KIND_MEANS = {
    Kind.MEASURED: "taken on hardware",
    Kind.SIMULATED: "from executing the kernel's PTX with a clock, not on hardware",
    Kind.MODELLED: "from a formula, not on hardware",
}


def render_html(sweep: Sweep) -> str:
    """The page. Every figure says whether it is measured, simulated or modelled."""
    winner, runner_up = winner_and_runner_up(sweep)
    importance = knob_importance(sweep.trials)
    parts = [_header(sweep, winner)]
    if winner is None:
        parts.append(_section("No winner", _no_winner(sweep)))
    else:
        parts += _winner_parts(sweep, winner, runner_up)
        parts += [_section(one.title, one.body) for one in compared_sections(sweep, winner)]
        parts += _sweep_parts(sweep, winner, importance)
    parts += [_section(section.title, section.body) for section in sweep.sections]
    parts += [
        _section("Trials and rejected configurations", _rejected(sweep)),
        _section("How it was made", _facts(sweep)),
    ]
    title = escape(f"{sweep.problem.operator} {sweep.problem} on {sweep.device}")
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head>\n<body><main>\n{chr(10).join(parts)}\n</main></body></html>\n"
    )


def _section(title: str, body: str, note: str = "") -> str:
    told = f'<p class="about">{escape(note)}</p>' if note else ""
    return f"<section><h2>{escape(title)}</h2>{told}{body}</section>"


def _header(sweep: Sweep, winner: Trial | None) -> str:
    problem = sweep.problem
    sizes = " ".join(f"{name.upper()}={value}" for name, value in problem.sizes.items())
    options = "".join(f", {name} {value}" for name, value in problem.options.items())
    about = f"{problem.operator} on {sweep.device} ({sweep.arch.name}){options}"
    return f"<header><h1>{sizes}</h1><p>{escape(about)}</p>{_tiles(sweep, winner)}</header>"


def _tiles(sweep: Sweep, winner: Trial | None) -> str:
    counted = len(timed(sweep.trials))
    tiles = []
    if winner is not None:
        best = microseconds(winner)
        tiles.append((f"{number(best)} µs", f"winner, {winner.kind}"))
        if winner.low_us is not None and winner.high_us is not None:
            tiles.append((f"{number(winner.low_us)} – {number(winner.high_us)} µs", "its interval"))
        value, unit = speed(sweep.problem, best)
        tiles.append((f"{number(value)}", f"{unit}, {winner.kind}"))
        if default := default_trial(sweep.trials):
            tiles.append(
                (f"{microseconds(default) / best:.2f}×", f"as fast as the default rule, {winner.kind}")
            )
    tiles.append((f"{counted} of {len(sweep.evaluated)}", "trials with a time"))
    shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in tiles)
    badge = "" if winner is None else _badge(winner)
    return f'{badge}<div class="tiles">{shown}</div>'


def _badge(winner: Trial) -> str:
    kind = winner.kind or Kind.MODELLED
    about = f"Times on this page are {KIND_MEANS[kind]}, unless they say otherwise."
    return f'<p><span class="kind {kind}">{kind}</span> {about}</p>'


def _no_winner(sweep: Sweep) -> str:
    if not sweep.evaluated:
        return "<p>No trial was made.</p>"
    return (
        f"<p>None of the {len(sweep.evaluated)} trials has a time. They ended so:</p>{_failure_table(sweep)}"
    )


def _winner_parts(sweep: Sweep, winner: Trial, runner_up: Trial | None) -> list[str]:
    parts = [_section("Winner", _winner(sweep, winner, runner_up) + _budget(sweep))]
    named = [("winner", winner)]
    named += [("runner-up", runner_up)] if runner_up else []
    default = default_trial(sweep.trials)
    named += [("default", default)] if default and default is not winner and default is not runner_up else []
    clocked = winner.kind is Kind.SIMULATED and sweep.clocks is not None and sweep.clocks.shown
    if not clocked and (causes := terms_chart(named)):
        parts.append(_section(f"Time by cause, {winner.kind}", causes, f"Where the {winner.kind} time goes."))
    return parts


def _winner(sweep: Sweep, winner: Trial, runner_up: Trial | None) -> str:
    knobs = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in knobs_of(winner.resolved).items()
    )
    lines = [f'<dl class="knobs">{knobs}</dl>', f"<pre>{escape(winner.resolved)}</pre>"]
    if runner_up:
        margin = microseconds(runner_up) / microseconds(winner) - 1
        lines.append(
            f"<p>Runner-up: trial {runner_up.number}, {number(microseconds(runner_up))} µs {runner_up.kind} "
            f"({margin:+z.1%}), with {_changes(runner_up, winner)}. {escape(standing(winner, runner_up))}</p>"
        )
    lines.append(f"<p>Numerical check: {escape(numerical_check(winner))}.</p>")
    return "".join(lines)


def _changes(trial: Trial, base: Trial) -> str:
    changed = differences(trial.resolved, base.resolved)
    return (
        ", ".join(f"<code>{escape(name)}={escape(value)}</code>" for name, value in changed.items())
        or "no change"
    )


def _budget(sweep: Sweep) -> str:
    if sweep.budget is None:
        return ""
    tables = [table for table in sweep.budget.tables if table.rows]
    if not tables:
        return ""
    charts = "".join(_budget_chart(table) for table in tables)
    texts = "".join(f"<pre>{escape(str(table))}</pre>" for table in tables)
    return f'{charts}<div class="side">{texts}</div>'


def _budget_chart(table: Table) -> str:
    return budget_chart(table.title, table.unit, [(row.name, row.total) for row in table.rows], table.limit)


def _sweep_parts(sweep: Sweep, winner: Trial, importance: Importance) -> list[str]:
    kind = winner.kind
    usable = timed(sweep.trials)
    knobs = sorted(varying_knobs(usable), key=lambda name: -importance.shares.get(name, 0.0))
    panels = "".join(
        f"<figure><figcaption>{escape(name)}</figcaption>{knob_panel(sweep, name)}</figure>" for name in knobs
    )
    bars = importance_chart(importance) if importance.shares else f"<p>{escape(importance.note)}</p>"
    method = f"Method: {importance.note}. It says what mattered among the points the search chose to try."
    return [
        _section("Best candidates", _top_table(sweep, winner)),
        _section("Convergence", convergence_chart(sweep) + _CONVERGENCE_LEGEND, f"All times {kind}."),
        _section(
            "Time per knob value",
            f'<div class="panels">{panels}</div>'
            if knobs
            else "<p>No knob varies among the timed trials.</p>",
            f"{str(kind).capitalize()} µs of all trials with that value: box = quartiles and median, line = extremes, "
            "dot = best. Other knobs vary too.",
        ),
        _section("Knob importance", bars, method if importance.shares else ""),
        *_roofline(sweep, winner),
    ]


def _roofline(sweep: Sweep, winner: Trial) -> list[str]:
    """Left out for an operator that counts no operations."""
    if not operations(sweep.problem):
        return []
    kind, machine = winner.kind, sweep.known_class
    known = l2_note(sweep.problem, machine)
    if not roofs(sweep.problem, machine, sweep.sm_count):
        known = f"No roofs are known for {sweep.device}."
    return [
        _section(
            "Roofline",
            roofline_chart(sweep, winner, _marked(sweep, winner)) + roofline_legend(sweep),
            f"Speeds {kind}; the roofs' own kind is written on them. {_dots(sweep, winner)} {known}".rstrip(),
        ),
    ]


def _dots(sweep: Sweep, winner: Trial) -> str:
    told = "tooltips have what the fastest differ in from the winner."
    if counts_fill(sweep.problem, winner):
        return (
            f"Dots: every candidate by the bytes that it brings into SMEM, which its tile decides; {told} "
            "Diamond: the winner by the bytes that must cross DRAM once; the DRAM line is about it alone."
        )
    return f"Dots: every candidate by the bytes that must cross DRAM once; {told}"


def _marked(sweep: Sweep, winner: Trial) -> dict[str, Trial]:
    """Trials that the roofline names beside the winner."""
    runner_up = winner_and_runner_up(sweep)[1]
    named = {
        "runner-up": runner_up,
        "default": default_trial(sweep.trials),
        "published": published_trial(sweep),
    }
    marked: dict[str, Trial] = {}
    for name, trial in named.items():
        same = next((label for label, one in marked.items() if one is trial), None)
        if same:
            marked[f"{same}, {name}"] = marked.pop(same)
        elif trial is not None and trial.resolved != winner.resolved:
            marked[name] = trial
    return marked


_CONVERGENCE_LEGEND = (
    '<p class="legend"><span><i class="pt"></i>sampled</span><span><i class="pt default"></i>default rule</span>'
    '<span><i class="pt neighbour"></i>neighbour\'s winner</span>'
    '<span><i class="pt published"></i>published configuration</span><span><i class="line"></i>best so far</span>'
    '<span><i class="tick"></i>failed</span></p>'
)


def _top_table(sweep: Sweep, winner: Trial) -> str:
    """One column per candidate: ten of them fit beside the names of the knobs."""
    best = winner_first(sweep.trials, winner)[:TOP]
    knobs = varying_knobs(best)
    chosen = knobs_of(winner.resolved)
    rows = [
        [f"µs, {winner.kind}", *(f"<b>{microseconds(trial):.2f}</b>" for trial in best)],
        ["interval", *(_interval(trial) for trial in best)],
        ["to the winner", *(f"{microseconds(trial) / microseconds(winner) - 1:+z.1%}" for trial in best)],
    ]
    for name in knobs:
        values = [knob_of(trial, name) for trial in best]
        rows.append([escape(name), *(_deviating(value, chosen.get(name)) for value in values)])
    common = ", ".join(
        f"<code>{escape(name)}={escape(chosen[name])}</code>" for name in chosen if name not in knobs
    )
    same = f'<p class="about">The same in all of them: {common}.</p>' if common else ""
    return html_table(["trial", *(f"#{trial.number}" for trial in best)], rows, css="best10") + same


def _deviating(value: str, chosen: str | None) -> str:
    return escape(value) if value == chosen else f"<em>{escape(value)}</em>"


def _interval(trial: Trial) -> str:
    return f"{number(trial.low_us)}–{number(trial.high_us)}" if trial.low_us and trial.high_us else ""


def _rejected(sweep: Sweep) -> str:
    parts = []
    if sweep.trials:
        head = ["status", "trials", "meaning"]
        parts.append("<h3>How the trials ended</h3>" + html_table(head, status_rows(sweep.trials)))
    if sweep.space:
        parts.append(_space_table(sweep))
    if sweep.evaluated:
        parts.append("<h3>Trials that failed</h3>" + _failure_table(sweep))
    if filtered := sweep.filtered:
        about = f"{len(filtered)} legal proposals, never compiled; the first: {filtered[0].reason}."
        parts.append(f"<h3>Hopeless by the timing model</h3><p>{escape(about)}</p>")
    if sweep.illegal:
        parts.append(_proposed(sweep))
    return "".join(parts) or "<p>Nothing was counted.</p>"


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
    table = html_table(["rule", "points it rejects", "share"], rows) if rows else ""
    return f"<h3>The whole space</h3><p>{about}</p>{table}"


def _failure_table(sweep: Sweep) -> str:
    groups = failures(sweep.evaluated)
    if not groups:
        return "<p>None.</p>"
    rows = [
        [escape(group.status), str(group.count), escape(group.reason[:400]), f"#{group.example.number}"]
        for group in groups
    ]
    return html_table(["status", "trials", "reason (of the first)", "first"], rows)


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
        f"<h3>Illegal points that the search proposed</h3><p>{len(sweep.illegal)}, never compiled: {told}.</p>"
        f"{html_table(['points', 'rule: reason (of the first)'], shown)}{more}"
    )


def _facts(sweep: Sweep) -> str:
    rows = [[escape(name), escape(value)] for name, value in sweep.facts.items()]
    return html_table(["", ""], rows, css="facts") if rows else "<p>Nothing was recorded.</p>"
