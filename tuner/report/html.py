"""``report.html``: the page of a sweep. What it says stands in it; ``pages.js`` draws, sorts and filters its trials."""

from __future__ import annotations

from tuner.report.charts.bars import budget_bar, shares
from tuner.report.charts.charts import knob_panel, terms_bars
from tuner.report.charts.compare import compared_sections
from tuner.report.data.pairs import behind, default_speedup
from tuner.report.data.published import published_trial
from tuner.report.data.record import sweep_record
from tuner.report.data.roofline import counts_fill, groups, l2_note, roofs
from tuner.report.data.standing import standing
from tuner.report.data.state import in_state, largest, state_of, states, timing_words
from tuner.report.data.sweep import (
    Sweep,
    default_trial,
    differences,
    knob_importance,
    knobs_of,
    microseconds,
    numerical_check,
    operations,
    speed,
    timed,
    varying_knobs,
    winner_and_runner_up,
)
from tuner.report.marks.svg import escape, number
from tuner.report.marks.text import html_table
from tuner.report.page import document, section
from tuner.report.rejected import failure_table, rejected_sections
from tuner.trials.final_order import FINAL
from tuner.trials.outcome import Kind, Trial

UP = "../../"  # from a page to the folder of its device
HALVES = frozenset({"Conditions of the measurement", "Peers, measured"})
KIND_MEANS = {
    Kind.MEASURED: "taken on hardware",
    Kind.SIMULATED: "from executing the kernel's PTX with a clock, not on hardware",
    Kind.MODELLED: "from a formula, not on hardware",
}
FIRST_TIMINGS = (
    "Times here are what the search was told of each: a short timing on a card that has hardly warmed up. The final "
    "times its contenders longer, when the card is hot and its clock is lower; it stands in a section of its own."
)
NO_SCRIPT = (
    "<noscript><p>This part needs scripts; the same trials are in report.md and trials.csv beside this page.</p>"
    "</noscript>"
)


def render_html(sweep: Sweep) -> str:
    """The page. Every figure says whether it is measured, simulated or modelled."""
    winner, runner_up = winner_and_runner_up(sweep)
    parts, data = [_header(sweep, winner)], None
    if winner is None:
        parts.append(section("No winner", _no_winner(sweep)))
    else:
        parts += _winner_parts(sweep, winner, runner_up)
        others = compared_sections(sweep, winner)
        both = {one.title for one in others} >= HALVES  # one of them alone would leave a hole beside it
        for one in others:
            parts.append(section(one.title, one.body, css="half" if both and one.title in HALVES else ""))
        marked = _marked(sweep, winner)
        data = sweep_record(sweep, winner, runner_up, marked)
        parts += [*_pictures(sweep, winner), _trials(sweep), *_knob_parts(sweep, winner)]
    parts += [section(one.title, one.body) for one in sweep.sections]
    parts += [*rejected_sections(sweep), section("How it was made", _facts(sweep))]
    title = f"{sweep.problem.operator} {sweep.problem} on {sweep.device}"
    page = f"{sweep.problem.operator}/{sweep.problem.slug}"
    return document(title, parts, up=UP, page=page, data=data)


def _header(sweep: Sweep, winner: Trial | None) -> str:
    problem = sweep.problem
    sizes = " ".join(f"{name.upper()}={value}" for name, value in problem.sizes.items())
    options = "".join(f", {name} {value}" for name, value in problem.options.items())
    about = f"{problem.operator} on {sweep.device} ({sweep.arch.name}){options}"
    way = f'<nav class="way"><a href="{UP}index.html">all problems of {escape(sweep.device)}</a></nav>'
    return f"<header>{way}<h1>{sizes}</h1><p>{escape(about)}</p>{_tiles(sweep, winner)}</header>"


def _tiles(sweep: Sweep, winner: Trial | None) -> str:
    tiles = _winner_tiles(sweep, winner) if winner else []
    tiles.append((f"{len(timed(sweep.trials))} of {len(sweep.evaluated)}", "trials with a time"))
    shown = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in tiles)
    badge = "" if winner is None else _badge(winner)
    return f'{badge}<div class="tiles">{shown}</div>'


