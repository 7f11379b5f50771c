"""Whether an activation is part of the layer's kernel on a card, or done after it.

Fused is what a tune of the layer with that activation recorded, unless the layer without it is so much faster that what
comes after it, one pass over y at the bandwidth of the card's memory, still ends sooner. That is the least a separate
kernel takes: it also has a launch. Without such a row it is separate, by kernels of torch.
"""

from __future__ import annotations

import dataclasses

import torch

from kernel_space.operators.svdquant_gemm.problem import SWIGLU
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tuner.devices.classes import DeviceClass
from tuner.layers.activations import as_kind, choice_of
from tuner.runtime import state
from tuner.runtime.choice.choose import Library
from tuner.runtime.choice.expected import us_of
from tuner.runtime.choice.remembered import MAX_CALLS, Recent

HALF_BYTES = 2


@dataclasses.dataclass(frozen=True)
class Fusion:
    """``fused``, and why, in one line."""

    fused: bool
    reason: str


_decided: Recent[tuple, Fusion] = Recent(MAX_CALLS, of_tables=True)


def is_fused(activations: str, problem: LinearProblem, device: torch.device) -> bool:
    """Of a call of ``problem``, which has an activation, on ``device``; decided once. ``activations``: a name of
    ``KINDS``.
    """
    device_class = state.supported_class(device.index) if device.type == "cuda" else None
    if device_class is None:
        return True  # the reference does both
    tables, generation = state.active()
    key = (generation, device_class, activations, problem)
    found = _decided.get(key)
    if found is None:
        found = decide_fusion(tables.library(device_class), device_class, activations, problem)
        _decided.put(key, found)
    return found.fused


def decide_fusion(
    library: Library, device_class: DeviceClass, activations: str, problem: LinearProblem
) -> Fusion:
    """By the rows that calls with and without the activation would launch: what they say of it."""
    asked = as_kind(activations, problem)
    fused, plain = (
        choice_of(library, asked),
        choice_of(library, dataclasses.replace(asked, activation="none")),
    )
    if fused is None or fused.row is None or fused.row.key.problem.options != asked.options:
        return Fusion(False, f"no row of activation={problem.activation} can be launched")
    if plain is None or plain.row is None:
        return Fusion(True, "no row without an activation can be launched")
    after = pass_us(problem, device_class)
    us, apart = us_of(fused, device_class), us_of(plain, device_class) + after
    told = f"{us:.4g} us, {apart:.4g} us with a pass of {after:.3g} us after it"
    return Fusion(us <= apart, told)


def pass_us(problem: LinearProblem, device_class: DeviceClass) -> float:
    """Reading y in 16 bits and writing the activation of it; 0 for a card whose bandwidth nobody told."""
    written = problem.n // 2 if problem.activation == SWIGLU else problem.n
    moved = problem.m * (problem.n + written) * HALF_BYTES
    return moved / device_class.dram_bytes_s * 1e6 if device_class.dram_bytes_s else 0.0
