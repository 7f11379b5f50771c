"""Record: the winner's row of the dispatch table, however the search ended; and the index over all rows."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import platform
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kernel_space.build.key import toolchain
from kernel_space.core.plain_files import AnyPath, below
from kernel_space.core.problem import Problem
from tuner.devices.device import Device, driver_of
from tuner.devices.simulated import models_of
from tuner.report.index_files import write_index
from tuner.stages.compile import kernel_of
from tuner.stages.run import Run
from tuner.stages.stage import When
from tuner.tables.dispatch import FILE_NAME, DispatchTable, record
from tuner.tables.merge import Current, own_kernel_source, own_oracle
from tuner.tables.row import ObjectRef, Row, make_row
from tuner.trials.checked import NEVER_CHECKED
from tuner.trials.outcome import Trial

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel


class Record:
    """The best of everything found, this run's and that of earlier ones."""

    name = "record"
    when = When.ALWAYS

    def run(self, run: Run) -> bool:
        run.order = run.ranked()
        if run.stopped and run.options.retimes:
            run.progress.say("stopped before every candidate was judged, so the table's row stays as it is")
            return False
        if not run.order:
            run.progress.say("no candidate could be used, so the dispatch table stays as it is")
            return False
        row = winning_row(run.device, run.order, kernel_of(run, run.order[0]))
        path = below(run.options.out, run.device.name, FILE_NAME)
        now = current(run.device)
        run.decision = record(path, [row], now, refuted=run.refuted(), say=run.progress.say)[0]
        return True


def current(device: Device) -> Current:
    """Today's provenance: rows made under another one are stale."""
    return Current(
        kernel_source=own_kernel_source,
        dsl_version=toolchain().dsl_version,
        models=models_of(device),
        oracle=own_oracle,
        driver=driver_of(device),
    )


def winning_row(device: Device, order: Sequence[Trial], compiled: CompiledKernel | None) -> Row:
    """The row that ``order[0]`` claims, with the next best as its runner-up."""
    row = make_row(
        order[0],
        model=current(device).model(device.kind, order[0].op),
        protocol=f"{device.kind} on {device.name}, {device.sm_count} SMs",
        runner_up=order[1] if len(order) > 1 else None,
        object=object_ref(compiled) if compiled else None,
        versions=versions(),
    )
    checked = order[0].validation or NEVER_CHECKED
    return dataclasses.replace(row, evidence={"checked": checked, **row.evidence})


def object_ref(compiled: CompiledKernel) -> ObjectRef:
    return ObjectRef(key=compiled.key, file=compiled.object_path.name, sha256=compiled.object_sha256)


def versions() -> dict[str, str]:
    """Packages that decide what is compiled and searched."""
    found = {"python": platform.python_version()}
    with contextlib.suppress(
        importlib.metadata.PackageNotFoundError
    ):  # who measures what others chose has none
        found["optuna"] = importlib.metadata.version("optuna")
    return {
        **found,
        **dict(package.split("==") for package in toolchain().packages),
    }


def renew_index(out: AnyPath, device: Device) -> None:
    """The device's index from its table as it is now. Raises ``StoreError``, and ``InputError`` for a table that is
    none."""

    def rows() -> Iterable[tuple[Problem, Row]]:
        table = DispatchTable.load(below(out, device.name), arch=device.arch, say=_silent)
        return ((row.key.problem, row) for row in table.rows.values())

    write_index(out, device.name, rows)


def _silent(text: str) -> None:
    """Whoever read the table before has said what is wrong with its rows."""
