"""The winner beside others: timelines, time by cause and why (simulated), the published configuration, peers."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.report.charts.bars import legend_of, stacked
from tuner.report.charts.timeline import (
    head_picture,
    legend_keys,
    needs_zoom,
    tail_picture,
    whole_picture,
)
from tuner.report.data.causes import cause_rows, css_of, ordered_terms, why
from tuner.report.data.clock import PUBLISHED, Clocked, Clocks, same_course
from tuner.report.data.final import final_section
from tuner.report.data.peers import peers_section
from tuner.report.data.published import published_section
from tuner.report.data.standing import conditions_section
from tuner.report.data.sweep import Section, Sweep
from tuner.report.marks.svg import escape, number
from tuner.report.marks.text import html_table, markdown_table
from tuner.trials.outcome import Trial

RIVALS = 2  # beside the winner in the picture of the whole launch
ABOUT = (
    "CTA 0 of the first cluster, on a machine that runs the kernel's own PTX with a clock (nominal constants, operands "
    "from DRAM): simulated, not measured. Red line: the launch has ended. Pale bars are waits that other engines may "
    "hide; what the tensor pipe stood still for is in the lane 'tensor idle'."
)
BUSY_ABOUT = (
    "Where bars are too many, height is the share of the time, for loads their number. The epilogue's work holds "
    "its waits for a free slot."
)
CAUSES_ABOUT = "Where the time of the busiest cluster goes, simulated."
TAIL_ABOUT = (
    "The grey line below a bar is what the average cluster idles in the last wave; it is no cause of its own."
)


def compared_sections(sweep: Sweep, winner: Trial) -> list[Section]:
    """The winner against others: by the clock, against what was published, against peers, and how it was measured."""
    clocks = sweep.clocks
    found = clock_sections(clocks) if clocks and clocks.possible else []
    others = (
        published_section(sweep, winner),
        final_section(sweep, winner),
        conditions_section(sweep),
    )
    found += [one for one in others if one]
    return found + ([peers_section(sweep.peers, winner)] if sweep.peers else [])


def clock_sections(clocks: Clocks) -> list[Section]:
    """Timelines and time by cause; sentences in their place where there are none."""
    missing = " ".join(clocks.missing)
    if not clocks.shown:
        return [Section(title="Timelines", body=f"<p>{escape(missing)}</p>", markdown=missing)]
    told = f'<p class="about">{escape(missing)}</p>' if missing else ""
    found = [_causes(clocks)]
    if not any(one.timeline.tells for one in clocks.shown):
        return found
    timelines = f'<p class="about">{escape(_about(clocks.shown))}</p>{_pictures(clocks)}{told}'
    return [Section(title="Timelines, simulated", body=timelines, markdown=missing), *found]


def _about(shown: Sequence[Clocked]) -> str:
    loads = shown[0].timeline.words.loads
    turn = f" A bar of 'TMA {loads[0]}' is what one turn of the main loop loads." if loads else ""
    return f"{ABOUT}{turn} {BUSY_ABOUT}"


def _pictures(clocks: Clocks) -> str:
    winner = clocks.shown[0]
    shown = [winner, *clocks.rivals[:RIVALS]]
    parts = [_unchanged(clocks), legend_of([(f"t-{key}", _named(key, shown)) for key in legend_keys(shown)])]
    parts.append(_broad(whole_picture(shown)))
    if needs_zoom(shown):
        near = shown[:2]
        parts.append(
            f"<h3>The first tiles</h3>{_broad(head_picture(near))}<h3>The end</h3>{_broad(tail_picture(near))}"
        )
    return "".join(parts)


def _broad(picture: str) -> str:
    """As wide as the page; where that is too narrow to read, it moves in its place."""
    return f'<div class="scroll broad">{picture}</div>'


def _named(key: str, shown: Sequence[Clocked]) -> str:
    """By the first kernel that has it."""
    return next(names[key] for one in shown if key in (names := one.timeline.words.names()))


def _unchanged(clocks: Clocks) -> str:
    """Who is left out of the picture because its clock shows the winner's course."""
    same = [one.label for one in clocks.shown[1:] if same_course(one, clocks.shown[0])]
    if not same:
        return ""
    return f"<p>Left out, because from the first CTA on it runs as the winner does: {escape(', '.join(same))}.</p>"


def _causes(clocks: Clocks) -> Section:
    shown = clocks.shown
    # what makes the difference to the published configuration stands in a section of its own
    sentences = [why(shown[0], other) for other in shown[1:] if other.roles != (PUBLISHED,)]
    end = f"Bound of each: {_bounds(shown)}.{_waves(shown)}"
    head = ["cause, µs simulated", *(one.label for one in shown)]
    rows = cause_rows(shown)
    causes = list(dict.fromkeys(cause for one in shown for cause in ordered_terms(one)))
    tail = [("t-tail", "tail wave")] if any(one.waves for one in shown) else []
    body = (
        f'<p class="about">{escape(f"{CAUSES_ABOUT} {TAIL_ABOUT}" if tail else CAUSES_ABOUT)}</p>{causes_bars(shown)}'
        + legend_of([(css_of(cause, shown), cause) for cause in causes] + tail)
        + "".join(f"<p>{escape(sentence)}</p>" for sentence in sentences)
        + html_table(head, [[escape(cell) for cell in row] for row in rows], css="numbers")
        + f'<p class="about">{escape(end)}</p>'
    )
    text = [
        *sentences,
        markdown_table(head, rows),
        end,
    ]
    return Section(title="Time by cause, simulated", body=body, markdown="\n\n".join(text))


def causes_bars(shown: Sequence[Clocked]) -> str:
    """One stacked bar per candidate, all to the same scale; a line below each marks the share of the tail wave."""
    lines = [
        (
            one.label,
            [(cause, us, css_of(cause, [one])) for cause, us in ordered_terms(one).items()],
            f"{number(one.time.us)} µs",
        )
        for one in shown
    ]
    whole = max(one.time.us for one in shown)
    return stacked(lines, whole, "µs simulated", tails=[one.tail_us for one in shown])


def _waves(shown: Sequence[Clocked]) -> str:
    """Nothing for kernels that do not say how they deal out their work."""
    told = "; ".join(f"{one.label}: {one.waves}" for one in shown if one.waves)
    return f" Waves: {told}." if told else ""


def _bounds(shown: Sequence[Clocked]) -> str:
    return ", ".join(f"{one.label} {one.time.bound}" for one in shown)
