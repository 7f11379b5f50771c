"""SVDQuantLinear against float64: the same quantized operator, the best low-rank product there is, and nn.Linear."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.svdquant_gemm.inputs import PackedInputs
from kernel_space.operators.svdquant_gemm.reference import check_packed
from tuner.layers import decompose, linear_op
from tuner.layers.decompose import ACT_RANGE, low_rank, smoothing
from tuner.runtime import InputError, SVDQuantLinear, quantize_act

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_gemm on cpu is the torch reference")
BUFFERS = ("wgt", "wscales", "lora_up", "wcscale", "bias")


def draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear_of(n: int, k: int, *, dtype: torch.dtype = torch.float32, bias: bool = True) -> torch.nn.Linear:
    """Gaussian weights over a few strong directions and some large columns, as layers of trained models have them."""
    linear = torch.nn.Linear(k, n, bias=bias, dtype=dtype)
    weight = torch.randn(n, k, generator=draw(1)) / k**0.5
    weight += torch.randn(n, 4, generator=draw(2)) @ torch.randn(4, k, generator=draw(3)) / k**0.5
    weight[:, ::37] *= 6
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias:
            linear.bias.copy_(torch.randn(n, generator=draw(4)))
    return linear


def activations(rows: int, k: int) -> torch.Tensor:
    """Unit variance with channels up to 40 times larger."""
    x = torch.randn(rows, k, generator=draw(5))
    x[:, 3::61] *= 40
    return x


def weight_of(layer: SVDQuantLinear) -> torch.Tensor:
    """float64 ``[N, K]``: what the layer multiplies with, from its buffers and the packed contract."""
    n, k = layer.out_features, layer.in_features
    scales = unblock_scales(layer.wscales, n, k)
    residual = (
        dequantize_nvfp4(NVFP4Tensor(codes=layer.wgt, scales=scales), torch.float64) / layer.smooth.double()
    )
    branch = layer.lora_up.double() @ layer.lora_down.double().T
    return (residual + branch) * layer.wcscale.double().unsqueeze(1)


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((got.double() - wanted.double()).norm() / wanted.double().norm()).item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rank", [0, 16])
def test_forward_is_the_quantized_operator(dtype: torch.dtype, rank: int) -> None:
    layer = SVDQuantLinear.from_linear(linear_of(72, 160, dtype=dtype), rank=rank)
    x = activations(19, 160).to(dtype)
    act, ascales, lora = quantize_act(x.to(layer.dtype), layer.smooth, layer.lora_down)
    inputs = PackedInputs(
        act=act, ascales=ascales, lora_act_in=lora, **{name: getattr(layer, name) for name in BUFFERS}
    )
    y = layer(x)
    assert y.dtype == dtype
    assert check_packed(y.to(layer.dtype), inputs).ok


def test_relative_error_is_that_of_the_weight() -> None:
    linear = linear_of(72, 160)
    layer = SVDQuantLinear.from_linear(linear, rank=16, calibration=activations(64, 160))
    assert layer.relative_error == pytest.approx(relative(weight_of(layer), linear.weight), rel=1e-9)


def test_a_branch_helps_and_more_helps_more() -> None:
    linear, x = linear_of(128, 256), torch.randn(64, 256, generator=draw(6))
    layers = [SVDQuantLinear.from_linear(linear, rank=rank) for rank in (0, 16, 64)]
    errors = [layer.relative_error for layer in layers]
    outputs = [relative(layer(x), linear(x)) for layer in layers]
    assert errors[0] > 1.3 * errors[1] > 1.3 * errors[2]
    assert outputs[0] > outputs[1] > outputs[2]


@pytest.mark.parametrize(("dtype", "unit"), [(torch.float16, 2.0**-11), (torch.bfloat16, 2.0**-8)])
def test_the_residual_holds_what_rounding_takes_from_the_branch(dtype: torch.dtype, unit: float) -> None:
    """A weight of rank 4 fits the branch but for its rounding, of about half a unit; NVFP4 keeps a tenth of it."""
    linear = torch.nn.Linear(128, 64, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.randn(64, 4, generator=draw(7)) @ torch.randn(4, 128, generator=draw(8)))
    assert SVDQuantLinear.from_linear(linear, rank=16, dtype=dtype).relative_error < unit / 8


def test_calibration_helps_activations_with_outliers() -> None:
    linear, x = linear_of(128, 256), activations(256, 256)
    plain = SVDQuantLinear.from_linear(linear, rank=32)
    smoothed = SVDQuantLinear.from_linear(linear, rank=32, calibration=x[:128])
    unseen = x[128:]
    assert relative(smoothed(unseen), linear(unseen)) < 0.7 * relative(plain(unseen), linear(unseen))


def test_the_branch_has_room_in_fp16() -> None:
    """Small weights and large activations: neither half of the branch comes near fp16's 65504."""
    linear, x = linear_of(128, 256, dtype=torch.float16), activations(64, 256) * 50
    with torch.no_grad():
        linear.weight.mul_(2.0**-6)
    layer = SVDQuantLinear.from_linear(linear, rank=32, calibration=x)
    halves = layer.lora_up.abs().max().item(), (x.double() @ layer.lora_down.double()).abs().max().item()
    assert max(halves) < 2**15 and max(halves) < 4 * min(halves)
    assert relative(layer(x), linear.float()(x)) < 0.1


