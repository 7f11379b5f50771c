"""What a layer multiplies its weights with: activations in 16 bits as they are, or quantized to FP8 or to NVFP4.

Where there is no FP4 tensor core (Hopper) NVFP4 activations save nothing: they are quantized and then expanded again.
16-bit ones are closest to the original layer. ``auto`` takes what a card's table says is fastest of those that are at
least as accurate as NVFP4, which FP8 is where much of the weight is in its 4-bit part (``FP8_LEAST_SHARE``).
"""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem
from tuner.devices.classes import DeviceClass
from tuner.runtime import state
from tuner.runtime.choice.choice import Choice
from tuner.runtime.choice.choose import Library
from tuner.runtime.choice.expected import us_of
from tuner.runtime.choice.remembered import MAX_CALLS, Recent

AUTO, NVFP4, HALF, FP8 = "auto", "nvfp4", "16bit", "fp8"


@dataclasses.dataclass(frozen=True)
class Kind:
    """``problem``: of a layer's call with such activations. ``needs_peaks``: its kernels read wpeak. ``worth_from``:
    rows from which other rows of the table speak for it, and from which ``svdquant_autotune`` tunes it for an ``auto``
    that took another kind; 0: always, and never.
    """

    problem: type[LinearProblem]
    needs_peaks: bool = False
    worth_from: int = 0


KINDS = {
    HALF: Kind(HalfLinearProblem),
    # A layer of 3840 x 3072 takes 22 us (H200) however few rows there are, for merging, of which the time of a row of
    # many says nothing.
    FP8: Kind(Fp8LinearProblem, needs_peaks=True, worth_from=512),
    NVFP4: Kind(LinearProblem),
}
"""The most accurate first, for layers that may take FP8: that is taken where times say nothing."""
ACTIVATIONS = (AUTO, NVFP4, HALF, FP8)
OPERATORS = {name: kind.problem.operator for name, kind in KINDS.items()}
FP8_LEAST_SHARE = 0.25
"""Share of a weight in its 4-bit part (``residual_share``) from which ``auto`` may take FP8.

NVFP4 rounds activations for that part alone, FP8 all of x and of the merged weight. E4M3 is off by 2.6 % (rms) for each
and NVFP4 by 9 %, so the errors are equal at a share of 2 * 0.026^2 / 0.09^2 = 0.17. Measured against float64 (Gaussian
weights over strong directions, K 512 to 1024, rank 32) they are equal at 0.15 where columns of x have one size, and at
0.11 to 0.19 where some are up to 15 times larger and smoothing has strength 0.5; a share of all squares would be 0.15
to 0.45 there. Higher strengths lower that. Lower ones raise it: to 0.28 at most for 0.35 and for 0.2, but for 0.2 with
columns 40 times larger to 0.4.
"""
SAME = 1.05
"""Times of two tunes of one card that say nothing of which is faster: two of svdquant_gemm at 4352,3840,3072,128 ended
at 153.6 and 161.9 us (measured, H200, driver 580.159.04, 2026-11-22)."""
SAME_OF_TWO_CARDS = 1.1
"""The same of two cards of a class: two of svdquant_linear at 4352,3840,3072,128 ended at 161.9 and 175.0 us (measured,
two H200, driver 580.159.04, 2026-11-23)."""

SAME_ELSEWHERE = 1.2
"""The same where the faster time is expected from a row of other sizes: of NVFP4 activations 17.3, 23.4, 20.0 and 23.1
us were expected and 22.7, 28.8, 29.7 and 39.8 found at 16,12288,3072, 64,12288,3072, 1,15360,3840 and 16,15360,3840,
R = 128; 16 bits took 21.1, 26.4, 21.8 and 26.2 (measured, H200, driver 580.159.04, 2026-11-28). Of the 84 layers of
docs/evidence/results_h100.md and results_h200.md ``auto`` takes a kind within 3 % of the fastest with 1.2, and not with
1.1 nor with 1.25."""


@dataclasses.dataclass(frozen=True)
class Decision:
    """``activations``: a name of ``KINDS``; ``reason``: why, in one line."""

    activations: str
    reason: str


_decided: Recent[tuple, Decision] = Recent(MAX_CALLS, of_tables=True)


def require_activations(value: str) -> str:
    """Raises ``InputError`` for what is none of ``ACTIVATIONS``."""
    if value not in ACTIVATIONS:
        raise InputError(f"activations must be one of {', '.join(ACTIVATIONS)}, got {value!r}")
    return value


