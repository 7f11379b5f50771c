"""The layer and its parts on a card: autocast, activations that are not finite, ranks that no row has.

Launches from ``results``, or from ``.pack/runtime`` if that is there, as ``test_runtime.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import torch

from kernel_space.core.registry import operator
from kernel_space.numerics.nvfp4 import unblock_scales
from kernel_space.operators.nvfp4_quantize.reference import expected_outputs
from kernel_space.operators.svdquant_gemm.operands import Operands
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from kernel_space.operators.svdquant_gemm.runtime import pad_rank
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tests.gpu.test_runtime import OWN, OnCard, bits
from tests.layers.test_linear import activations, linear_of
from tuner.runtime import (
    InputError,
    SVDQuantLinear,
    explain,
    launch,
    quantize_act,
    svdquant_gemm,
    use_table,
)

pytestmark = pytest.mark.gpu

NAN_BYTE = 0x7F
BUFFERS = ("wgt", "wscales", "lora_up", "wcscale", "bias")
HALF = (torch.float16, torch.bfloat16)


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    with use_table(OWN) if OWN.is_dir() else contextlib.nullcontext():
        yield


def layer_of(dtype: torch.dtype, rank: int = 128, activations: str = "auto") -> SVDQuantLinear:
    linear = linear_of(256, 512).cuda()
    return SVDQuantLinear.from_linear(linear, rank=rank, dtype=dtype, activations=activations)


# -- autocast


@pytest.mark.parametrize("to", HALF)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("x_dtype", [*HALF, torch.float32])
def test_autocast_names_the_dtype_and_changes_no_number(
    to: torch.dtype, dtype: torch.dtype, x_dtype: torch.dtype
) -> None:
    layer, x = layer_of(dtype), activations(19, 512).to(x_dtype).cuda()
    linear = torch.nn.Linear(512, 256, device="cuda")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        wanted = layer(x.float()).to(to)
        with torch.autocast("cuda", dtype=to):
            assert layer(x).dtype == linear(x).dtype == to
            assert torch.equal(layer(x), wanted)
            assert torch.equal(compiled(x), wanted)
            with torch.autocast("cuda", enabled=False):
                assert layer(x).dtype == x_dtype
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert torch.equal(layer(x), wanted)
        assert layer(x).dtype == x_dtype


# -- activations that are not finite


def spoiled(m: int, k: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations on the CPU with NaN and infinities, and which blocks ``[m, k / 16]`` hold them."""
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(m)).to(dtype)
    bad = torch.zeros(m, k // 16, dtype=torch.bool)
    values = (torch.nan, -torch.nan, torch.inf, -torch.inf)
    for row in range(0, m, 3):
        column = (37 * row + 5) % k
        x[row, column] = values[row // 3 % 4]
        bad[row, column // 16] = True
    x[1, :16], bad[1, 0] = torch.tensor(values).repeat(4).to(dtype), True
    return x, bad


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
@pytest.mark.parametrize("smoothed", [False, True])
@pytest.mark.parametrize(("m", "k"), [(17, 96), (131, 3840)])
def test_blocks_that_are_not_finite_get_the_nan_scale(
    dtype: torch.dtype, smoothed: bool, m: int, k: int
) -> None:
    x, bad = spoiled(m, k, dtype)
    smooth = torch.rand(k, generator=torch.Generator().manual_seed(1)) + 0.5 if smoothed else None
    act, ascales, _ = quantize_act(x.cuda(), None if smooth is None else smooth.cuda(), None)
    scales = unblock_scales(ascales.cpu(), m, k).view(torch.uint8)
    assert (scales[bad] == NAN_BYTE).all()
    wanted = expected_outputs(x, smooth)
    assert torch.equal(~wanted.defined.view(m, k // 16, 8)[..., 0], bad)
    assert wanted.differences(act.cpu(), ascales.cpu()) == 0


def test_a_quotient_that_overflows_or_is_none() -> None:
    x, smooth = torch.ones(3, 64), torch.ones(64)
    x[0, 3], smooth[3] = torch.finfo(torch.float32).max, 0.5
    x[1, 3] = 2688.0
    x[2, 17], smooth[17] = 1e30, 1e-30
    x[2, 33], smooth[33] = 0.0, 0.0
    _, ascales, _ = quantize_act(x.cuda(), smooth.cuda(), None)
    bad = unblock_scales(ascales.cpu(), 3, 64).view(torch.uint8) == NAN_BYTE
    # Column 17 is 1e30 for the ones of rows 0 and 1, which saturates.
    assert bad.tolist() == [
        [True, False, True, False],
        [False, False, True, False],
        [False, True, True, False],
    ]


@pytest.mark.parametrize("rank", [0, 128])
@pytest.mark.parametrize("m", [1, 16, 64, 128, 256, 1024, 4352])
def test_a_row_with_nan_or_infinity_is_nan_and_no_other_row_changes(m: int, rank: int) -> None:
    """Every kernel that the table has for this layer; without LoRA nothing but the scale tells."""
    one = OnCard(f"{m},3840,3072,{rank}")
    x = torch.randn(m, 3840, generator=torch.Generator().manual_seed(m)).half()
    spoilt = x.clone()
    rows = sorted({0, m // 2, m - 1})
    for row, value in zip(rows, (torch.nan, torch.inf, -torch.inf), strict=False):
        spoilt[row, 3839 - row % 64] = value
    down = torch.randn(3840, rank, generator=torch.Generator().manual_seed(2)).half().cuda() / 64
    clean = svdquant_gemm(*packed_call(x, down, one.packed))
    y = svdquant_gemm(*packed_call(spoilt, down, one.packed))
    assert y[rows].isnan().all()
    others = torch.ones(m, dtype=torch.bool)
    others[rows] = False
    assert torch.isfinite(clean).all()
    assert torch.equal(bits(y[others.cuda()]), bits(clean[others.cuda()]))


def packed_call(
    x: torch.Tensor, down: torch.Tensor, packed: PackedSVDQuant
) -> tuple[torch.Tensor, torch.Tensor, PackedSVDQuant, torch.Tensor]:
    act, ascales, lora = quantize_act(x.cuda(), None, down)
    return act, ascales, packed, lora


def test_a_layer_hands_nan_on() -> None:
    layer, x = layer_of(torch.float16), activations(5, 512).half().cuda()
    with torch.inference_mode():
        clean = layer(x)
        x[3, 100] = torch.inf
        y = layer(x)
    assert y[3].isnan().all() and torch.equal(bits(y[:3]), bits(clean[:3]))


# -- ranks

RANKS = (0, 16, 32, 48, 80, 112, 128, 144, 240, 256, 272, 368, 512)


def launches(shape: str, **dtypes: str) -> OnCard:
    """A rank above all rows', and a layer that suits no row's config, need a bundled object of R = 256 or 512."""
    one = OnCard(shape, **dtypes)
    explain(one.problem)
    return one


@pytest.mark.parametrize("rank", RANKS)
@pytest.mark.parametrize("layer", ["1,3840,3072", "17,3840,3072", "33,1024,520", "5,64,16", "1,32,8"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_any_rank_of_any_layer(layer: str, rank: int, dtype: str) -> None:
    one = launches(f"{layer},{rank}", lora_dtype=dtype, out_dtype=dtype)
    y = one.call().clone()
    one.check(y)
    for _ in range(3):  # the short way of what was padded
        assert torch.equal(bits(one.call()), bits(y))
    out = torch.full_like(y, torch.nan)
    assert one.call(out) is out and torch.equal(bits(out), bits(y))


@pytest.mark.parametrize("rank", [0, 16, 48, 112, 240])
def test_padded_to_the_bit(rank: int) -> None:
    one = launches(f"17,3840,3072,{rank}")
    choice = explain(one.problem)
    if not choice.is_padded:
        pytest.skip(f"the table has a row of R={rank}")
    packed = PackedSVDQuant(
        **{name: getattr(one.packed, name) for name in BUFFERS if name != "lora_up"},
        lora_up=pad_rank(one.packed.lora_up, choice.launched.r),
    )
    lora = pad_rank(one.lora, choice.launched.r)
    assert torch.equal(bits(one.call()), bits(svdquant_gemm(one.act, one.ascales, packed, lora)))


def test_padded_weights_that_change_and_a_graph_from_the_first_call() -> None:
    """lora_up is read at every call; captured, the padding is part of the graph."""
    one = launches("17,3840,3072,48")
    one.call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = one.call()
    for scale in (1.0, 0.5, 2.0):
        one.packed.lora_up.data.mul_(scale)
        torch.cuda.synchronize()
        graph.replay()
        assert torch.equal(bits(y), bits(one.call()))
        inputs = {**one.operands.tensors(), "lora_up": one.packed.lora_up}
        one.operands = Operands(problem=one.problem, **inputs)
        one.check(y)


@pytest.mark.parametrize("rank", [16, 48, 112, 240])
@pytest.mark.parametrize("dtype", HALF)
def test_a_layer_is_padded_once_and_saves_its_own_rank(rank: int, dtype: torch.dtype) -> None:
    layer = layer_of(dtype, rank, "nvfp4")
    name = "fp16" if dtype == torch.float16 else "bf16"
    width = layer.lora_up.shape[1]
    state = layer.state_dict()
    assert state["lora_up"].shape == (256, rank) and state["lora_down"].shape == (512, rank)
    weights = {key: layer.get_buffer(key) for key in ("smooth", *BUFFERS)}
    for m in (1, 17, 130, 1024):
        x = activations(m, 512).cuda().to(dtype)
        problem = LinearProblem.parse(f"{m},512,256,{width}", dtype=name)
        choice = explain(problem)
        assert not choice.is_padded
        inputs = {"x": x, "lora_down": layer.lora_down_packed, **weights}
        with torch.inference_mode():
            found = launch("svdquant_linear", problem, inputs)
            assert torch.equal(bits(layer(x)), bits(found["y"]))
        checks = operator("svdquant_linear").compare(problem, {**inputs, **found}, choice.config)
        assert all(check.ok for check in checks.values()), checks
    back = layer.to("cpu")
    assert back.lora_up.shape == (256, rank)
    assert all(torch.equal(back.state_dict()[key].cpu(), tensor.cpu()) for key, tensor in state.items())
    again = SVDQuantLinear(512, 256, rank=rank, dtype=dtype, device="cuda")
    again.load_state_dict(state)
    assert again.lora_up.shape == (256, width) and not again.lora_up[:, rank:].any()


def test_a_padded_layer_compiled_and_captured() -> None:
    layer, x = layer_of(torch.float16, rank=48), activations(17, 512).half().cuda()
    compiled = torch.compile(layer, fullgraph=True)
    with torch.inference_mode():
        wanted = layer(x).clone()
        assert torch.equal(bits(compiled(x)), bits(wanted))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        graph.replay()
        assert torch.equal(bits(y), bits(wanted))


def test_a_rank_beyond_the_contract() -> None:
    with pytest.raises(InputError, match="R must be"):
        SVDQuantLinear(512, 256, rank=528, device="cuda")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 16, 130, 1024])
def test_16_bit_activations_are_closer_to_the_linear_layer(rows: int, dtype: torch.dtype) -> None:
    """Than NVFP4's, of float64 of the layer before it was quantized; ``auto`` is what it says, to the bit."""
    torch.manual_seed(3)
    linear = torch.nn.Linear(800, 520, dtype=dtype, device="cuda")
    x = torch.randn(rows, 800, dtype=dtype, device="cuda") * torch.rand(800, device="cuda").mul(4).exp2().to(
        dtype
    )
    layer = SVDQuantLinear.from_linear(linear, rank=32, calibration=x)
    exact = x.double() @ linear.weight.double().T + linear.bias.double()
    outputs, errors = {}, {}
    for layer.activations in ("nvfp4", "16bit", "auto"):
        outputs[layer.activations] = y = layer(x)
        errors[layer.activations] = float((y.double() - exact).norm() / exact.norm())
    assert errors["16bit"] < 0.9 * errors["nvfp4"], errors
    layer.activations = layer.chosen(rows).activations
    assert torch.equal(outputs["auto"], layer(x))


def test_16_bit_activations_compiled_and_captured() -> None:
    torch.manual_seed(4)
    linear = torch.nn.Linear(512, 256, dtype=torch.bfloat16, device="cuda")
    layer = SVDQuantLinear.from_linear(linear, rank=16, activations="16bit")
    x = torch.randn(70, 512, dtype=torch.bfloat16, device="cuda")
    eager = layer(x)
    assert torch.equal(torch.compile(layer, fullgraph=True)(x), eager)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = layer(x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, layer(x)) and not torch.equal(y, eager)


@pytest.mark.parametrize("rows", [300, 1024])
def test_fp8_is_between_16_bits_and_nvfp4(rows: int) -> None:
    torch.manual_seed(3)
    linear = torch.nn.Linear(1024, 512, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(rows, 1024, dtype=torch.bfloat16, device="cuda")
    layer = SVDQuantLinear.from_linear(linear, rank=32)
    exact = x.double() @ linear.weight.double().T + linear.bias.double()
    outputs, errors = {}, {}
    for layer.activations in ("nvfp4", "fp8", "16bit", "auto"):
        outputs[layer.activations] = y = layer(x)
        errors[layer.activations] = float((y.double() - exact).norm() / exact.norm())
    assert errors["16bit"] < errors["fp8"] < 0.9 * errors["nvfp4"], errors
    assert torch.equal(outputs["auto"], outputs[layer.chosen(rows).activations])


def test_auto_waits_for_nothing_and_looks_at_no_weight_while_a_graph_is_captured() -> None:
    """At how much of it is in 4 bits: that is known since it was quantized; where it is not, the next call looks."""
    torch.manual_seed(5)
    linear = torch.nn.Linear(1024, 512, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(1024, 1024, dtype=torch.bfloat16, device="cuda")
    layer = SVDQuantLinear.from_linear(linear, rank=32)
    known = layer._share
    assert known is not None and "left out" not in layer.chosen(1024).reason
    with torch.inference_mode():
        layer(x)
        torch.cuda.set_sync_debug_mode("error")
        try:
            layer(x)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        layer.wgt = layer.wgt.clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
            layer.refresh_peaks()
        assert layer._share is None
        layer(x)
        assert layer._share == known
        layer._know_share(0.1)
        found, without_fp8 = layer.chosen(1024), layer(x)
        assert found.activations != "fp8"
        graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, without_fp8)


def test_fp8_captured_and_compiled_sees_adapters_fifty_times_as_large() -> None:
    """By a wpeak from before they would be cut off. And a switch does not wait for the device."""
    torch.manual_seed(4)
    linear = torch.nn.Linear(1024, 512, dtype=torch.bfloat16, device="cuda")
    layer = SVDQuantLinear.from_linear(linear, rank=32, activations="fp8").reserve_adapters(64)
    x = torch.randn(512, 1024, dtype=torch.bfloat16, device="cuda")
    down, up = (torch.randn(size, 16, device="cuda") for size in (1024, 512))
    compiled = torch.compile(layer, fullgraph=True)
    with torch.inference_mode():
        layer(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = layer(x)
        for strength in (0.0, 1.0, 0.0):
            prepared = layer.prepare_adapters({"one": (down, up, strength)})
            torch.cuda.set_sync_debug_mode("error")
            try:
                layer.commit_adapters(prepared)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            graph.replay()
            exact = linear(x).double() + strength * (x.double() @ down.double()) @ up.double().T
            assert float((y.double() - exact).norm() / exact.norm()) < 0.15
            assert torch.equal(layer(x), y) and torch.equal(compiled(x), y)