def test_folding_alpha_rounds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even subnormal numbers of fp16, and when alpha is larger than was thought at first; fp16 as a codec."""
    monkeypatch.setattr(decompose, "_unit", lambda *_: 2.0**-30)
    weight = linear_of(72, 160).weight.detach()
    weight[3] *= 2.0**-19
    parts = decompose.decompose(weight, 16, torch.float16)
    folded = parts.lora_up / parts.alpha
    assert parts.alpha > 2.0**-30 and 0 < folded[3].abs().max() < 2.0**-14
    assert torch.equal(folded.half().double(), folded)


def test_made_twice_it_is_the_same_to_the_bit() -> None:
    linear, x = linear_of(72, 160), activations(64, 160)
    for svd in ("exact", "randomized"):
        states = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            states.append(SVDQuantLinear.from_linear(linear, rank=16, calibration=x, svd=svd).state_dict())
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


@pytest.mark.parametrize("svd", ["exact", "randomized"])
def test_the_low_rank_product_is_nearly_the_best(svd: str) -> None:
    """Eckart and Young: no product of rank R is nearer than the other singular values, squared, summed and rooted."""
    matrix = linear_of(96, 224).weight.detach().double()
    rest = torch.linalg.svdvals(matrix)[16:]
    up, down = low_rank(matrix, 16, svd)
    assert (matrix - up @ down).norm() <= rest.norm() * (1 + (1e-12 if svd == "exact" else 1e-2))


def test_smoothing_by_hand() -> None:
    x = torch.tensor([[1.0, -100.0, 0.0, 4.0], [0.5, 3.0, 0.0, 4.0]])
    weight = torch.tensor([[1.0, 4.0, 0.25, 1.0], [-0.5, 1.0, 0.0, -0.0]])
    s = smoothing(x, weight, 0.5).double()
    # max|x|: 1, 100, 1 (the smallest of the others for a column without activations), 4; max|w|: 1, 4, 0.25, 1
    shape = torch.tensor([1.0, 5.0, 2.0, 2.0], dtype=torch.float64)
    assert torch.allclose(s / s[0], shape)
    assert s[0].log2() == s[0].log2().round()
    largest = (x.double() / s).abs().max()
    assert ACT_RANGE / 2 < largest <= ACT_RANGE


def test_state_dict_round_trip() -> None:
    layer = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16, calibration=activations(64, 160))
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other = SVDQuantLinear(160, 72, rank=16)
    other.load_state_dict(torch.load(file, weights_only=True))
    x = activations(5, 160)
    assert torch.equal(layer(x), other(x))
    assert other.relative_error == layer.relative_error


def test_converting_a_model_moves_the_layer_but_keeps_its_dtypes() -> None:
    layer = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16)
    before = {name: (tensor.dtype, tensor.clone()) for name, tensor in layer.state_dict().items()}
    model = (
        torch.nn.Sequential(layer, torch.nn.Linear(72, 8)).half().to(torch.bfloat16).to("cpu", torch.float64)
    )
    assert model[1].weight.dtype == torch.float64
    for name, tensor in layer.state_dict().items():
        assert tensor.dtype == before[name][0] and torch.equal(tensor, before[name][1])
    assert SVDQuantLinear(160, 72, rank=16).to("meta").wgt.is_meta


def test_leading_dimensions() -> None:
    layer = SVDQuantLinear.from_linear(linear_of(72, 160, bias=False), rank=16)
    x = activations(12, 160)
    assert torch.equal(layer(x.view(2, 3, 2, 160)), layer(x).view(2, 3, 2, 72))
    assert layer(x[0]).shape == (72,)
    assert layer(x.T.contiguous().T).shape == (12, 72)
    assert layer(x[:0]).shape == (0, 72)


def test_a_weight_of_zeros() -> None:
    linear = linear_of(16, 64)
    with torch.no_grad():
        linear.weight.zero_()
    layer = SVDQuantLinear.from_linear(linear, rank=16, calibration=activations(8, 64))
    assert layer.relative_error == 0.0
    assert torch.equal(layer(activations(3, 64)), linear.bias.detach().bfloat16().float().expand(3, 16))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_whole(backend: str) -> None:
    layer = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16)
    compiled = torch.compile(layer, backend=backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for m in (2, 17, 130):
            x = activations(m, 160)
            assert torch.equal(compiled(x), layer(x))


@pytest.mark.parametrize("strict", [False, True])
def test_exported_with_any_number_of_rows(strict: bool) -> None:
    layer = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16)
    rows = torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(
        layer, (activations(5, 160),), dynamic_shapes={"x": {0: rows}}, strict=strict
    )
    for m in (2, 130):
        x = activations(m, 160)
        assert torch.equal(program.module()(x), layer(x))


def test_copied_and_pickled() -> None:
    layer, x = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16), activations(5, 160)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))


def test_repr_says_what_it_is() -> None:
    layer = SVDQuantLinear(160, 72, rank=16, dtype=torch.float16)
    sizes = "in_features=160, out_features=72, rank=16"
    assert repr(layer) == f"SVDQuantLinear({sizes}, dtype=float16, activations=auto)"


BAD = {
    "K": (lambda: SVDQuantLinear.from_linear(linear_of(16, 48)), "K must be a multiple of 32, got 48"),
    "N": (lambda: SVDQuantLinear.from_linear(linear_of(12, 64)), "N must be a multiple of 8, got 12"),
    "rank": (lambda: SVDQuantLinear.from_linear(linear_of(16, 64), rank=10), "R must be a multiple of 16"),
    "dtype": (lambda: SVDQuantLinear(64, 16, dtype=torch.float32), "dtype must be float16 or bfloat16"),
    "svd": (lambda: SVDQuantLinear.from_linear(linear_of(16, 64), rank=16, svd="fast"), "svd must be one of"),
    "strength": (
        lambda: SVDQuantLinear.from_linear(
            linear_of(16, 64), rank=16, calibration=activations(4, 64), smoothing_strength=2
        ),
        "between 0 and 1",
    ),
    "calibration": (
        lambda: SVDQuantLinear.from_linear(linear_of(16, 64), rank=16, calibration=activations(4, 32)),
        r"calibration must be \[..., 64\]",
    ),
    "dead calibration": (
        lambda: SVDQuantLinear.from_linear(linear_of(16, 64), rank=16, calibration=torch.zeros(4, 64)),
        "all zero",
    ),
    "input": (lambda: SVDQuantLinear(64, 16, rank=16)(activations(4, 32)), r"x must be \[..., 64\]"),
    "grad": (lambda: SVDQuantLinear(64, 16, rank=16)(activations(4, 64).requires_grad_()), "no backward"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_a_replica_whose_buffers_lie_anywhere() -> None:
    """As DataParallel makes it: buffers of a dtype are views of one tensor, here behind three other elements."""
    layer = SVDQuantLinear.from_linear(linear_of(32, 64), rank=16)
    x = torch.randn(5, 64)
    replica = layer._replicate_for_data_parallel()
    for name, buffer in layer._buffers.items():
        around = torch.zeros(buffer.numel() + 3, dtype=buffer.dtype)
        setattr(replica, name, around[3:].view(buffer.shape).copy_(buffer))
    assert replica.wgt.data_ptr() % 16
    with torch.inference_mode():
        assert torch.equal(replica(x), layer(x))
    assert all(torch.equal(replica._buffers[name], buffer) for name, buffer in layer._buffers.items())


def test_a_compiled_model_takes_the_short_way_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls come by the dispatcher: what decides and checks anew took 70 us of each on a card."""
    layer = SVDQuantLinear.from_linear(linear_of(96, 64), rank=16, activations="nvfp4")
    x = torch.randn(8, 64)
    y = torch.full((8, 96), 7.0)
    asked: list[object] = []
    made = dict.fromkeys(linear_op.CALLER.signature.outputs) | {"y": y}
    monkeypatch.setitem(
        linear_op._QUICK, "nvfp4", lambda *call: asked.append(call[-1]) or tuple(made.values())
    )
    tensors = [layer.smooth, layer.lora_down_packed, layer.wgt, layer.wscales, layer.lora_up, layer.wcscale]
    found = torch.ops.svdquant.linear(x.to(layer.dtype), *tensors, layer.bias, "nvfp4", "silu")
    assert found is y or torch.equal(found, y)
    assert asked == ["silu"]
