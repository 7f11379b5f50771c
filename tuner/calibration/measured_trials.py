"""Measured times from what a tune leaves: a journal, ``trials.parquet``, ``trials.csv``, or a CSV made by hand.

A CSV needs the columns ``kind`` and ``us``; the config is a column ``config`` or one column per knob, the problem a
column ``problem`` or the name of the folder (``results/b200/4352x3840x3072x128``), the device likewise.
"""

from __future__ import annotations

import csv
import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import read_plain
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.report.write import read_trials
from tuner.trials.journal_read import read_journal
from tuner.trials.outcome import Kind, Status, Trial

FOLDER = re.compile(r"(\d+)x(\d+)x(\d+)x(\d+)(?:-(fp16|bf16)-(fp16|bf16))?")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement:
    """One measured time. ``noise``: share by which it may be off, as stated. ``source_hash``: kernel, if known."""

    device: str
    problem: GemmProblem
    config: str
    us: float
    noise: float
    source_hash: str = ""


def read_measured(paths: Iterable[Path]) -> list[Measurement]:
    """Every measured time of the files, the last of each kernel and problem. Raises ``InputError`` for a file that is
    none of these, and when nothing was measured or more than one kind of device was."""
    found: dict[tuple[str, str], Measurement] = {}
    others = 0
    for path in paths:
        for one in _read(path):
            if one is None:
                others += 1
            else:
                found[str(one.problem), one.config] = one
    if not found:
        raise InputError(
            f"none of the {others} trials was measured; times that were computed calibrate nothing"
        )
    if len(devices := {one.device for one in found.values()}) > 1:
        raise InputError(f"calibrate one kind of device at a time, got {', '.join(sorted(devices))}")
    return list(found.values())


def _read(path: Path) -> Iterator[Measurement | None]:
    """None for a trial without a measured time."""
    if path.suffix == ".parquet":
        return (_of_trial(trial) for trial in read_trials(path, follow=True))
    if path.suffix == ".jsonl":
        return (_of_trial(trial) for trial in journal_trials(path, follow=True))
    if path.suffix == ".csv":
        return _table(path)
    raise InputError(f"trials are read from .csv, .parquet or a journal's .jsonl, got {path}")


def _of_trial(trial: Trial) -> Measurement | None:
    timing = trial.timing
    if trial.status is not Status.OK or timing is None or timing.kind is not Kind.MEASURED:
        return None
    return Measurement(
        device=trial.device,
        problem=trial.gemm_problem,
        config=trial.resolved,
        us=timing.us,
        noise=max(timing.high_us / timing.us, timing.us / timing.low_us) - 1,
        source_hash=str(trial.build.get("source_hash", "")),
    )


def journal_trials(path: Path, *, follow: bool = False) -> Iterator[Trial]:
    """The trials of a journal, in its order; several of one candidate, the later ones supplementing the earlier.

    Damaged lines are left out and named on stderr, a last line that a kill tore is left out. ``follow``: the user named
    the file. Raises ``InputError`` for a file that is none.
    """
    return iter(read_journal(path, follow=follow).trials)


def _table(path: Path) -> Iterator[Measurement | None]:
    lines = csv.DictReader(_text(path).splitlines())
    missing = {"kind", "us"} - set(lines.fieldnames or ())
    if missing:
        raise InputError(
            f"{path} needs a column {' and '.join(sorted(missing))}; see tune.py calibrate --help"
        )
    for row in lines:
        is_measured = row["kind"] == Kind.MEASURED.value and row.get("status", "ok") == Status.OK.value
        yield _of_row(row, path) if is_measured else None


def _of_row(row: dict[str, Any], path: Path) -> Measurement:
    try:
        us = float(row["us"])
        low, high = (float(row.get(name) or us) for name in ("low_us", "high_us"))
        return Measurement(
            device=row.get("device") or path.resolve().parent.parent.name,
            problem=_problem(row.get("problem") or "", path),
            config=row.get("config") or _knobs(row),
            us=us,
            noise=max(high / us, us / low) - 1,
        )
    except (ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"{path}: {error} in {', '.join(str(value) for value in row.values())[:120]}"
        ) from None


def _problem(text: str, path: Path) -> GemmProblem:
    if text:
        return GemmProblem.parse(text)
    match = FOLDER.fullmatch(path.resolve().parent.name)
    if match is None:
        raise InputError(
            f"needs a column problem, or a folder named like 4352x3840x3072x128, not {path.parent.name}"
        )
    lora, out = match[5] or "fp16", match[6] or "fp16"
    return GemmProblem.parse(",".join(match.groups()[:4]), lora_dtype=lora, out_dtype=out)


def _knobs(row: dict[str, Any]) -> str:
    from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

    names = KernelConfigSm100a.knob_names()
    return " ".join(f"{name}={row[name]}" for name in names if row.get(name))


def _text(path: Path) -> str:
    try:
        return read_plain(path, follow=True).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
