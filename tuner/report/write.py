"""Write what a sweep found: ``report.md``, ``report.html``, ``trials.csv`` and ``trials.parquet`` in one folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below
from kernel_space.core.problem import Problem
from tuner.files.store import atomic_write, make_folder
from tuner.report.data.clock import clock
from tuner.report.data.peers import read_peers
from tuner.report.data.sweep import Section, Sweep, knobs_of
from tuner.report.html import render_html
from tuner.report.markdown import render_markdown
from tuner.trials.outcome import Trial
from tuner.trials.parquet import read_facts, read_trials, trials_parquet
from tuner.trials.rank_stability import SETS_US

__all__ = [
    "ReportFiles",
    "Section",
    "Sweep",
    "read_facts",
    "read_trials",
    "report_files",
    "report_folder",
    "trials_csv",
    "trials_parquet",
    "write_final",
    "write_report",
]

REPORT_FILES = ("trials.csv", "trials.parquet", "report.md", "report.html")  # in the order of writing
FINAL_FILE = "final.json"
MAX_REASON = 160  # characters of a reason in trials.csv; trials.parquet holds it whole
# Without effect on what a reader of the CSV wants to know: the hash of every cubin is in trials.parquet.
PARQUET_ONLY = frozenset({"cubin_sha256", "source_hash", "dsl_version", "variant"})


@dataclasses.dataclass(frozen=True)
class ReportFiles:
    markdown: Path
    html: Path
    csv: Path
    parquet: Path


def report_folder(results: AnyPath, device: str, problem: Problem) -> Path:
    """``results/b200/OPERATOR/4352x3840x3072x128``; see ``Problem.slug``.

    Raises ``NotPlain`` (an ``InputError``) when it is a link, which would lead out of ``results``.
    """
    return below(results, device, problem.operator, problem.slug)


def report_files(folder: AnyPath) -> ReportFiles:
    """Where the four files are or will be. Raises ``NotPlain`` for links."""
    table, trials, markdown, page = (below(folder, name) for name in REPORT_FILES)
    return ReportFiles(markdown, page, table, trials)


def write_report(folder: AnyPath, sweep: Sweep, *, pages_only: bool = False) -> ReportFiles:
    """Write the four files, each atomically; ``pages_only``: all but the trials. Raises ``InputError`` for a bad
    folder, ``StoreError`` for a full disk."""
    folder = make_folder(Path(folder))
    sweep = completed(sweep, folder)
    files = report_files(folder)
    if not pages_only:
        atomic_write(files.csv, trials_csv(sweep.evaluated))
        atomic_write(files.parquet, trials_parquet(sweep.trials, sweep.facts))
    atomic_write(files.markdown, render_markdown(sweep))
    atomic_write(files.html, render_html(sweep))
    return files


def write_final(folder: Path, record: Mapping[str, Any]) -> None:
    """``final.json`` beside the report: every deciding round with the card's state. Raises ``StoreError``."""
    atomic_write(make_folder(folder) / FINAL_FILE, json.dumps(record, indent=1) + "\n")


def completed(sweep: Sweep, folder: Path) -> Sweep:
    """``sweep`` with the timelines of its leaders and the peers that lie beside it, where it has none yet."""
    changes: dict[str, Any] = {}
    if sweep.clocks is None:
        changes["clocks"] = clock(sweep)
    if sweep.peers is None:
        try:
            changes["peers"] = read_peers(folder, sweep.problem)
        except (
            InputError
        ) as error:  # of a file that this report only shows: no reason to go without the report
            changes["facts"] = {**sweep.facts, "peers": str(error)}
    return dataclasses.replace(sweep, **changes)


def trials_csv(trials: Sequence[Trial]) -> str:
    """One line per trial for people and spreadsheets: one column per knob (resolved; as asked if illegal) and per
    scalar of build and evidence (its time under each set of constants is in the Parquet file alone), five significant
    digits, reasons cut at 160 characters."""
    import pandas

    columns: dict[str, None] = {}
    for group in (_what, _knobs, _build, _evidence, _how):
        columns |= dict.fromkeys(name for trial in trials for name in group(trial))
    rows = [_what(one) | _knobs(one) | _build(one) | _evidence(one) | _how(one) for one in trials]
    return pandas.DataFrame(rows, columns=list(columns)).to_csv(index=False, float_format="%.5g")


def _what(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "status": trial.status.value,
        "kind": trial.kind and trial.kind.value,
        "us": trial.us,
        "low_us": trial.low_us,
        "high_us": trial.high_us,
        "origin": trial.origin.value,
    }


def _knobs(trial: Trial) -> dict[str, str]:
    return knobs_of(trial.resolved or trial.config)


def _build(trial: Trial) -> dict[str, Any]:
    return {name: value for name, value in trial.build.items() if name not in PARQUET_ONLY}


def _evidence(trial: Trial) -> dict[str, Any]:
    return {f"evidence.{name}": value for name, value in trial.evidence.items() if name != SETS_US}


def _how(trial: Trial) -> dict[str, Any]:
    return {
        "compile_seconds": trial.compile_seconds,
        "validation": trial.validation[:MAX_REASON],
        "reason": trial.reason[:MAX_REASON],
    }
