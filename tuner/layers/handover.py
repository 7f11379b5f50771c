"""Whether the first layer of an MLP quantizes its y for the second one, in its own kernel.

That is three launches in place of four or more: activations to NVFP4, ``svdquant_gemm_nvfp4``, ``svdquant_gemm``. The
second layer then never sees y in 16 bits, so it must have no low-rank branch. Bytes are the same either way.

It is done where a tune of ``svdquant_gemm_nvfp4`` recorded a row of these options, and the rows of the three add up to
less than those of both layers apart (``fusion`` says what an activation that is none of fc1's kernel adds).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from kernel_space.core.problem import Problem
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE, GemmProblem
from kernel_space.operators.svdquant_gemm_nvfp4.problem import QuantizedGemmProblem
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tuner.devices.classes import DeviceClass
from tuner.layers.activations import NVFP4, choice_of
from tuner.layers.fusion import Fusion, decide_fusion, pass_us
from tuner.runtime import state
from tuner.runtime.choice.choose import Library
from tuner.runtime.choice.expected import us_of
from tuner.runtime.choice.remembered import MAX_CALLS, Recent

_decided: Recent[tuple, Fusion] = Recent(MAX_CALLS, of_tables=True)


def hands_over(first: LinearProblem, second: LinearProblem, device: torch.device) -> bool:
    """Of a call of two layers on ``device``, ``first`` with the activation between them; decided once."""
    device_class = state.supported_class(device.index) if device.type == "cuda" else None
    if device_class is None:
        return False  # the reference makes y in 16 bits first, whoever quantizes it
    tables, generation = state.active()
    key = (generation, device_class, first, second)
    found = _decided.get(key)
    if found is None:
        found = decide_handover(tables.library(device_class), device_class, first, second)
        _decided.put(key, found)
    return found.fused


def decide_handover(
    library: Library, device_class: DeviceClass, first: LinearProblem, second: LinearProblem
) -> Fusion:
    """By the rows that the calls would launch: what they say of it."""
    if second.r:
        return Fusion(False, f"the branch of rank {second.r} behind it reads y in 16 bits")
    if second.k % K_MULTIPLE:
        return Fusion(False, f"{second.k} columns are no multiple of {K_MULTIPLE}")
    hidden = hidden_problem(first)
    made = [
        _us(library, device_class, one) for one in (_quantize_problem(first), hidden, last_problem(second))
    ]
    if made[1] is None:
        return Fusion(
            False, f"no row of svdquant_gemm_nvfp4 with activation={first.activation} can be launched"
        )
    together = _sum(made)
    if together is None:
        return Fusion(False, "not every one of its three launches has a row")
    apart = _sum([_first_us(library, device_class, first), _us(library, device_class, second)])
    if apart is None:
        return Fusion(True, "not both layers have a row")
    told = f"{together:.4g} us, {apart:.4g} us by layers"
    return Fusion(together <= apart, told)


def hidden_problem(first: LinearProblem) -> QuantizedGemmProblem:
    """The GEMM of the first layer, with its y quantized."""
    sizes: dict[str, Any] = dict(first.sizes)
    return QuantizedGemmProblem(
        **sizes, lora_dtype=first.dtype, out_dtype=first.dtype, activation=first.activation
    )


def last_problem(second: LinearProblem) -> GemmProblem:
    """The GEMM of the second layer."""
    sizes: dict[str, Any] = dict(second.sizes)
    return GemmProblem(**sizes, lora_dtype=second.dtype, out_dtype=second.dtype)


def _quantize_problem(first: LinearProblem) -> QuantizeProblem:
    return QuantizeProblem(m=first.m, k=first.k, r=first.r, x_dtype=first.dtype)


def _first_us(library: Library, device_class: DeviceClass, first: LinearProblem) -> float | None:
    plain = dataclasses.replace(first, activation="none")
    if first.activation == "none" or decide_fusion(library, device_class, NVFP4, first).fused:
        return _us(library, device_class, first)
    us = _us(library, device_class, plain)
    return None if us is None else us + pass_us(first, device_class)


def _us(library: Library, device_class: DeviceClass, problem: Problem) -> float | None:
    """What the row that a call would launch says of it; None without a row of these options."""
    choice = choice_of(library, problem)
    if choice is None or choice.row is None:
        return None
    return us_of(choice, device_class) if choice.row.key.problem.options == problem.options else None


def _sum(parts: list[float | None]) -> float | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
