"""Compile a config of ``wide`` or ``narrow`` and run it in the machine."""

from __future__ import annotations

from typing import Any

import torch

from kernel_space.build.build import build
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import kernel_of, parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.launch.capture import capture
from kernel_space.machine.memory.global_memory import GlobalMemory
from kernel_space.machine.run.launch import add_tensor
from kernel_space.machine.run.run import run_launch
from kernel_space.numerics.output_check import OutputCheck
from kernel_space.operators.svdquant_gemm_16bit.operator import OPERATOR
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.signature import SIGNATURE

LAYER = HalfGemmProblem.parse("4352,3840,3072,128")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
ALIGN = 256


def legal(text: str, problem: HalfGemmProblem = LAYER) -> Legal:
    """Of ``knob=value …`` of ``wide``, or with ``kernel=NAME`` before that."""
    named = text if text.startswith("kernel=") else f"kernel=wide {text}"
    found = legalize(parse_config(OPERATOR.name, SM90A, named), problem, SM90A)
    assert isinstance(found, Legal), found
    return found


def ptx_of(text: str, problem: HalfGemmProblem = LAYER) -> str:
    return build(legal(text, problem).config, problem.problem_class, SM90A).ptx


def run(
    text: str,
    problem: HalfGemmProblem,
    *,
    source: str = "scales",
    inputs: dict[str, torch.Tensor] | None = None,
    ptx: str | None = None,
    schedule: str = "random",
    clusters: int = 2,
    check_races: bool = True,
) -> tuple[Any, torch.Tensor, OutputCheck]:
    """(the run, y, how it compares) on inputs of ``source``, but those given. ``y`` begins as NaN, what is not zeroed
    of the workspace as large numbers. ``ptx`` runs in place of the kernel's own.
    """
    config = legal(text, problem).config
    compiled = build(config, problem.problem_class, SM90A)
    inputs = {**OPERATOR.inputs(problem, 3, source, "cpu"), **(inputs or {})}
    y = torch.full((problem.m, problem.out_columns), torch.nan, dtype=DTYPES[problem.dtype])
    room = kernel_of(config, problem).room(config, problem)
    space = torch.full((room.size + ALIGN,), 0x7F, dtype=torch.uint8)
    workspace = space[-space.data_ptr() % ALIGN :]
    workspace[: room.zeroed] = 0
    tensors = {**inputs, "y": y, "workspace": workspace}
    memory = GlobalMemory()
    for name, tensor in tensors.items():
        add_tensor(memory, tensor, name)
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
    (launch,) = capture(compiled, *SIGNATURE.values(problem, pointers, clusters=clusters))
    result = run_launch(
        launch, ptx or compiled.ptx, memory, sms=16, schedule=schedule, seed=1, check_races=check_races
    )
    assert ptx is not None or not workspace[: room.zeroed].any(), "counters must be zeros again"
    return result, y, OPERATOR.check(problem, tensors, config)["y"]


def right(text: str, problem: HalfGemmProblem, **options: Any) -> None:
    """The run is without a finding, and y is right."""
    result, _, found = run(text, problem, **options)
    assert result.ok, str(result)
    assert found.ok, str(found)
