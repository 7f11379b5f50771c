"""How sure the winner's place is, how trials ended, and under which conditions a card was timed."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from tuner.report.data.pairs import compared
from tuner.report.data.state import searched
from tuner.report.data.sweep import Section, Sweep, default_trial, timed, winner_and_runner_up
from tuner.report.marks.svg import escape, number
from tuner.report.marks.text import html_table, markdown_table
from tuner.trials.outcome import Kind, Status, Trial
from tuner.trials.rank_stability import faster_in, times_of

MEANS = {
    Status.OK: "nothing speaks against it",
    Status.ILLEGAL: "a rule rejects it; never compiled",
    Status.FILTERED: "legal, but hopeless by the timing model; never compiled",
    Status.COMPILE_FAILED: "the compiler refused it",
    Status.COMPILE_TIMEOUT: "the compiler was stopped at its time limit",
    Status.COMPILE_CRASHED: "the compiler died",
    Status.WRONG_RESULT: "differs from the reference",
    Status.DEADLOCK: "hangs",
    Status.RACE: "has a race",
    Status.ILLEGAL_ACCESS: "reads or writes what it must not",
    Status.UNSUPPORTED: "the device cannot judge it",
    Status.TIMED_OUT: "validation or timing took too long",
    Status.WORKER_LOST: "somebody else ended the process that ran it",
    Status.FAILED: "failed otherwise",
}
# Evidence of a measured time (``tuner/card/samples/samples.py``) -> its name in the report, and its unit.
CONDITIONS = {
    "samples": ("samples", ""),
    "samples_used": ("of these used", ""),
    "throttled_samples": ("throttled samples", ""),
    "sm_mhz": ("SM clock, median", "MHz"),
    "memory_mhz": ("memory clock, median", "MHz"),
    "celsius": ("temperature, highest", "°C"),
    "watts": ("power, highest", "W"),
    "clock_reasons": ("clock held by", ""),
    "settled": ("settled before the first sample", ""),
    "telemetry": ("state of the card", ""),
}


def standing(winner: Trial, runner_up: Trial) -> str:
    """One sentence: how far the order of the two can be trusted, by the means of the winner's kind of time."""
    if winner.kind is Kind.MEASURED:
        return _measured_standing(winner, runner_up)
    if (share := faster_in(winner, runner_up)) is not None:
        sets = len(times_of(winner))
        return f"Simulated, the winner is the faster one under {share:.0%} of {sets} admissible sets of constants."
    if winner.kind is Kind.SIMULATED:
        return f"{_overlap(winner, runner_up)} The two were not simulated under the same sets of constants."
    return _overlap(winner, runner_up)


def _measured_standing(winner: Trial, runner_up: Trial) -> str:
    pair = compared(runner_up, winner)
    if pair is None:
        return "The two were not timed alike."
    if not pair.paired or pair.p is None:
        return f"{_overlap(searched(winner), searched(runner_up))} No final was run between them."
    return (
        f"Measured in the same rounds, the runner-up takes {pair.ratio:.4f} of the winner's time "
        f"({pair.interval}, paired, p {pair.p:.2g}, {pair.rounds} rounds): the winner is "
        f"{winner.evidence.get('finals_verdict', 'ahead')}."
    )


def _overlap(winner: Trial, runner_up: Trial) -> str:
    if winner.high_us is None or runner_up.low_us is None:
        return "Their intervals are not known."
    apart = winner.high_us < runner_up.low_us
    return f"Their {winner.kind} intervals {'do not overlap' if apart else 'overlap: the order is open'}."


def status_rows(trials: Iterable[Trial]) -> list[tuple[str, str, str]]:
    """(status, trials, what it means) for each that occurs, in the order of the enum."""
    counts = collections.Counter(trial.status for trial in trials)
    return [(str(status), str(counts[status]), MEANS.get(status, "")) for status in Status if counts[status]]


def conditions_section(sweep: Sweep) -> Section | None:
    """Clocks, temperature, power and throttling of the compared trials; None unless times were measured with them."""
    winner, runner_up = winner_and_runner_up(sweep)
    if winner is None or winner.kind is not Kind.MEASURED:
        return None
    named = {"winner": winner, "runner-up": runner_up, "default": default_trial(sweep.trials)}
    shown = {label: trial for label, trial in named.items() if trial is not None}
    known = [name for name in CONDITIONS if any(name in trial.evidence for trial in shown.values())]
    if not known:
        return None
    head = ["", *shown]
    rows = [[_label(name), *(_value(trial, name) for trial in shown.values())] for name in known]
    about = _throttling(timed(sweep.trials))
    body = f"<p>{escape(about)}</p>" + html_table(head, [[escape(cell) for cell in row] for row in rows])
    return Section(
        title="Conditions of the measurement", body=body, markdown=f"{about}\n\n{markdown_table(head, rows)}"
    )


def _label(name: str) -> str:
    text, unit = CONDITIONS[name]
    return f"{text}, {unit}" if unit else text


def _value(trial: Trial, name: str) -> str:
    value = trial.evidence.get(name)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return number(value)
    return str(value or "–")


def _throttling(trials: Sequence[Trial]) -> str:
    """How many trials had samples under a lowered clock, and in how many those had to be used."""
    marked = [trial for trial in trials if trial.evidence.get("throttled_samples")]
    used = [trial for trial in trials if trial.evidence.get("throttled_used")]
    clocks = [trial.evidence["sm_mhz"] for trial in trials if trial.evidence.get("sm_mhz")]
    told = f"Samples under a throttled clock: in {len(marked)} of {len(trials)} measured trials"
    told += f", in {len(used)} of them too many to leave out." if used else "; none of them counts."
    if clocks:
        told += (
            f" Median SM clock of the trials: {number(min(clocks))} to {number(max(clocks))} MHz, measured."
        )
    return told
