"""What a folder holds, to compare before and after; and a folder of results made by hand."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from tests.runtime.test_choice import PLAIN, SPLIT, row
from tests.tables.test_bundle import cached, key_of
from tuner.report.write import report_folder
from tuner.tables.bundle_write import write_bundle
from tuner.tables.dispatch import render_table
from tuner.tables.row import ObjectRef, Row
from tuner.trials.outcome import Kind, Status, Trial
from tuner.trials.study import Identity, Study

CUBIN = "c" * 64
SHAPES = {"256,3840,3072,128": PLAIN, "16,3840,3072,128": SPLIT}


def listing(folder: Path, *, times: bool = True) -> dict[str, tuple]:
    """Relative name -> kind, size, time of change and bytes (of a link: where it points) of everything below."""
    found: dict[str, tuple] = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        kind = stat.S_IFMT(about.st_mode)
        data: object = None
        if stat.S_ISREG(about.st_mode):
            data = path.read_bytes()
        elif stat.S_ISLNK(about.st_mode):
            data = os.readlink(path)
        when = (about.st_mtime_ns, about.st_ino, about.st_mode) if times else ()
        found[str(path.relative_to(folder))] = (kind, data, *when)
    return found


def edit(path: Path, change: Callable[[Any], None]) -> None:
    """Write the JSON document in ``path`` again, changed."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def table_rows(cache: Path) -> list[Row]:
    """Rows with their objects in ``cache``."""
    found = []
    for shape, config in SHAPES.items():
        meta, _ = cached(cache, config)
        reference = ObjectRef(key=key_of(config), file="kernel.o", sha256=meta["object_sha256"])
        found.append(dataclasses.replace(row(shape, config, object=reference), cubin_sha256=CUBIN))
    return sorted(found, key=lambda one: one.key)


def results_folder(root: Path, cache: Path) -> Path:
    """``root`` with all that a tune of two problems and ``tune.py bundle`` leave for h200: table, objects, journals and
    reports. The reports hold text instead of pages. The objects are in ``cache`` too.

    A copy: hundreds of tests damage one of their own, and to write one takes twenty times as long.
    """
    made = Path(_made().name)
    shutil.copytree(made / "cache", cache, dirs_exist_ok=True)
    shutil.copytree(made / "results", root, dirs_exist_ok=True)
    return root


@functools.cache
def _made() -> tempfile.TemporaryDirectory[str]:
    """Gone when the process ends."""
    folder = tempfile.TemporaryDirectory(prefix="results-")
    _write_results(Path(folder.name) / "results", Path(folder.name) / "cache")
    return folder


def _write_results(root: Path, cache: Path) -> None:
    rows = table_rows(cache)
    device = root / "h200"
    with mock.patch(
        "tuner.tables.bundle_write._built", no_compiler
    ):  # no object of the largest rank: that takes seconds
        write_bundle(device, SM90A, rows, caches=[cache])
    for one in rows:
        folder = report_folder(root, "h200", one.key.problem)
        folder.mkdir(parents=True)
        for name in ("trials.csv", "trials.parquet", "report.md", "report.html", "final.json"):
            (folder / name).write_text(f"{name} of {one.key.problem}")
        study = Study(root / ".studies", identity_of(one))
        for number, config in enumerate(SHAPES.values()):
            study.append(trial_of(one, number, config))
    (device / "dispatch.json").write_text(render_table(rows))


def no_compiler(*_: Any) -> None:
    raise InputError("there is no compiler here")


def identity_of(one: Row) -> Identity:
    return Identity(
        op=one.key.op,
        device="h200",
        arch=one.key.arch,
        problem=str(one.key.problem),
        options=one.key.problem.options,
        source_hash="src",
        dsl_version="4.8.1",
        judge="a card",
    )


def trial_of(one: Row, number: int, config: str) -> Trial:
    return Trial(
        number=number,
        op=one.key.op,
        problem=str(one.key.problem),
        options=one.key.problem.options,
        device="h200",
        arch=one.key.arch,
        config=config,
        resolved=config,
        status=Status.OK,
        kind=Kind.MEASURED,
        us=10.0 + number,
        low_us=9.0,
        high_us=20.0,
        finished="2026-11-21T08:00:00+00:00",
    )