def _winner_tiles(sweep: Sweep, winner: Trial) -> list[tuple[str, str]]:
    best = microseconds(winner)
    tiles = [(f"{number(best)} µs", f"winner, {winner.kind}{', in the final' * (FINAL in winner.evidence)}")]
    if winner.low_us is not None and winner.high_us is not None:
        tiles.append((f"{number(winner.low_us)} – {number(winner.high_us)} µs", "its interval"))
    value, unit = speed(sweep.problem, best)
    tiles.append((f"{number(value)}", f"{unit}, {winner.kind}"))
    if faster := default_speedup(sweep.trials, winner):
        tiles.append((f"{faster:.2f}×", f"as fast as the default rule, {winner.kind}"))
    return tiles


def _badge(winner: Trial) -> str:
    kind = winner.kind or Kind.MODELLED
    about = f"Times on this page are {KIND_MEANS[kind]}, unless they say otherwise."
    return f'<p><span class="kind {kind}">{kind}</span> {about}</p>'


def _no_winner(sweep: Sweep) -> str:
    if not sweep.evaluated:
        return "<p>No trial was made.</p>"
    return (
        f"<p>None of the {len(sweep.evaluated)} trials has a time. They ended so:</p>{failure_table(sweep)}"
    )


def _winner_parts(sweep: Sweep, winner: Trial, runner_up: Trial | None) -> list[str]:
    budget = _budget(sweep)
    parts = [section("Winner", _winner(winner, runner_up), css="half" if budget else "")]
    parts += [section("Budget", budget, css="half")] if budget else []
    named = [("winner", winner)]
    named += [("runner-up", runner_up)] if runner_up else []
    default = default_trial(sweep.trials)
    named += [("default", default)] if default and default is not winner and default is not runner_up else []
    clocked = winner.kind is Kind.SIMULATED and sweep.clocks is not None and sweep.clocks.shown
    if not clocked and (causes := terms_bars(named)):
        parts.append(
            section(f"Time by cause, {winner.kind}", causes, f"Where the {winner.kind} time goes, µs.")
        )
    return parts


