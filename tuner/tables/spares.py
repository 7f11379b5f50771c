"""Which kernels without a row are bundled too: ``results/<device>/spares.json``, as ``calibrate --spares`` chose them.

    {"schema": 1, "device": "h200", "operators": {OPERATOR: {"date": "2026-11-26", "problems": 325,
     "rows_alone": [1.19, 1.66], "with_spares": [1.01, 1.17],
     "spares": [{"problem": {"m": 16, ...}, "config": "kernel=...", "us": 5.53}]}}}

``problem``: at which the config was timed, ``us`` microseconds. ``rows_alone`` and ``with_spares``: how many times as
slow as the best of all that was timed the best of what is launched is estimated for ``problems`` problems, without the
spares and with them: (geometric mean, largest). Only ``bundle`` reads the file: the run time launches what is bundled.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from tuner.files.record_checks import check_numbers, check_plain, check_texts, shown
from tuner.files.store import CorruptFile, atomic_write, make_folder, read_json
from tuner.trials.subject import NotInstalled, problem_from_record

FILE_NAME = "spares.json"
SCHEMA = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spare:
    """A kernel that is bundled without a row. ``config``: printed and resolved; ``us`` microseconds at ``problem``."""

    problem: Problem
    config: str
    us: float

    def to_record(self) -> dict[str, Any]:
        return {"problem": self.problem.record(), "config": self.config, "us": round(self.us, 4)}

    @classmethod
    def from_record(cls, operator: str, record: Any) -> Self:
        """Raises ``InputError``, and ``NotInstalled`` for an operator that is not here."""
        found = cls(
            problem=problem_from_record(operator, record["problem"]), config=record["config"], us=record["us"]
        )
        check_texts(found, ("config",))
        check_numbers(found, ("us",))
        return found


def read_spares(folder: Path) -> list[Spare]:
    """Those of a device's folder, none where there is no such file; without those of operators that are not installed.

    Raises ``InputError`` for a damaged file.
    """
    path = folder / FILE_NAME
    found = []
    try:
        for operator, one in _record(path)["operators"].items():
            try:
                found += [Spare.from_record(operator, record) for record in one["spares"]]
            except NotInstalled:
                continue
    except (KeyError, TypeError, AttributeError, InputError) as error:
        raise _damaged(path, error) from None
    return found


def write_spares(folder: Path, device: str, operators: Mapping[str, Any]) -> Path:
    """``operators``: their records; those of others in the file stay. Raises ``InputError`` for a damaged file and
    ``StoreError`` when the disk refuses.
    """
    path = make_folder(folder) / FILE_NAME
    read_spares(folder)
    both = {**_record(path)["operators"], **operators}
    record = {"schema": SCHEMA, "device": device, "operators": dict(sorted(both.items()))}
    atomic_write(path, json.dumps(record, indent=1) + "\n")
    return path


def _record(path: Path) -> dict[str, Any]:
    try:
        record = read_json(path)
        if record is None:
            return {"operators": {}}
        check_plain(record)
        if record["schema"] != SCHEMA:
            raise InputError(f"it has schema {shown(record['schema'])}, this version reads {SCHEMA}")
    except (CorruptFile, KeyError, TypeError, InputError) as error:
        raise _damaged(path, error) from None
    return dict(record)


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(f"{path} holds no spares: {error}; choose them again, or remove it")
