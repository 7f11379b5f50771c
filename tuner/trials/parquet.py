"""``trials.parquet``: every field of the trials of one sweep, and what the sweep said of itself."""

from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, read_plain
from tuner.trials.outcome import Trial

FACTS = "facts"  # key of the file's metadata
MOST_TRIALS, MOST_BYTES = 1_000_000, 1 << 30  # of a file
JSON_COLUMNS = ("options", "evidence", "build")


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
