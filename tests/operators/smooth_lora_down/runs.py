"""Compile a config of a kernel of the operator and run it in the machine, once per process and case."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import tempfile
from pathlib import Path
from typing import Any

import torch

from kernel_space.build.dsl_compile import Artifacts, compile_function
from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import SM90A
from kernel_space.core.config import kernel_name
from kernel_space.core.registry import kernel
from kernel_space.core.rules import Legal, legalize
from kernel_space.machine import run_compiled
from kernel_space.machine.run.launch import Exported
from kernel_space.operators.smooth_lora_down.operator import OPERATOR
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.signature import SIGNATURE

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "uint8": torch.uint8}
UNTOUCHED = 0xA5
SMS = 16


def legal_config(text: str, r: int, x_dtype: str, smooth: str) -> tuple[Legal, SmoothProblem]:
    """Of ``kernel=NAME knob=value …``, for a problem of a layer."""
    problem = SmoothProblem(m=4352, k=3840, r=r, x_dtype=x_dtype, smooth=smooth)
    config = kernel("smooth_lora_down", kernel_name(text)).config_class.parse(text)
    legal = legalize(config, problem, SM90A)
    assert isinstance(legal, Legal), legal
    return legal, problem


@functools.cache
def compiled(text: str, r: int, x_dtype: str = "fp16", smooth: str = "fp32") -> Artifacts:
    """PTX, cubin and object of a legal config."""
    legal, problem = legal_config(text, r, x_dtype, smooth)
    import_dsl(SM90A.name)
    module = importlib.import_module(kernel("smooth_lora_down", legal.config.kernel).source)
    function, arguments = module.host_function(legal.config, problem.problem_class, SM90A)
    _, artifacts = compile_function(function, arguments, {}, arch=SM90A.name, prefix="smooth")
    return artifacts


@functools.cache
def exported(text: str, r: int, x_dtype: str, smooth: str) -> Exported:
    artifacts = compiled(text, r, x_dtype, smooth)
    path = Path(tempfile.mkdtemp(prefix="smooth-")) / "kernel.o"
    path.write_bytes(artifacts.object_code)
    return Exported(artifacts.ptx, path, artifacts.prefix, SIGNATURE.abi)


def run(
    problem: SmoothProblem,
    text: str,
    *,
    source: str = "gaussian",
    inputs: dict[str, torch.Tensor] | None = None,
    ptx: str | None = None,
    **options: Any,
) -> tuple[Any, dict[str, torch.Tensor], dict[str, Any]]:
    """(the run, inputs and outputs, how each output compares) on inputs of ``source``, but those given. ``ptx`` runs in
    place of the kernel's own.
    """
    one = exported(text, problem.r, problem.x_dtype, problem.smooth)
    if ptx is not None:
        one = dataclasses.replace(one, ptx=ptx)
    legal, _ = legal_config(text, problem.r, problem.x_dtype, problem.smooth)
    inputs = {**OPERATOR.inputs(problem, problem.m, source, "cpu"), **(inputs or {})}
    specs = {name: spec for name, spec in SIGNATURE.tensors(problem).items() if name not in inputs}
    outputs = {
        name: torch.full((spec.nbytes,), UNTOUCHED, dtype=torch.uint8)
        .view(DTYPES[spec.dtype])
        .view(spec.shape)
        for name, spec in specs.items()
    }
    tensors = {**inputs, **outputs}
    pointers = {name: tensor if tensor.numel() else 0 for name, tensor in tensors.items()}
    values = SIGNATURE.values(problem, pointers, clusters=SMS)
    result = run_compiled(one, *values[:-1], sms=SMS, **options)
    return result, tensors, OPERATOR.check(problem, tensors, legal.config)


def right(problem: SmoothProblem, text: str, **options: Any) -> None:
    """The run is without a finding, and every output is right."""
    result, _, found = run(problem, text, **options)
    assert result.ok, str(result)
    assert all(one.ok for one in found.values()), {name: str(one) for name, one in found.items()}