def decide(problem: LinearProblem, device: torch.device, *, has_peaks: bool) -> Decision:
    """What ``auto`` means for a call of ``problem`` on ``device``; decided once. ``has_peaks``: wpeak is at hand."""
    device_class = state.supported_class(device.index) if device.type == "cuda" else None
    if device_class is None:
        return Decision(NVFP4, "no kernel runs there")
    tables, generation = state.active()
    key = (generation, device_class, has_peaks, problem)
    found = _decided.get(key)
    if found is None:
        found = decide_on(tables.library(device_class), device_class, problem, has_peaks=has_peaks)
        _decided.put(key, found)
    return found


def decide_for(problem: LinearProblem, device_class: DeviceClass, *, has_peaks: bool = True) -> Decision:
    """As ``decide`` for a class of devices, on any machine; by default of a layer, which has wpeak."""
    return decide_on(state.active()[0].library(device_class), device_class, problem, has_peaks=has_peaks)


def decide_on(
    library: Library, device_class: DeviceClass, problem: LinearProblem, *, has_peaks: bool = True
) -> Decision:
    """By the rows of all kinds that a call of ``problem`` would launch: what they say of it (``us_of``).

    The fastest; of few rows of x not by what rows of many say (``Kind.worth_from``). Rows are of different tunes, and
    maybe of two cards; of those whose times say nothing against the fastest it is the most accurate. Kinds without a
    kernel are left out; where none has one, NVFP4: the call says what is missing.
    """
    times: dict[str, tuple[Choice, float]] = {}
    for name, kind in KINDS.items():
        choice = choice_of(library, as_kind(name, problem)) if has_peaks or not kind.needs_peaks else None
        if choice is None or choice.row is None:
            continue
        if problem.m >= kind.worth_from or choice.row.key.problem.sizes == problem.sizes:
            times[name] = choice, us_of(choice, device_class)
    if not times:
        return Decision(NVFP4, "no row can be launched")
    told = ", ".join(f"{name} {_told(*one)}" for name, one in times.items())
    if len(times) == 1:
        (only,) = times
        return Decision(only, f"{told}; no row of other activations can be launched")
    fastest, least = min(times.values(), key=lambda one: one[1])
    taken = next(name for name, (choice, us) in times.items() if us <= least * _same(choice, fastest))
    return Decision(taken, told)


def left_out(found: Decision, with_fp8: Decision, share: float | None) -> Decision:
    """``found`` for a layer that may not take FP8, and why, if ``with_fp8``, for one that may, looked at its times."""
    if found.reason == with_fp8.reason:
        return found
    known = "how much of the weight is in 4 bits is not known yet"
    if share is not None:
        known = (
            f"{share:.1%} of the weight is in 4 bits, below {FP8_LEAST_SHARE:.0%} nvfp4 may be more accurate"
        )
    return dataclasses.replace(found, reason=f"{found.reason}; fp8 left out: {known}")


def as_kind(activations: str, problem: LinearProblem) -> LinearProblem:
    """The problem of the same call with ``activations``, a name of ``KINDS``."""
    return KINDS[activations].problem(**{name: getattr(problem, name) for name in problem.forms()})


def alternatives(taken: str, problem: LinearProblem) -> list[LinearProblem]:
    """What ``auto``, which took ``taken`` for a call of ``problem``, may take once it is tuned."""
    return [
        as_kind(name, problem)
        for name, kind in KINDS.items()
        if name != taken and 0 < kind.worth_from <= problem.m
    ]


def choice_of(library: Library, problem: Problem) -> Choice | None:
    """What a call of ``problem`` would launch; None where there is no kernel for it."""
    try:
        return library.choose(problem)
    except InputError:
        return None


def _same(one: Choice, fastest: Choice) -> float:
    """How far apart the times of two rows may be and say nothing."""
    assert one.row is not None and fastest.row is not None
    if fastest.row.key.problem.sizes != fastest.launched.sizes:
        return SAME_ELSEWHERE
    of_one_card = one.row.evidence.get("card") == fastest.row.evidence.get("card")
    return SAME if of_one_card else SAME_OF_TWO_CARDS


def _told(choice: Choice, us: float) -> str:
    assert choice.row is not None
    known = choice.row.key.problem
    here = "" if known.sizes == choice.launched.sizes else f", {us:.4g} us expected here"
    return f"{choice.row.kind} {choice.row.time_us:.4g} us at {known}{here}"
