"""``whole`` executed: both kinds of CTAs, ragged shapes, every schedule, races on; who waits for whom, by breaking
it.
"""

from __future__ import annotations

import re

import pytest

from kernel_space.build.build import build
from kernel_space.check.memory import CheckMemory
from kernel_space.check.problem import exercises
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM90A
from kernel_space.core.rules import Legal, Rejection
from kernel_space.launch.capture import capture
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from tests.operators.svdquant_linear_16bit.runs import OPERATOR, compiled, legal, problem, run

FEW = "kernel=whole tile_mnk=32x8x128"
SHARED = "kernel=whole tile_mnk=64x16x128 split_k=2 num_ab_stage=2 num_dq_stage=1 use_pdl=true"
PLAIN = "kernel=whole tile_mnk=128x32x128 consumer_warpgroups=2 num_ab_stage=3 dequant_ahead=0 split_k=3"


CASES = [(FEW, "3,416,40,16", "bf16"), (SHARED, "17,672,72,48", "fp16")]
SLOW_CASES = [
    (FEW, "1,32,8,0", "fp16"),
    (FEW, "30,1184,136,272", "bf16"),
    (SHARED, "33,1376,136,128", "bf16"),
    (PLAIN, "40,672,264,128", "fp16"),
    ("kernel=whole tile_mnk=32x16x128 split_k=8 use_pdl=true", "16,3840,64,128", "fp16"),
    ("kernel=whole tile_mnk=64x8x128 ctas_per_sm=2 split_k=5 consumer_warpgroups=2", "30,416,136,48", "bf16"),
    ("kernel=whole tile_mnk=64x64x128 num_ab_stage=6 num_dq_stage=1", "70,416,72,32", "bf16"),
]


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
@pytest.mark.parametrize(
    "schedule",
    ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES if name != "random")],
)
def test_both_outputs_are_right(schedule: str, text: str, shape: str, dtype: str) -> None:
    result, _, counters, is_right = run(text, problem(shape, dtype), schedule=schedule)
    assert result.ok, str(result)
    assert is_right
    assert not counters.any(), "every launch leaves them zero"


def test_y_is_the_layer_by_hand() -> None:
    """In float64, from the operands as the layer means them."""
    shape = problem("5,416,40,16")
    _, tensors, _, _ = run(FEW, shape)
    x = tensors["x"].double()
    codes = NVFP4Tensor(codes=tensors["wgt"], scales=unblock_scales(tensors["wscales"], shape.n, shape.k))
    sums = (x / tensors["smooth"].double()) @ dequantize_nvfp4(codes).double().T
    sums += x @ unpack_lora_down(tensors["lora_down"], shape.k).double() @ tensors["lora_up"].double().T
    wanted = sums * tensors["wcscale"].double() + tensors["bias"].double()
    assert (tensors["y"].double() - wanted).norm() / wanted.norm() < 2**-7


def test_an_activation() -> None:
    result, _, _, is_right = run(SHARED, problem("9,416,72,16", activation="gelu_tanh"))
    assert result.ok and is_right


def test_what_a_check_runs_on_is_legal() -> None:
    shape = problem("16,256,264,128", activation="gelu_tanh")
    found = legal(SHARED, shape)
    assert isinstance(found, Legal), found
    small = exercises(found.config, shape, SM90A)
    assert small and all(isinstance(legal(SHARED, one), Legal) for one, _ in small)


def test_bytes_that_nobody_writes_are_not_compared() -> None:
    shape = problem("3,416,40,16")
    found = legal(FEW, shape)
    assert isinstance(found, Legal)
    assert set(CheckMemory(found.config, shape, 0).outputs()) == {"lora_act_in", "y"}


@pytest.mark.slow
def test_three_calls_that_overlap() -> None:
    shape = problem("9,416,136,16")
    kernel, config = compiled(SHARED, shape)
    result = check_candidate(kernel, config, shape)
    assert result.ok, str(result)
    assert result.runs[0].calls == 3  # one launch a call, unlike the chains of this operator


@pytest.mark.parametrize(
    ("text", "shape", "rule"),
    [
        ("kernel=whole tile_mnk=32x32x128 num_ab_stage=2", "40,416,72,16", "down"),
        ("kernel=whole tile_mnk=32x8x128", "33,416,72,16", "tile_columns"),
        ("kernel=whole tile_mnk=32x8x128 ctas_per_sm=5", "3,416,72,16", "ctas_per_sm"),
    ],
)
def test_rules(text: str, shape: str, rule: str) -> None:
    found = legal(text, problem(shape))
    assert isinstance(found, Rejection) and found.rule == rule


def test_slots_of_weights_hold_a_unit_of_x() -> None:
    """What the rule ``down`` counts with, against what the kernel allocates."""
    from kernel_space.operators.svdquant_gemm_16bit.narrow.layouts import XS_ROW
    from kernel_space.operators.svdquant_linear_16bit.whole.layouts import SLOT_BYTES
    from kernel_space.operators.svdquant_linear_16bit.whole.rules import SLOT_COLUMNS

    assert SLOT_BYTES // XS_ROW == SLOT_COLUMNS


@pytest.mark.parametrize("text", [pytest.param(FEW, marks=pytest.mark.slow), SHARED])
def test_the_budget_is_what_the_launch_asks_for(text: str) -> None:
    shape = problem("17,672,72,48")
    found = legal(text.replace("32x8x128", "32x16x128"), shape)
    assert isinstance(found, Legal)
    kernel = build(found.config, shape.problem_class, SM90A)
    pointers = {name: 1 << 20 for name in OPERATOR.signature.pointers}
    (launch,) = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=2))
    assert launch.smem_bytes == found.budget.smem_bytes <= found.budget.smem_limit


# -- kernels that are wrong --


def mutated(pattern: str, into: str) -> tuple[bool, bool]:
    """(no finding, right and counters zero) of a run of ``SHARED`` whose PTX was changed, and must have been."""
    shape = problem("17,672,72,48")
    changed, count = re.subn(pattern, into, compiled(SHARED, shape)[0].ptx, flags=re.DOTALL)
    assert count
    result, _, counters, is_right = run(SHARED, shape, ptx=changed)
    return result.ok, is_right and not counters.any()


@pytest.mark.parametrize(
    ("pattern", "into"),
    [
        (r"and\.b32 (%r\d+), s, u;", r"mov.b32 \1, 1;"),
        (r"st\.relaxed\.gpu(\.global\.v2\.b64 \[[^]]*\], \{a, b\})", r"st\1"),
        (r"ld\.relaxed\.gpu(\.global\.v2\.b64)", r"ld\1"),
        pytest.param(r"st\.relaxed\.gpu\.global\.v2\.b64 \[[^]]*\], \{a, a\};", "", marks=pytest.mark.slow),
    ],
    ids=["nobody waits for pairs", "a weak store", "a weak load", "nobody clears the pairs"],
)
def test_columns_that_are_not_handed_over_are_seen(pattern: str, into: str) -> None:
    assert not all(mutated(pattern, into))
