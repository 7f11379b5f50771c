"""torch.autocast: the layer's dtype is nn.Linear's in the same context, its numbers are those outside of any."""

from __future__ import annotations

import pytest
import torch

from kernel_space.operators.svdquant_gemm.inputs import PackedInputs
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from kernel_space.operators.svdquant_gemm.reference import check_packed
from tests.layers.test_linear import BUFFERS, activations, linear_of
from tuner.runtime import InputError, SVDQuantLinear, quantize_act, svdquant_gemm

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_gemm on cpu is the torch reference")
HALF = (torch.float16, torch.bfloat16)
X_DTYPES = (*HALF, torch.float32)


def layer_of(dtype: torch.dtype) -> SVDQuantLinear:
    return SVDQuantLinear.from_linear(linear_of(72, 160), rank=16, dtype=dtype)


def dtype_of_linear(x: torch.Tensor) -> torch.dtype:
    """What nn.Linear makes of ``x`` where this is called; outside of autocast its weight must have x's dtype."""
    known = torch.float32 if torch.is_autocast_enabled("cpu") else x.dtype
    return torch.nn.Linear(160, 72, dtype=known)(x).dtype


@pytest.mark.parametrize("to", HALF)
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("x_dtype", X_DTYPES)
def test_dtype_of_linear_and_numbers_of_no_autocast(
    to: torch.dtype, dtype: torch.dtype, x_dtype: torch.dtype
) -> None:
    layer, x = layer_of(dtype), activations(19, 160).to(x_dtype)
    wanted = layer(x.float()).to(to)  # fp32 holds every y of the layer, so this is one rounding
    with torch.no_grad(), torch.autocast("cpu", dtype=to):
        y = layer(x)
        assert y.dtype == dtype_of_linear(x) == to
    assert torch.equal(y, wanted)


def test_contexts_within_contexts() -> None:
    layer, x = layer_of(torch.float16), activations(5, 160)

    def agrees(wanted: torch.dtype) -> None:
        assert layer(x).dtype == dtype_of_linear(x) == wanted

    with torch.no_grad():
        agrees(torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            agrees(torch.bfloat16)
            with torch.autocast("cpu", dtype=torch.float16):
                agrees(torch.float16)
            with torch.autocast("cpu", enabled=False):
                agrees(torch.float32)
            agrees(torch.bfloat16)
        agrees(torch.float32)


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_autocast_of_another_kind_of_device_changes_nothing() -> None:
    layer, x = layer_of(torch.float16), activations(5, 160)
    with torch.no_grad(), torch.autocast("cuda", dtype=torch.bfloat16):
        assert layer(x).dtype == dtype_of_linear(x) == torch.float32
        assert torch.equal(layer(x), layer_of(torch.float16)(x))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("outside", [True, False])
def test_compiled(backend: str, outside: bool) -> None:
    """One compiled layer in several contexts, and a context inside of what is compiled."""
    layer, x = layer_of(torch.float16), activations(5, 160)

    def inside(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return layer(x)

    compiled = torch.compile(layer if outside else inside, backend=backend, fullgraph=True)
    with torch.no_grad():
        plain = layer(x)
        if not outside:
            assert torch.equal(compiled(x), plain.bfloat16())
            return
        for dtype in (None, torch.bfloat16, torch.float16, None):
            with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                assert torch.equal(compiled(x), plain.to(dtype or torch.float32))


@pytest.mark.parametrize("dtype", HALF)
def test_the_functions_keep_their_documented_dtypes(dtype: torch.dtype) -> None:
    """Called one by one, and against float64: the matmuls inside are not autocast's to change."""
    layer, x = layer_of(dtype), activations(19, 160)
    packed = PackedSVDQuant(**{name: getattr(layer, name) for name in BUFFERS})
    other = torch.bfloat16 if dtype == torch.float16 else torch.float16
    act, ascales, lora = quantize_act(x, layer.smooth, layer.lora_down)
    plain = svdquant_gemm(act, ascales, packed, lora)
    with torch.no_grad(), torch.autocast("cpu", dtype=other):
        again = quantize_act(x, layer.smooth, layer.lora_down)
        assert all(torch.equal(a, b) for a, b in zip(again, (act, ascales, lora), strict=True))
        assert again[2].dtype == dtype
        y = svdquant_gemm(act, ascales, packed, lora)
        direct = torch.ops.svdquant.gemm(
            act, ascales, packed.wgt, packed.wscales, lora, packed.lora_up, packed.wcscale, packed.bias, other
        )
    assert torch.equal(y, plain) and y.dtype == dtype
    inputs = PackedInputs(
        act=act, ascales=ascales, lora_act_in=lora, **{name: getattr(layer, name) for name in BUFFERS}
    )
    assert check_packed(y, inputs).ok
    assert direct.dtype == other and check_packed(direct, inputs).ok


def test_quantized_under_autocast_is_the_same_layer() -> None:
    """A model may be converted where it is used; the randomized method multiplies in fp32."""
    linear, x = linear_of(72, 160), activations(64, 160)

    def state() -> dict[str, torch.Tensor]:
        return SVDQuantLinear.from_linear(linear, rank=16, calibration=x, svd="randomized").state_dict()

    plain = state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under = state()
    assert all(torch.equal(under[name], plain[name]) for name in plain)


def test_float64_is_refused_as_before() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(InputError, match="float16, bfloat16 or"):
        layer_of(torch.float16)(activations(5, 160).double())
