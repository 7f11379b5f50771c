"""The journal of a tune: whose trials it holds, and what is counted once for all who have it."""

from __future__ import annotations

import dataclasses
import hashlib
import json

from kernel_space.build.key import source_hash, space_source_hash, toolchain
from kernel_space.check.version import check_version, oracle_version
from kernel_space.core.plain_files import AnyPath, below
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernels_of
from tuner.devices.device import Device
from tuner.devices.recorded import keep_class_of
from tuner.space.count import Count
from tuner.space.space import SearchSpace
from tuner.trials.outcome import Kind
from tuner.trials.study import Identity, Study

STUDY_FOLDER = ".studies"


def identity(problem: Problem, device: Device) -> Identity:
    """Which journal the trials of ``problem`` on ``device`` belong to, as things are today."""
    return Identity(
        op=problem.operator,
        device=device.name,
        arch=device.arch.name,
        problem=str(problem),
        options=problem.options,
        source_hash=space_source_hash(kernels_of(problem.operator, device.arch)),
        dsl_version=toolchain().dsl_version,
        judge=f"{device.kind} {device.judge} {device.sm_count} SMs, oracle {_oracle(problem.operator, device.kind)}",
    )


def _oracle(operator: str, kind: Kind) -> str:
    """What the device's verdicts on this operator depend on besides its ``judge``; no card knows the machine."""
    return check_version(operator) if kind is Kind.SIMULATED else oracle_version(operator)


def open_study(out: AnyPath, problem: Problem, device: Device) -> Study:
    """The journal below ``out``. Raises ``InputError`` and ``StoreError``."""
    keep_class_of(out, device)
    return Study(below(out, STUDY_FOLDER), identity(problem, device))


def count_space(study: Study, space: SearchSpace, problem: Problem, device: Device) -> Count:
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
