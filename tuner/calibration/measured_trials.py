"""Measured times from what a tune leaves: a journal, ``trials.parquet``, ``trials.csv``, or a CSV made by hand.

A CSV needs the columns ``kind`` and ``us``; the config is a column ``config`` or one column per knob (and ``kernel``,
if the operator has several). Problem, operator and device are columns ``problem`` (with a column for each option that
is not the default), ``op`` and ``device``, or else the names of the folders
(``results/b200/OPERATOR/4352x3840x3072x128``).
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, read_plain
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel, operator, operator_names
from kernel_space.operators import DEFAULT
from kernel_space.places import COMMAND
from tuner.trials.journal_read import read_journal
from tuner.trials.outcome import Kind, Status, Trial
from tuner.trials.parquet import read_trials

_SLUG = re.compile(r"([0-9]+(?:x[0-9]+)*)((?:-[A-Za-z0-9_]+)*)")  # ``Problem.slug``


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured time. ``noise``: share by which it may be off, as stated. ``source_hash``: kernel, if known."""

    device: str
    problem: Problem
    config: str
    us: float
    noise: float
    source_hash: str = ""


def read_measured(paths: Iterable[AnyPath], op: str = DEFAULT) -> list[Measurement]:
    """Every measured time of the files, the last of each kernel and problem. ``op``: the operator of a CSV that names
    none, neither in a column nor by its folder. Raises ``InputError`` for a file that is
    none of these, and when nothing was measured or more than one kind of device was."""
    found: dict[tuple[Problem, str], Measurement] = {}
    others = 0
    for path in map(Path, paths):
        for one in _read(path, op):
            if one is None:
                others += 1
            else:
                found[one.problem, one.config] = one
    if not found:
        raise InputError(
            f"none of the {others} trials was measured; times that were computed calibrate nothing"
        )
    if len(devices := {one.device for one in found.values()}) > 1:
        raise InputError(f"calibrate one kind of device at a time, got {', '.join(sorted(devices))}")
    return list(found.values())


def _read(path: Path, op: str) -> Iterator[Measurement | None]:
    """None for a trial without a measured time."""
    if path.suffix == ".parquet":
        return (_of_trial(trial) for trial in read_trials(path, follow=True))
    if path.suffix == ".jsonl":
        return (_of_trial(trial) for trial in read_journal(path, follow=True).trials)
    if path.suffix == ".csv":
        return _table(path, op)
    raise InputError(f"trials are read from .csv, .parquet or a journal's .jsonl, got {path}")


def _of_trial(trial: Trial) -> Measurement | None:
    timing = trial.timing
    if trial.status is not Status.OK or timing is None or timing.kind is not Kind.MEASURED:
        return None
    return Measurement(
        device=trial.device,
        problem=trial.subject,
        config=trial.resolved,
        us=timing.us,
        noise=max(timing.high_us / timing.us, timing.us / timing.low_us) - 1,
        source_hash=str(trial.build.get("source_hash", "")),
    )


def _table(path: Path, op: str) -> Iterator[Measurement | None]:
    lines = csv.DictReader(_text(path).splitlines())
    missing = {"kind", "us"} - set(lines.fieldnames or ())
    if missing:
        raise InputError(
            f"{path} needs a column {' and '.join(sorted(missing))}; see {COMMAND} calibrate --help"
        )
    for row in lines:
        is_measured = row["kind"] == Kind.MEASURED.value and row.get("status", "ok") == Status.OK.value
        yield _of_row(row, path, op) if is_measured else None


def _of_row(row: dict[str, Any], path: Path, op: str) -> Measurement:
    try:
        us = float(row["us"])
        low, high = (float(row.get(name) or us) for name in ("low_us", "high_us"))
        folder = path.resolve().parent
        is_under_operator = folder.parent.name in operator_names()
        named = row.get("op") or (folder.parent.name if is_under_operator else op)
        problem = _problem(named, row, folder)
        return Measurement(
            device=row.get("device") or folder.parents[1 if is_under_operator else 0].name,
            problem=problem,
            config=row.get("config") or _knobs(row, problem.operator),
            us=us,
            noise=max(high / us, us / low) - 1,
        )
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"{path}: {error} in {', '.join(str(value) for value in row.values())[:120]}"
        ) from None


def _problem(op: str, row: dict[str, Any], folder: Path) -> Problem:
    """By its columns, else by the name of the folder."""
    known = operator(op).problem
    if text := row.get("problem"):
        return known.parse(text, **{name: row[name] for name in known.option_names() if row.get(name)})
    match = _SLUG.fullmatch(folder.name)
    if match is None:
        raise InputError(
            f"needs a column problem, or a folder named like {(known.example or known.form()).replace(',', 'x')}, "
            f"not {folder.name}"
        )
    options = match[2].split("-")[1:]
    if options and len(options) != len(known.option_names()):
        raise InputError(f"{folder.name} is no problem of {op}: it has the options {known.option_names()}")
    return known.parse(match[1].replace("x", ","), **dict(zip(known.option_names(), options, strict=False)))


def _knobs(row: dict[str, Any], op: str) -> str:
    """From a column per knob, whichever kernel has it."""
    kernels = (kernel(op, name) for name in operator(op).kernels)
    names = dict.fromkeys(["kernel", *(knob for one in kernels for knob in one.config_class.knob_names())])
    return " ".join(f"{name}={row[name]}" for name in names if row.get(name))


def _text(path: Path) -> str:
    try:
        return read_plain(path, follow=True).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
