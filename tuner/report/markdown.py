"""``report.md``: the sweep in plain text, for terminals, diffs and code review."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.report.charts.compare import compared_sections
from tuner.report.data.pairs import Pair, behind, compared, default_speedup, order
from tuner.report.data.standing import standing, status_rows
from tuner.report.data.state import in_state, largest, states, timing_words
from tuner.report.data.sweep import (
    Section,
    Sweep,
    differences,
    failures,
    knob_importance,
    knob_of,
    microseconds,
    numerical_check,
    speed,
    time_terms,
    timed,
    varying_knobs,
    winner_and_runner_up,
)
from tuner.report.marks.svg import number
from tuner.report.marks.text import markdown_table
from tuner.trials.outcome import Kind, Trial

TOP = 10
MAX_REASONS = 20


def render_markdown(sweep: Sweep) -> str:
    """The text. Every figure says whether it is measured, simulated or modelled."""
    winner, runner_up = winner_and_runner_up(sweep)
    problem = sweep.problem
    sizes = " ".join(f"{name.upper()}={value}" for name, value in problem.sizes.items())
    options = "".join(f", {name} {value}" for name, value in problem.options.items())
    blocks = [
        f"# {problem.operator} {problem} on {sweep.device}",
        f"{sizes}{options}, {sweep.arch.name}. {len(timed(sweep.trials))} of "
        f"{len(sweep.evaluated)} trials have a time.",
    ]
    if winner is None:
        blocks.append("**No winner**: no trial has a time.")
    else:
        blocks += _winner(sweep, winner, runner_up)
        blocks += _sections(compared_sections(sweep, winner))
        blocks += _best(sweep, winner)
        blocks += _importance(sweep)
    blocks += _rejected(sweep)
    blocks += _sections(sweep.sections)
    blocks += ["## How it was made", markdown_table(("", ""), sweep.facts.items())] if sweep.facts else []
    return "\n\n".join(blocks) + "\n"


def _sections(sections: Sequence[Section]) -> list[str]:
    return [f"## {section.title}\n\n{section.markdown}" for section in sections if section.markdown]


def _winner(sweep: Sweep, winner: Trial, runner_up: Trial | None) -> list[str]:
    best = microseconds(winner)
    value, unit = speed(sweep.problem, best)
    lines = [
        f"- **{number(best)} us, {winner.kind}**, interval {_interval(winner)} us, "
        f"{number(value)} {unit} (trial {winner.number})"
    ]
    if faster := default_speedup(sweep.trials, winner):
        lines.append(f"- {faster:.2f}x as fast as the default rule, {winner.kind}")
    if runner_up:
        changed = (
            " ".join(f"{name}={value}" for name, value in _changes(runner_up, winner).items()) or "no change"
        )
        lines.append(f"- runner-up: trial {runner_up.number}{behind(runner_up, winner)}, `{changed}`")
        lines.append(f"- {standing(winner, runner_up)}")
    lines.append(f"- numerical check: {numerical_check(winner)}")
    blocks = ["## Winner", f"```\n{winner.resolved}\n```", "\n".join(lines)]
    clocked = winner.kind is Kind.SIMULATED and sweep.clocks is not None and sweep.clocks.shown
    if not clocked and (terms := time_terms(winner)):  # else the comparison has them
        rows = [(name, f"{us:.3f}", f"{us / best:.1%}") for name, us in terms.items()]
        blocks += [f"### Time by cause, {winner.kind}", markdown_table(("cause", "us", "share"), rows)]
    if sweep.budget and any(table.rows for table in sweep.budget.tables):
        blocks += ["### Budget", f"```\n{sweep.budget}\n```"]
    return blocks


def _changes(trial: Trial, base: Trial) -> dict[str, str]:
    return differences(trial.resolved, base.resolved)


def _interval(trial: Trial) -> str:
    if trial.low_us is None or trial.high_us is None:
        return "–"
    return f"{number(trial.low_us)} to {number(trial.high_us)}"


def _best(sweep: Sweep, winner: Trial) -> list[str]:
    """Of one state of clock and card: what the search was told of each."""
    usable = in_state(sweep.trials, states(sweep)[0])
    runner_up = winner_and_runner_up(sweep)[1]
    known = {trial.resolved: trial for trial in usable}
    best = [known[one.resolved] for one in order(sweep, winner, runner_up) if one.resolved in known][:TOP]
    knobs = varying_knobs(best)
    rows = [
        (
            f"#{trial.number}",
            f"{microseconds(trial):.2f}",
            _interval(trial),
            f"{pair.ratio - 1:+z.1%}{', final' * pair.paired}"
            if (pair := _pair(sweep, trial, winner))
            else "–",
            *(knob_of(trial, name) for name in knobs),
        )
        for trial in best
    ]
    head = ("trial", f"us {timing_words(sweep)}", "interval", "to winner", *knobs)
    return ["## Best candidates", markdown_table(head, rows)]


def _pair(sweep: Sweep, trial: Trial, winner: Trial) -> Pair | None:
    own = next(one for one in sweep.trials if one.number == trial.number and one.resolved == trial.resolved)
    return compared(own, winner)


def _importance(sweep: Sweep) -> list[str]:
    importance = knob_importance(in_state(sweep.trials, largest(sweep)))
    if not importance.shares:
        return ["## Knob importance", importance.note]
    rows = [(name, f"{share:.1%}") for name, share in importance.shares.items()]
    return ["## Knob importance", f"Method: {importance.note}.", markdown_table(("knob", "share"), rows)]


def _rejected(sweep: Sweep) -> list[str]:
    blocks = ["## Trials and rejected configurations"]
    if sweep.trials:
        blocks.append(markdown_table(("status", "trials", "meaning"), status_rows(sweep.trials)))
    if space := sweep.space:
        counts = sorted(space.rejected.items(), key=lambda item: -item[1])
        rows = [(rule, f"{count:,}") for rule, count in counts if count]
        blocks.append(f"The whole space: {space.raw:,} points, {space.legal:,} distinct legal kernels.")
        blocks += [markdown_table(("rule", "points it rejects"), rows)] if rows else []
    groups = failures(sweep.evaluated)
    if groups:
        failed = [
            (group.status, group.count, group.reason[:200], f"#{group.example.number}") for group in groups
        ]
        blocks.append(markdown_table(("status", "trials", "reason (of the first)", "first"), failed))
    elif sweep.evaluated:
        blocks.append("No trial failed.")
    if filtered := sweep.filtered:
        blocks.append(
            f"Legal proposals that the timing model found hopeless, never compiled: {len(filtered)}; the first: "
            f"{filtered[0].reason}."
        )
    if illegal := failures(sweep.illegal):
        blocks.append(
            f"Points that the search proposed and a rule rejected, never compiled: {len(sweep.illegal)}."
        )
        reasons = [(group.count, group.reason[:200]) for group in illegal[:MAX_REASONS]]
        blocks.append(markdown_table(("points", "rule: reason (of the first)"), reasons))
    return blocks
