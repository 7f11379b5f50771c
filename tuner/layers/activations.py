"""What a layer multiplies its weights with: activations quantized to NVFP4, or in 16 bits as they are.

Where there is no FP4 tensor core (Hopper) NVFP4 activations save nothing: they are quantized and then expanded again.
16-bit ones are closer to the original layer. ``auto`` takes whichever a card's table says is faster.
"""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from tuner.devices.classes import DeviceClass
from tuner.runtime import state
from tuner.runtime.choice.choice import Choice
from tuner.runtime.choice.choose import Library
from tuner.runtime.choice.expected import us_of
from tuner.runtime.choice.remembered import MAX_CALLS, Recent

AUTO, NVFP4, HALF = "auto", "nvfp4", "16bit"
ACTIVATIONS = (AUTO, NVFP4, HALF)
SAME = 1.05
"""Times of two tunes of one card that say nothing of which is faster: two of svdquant_gemm at 4352,3840,3072,128 ended
at 153.6 and 161.9 us (measured, H200, driver 580.159.04, 2026-11-22)."""
SAME_OF_TWO_CARDS = 1.1
"""The same of two cards of a class: two of svdquant_linear at 4352,3840,3072,128 ended at 161.9 and 175.0 us (measured,
two H200, driver 580.159.04, 2026-11-23)."""
OPERATORS = {NVFP4: "svdquant_linear", HALF: "svdquant_linear_16bit"}


@dataclasses.dataclass(frozen=True)
class Decision:
    """``activations``: ``nvfp4`` or ``16bit``; ``reason``: why, in one line."""

    activations: str
    reason: str


_decided: Recent[tuple, Decision] = Recent(MAX_CALLS, of_tables=True)


def require_activations(value: str) -> str:
    """Raises ``InputError`` for what is none of ``ACTIVATIONS``."""
    if value not in ACTIVATIONS:
        raise InputError(f"activations must be one of {', '.join(ACTIVATIONS)}, got {value!r}")
    return value


def decide(problem: LinearProblem, device: torch.device) -> Decision:
    """What ``auto`` means for a call of ``problem`` on ``device``; decided once."""
    device_class = state.supported_class(device.index) if device.type == "cuda" else None
    if device_class is None:
        return Decision(NVFP4, "no kernel runs there")
    tables, generation = state.active()
    key = (generation, device_class, problem)
    found = _decided.get(key)
    if found is None:
        found = decide_on(tables.library(device_class), device_class, problem)
        _decided.put(key, found)
    return found


def decide_for(problem: LinearProblem, device_class: DeviceClass) -> Decision:
    """As ``decide`` for a class of devices, on any machine."""
    return decide_on(state.active()[0].library(device_class), device_class, problem)


def decide_on(library: Library, device_class: DeviceClass, problem: LinearProblem) -> Decision:
    """By the rows of both operators that a call of ``problem`` would launch: what they say of it (``us_of``).

    Rows are of different tunes, and maybe of two cards; where their times say nothing it is 16 bits, the more accurate.
    Where one operator has no kernel it is the other; where neither has, NVFP4: the call says what is missing.
    """
    nvfp4 = choice_of(library, problem)
    half = choice_of(library, half_problem(problem))
    if half is None or half.row is None:
        return Decision(NVFP4, "no row of 16-bit activations can be launched")
    if nvfp4 is None or nvfp4.row is None:
        return Decision(HALF, "no row of NVFP4 activations can be launched")
    first, second = us_of(nvfp4, device_class), us_of(half, device_class)
    taken = NVFP4 if first * _same(nvfp4, half) < second else HALF
    return Decision(taken, f"{NVFP4} {_told(nvfp4, first)}, {HALF} {_told(half, second)}")


def half_problem(problem: LinearProblem) -> HalfLinearProblem:
    return HalfLinearProblem(**{name: getattr(problem, name) for name in problem.forms()})


def choice_of(library: Library, problem: Problem) -> Choice | None:
    """What a call of ``problem`` would launch; None where there is no kernel for it."""
    try:
        return library.choose(problem)
    except InputError:
        return None


def _same(one: Choice, other: Choice) -> float:
    """How far apart the times of two rows may be and say nothing."""
    assert one.row is not None and other.row is not None
    of_one_card = one.row.evidence.get("card") == other.row.evidence.get("card")
    return SAME if of_one_card else SAME_OF_TWO_CARDS


def _told(choice: Choice, us: float) -> str:
    assert choice.row is not None
    known = choice.row.key.problem
    here = "" if known.sizes == choice.launched.sizes else f", {us:.4g} us expected here"
    return f"{choice.row.kind} {choice.row.time_us:.4g} us at {known}{here}"
