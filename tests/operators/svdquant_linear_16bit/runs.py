"""What tests of all kernels of ``svdquant_linear_16bit`` do with a config and a problem."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from kernel_space.build.build import build
from kernel_space.check.one_problem import ProblemCheck
from kernel_space.check.result import CheckResult
from kernel_space.core.arch import SM90A
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of, operator, parse_config
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.launch.capture import capture
from kernel_space.machine.memory.global_memory import GlobalMemory
from kernel_space.machine.run.launch import add_tensor
from kernel_space.machine.run.run import run_compiled, run_launch
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

OPERATOR = operator("svdquant_linear_16bit")
ALIGN = 256
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def problem(shape: str, dtype: str = "bf16", **options: Any) -> HalfLinearProblem:
    return HalfLinearProblem.parse(shape, dtype=dtype, **options)


def legal(text: str, shape: Problem) -> Legal | Rejection:
    """Of the layer's operators, this one's or a sibling's."""
    return legalize(parse_config(shape.operator, SM90A, text), shape, SM90A)


def compiled(text: str, shape: Problem) -> tuple[Any, Any]:
    found = legal(text, shape)
    assert isinstance(found, Legal), found
    return build(found.config, shape.problem_class, SM90A), found.config


def checked(
    text: str, shape: Problem, *, sms: Callable[[Any], int], schedule: str = "random", ptx: str = ""
) -> CheckResult:
    """One run on this very problem, the first schedule's calls in a row. ``sms``: of a config, how many there are."""
    kernel, config = compiled(text, shape)
    check = ProblemCheck(
        kernel, config, shape, sms(config), check_races=True, seed=3, ptx=ptx or None, in_a_row=True
    )
    check.run(schedule, None)
    return check.result()


def workspace(config: Any, shape: Problem) -> torch.Tensor:
    """Of one launch, aligned as a launch's is, all zeros."""
    size = kernel_of(config, shape).room(config, shape).size
    space = torch.zeros(size + ALIGN, dtype=torch.uint8)
    begin = -space.data_ptr() % ALIGN
    return space[begin : begin + size]


