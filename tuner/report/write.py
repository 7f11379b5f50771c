"""Write what a sweep found: ``report.md``, ``report.html``, ``trials.csv`` and ``trials.parquet`` in one folder."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below, read_plain
from kernel_space.core.problem import Problem
from tuner.files.store import atomic_write, make_folder
from tuner.report.data.clock import clock
from tuner.report.data.peers import read_peers
from tuner.report.data.sweep import Section, Sweep, knobs_of
from tuner.report.html import render_html
from tuner.report.markdown import render_markdown
from tuner.trials.outcome import Trial
from tuner.trials.rank_stability import SETS_US

__all__ = ["ReportFiles", "Section", "Sweep", "read_trials", "report_folder", "write_final", "write_report"]

FACTS = "facts"  # key of the parquet file's metadata
REPORT_FILES = ("trials.csv", "trials.parquet", "report.md", "report.html")  # in the order of writing
FINAL_FILE = "final.json"
MAX_REASON = 160  # characters of a reason in trials.csv; trials.parquet holds it whole
MOST_TRIALS, MOST_BYTES = 1_000_000, 1 << 30  # of a trials.parquet
JSON_COLUMNS = ("options", "evidence", "build")
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


def write_report(folder: AnyPath, sweep: Sweep) -> ReportFiles:
    """Write the four files, each atomically. Raises ``InputError`` for a bad folder, ``StoreError`` for a full disk."""
    folder = make_folder(Path(folder))
    sweep = completed(sweep, folder)
    table, trials, markdown, page = (below(folder, name) for name in REPORT_FILES)
    files = ReportFiles(markdown, page, table, trials)
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


def trials_parquet(trials: Sequence[Trial], facts: Mapping[str, str] | None = None) -> bytes:
    """Every field of every trial (zstd), ``evidence`` and ``build`` as JSON text with six significant digits;
    ``read_trials`` gives the trials back, and ``read_facts`` what the sweep said of itself."""
    import pyarrow
    import pyarrow.parquet

    types = {"str": pyarrow.string(), "int": pyarrow.int64(), "float": pyarrow.float64()}
    fields = [
        (field.name, types.get(_base(field.type), pyarrow.string())) for field in dataclasses.fields(Trial)
    ]
    table = pyarrow.Table.from_pylist([_record(trial) for trial in trials], schema=pyarrow.schema(fields))
    buffer = io.BytesIO()
    # Column statistics would be a third of so small a file.
    options = {
        "compression": "zstd",
        "compression_level": 19,
        "write_statistics": False,
        "store_schema": False,
    }
    with pyarrow.parquet.ParquetWriter(buffer, table.schema, **options) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({FACTS: json.dumps(dict(facts or {}))})
    return buffer.getvalue()


def _base(annotation: Any) -> str:
    """``float | None`` -> ``float``; annotations are text here."""
    return str(annotation).split(" ")[0]


def _record(trial: Trial) -> dict[str, Any]:
    record = trial.to_record()
    return record | {name: json.dumps(_rounded(record[name])) for name in JSON_COLUMNS}


def _rounded(scalars: dict[str, Any]) -> dict[str, Any]:
    return {
        name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in scalars.items()
    }


def read_trials(path: AnyPath, *, follow: bool = False) -> list[Trial]:
    """The trials of a ``trials.parquet``. ``follow``: the user named it. Raises ``InputError`` when it is not one, and
    for one that says that it would take more than ``MOST_BYTES`` of memory."""
    import pyarrow
    import pyarrow.parquet

    path = Path(path)
    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(read_plain(path, follow=follow)))
        about = file.metadata
        groups = (about.row_group(number).total_byte_size for number in range(about.num_row_groups))
        if about.num_rows > MOST_TRIALS or sum(groups) > MOST_BYTES:
            raise InputError(f"{path} must hold at most {MOST_TRIALS} trials in {MOST_BYTES >> 20} MiB")
        return [Trial.from_record(_from_row(row)) for row in file.read().to_pylist()]
    except InputError:
        raise
    except (OSError, ValueError, TypeError, RecursionError, OverflowError, pyarrow.ArrowException) as error:
        raise InputError(f"cannot read trials from {path}: {error}") from None


def read_facts(path: AnyPath) -> dict[str, str]:
    """The facts of the sweep that wrote this ``trials.parquet``; none when there is no such file or it has none."""
    import pyarrow
    import pyarrow.parquet

    try:
        metadata = pyarrow.parquet.read_metadata(pyarrow.BufferReader(read_plain(Path(path)))).metadata or {}
        facts = json.loads(metadata.get(FACTS.encode(), b"{}"))
        return {str(name): str(value) for name, value in facts.items()}
    except (OSError, ValueError, AttributeError, RecursionError, pyarrow.ArrowException):
        return {}


def _from_row(row: dict[str, Any]) -> dict[str, Any]:
    return row | {name: json.loads(row.get(name) or "{}") for name in JSON_COLUMNS}
