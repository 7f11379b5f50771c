"""What ``whole`` and ``sliced``, which have the whole layer in one launch, are both asked."""

from __future__ import annotations

import re

from kernel_space.build.build import build
from kernel_space.check.memory import CheckMemory
from kernel_space.check.problem import exercises
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM90A
from kernel_space.core.rules import Legal
from kernel_space.launch.capture import capture
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from tests.operators.svdquant_linear_16bit.runs import OPERATOR, compiled, legal, problem, run


def both_outputs_are_right(text: str, shape: HalfLinearProblem, schedule: str) -> None:
    result, _, counters, is_right = run(text, shape, schedule=schedule)
    assert result.ok, str(result)
    assert is_right
    assert not counters.any(), "every launch leaves them zero"


def y_is_the_layer_by_hand(text: str) -> None:
    """In float64, from the operands as the layer means them."""
    shape = problem("5,416,40,16")
    _, tensors, _, _ = run(text, shape)
    x = tensors["x"].double()
    codes = NVFP4Tensor(codes=tensors["wgt"], scales=unblock_scales(tensors["wscales"], shape.n, shape.k))
    sums = (x / tensors["smooth"].double()) @ dequantize_nvfp4(codes).double().T
    sums += x @ unpack_lora_down(tensors["lora_down"], shape.k).double() @ tensors["lora_up"].double().T
    wanted = sums * tensors["wcscale"].double() + tensors["bias"].double()
    assert (tensors["y"].double() - wanted).norm() / wanted.norm() < 2**-7


def an_activation_is_right(text: str) -> None:
    result, _, _, is_right = run(text, problem("9,416,72,16", activation="gelu_tanh"))
    assert result.ok and is_right


def what_a_check_runs_on_is_legal(text: str) -> None:
    shape = problem("16,256,264,128", activation="gelu_tanh")
    found = legal(text, shape)
    assert isinstance(found, Legal), found
    small = exercises(found.config, shape, SM90A)
    assert small and all(isinstance(legal(text, one), Legal) for one, _ in small)


def bytes_that_nobody_writes_are_not_compared(text: str) -> None:
    shape = problem("3,416,40,16")
    found = legal(text, shape)
    assert isinstance(found, Legal)
    assert set(CheckMemory(found.config, shape, 0).outputs()) == {"lora_act_in", "y"}


def three_calls_overlap(text: str) -> None:
    shape = problem("9,416,136,16")
    kernel, config = compiled(text, shape)
    result = check_candidate(kernel, config, shape)
    assert result.ok, str(result)
    assert result.runs[0].calls == 3  # one launch a call, unlike the chains of this operator


def the_budget_is_what_the_launch_asks_for(text: str) -> None:
    shape = problem("17,672,72,48")
    found = legal(text, shape)
    assert isinstance(found, Legal)
    kernel = build(found.config, shape.problem_class, SM90A)
    pointers = {name: 1 << 20 for name in OPERATOR.signature.pointers}
    (launch,) = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=2))
    assert launch.smem_bytes == found.budget.smem_bytes <= found.budget.smem_limit


def mutated(text: str, pattern: str, into: str) -> tuple[bool, bool]:
    """(no finding, right and counters zero) of a run whose PTX was changed, and must have been."""
    shape = problem("17,672,72,48")
    changed, count = re.subn(pattern, into, compiled(text, shape)[0].ptx, flags=re.DOTALL)
    assert count
    result, _, counters, is_right = run(text, shape, ptx=changed)
    return result.ok, is_right and not counters.any()
