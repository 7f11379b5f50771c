"""The final of a measured tune: who took part, and how each stands to the winner by the paired test."""

from __future__ import annotations

from tuner.report.data.pairs import compared
from tuner.report.data.sweep import Section, Sweep, differences, microseconds
from tuner.report.marks.svg import escape
from tuner.report.marks.text import html_table, markdown_table
from tuner.trials.final_order import FINAL, PLACE, latest_final
from tuner.trials.outcome import Trial

HEAD = (
    "place",
    "trial",
    "µs, measured in the final",
    "time / winner's, paired",
    "p",
    "rounds",
    "differs from the winner in",
)
ABOUT = (
    "Contenders were timed in turns within the same rounds, on a card at its working temperature. Those without a "
    "time were dropped after fewer rounds, at another clock, so their times do not compare. First timings, which the "
    "search was told, are below, among the trials."
)


def final_section(sweep: Sweep, winner: Trial) -> Section | None:
    """None when no final was held."""
    final = latest_final(sweep.trials)
    placed = [trial for trial in sweep.trials if final and trial.ok and trial.evidence.get(FINAL) == final]
    if not placed:
        return None
    placed.sort(key=lambda trial: trial.evidence[PLACE])
    verdict = placed[0].evidence.get("finals_verdict", "")
    told = f"Winner: {verdict}. {ABOUT}" if verdict else ABOUT
    rows = [_row(trial, placed[0], winner) for trial in placed]
    body = f'<p class="about">{escape(told)}</p>' + html_table(
        HEAD, [[escape(cell) for cell in row] for row in rows]
    )
    return Section(title="Final, measured", body=body, markdown=f"{told}\n\n{markdown_table(HEAD, rows)}")


def _row(trial: Trial, first: Trial, winner: Trial) -> tuple[str, ...]:
    """``first``: who won this final; ``winner``: of the page, which may be of another one."""
    found = compared(trial, first)
    pair = found if found and found.paired else None
    changed = differences(trial.resolved, winner.resolved)
    stayed = pair is not None or trial is first
    return (
        str(trial.evidence[PLACE]),
        f"#{trial.number}",
        f"{microseconds(trial):.2f}" if stayed else "–",
        f"{pair.ratio:.4f} ({pair.interval})" if pair else "–",
        f"{pair.p:.2g}" if pair and pair.p is not None else "–",
        str(pair.rounds) if pair else "–",
        " ".join(f"{name}={value}" for name, value in changed.items()) or "–",
    )
