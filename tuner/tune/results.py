"""What a tune leaves below ``<out>/<device>/``: a row of the dispatch table and a report, from a journal's trials."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kernel_space.build.key import source_hash, space_source_hash, toolchain
from kernel_space.core.plain_files import below
from kernel_space.core.registry import kernels_of
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.device import Device
from tuner.devices.recorded import keep_class_of, recorded_class
from tuner.devices.select import has_simulator
from tuner.devices.simulated import simulated_judge
from tuner.files.store import atomic_write, make_folder
from tuner.report.write import ReportFiles, Sweep, report_folder, write_report
from tuner.simulated.timing_model import model_hash
from tuner.space.count import Count
from tuner.space.space import SearchSpace
from tuner.tables.merge import Current
from tuner.tables.row import ObjectRef, Row, make_row
from tuner.trials.checked import NEVER_CHECKED
from tuner.trials.final_order import row_first
from tuner.trials.outcome import Kind, Status, Trial
from tuner.trials.rank_stability import JUDGE, ranked
from tuner.trials.study import Identity, Study

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from tuner.finals.finals import FinalResult

STUDY_FOLDER = ".studies"
FINAL_FILE = "final.json"


def identity(problem: GemmProblem, device: Device) -> Identity:
    """Which journal the trials of ``problem`` on ``device`` belong to, as things are today."""
    return Identity(
        op=GemmProblem.operator,
        device=device.name,
        arch=device.arch.name,
        problem=str(problem),
        lora_dtype=problem.lora_dtype,
        out_dtype=problem.out_dtype,
        source_hash=space_source_hash(kernels_of(GemmProblem.operator, device.arch)),
        dsl_version=toolchain().dsl_version,
        judge=f"{device.kind} {device.judge} {device.sm_count} SMs",
    )


def open_study(out: Path, problem: GemmProblem, device: Device) -> Study:
    """The journal below ``out``. Raises ``InputError`` and ``StoreError``."""
    keep_class_of(out, device)
    return Study(below(out, STUDY_FOLDER), identity(problem, device))


def count_space(study: Study, space: SearchSpace, problem: GemmProblem, device: Device) -> Count:
    """``space.count``, from the journal when neither the rules nor the choices have changed since."""
    choices = {name: knob.choices for name, knob in space.knobs.items()}
    rules = [
        source_hash(module)
        for kernel in kernels_of(problem.operator, device.arch)
        for module in ("kernel_space.core.rules", kernel.rules)
    ]
    about = f"{rules} {json.dumps(choices)}"
    key = f"points of the space {hashlib.sha256(about.encode()).hexdigest()[:16]}"
    return Count(**study.recall(key, lambda: dataclasses.asdict(space.count(problem, device.arch))))


def current(device: Device) -> Current:
    """Today's provenance: rows made under another one are stale."""
    models = {Kind.MODELLED: model_hash()}
    if has_simulator(device.arch):
        models[Kind.SIMULATED] = device.judge if device.kind is Kind.SIMULATED else simulated_judge()
    return Current(
        kernel_source=space_source_hash(kernels_of(GemmProblem.operator, device.arch)),
        dsl_version=toolchain().dsl_version,
        models=models,
    )


def status_counts(trials: Iterable[Trial]) -> dict[Status, int]:
    """Status -> trials, in the order of the enum."""
    found = [trial.status for trial in trials]
    return {status: found.count(status) for status in Status if status in found}


def winning_row(device: Device, order: Sequence[Trial], compiled: CompiledKernel | None) -> Row:
    """The row that ``order[0]`` claims, with the next best as its runner-up."""
    row = make_row(
        order[0],
        model=current(device).provenance(device.kind).model,
        protocol=f"{device.kind} on {device.name}, {device.sm_count} SMs",
        runner_up=order[1] if len(order) > 1 else None,
        object=compiled and object_ref(compiled),
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


def write_sweep(
    out: Path,
    problem: GemmProblem,
    device: Device,
    trials: Sequence[Trial],
    *,
    space: Count | None = None,
    facts: Mapping[str, str] | None = None,
    provenance: Mapping[str, str] | None = None,
    earlier: Mapping[str, str] | None = None,
    cache_dir: Path | None = None,
    row: Row | None = None,
) -> ReportFiles:
    """The report of ``trials``, illegal points among them or not; its timelines are of kernels in ``cache_dir``.
    ``row``: of the dispatch table; its trial, if it is here and usable, is the winner, else the best ranked one.
    ``provenance``: where the times come from, when not from ``device`` as it is today. ``earlier``: facts of the
    sweep, when the report is written again. Raises ``StoreError``."""
    order = ranked(trials)
    if row is not None:
        order = row_first(order, row.config, row.kind)
    made = _provenance_facts(problem, device) if provenance is None else provenance
    budget = None
    if order:
        legal = legalize(order[0].resolved_config, problem, device.arch)
        budget = legal.budget if isinstance(legal, Legal) else None
    sweep = Sweep(
        problem=problem,
        device=device.name,
        arch=device.arch,
        sm_count=device.sm_count,
        device_class=recorded_class(out, device.name),
        trials=trials,
        winner=order[0] if order else None,
        runner_up=order[1] if len(order) > 1 else None,
        budget=budget,
        space=space,
        facts={**(earlier or {}), **made, **(facts or {})},
        cache_dir=cache_dir,
    )
    return write_report(report_folder(out, device.name, problem), sweep)


def write_final(out: Path, problem: GemmProblem, device: Device, final: FinalResult) -> None:
    """``final.json`` beside the report: every deciding round with the card's state. Raises ``StoreError``."""
    folder = make_folder(report_folder(out, device.name, problem))
    atomic_write(folder / FINAL_FILE, json.dumps(final.record(), indent=1) + "\n")


def recorded_provenance(trials: Iterable[Trial]) -> dict[str, str]:
    """What ``trials`` themselves say of how their times were made: for a report by somebody who did not make them."""
    timed = [trial for trial in trials if trial.kind is not None]
    found = {
        "times": [trial.kind for trial in timed],
        "protocol": [trial.evidence.get("timing_protocol") for trial in timed],
        "driver": [trial.evidence.get("driver") for trial in timed],
        "judge": [trial.evidence.get(JUDGE) for trial in timed],
        "kernel source": [trial.build.get("source_hash") for trial in timed],
        "nvidia-cutlass-dsl": [trial.build.get("dsl_version") for trial in timed],
    }
    words = {
        name: ", ".join(sorted({str(value) for value in given if value})) for name, given in found.items()
    }
    dates = sorted(trial.finished for trial in timed if trial.finished)
    words["finished"] = f"{dates[0]} to {dates[-1]}" if dates else ""
    return {name: text for name, text in words.items() if text}


def _provenance_facts(problem: GemmProblem, device: Device) -> dict[str, str]:
    about = dataclasses.asdict(identity(problem, device))
    return {
        "times": f"{device.kind}; judge {device.judge}",
        "kernel source": about["source_hash"],
        **versions(),
    }
