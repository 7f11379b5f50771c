"""``merged`` executed: merged weights against torch, y against float64, ragged shapes, every schedule, races on; who
waits for whom, by breaking it.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch

from kernel_space.build.build import build
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import kernel_of
from kernel_space.core.rules import Legal, Rejection
from kernel_space.launch.capture import capture
from kernel_space.machine.run.run import run_compiled
from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from tests.operators.svdquant_linear_16bit import runs
from tests.operators.svdquant_linear_16bit.runs import OPERATOR, compiled, legal, problem

ALIGN = 256
PLAIN = "kernel=merged tile_mnk=64x16x64 consumer_warpgroups=1 num_ab_stage=3 merge_chunks=4"
PAIR = "kernel=merged tile_mnk=128x24x64 cluster_shape_mn=2x1 num_ab_stage=2 merge_chunks=5 use_pdl=true"
COLUMNS = "kernel=merged tile_mnk=128x16x64 cluster_shape_mn=1x2 num_ab_stage=2 merge_chunks=2"
STREAM = "kernel=merged tile_mnk=64x16x64 consumer_warpgroups=1 num_ab_stage=2 merge_chunks=3 stream_k=true"
checked = functools.partial(runs.checked, sms=lambda config: 2 * config.cluster_size)


@functools.cache
def run(text: str, shape: HalfLinearProblem) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """(all tensors, merged weights as they lie in the workspace) of one launch on usual numbers; not to change."""
    kernel, config = compiled(text, shape)
    named = {
        **OPERATOR.inputs(shape, 3, "gaussian", "cpu"),
        "xs": torch.zeros(shape.m, -(-shape.k // 64) * 64, dtype=torch.bfloat16),
        "lora_act_in": torch.zeros(shape.m, shape.r, dtype=torch.bfloat16),
        "y": torch.full((shape.m, shape.n), torch.nan, dtype=torch.bfloat16),
    }
    room = kernel_of(config, shape).room(config, shape)
    space = torch.zeros(room.size + ALIGN, dtype=torch.uint8)
    begin = -space.data_ptr() % ALIGN
    workspace = space[begin : begin + room.size]
    values = OPERATOR.signature.values(shape, {**named, "workspace": workspace}, clusters=2)
    assert run_compiled(kernel, *values, sms=4, schedule="eager", check_races=True).ok
    merged = workspace[-shape.n * shape.k * 2 :].view(torch.bfloat16).view(shape.n, shape.k)
    return named, merged


def by_hand(tensors: dict[str, torch.Tensor], shape: HalfLinearProblem) -> torch.Tensor:
    """``wgt / smooth + lora_up @ lora_down.T`` in float64, from the operands as the layer means them."""
    codes = NVFP4Tensor(codes=tensors["wgt"], scales=unblock_scales(tensors["wscales"], shape.n, shape.k))
    whole = dequantize_nvfp4(codes).double() / tensors["smooth"].double()
    if shape.r:
        whole += tensors["lora_up"].double() @ unpack_lora_down(tensors["lora_down"], shape.k).double().T
    return whole


@pytest.mark.parametrize("shape", ["3,352,136,48", "3,416,40,0"])
def test_weights_are_merged_with_one_rounding(shape: str) -> None:
    """To the bit, but where fp32 decides otherwise than float64 about a number near the middle of two: there a unit."""
    sizes = problem(shape)
    tensors, merged = run(PLAIN, sizes)
    wanted = by_hand(tensors, sizes)
    nearest = wanted.to(torch.bfloat16)
    differs = merged != nearest
    assert differs.double().mean() < 0.002
    away = (merged.double() - wanted).abs() / wanted.abs()
    assert (away[differs] < 1.01 * 2**-8).all()


def test_y_is_the_layer_by_hand() -> None:
    sizes = problem("21,352,136,48")
    tensors, _ = run(PAIR, sizes)
    wanted = tensors["x"].double() @ by_hand(tensors, sizes).T
    wanted = wanted * tensors["wcscale"].double() + tensors["bias"].double()
    assert (tensors["y"].double() - wanted).norm() / wanted.norm() < 2**-8


def test_it_is_no_less_exact_than_the_chain() -> None:
    """Roundings are those of weights alone: not of x / smooth, and not of lora_act_in, beside them."""
    sizes = problem("21,352,136,48")
    tensors, _ = run(PAIR, sizes)
    x, smooth = tensors["x"], tensors["smooth"]
    codes = NVFP4Tensor(codes=tensors["wgt"], scales=unblock_scales(tensors["wscales"], sizes.n, sizes.k))
    lora = (x.double() @ unpack_lora_down(tensors["lora_down"], sizes.k).double()).bfloat16().double()
    xs = (x.float() / smooth).bfloat16().double()
    chain = xs @ dequantize_nvfp4(codes).double().T + lora @ tensors["lora_up"].double().T
    wanted = x.double() @ by_hand(tensors, sizes).T
    affine = tensors["wcscale"].double(), tensors["bias"].double()
    chain_y, exact = ((sums * affine[0] + affine[1]) for sums in (chain, wanted))
    error = (tensors["y"].double() - exact).norm() / exact.norm()
    assert error < (chain_y.bfloat16().double() - exact).norm() / exact.norm()


CASES = [
    (PAIR, "29,224,136,48", {}),
    (STREAM, "37,416,136,48", {}),
]
SLOW_CASES = [
    (PLAIN, "37,928,136,16", {}),
    (PAIR, "61,352,264,128", {}),
    (COLUMNS, "61,992,264,32", {}),
    (PLAIN, "1,32,8,0", {}),
    (PAIR, "61,352,264,48", {"activation": "gelu_tanh"}),
    (PAIR, "61,352,272,0", {"activation": "swiglu"}),
    (PLAIN.replace("merge_chunks=4", "merge_chunks=16"), "18,1120,136,256", {}),
    (PLAIN.replace("merge_chunks=4", "merge_chunks=12"), "18,736,136,512", {}),
    ("kernel=merged tile_mnk=128x200x64 cluster_shape_mn=2x1 use_pdl=true", "300,1056,264,128", {}),
    ("kernel=merged tile_mnk=256x40x64 cluster_shape_mn=1x2 stream_k=true", "130,416,520,80", {}),
]
KEPT_FROM = {"slow_tma"}  # of a warp that polls: it keeps the copies that it waits for from completing


@pytest.mark.parametrize(
    ("text", "shape", "options"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
@pytest.mark.parametrize(
    "schedule",
    ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in SCHEDULES if name != "random")],
)
def test_y_is_right(schedule: str, text: str, shape: str, options: dict[str, str]) -> None:
    if schedule in KEPT_FROM and "stream_k=true" in text:
        pytest.skip("a warp that polls keeps the machine's slow copies from completing")
    result = checked(text, problem(shape, **options), schedule=schedule)
    assert result.ok, str(result)


@pytest.mark.slow
def test_all_that_a_search_checks() -> None:
    shape = problem("61,352,264,48")
    kernel, config = compiled(PAIR, shape)
    result = check_candidate(kernel, config, shape)
    assert result.ok, str(result)
    assert result.bitwise
    assert result.runs[0].calls > 1


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "rule"),
    [
        (PLAIN, "40,416,72,16", "fp16", "dtype"),
        (PLAIN.replace("64x16x64", "64x16x128"), "40,416,72,16", "bf16", "tile_k"),
        (PAIR.replace("2x1", "2x2"), "40,416,72,16", "bf16", "cluster_shape"),
        (PLAIN.replace("num_ab_stage=3", "num_ab_stage=1"), "40,416,72,16", "bf16", "stages"),
        (PLAIN.replace("merge_chunks=4", "merge_chunks=7"), "40,416,72,16", "bf16", "merge_chunks"),
        (PAIR.replace("num_ab_stage=2", "num_ab_stage=16"), "40,416,72,16", "bf16", "smem_capacity"),
    ],
)
def test_rules(text: str, shape: str, dtype: str, rule: str) -> None:
    found = legal(text, problem(shape, dtype))
    assert isinstance(found, Rejection) and found.rule == rule


@pytest.mark.parametrize(
    ("text", "r"), [(PLAIN, 48), pytest.param(PAIR, 512, marks=pytest.mark.slow), (STREAM, 0)]
)
def test_the_budget_is_what_both_launches_ask_for(text: str, r: int) -> None:
    shape = problem(f"17,672,72,{r}")
    found = legal(text, shape)
    assert isinstance(found, Legal)
    kernel = build(found.config, shape.problem_class, SM90A)
    pointers = {name: 1 << 20 for name in OPERATOR.signature.pointers}
    launches = capture(kernel, *OPERATOR.signature.values(shape, pointers, clusters=2))
    parts: Any = found.budget
    assert [one.smem_bytes for one in launches] == [part.smem_bytes for _, part in parts.parts]
    assert found.budget.smem_bytes == max(one.smem_bytes for one in launches)


# -- y that is wrong --


@pytest.fixture(scope="module")
def right() -> tuple[dict[str, torch.Tensor], HalfLinearProblem, Any]:
    sizes = problem("21,352,136,48")
    tensors, _ = run(PAIR, sizes)
    return tensors, sizes, compiled(PAIR, sizes)[1]


def judged(right: Any, y: torch.Tensor) -> bool:
    tensors, sizes, config = right
    return OPERATOR.check(sizes, {**tensors, "y": y}, config)["y"].ok


def product(right: Any, weights: torch.Tensor) -> torch.Tensor:
    tensors, _, _ = right
    sums = tensors["x"].double() @ weights.double().T
    return (sums * tensors["wcscale"].double() + tensors["bias"].double()).bfloat16()


def test_a_right_y_is_right(right: Any) -> None:
    tensors, sizes, _ = right
    assert judged(right, tensors["y"])
    assert judged(right, product(right, by_hand(tensors, sizes).bfloat16()))


def test_weights_that_are_cut_off_are_seen(right: Any) -> None:
    tensors, sizes, _ = right
    cut = (by_hand(tensors, sizes).float().view(torch.int32) & ~0xFFFF).view(torch.float32)
    assert not judged(right, product(right, cut))


def test_a_branch_that_is_not_merged_is_seen(right: Any) -> None:
    tensors, sizes, _ = right
    without = by_hand({**tensors, "lora_up": torch.zeros_like(tensors["lora_up"])}, sizes)
    assert not judged(right, product(right, without.bfloat16()))


def test_one_element_that_is_wrong_is_seen(right: Any) -> None:
    y = right[0]["y"].clone()
    y[20, 135] *= 1 + 2**-5
    assert not judged(right, y)


# -- kernels that are wrong --


@pytest.mark.parametrize(
    ("pattern", "into", "count"),
    [
        pytest.param(r"griddepcontrol\.wait;", "", 0, marks=pytest.mark.slow),
        pytest.param(r"st\.global\.v4\.b32", "// st.global.v4.b32", 1, marks=pytest.mark.slow),
        pytest.param(r"stmatrix", "// stmatrix", 1, marks=pytest.mark.slow),
        pytest.param(
            r"(mul\.lo\.[su]32[^;]+, )0x1001;|(mul\.lo\.[su]32[^;]+, )4097;",
            r"\g<1>\g<2>0x1000;",
            0,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["nobody waits", "a line is not stored", "a piece is not turned", "the low code is lost"],
)
def test_a_broken_kernel_is_seen(pattern: str, into: str, count: int) -> None:
    shape = problem("37,352,136,48")
    changed, found = re.subn(pattern, into, compiled(PAIR, shape)[0].ptx, count=count)
    assert found
    assert not checked(PAIR, shape, ptx=changed).ok


def test_a_slot_that_is_filled_too_early_is_seen() -> None:
    """Of lora_down: warp 0 asks whether all warps have multiplied it. Without the question the copy races."""
    shape = problem("5,672,136,48")
    text = PLAIN.replace("merge_chunks=4", "merge_chunks=12")
    ptx = compiled(text, shape)[0].ptx
    question = r"mbarrier\.try_wait\.parity\.shared\.b64 P1, \[%r\d+\], %r\d+, \d+;"
    copy = r"cp\.async\.bulk\.shared::cluster\.global\.mbarrier"  # of lora_down; others are of tensors
    found = re.findall(rf"{question}(?:(?!try_wait|wgmma).)*?{copy}", ptx, re.DOTALL)
    assert len(found) == 1, "the one refill"
    broken = re.sub(question, "setp.eq.s32 P1, 0, 0;", found[0])
    assert not checked(text, shape, ptx=ptx.replace(found[0], broken)).ok
