"""The final of a measured tune: who took part, and how each stands to the winner by the paired test."""

from __future__ import annotations

from tuner.report.data.sweep import Section, Sweep, differences, microseconds
from tuner.report.marks.svg import escape
from tuner.report.marks.text import html_table, markdown_table
from tuner.trials.final_order import FINAL, PLACE, QUICK_US, latest_final
from tuner.trials.outcome import Trial

HEAD = (
    "place",
    "trial",
    "µs, measured",
    "first timing",
    "time / winner's, paired",
    "p",
    "rounds",
    "differs from the winner in",
)
ABOUT = (
    "Contenders were timed in turns within the same rounds; those without a ratio were dropped after fewer rounds. The "
    "first timing is what the search was told."
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
    rows = [_row(trial, winner) for trial in placed]
    body = f'<p class="about">{escape(told)}</p>' + html_table(
        HEAD, [[escape(cell) for cell in row] for row in rows]
    )
    return Section(title="Final, measured", body=body, markdown=f"{told}\n\n{markdown_table(HEAD, rows)}")


def _row(trial: Trial, winner: Trial) -> tuple[str, ...]:
    evidence = trial.evidence
    paired = evidence if evidence.get("versus") == "winner" else {}
    changed = differences(trial.resolved, winner.resolved)
    quick = evidence.get(QUICK_US)
    return (
        str(evidence[PLACE]),
        f"#{trial.number}",
        f"{microseconds(trial):.2f}",
        f"{quick:.2f}" if quick else "–",
        f"{paired['ratio']:.4f} ({paired['ratio_low']:.4f} to {paired['ratio_high']:.4f})" if paired else "–",
        f"{paired['p_value']:.2g}" if paired else "–",
        str(paired["rounds"]) if paired else "–",
        " ".join(f"{name}={value}" for name, value in changed.items()) or "–",
    )
