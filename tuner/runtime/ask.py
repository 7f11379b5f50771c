"""What a user of the run time may ask before it launches anything."""

from __future__ import annotations

import re

import torch

from kernel_space.core import registry
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.operators import DEFAULT
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.devices.recorded import recorded_class
from tuner.runtime import state
from tuner.runtime.choice.choice import Choice


def explain(
    problem: Problem | str, device: str | torch.device | None = None, *, op: str | None = None
) -> Choice:
    """Which row and object a call for ``problem`` launches, and why; ``print`` it. Launches nothing.

    ``problem``: a problem, or its printed sizes with every option at its default, such as ``"M,K,N,R"``, of the
    operator ``op`` (the default: the registry's). ``device``: a card (``cuda:0``; by default the current one),
    or a device class (``h200``) to ask on any machine. A class without rows of its own has a sibling's, and the reason
    says so. Raises ``InputError`` when nothing could be launched.
    """
    return state.active()[0].choice(_problem(problem, op), _class(device))


def prepare(
    problem: Problem | str,
    device: str | torch.device | None = None,
    *,
    op: str | None = None,
    compile: bool = False,
) -> Choice:
    """Resolve and load what ``problem`` needs now rather than at the first call, for example before a CUDA graph.

    ``compile``: if the table's answer is neither bundled nor in the build cache, compile it; this is the only way in
    which the run time starts the compiler. Raises ``InputError`` when there is no kernel, ``CompileError`` when
    compiling fails.
    """
    problem, device_class = _problem(problem, op), _class(device)
    tables, _ = state.active()
    choice = tables.prepare(problem, device_class) if compile else tables.choice(problem, device_class)
    if (index := _index(device)) is not None:
        tables.plan(problem, index)
    return choice


def _problem(problem: Problem | str, op: str | None) -> Problem:
    if isinstance(problem, str):
        return registry.operator(op or DEFAULT).problem.parse(problem)
    if op not in (None, problem.operator):
        raise InputError(f"op must be left out or be that of the problem, {problem.operator}, got {op}")
    return problem


def _index(device: str | torch.device | None) -> int | None:
    """The card that is meant; None for a device class."""
    if _named(device) is not None:
        return None
    if not torch.cuda.is_available():
        known = ", ".join(DEVICE_CLASSES)
        raise InputError(f"torch sees no card here; name a device class ({known}), got {device}")
    match = re.fullmatch(r"cuda(?::([0-9]+))?", "cuda" if device is None else str(device))
    if match is None:
        raise InputError(f"device must be a card such as cuda:0 or a device class, got {device}")
    index = torch.cuda.current_device() if match[1] is None else int(match[1])
    if index >= torch.cuda.device_count():
        raise InputError(f"{device} is not there: torch sees {torch.cuda.device_count()} cards")
    return index


def _class(device: str | torch.device | None) -> DeviceClass:
    named = _named(device)
    if named is not None:
        return named
    index = _index(device)
    assert index is not None
    return state.class_of_card(index)


def _named(device: str | torch.device | None) -> DeviceClass | None:
    """The shipped class of that name, or the one whose numbers lie beside its table."""
    if not isinstance(device, str):
        return None
    return DEVICE_CLASSES.get(device) or recorded_class(state.active()[0].path, device)