def outputs(shape: HalfLinearProblem) -> dict[str, torch.Tensor]:
    """Filled so that what is not written is seen; ``xs``, which nobody writes, with zeros."""
    return {
        "xs": torch.zeros(shape.m, -(-shape.k // 64) * 64, dtype=torch.bfloat16),
        "lora_act_in": torch.full((shape.m, shape.r), torch.nan, dtype=torch.bfloat16),
        "y": torch.full((shape.m, shape.n), torch.nan, dtype=torch.bfloat16),
    }


def run(
    text: str, shape: HalfLinearProblem, *, ptx: str | None = None, schedule: str = "random"
) -> tuple[Any, dict[str, torch.Tensor], torch.Tensor, bool]:
    """(the run, all tensors, the counters, whether every output is right); outputs begin as NaN."""
    kernel, config = compiled(text, shape)
    half = DTYPES[shape.dtype]
    tensors = {
        **OPERATOR.inputs(shape, 3, "gaussian", "cpu"),
        "xs": torch.full((shape.m, -(-shape.k // 64) * 64), torch.nan, dtype=half),
        "lora_act_in": torch.full((shape.m, shape.r), torch.nan, dtype=half),
        "y": torch.full((shape.m, shape.n), torch.nan, dtype=half),
    }
    room = kernel_of(config, shape).room(config, shape)
    space = torch.zeros(room.size + ALIGN, dtype=torch.uint8)
    workspace = space[-space.data_ptr() % ALIGN :]
    memory = GlobalMemory()
    named = {**tensors, "workspace": workspace}
    for name, tensor in named.items():
        add_tensor(memory, tensor, name)
    pointers = {name: tensor.data_ptr() for name, tensor in named.items()}
    (launch,) = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=2))
    result = run_launch(
        launch, ptx or kernel.ptx, memory, sms=16, schedule=schedule, seed=1, check_races=True
    )
    checks = OPERATOR.check(shape, tensors, config)
    return result, tensors, workspace[: room.zeroed], all(check.ok for check in checks.values())


@functools.cache
def launched(text: str, shape: HalfLinearProblem) -> dict[str, torch.Tensor]:
    """All tensors of one launch on usual numbers, the counters behind it among them; not to change."""
    kernel, config = compiled(text, shape)
    named = {**OPERATOR.inputs(shape, 3, "gaussian", "cpu"), **outputs(shape)}
    named["workspace"] = workspace(config, shape)
    values = OPERATOR.signature.values(shape, named, clusters=2)
    assert run_compiled(kernel, *values, sms=8, schedule="eager", check_races=True).ok
    return named


def weights_by_hand(tensors: dict[str, torch.Tensor], shape: HalfLinearProblem) -> torch.Tensor:
    """``wgt * (1 / smooth)``, the reciprocal in 16 bits, rounded once: fp32 of 16-bit numbers."""
    codes = NVFP4Tensor(codes=tensors["wgt"], scales=unblock_scales(tensors["wscales"], shape.n, shape.k))
    inverse = (1 / tensors["smooth"]).bfloat16()
    return (dequantize_nvfp4(codes).double() * inverse.double()).bfloat16().float()


def y_by_hand(
    tensors: dict[str, torch.Tensor], shape: HalfLinearProblem, weights: torch.Tensor
) -> torch.Tensor:
    sums = tensors["x"].double() @ weights.double().T
    if shape.r:
        sums += tensors["lora_act_in"].double() @ tensors["lora_up"].double().T
    return sums * tensors["wcscale"].double() + tensors["bias"].double()


def is_the_layer_by_hand(text: str, sizes: HalfLinearProblem) -> None:
    """One launch against the formula, and counters that the next one finds zero."""
    tensors = launched(text, sizes)
    branch = tensors["x"].double() @ unpack_lora_down(tensors["lora_down"], sizes.k).double()
    assert (tensors["lora_act_in"].double() - branch).norm() / branch.norm() < 2**-8
    wanted = y_by_hand(tensors, sizes, weights_by_hand(tensors, sizes))
    assert (tensors["y"].double() - wanted).norm() / wanted.norm() < 2**-8
    assert not tensors["workspace"].any(), "counters of the next launch"


def reads_its_weights(text: str, sizes: HalfLinearProblem, off: float = 0.0, **given: torch.Tensor) -> None:
    """x with a single one in each of 16 rows, R = 0: y is the weight that the kernel has made, to the bit, or ``off``
    by so much of it or of the least normal number. ``given``: inputs in place of usual ones.
    """
    kernel, _ = compiled(text, sizes)
    tensors = {**OPERATOR.inputs(sizes, 5, "gaussian", "cpu"), **outputs(sizes), **given}
    tensors["wcscale"].fill_(1.0)
    tensors["bias"].fill_(0.0)
    wanted = weights_by_hand(tensors, sizes)
    for begin in range(0, sizes.k, sizes.m):
        tensors["x"] = torch.zeros(sizes.m, sizes.k, dtype=torch.bfloat16)
        tensors["x"][torch.arange(sizes.m), begin + torch.arange(sizes.m)] = 1.0
        values = OPERATOR.signature.values(
            sizes, {**tensors, "workspace": torch.zeros(0, dtype=torch.uint8)}, clusters=2
        )
        assert run_compiled(kernel, *values, sms=8, schedule="eager").ok
        found, expected = tensors["y"].double(), wanted[:, begin : begin + sizes.m].T.double()
        assert torch.allclose(found, expected, rtol=off, atol=off * 2.0**-126)


def right_by(text: str, shape: str) -> tuple[dict[str, torch.Tensor], HalfLinearProblem, Any]:
    """Tensors of one launch, its problem and its config."""
    sizes = problem(shape)
    return launched(text, sizes), sizes, compiled(text, sizes)[1]


def judged(right: Any, **changed: torch.Tensor) -> dict[str, bool]:
    """Of each output of ``right_by`` whether the check takes it, some ``changed``."""
    tensors, sizes, config = right
    return {name: one.ok for name, one in OPERATOR.check(sizes, {**tensors, **changed}, config).items()}


def is_right_and_so_is_the_formula(right: Any) -> None:
    """What was launched, and y by hand in its place."""
    tensors, sizes, _ = right
    assert all(judged(right).values())
    assert judged(right, y=y_by_hand(tensors, sizes, weights_by_hand(tensors, sizes)).bfloat16())["y"]