def _winner(winner: Trial, runner_up: Trial | None) -> str:
    knobs = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in knobs_of(winner.resolved).items()
    )
    lines = [f'<dl class="knobs">{knobs}</dl>', f"<pre data-copy>{escape(winner.resolved)}</pre>"]
    if runner_up:
        lines.append(
            f"<p>Runner-up: trial #{runner_up.number}{behind(runner_up, winner)}, with "
            f"{_changes(runner_up, winner)}. {escape(standing(winner, runner_up))}</p>"
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
    tables = [table for table in sweep.budget.tables if table.rows] if sweep.budget else []
    bars = "".join(
        budget_bar(table.title, table.unit, [(row.name, row.total) for row in table.rows], table.limit)
        for table in tables
    )
    texts = "".join(f"<pre>{escape(str(table))}</pre>" for table in tables)
    return f'{bars}<div class="side">{texts}</div>' if tables else ""


def _timing_note(sweep: Sweep) -> str:
    return FIRST_TIMINGS if "first" in timing_words(sweep) else f"All times {timing_words(sweep)}."


def _pictures(sweep: Sweep, winner: Trial) -> list[str]:
    """Convergence, roofline and the knobs; empty places that the script fills."""
    hint = "Point at a dot to see its trial, click to find it in the table."
    wide = not operations(sweep.problem)
    parts = [
        section(
            "Convergence",
            f'<div class="plot" id="convergence"></div>{NO_SCRIPT}{_CONVERGENCE_LEGEND}',
            f"{_timing_note(sweep)} {hint}",
            css="" if wide else "half",
        )
    ]
    if not wide:
        parts.append(_roofline(sweep, winner))
    about = (
        "One line a trial: the value of each knob that varies, and its time. Red: the winner; orange: the fastest "
        "tenth. Click a value to see its trials alone, here and in all that follows; click again to take that back."
    )
    return [
        *parts,
        section("Parallel coordinates", f'<div class="coords" id="coordinates"></div>{NO_SCRIPT}', about),
    ]


def _roofline(sweep: Sweep, winner: Trial) -> str:
    machine = sweep.known_class
    known = l2_note(sweep.problem, machine)
    if not (lines := roofs(sweep.problem, machine, sweep.sm_count)):
        known = f"No roofs are known for {sweep.device}."
    sources = "".join(f"<li>{escape(f'{one.name}: {one.kind}, {one.source}')}</li>" for one in lines)
    found = groups(timed(sweep.trials)).items()
    items = "".join(f'<span><i class="pt {css}"></i>{escape(name)}</span>' for name, css in found)
    fills = counts_fill(sweep.problem, winner)
    diamond = '<span><i class="dram"></i>winner by DRAM bytes</span>' if fills else ""
    body = (
        f'<div class="plot" id="roofline"></div>{NO_SCRIPT}<p class="legend">{items}{diamond}</p>'
        f'<details class="about"><summary>Where the roofs come from</summary><ul>{sources}</ul></details>'
    )
    about = f"Speeds {winner.kind}; the roofs' own kind is written on them. {_dots(fills)} {known}".rstrip()
    return section("Roofline", body, about, css="half")


def _dots(fills: bool) -> str:
    if fills:
        return (
            "Dots: every candidate by the bytes that it brings into SMEM, which its tile decides. "
            "Diamond: the winner by the bytes that must cross DRAM once; the DRAM line is about it alone."
        )
    return "Dots: every candidate by the bytes that must cross DRAM once."


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
        same = next(
            (label for label, one in marked.items() if trial and one.resolved == trial.resolved), None
        )
        if same:
            marked[f"{same}, {name}"] = marked.pop(same)
        elif trial is not None and trial.resolved != winner.resolved:
            marked[name] = trial
    return marked


_CONVERGENCE_LEGEND = (
    '<p class="legend"><span><i class="pt sampled"></i>sampled</span>'
    '<span><i class="pt default"></i>default rule</span>'
    '<span><i class="pt neighbour"></i>neighbour\'s winner</span>'
    '<span><i class="pt published"></i>published configuration</span><span><i class="line"></i>best so far</span>'
    '<span><i class="tick"></i>failed</span></p>'
)


def _trials(sweep: Sweep) -> str:
    found = states(sweep)
    about = (
        f"{_timing_note(sweep)} Place 1 is the winner, 2 the runner-up; then by place in the final, then by time. "
        "A ratio marked final is that of the rounds in which both ran; any other is of the times here."
    )
    if len(found) > 1:
        about += " Times of another card, driver or judge do not compare: choose which ones are shown."
    body = f'<div class="bar" id="controls"></div><div id="trials"></div>{NO_SCRIPT}'
    return section("Trials", body, about, name="all")


def _knob_parts(sweep: Sweep, winner: Trial) -> list[str]:
    """Time per value of each knob and their importance, of the times that most trials share."""
    state = largest(sweep)
    usable = in_state(sweep.trials, state)
    importance = knob_importance(usable)
    knobs = sorted(varying_knobs(usable), key=lambda name: -importance.shares.get(name, 0.0))
    panels = "".join(
        f"<figure><figcaption>{escape(name)}</figcaption>{knob_panel(usable, name)}</figure>"
        for name in knobs
    )
    bars = shares(importance.shares.items()) if importance.shares else f"<p>{escape(importance.note)}</p>"
    method = f"Method: {importance.note}. It says what mattered among the points the search chose to try."
    others = (
        ""
        if state == state_of(winner)
        else " These are the times of the sweep, before some were timed again."
    )
    return [
        section(
            "Time per knob value",
            f'<div class="panels">{panels}</div>'
            if knobs
            else "<p>No knob varies among the timed trials.</p>",
            f"{timing_words(sweep).capitalize()}, µs, of all trials with that value: box = quartiles and median, "
            f"line = extremes, dot = best. Other knobs vary too.{others}",
        ),
        section("Knob importance", bars, method if importance.shares else "", css="half"),
    ]


def _facts(sweep: Sweep) -> str:
    rows = [[escape(name), escape(value)] for name, value in sweep.facts.items()]
    return html_table(["", ""], rows, css="facts") if rows else "<p>Nothing was recorded.</p>"
