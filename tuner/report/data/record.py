"""The trials of a sweep as the JSON that its page draws and lists; every text in it is shown as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tuner.report.data.pairs import compared, order
from tuner.report.data.roofline import Roof, counts_fill, points, roofs
from tuner.report.data.state import searched, state_of, states, timing_words, told
from tuner.report.data.sweep import (
    Sweep,
    dram_bytes,
    failure_reason,
    failure_status,
    knobs_of,
    operations,
    timed,
    value_order,
)
from tuner.report.marks.svg import number
from tuner.trials.outcome import Trial

MOST_REASON: Final = 300  # characters; trials.parquet has the whole one


def sweep_record(
    sweep: Sweep, winner: Trial, runner_up: Trial | None, marked: Mapping[str, Trial]
) -> dict[str, Any]:
    """``marked``: trials by their role (runner-up, default, published) that pictures name beside the winner.

    ``knobs`` and ``values`` (of each knob, sorted) spell configs: a trial has in ``k`` the place of its value, -1 for
    a knob that its kernel lacks. ``group``: which of ``groups`` a time belongs to, see ``state.py``; times of two are
    never shown together. ``us``, ``low``, ``high``: microseconds, ``ratio``: time over the winner's.
    """
    found = states(sweep)
    knobs, values = _spelling(sweep.evaluated)
    ranks = {trial.resolved: place for place, trial in enumerate(order(sweep, winner, runner_up), start=1)}
    rows = [_trial(trial, winner, knobs, values, found, ranks) for trial in sweep.evaluated]
    roof = _roof(sweep, winner)
    if roof:
        _add_points(rows, sweep)
    roles = {trial.resolved: role for role, trial in marked.items()}
    for row, trial in zip(rows, sweep.evaluated, strict=True):
        if trial.resolved in roles:
            row["role"] = roles[trial.resolved]
    return {
        "kind": str(winner.kind),
        "timing": timing_words(sweep),
        "groups": told(found),
        "group": 0,
        "knobs": knobs,
        "values": values,
        "trials": rows,
        "marked": [winner.number, *(trial.number for trial in marked.values())],
        **({"roof": roof} if roof else {}),
    }


def _spelling(trials: Sequence[Trial]) -> tuple[list[str], list[list[str]]]:
    configs = [knobs_of(trial.resolved) for trial in trials]
    knobs = list(dict.fromkeys(name for config in configs for name in config))
    values = [
        sorted({config[name] for config in configs if name in config}, key=value_order) for name in knobs
    ]
    return knobs, values


def _trial(
    trial: Trial,
    winner: Trial,
    knobs: Sequence[str],
    values: Sequence[Sequence[str]],
    found: Sequence[Any],
    ranks: Mapping[str, int],
) -> dict[str, Any]:
    config = knobs_of(trial.resolved)
    shown = searched(trial)
    usable = bool(timed([shown])) and state_of(shown) in found
    pair = compared(trial, winner) if usable else None
    fails = not timed([trial])
    return {
        "number": trial.number,
        "status": failure_status(trial) if fails else str(trial.status),
        "origin": str(trial.origin),
        "us": _short(shown.us) if usable else None,
        "low": _short(shown.low_us) if usable else None,
        "high": _short(shown.high_us) if usable else None,
        "group": found.index(state_of(shown)) if usable else None,
        "rank": ranks.get(trial.resolved) if usable else None,
        "ratio": _short(pair.ratio) if pair else None,
        "paired": bool(pair and pair.paired),
        "registers": _count(trial.build.get("registers")),
        "smem": _count(trial.build.get("smem_bytes")),
        "k": [values[at].index(config[name]) if name in config else -1 for at, name in enumerate(knobs)],
        **({"reason": failure_reason(trial)[:MOST_REASON]} if fails else {}),
    }


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _roof(sweep: Sweep, winner: Trial) -> dict[str, Any] | None:
    """What the roofline needs besides the trials; None for an operator that counts no operations."""
    if not operations(sweep.problem):
        return None
    machine = roofs(sweep.problem, sweep.known_class, sweep.sm_count)
    return {
        "operations": operations(sweep.problem),
        "dram": operations(sweep.problem) / dram_bytes(sweep.problem),
        "fills": counts_fill(sweep.problem, winner),
        "lines": [_line(one) for one in machine],
    }


def _line(roof: Roof) -> dict[str, Any]:
    unit = "TB/s" if roof.per_byte else "TFLOP/s"
    label = f"{roof.name} {number(roof.tera)} {unit} ({roof.kind})"
    return {"label": label, "tera": roof.tera, "perByte": roof.per_byte, "css": roof.css}


def _add_points(rows: Sequence[dict[str, Any]], sweep: Sweep) -> None:
    """To each trial with a time where it stands in the roofline, and its group's colour."""
    pairs = [(row, searched(trial)) for row, trial in zip(rows, sweep.evaluated, strict=True)]
    pairs = [(row, trial) for row, trial in pairs if row["us"] is not None]
    found = points(sweep.problem, [trial for _, trial in pairs])
    for (row, _), one in zip(pairs, found, strict=True):
        row |= {"flop": _short(one.intensity), "colour": one.group}
