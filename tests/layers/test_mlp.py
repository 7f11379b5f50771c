"""SVDQuantMLP against float64 of the layers that were quantized, and of what they hold."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import pytest
import torch

from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.places import shipped
from tests.layers.test_linear import linear_of, relative
from tuner.devices.classes import DEVICE_CLASSES
from tuner.layers import fusion, handover, linear_op, mlp_op
from tuner.layers.fusion import Fusion, decide_fusion, pass_us
from tuner.layers.mlp import interleaved
from tuner.runtime import InputError, SVDQuantLinear, SVDQuantMLP, interleave_gates, state
from tuner.runtime.choice import expected
from tuner.runtime.choice.remembered import Recent

pytestmark = pytest.mark.filterwarnings("ignore:(svdquant|nvfp4)_.* on cpu is the torch reference")
K, HIDDEN, N = 128, 96, 64


def act(v: torch.Tensor, activation: str) -> torch.Tensor:
    if activation == "gelu_tanh":
        return torch.nn.functional.gelu(v, approximate="tanh")
    if activation == "silu":
        return torch.nn.functional.silu(v)
    gate, up = v.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


def linears(activation: str) -> tuple[torch.nn.Linear, torch.nn.Linear]:
    wide = 2 * HIDDEN if activation == "swiglu" else HIDDEN
    return linear_of(wide, K), linear_of(N, HIDDEN)


@pytest.mark.parametrize("activations", ["nvfp4", "16bit", "fp8"])
@pytest.mark.parametrize("activation", ["gelu_tanh", "silu", "swiglu"])
def test_against_the_original_layers(activation: str, activations: str) -> None:
    """The MLP's error is that of its layers: with another activation it would be several times larger."""
    fc1, fc2 = linears(activation)
    mlp = SVDQuantMLP.from_linears(fc1, fc2, activation, rank=32, activations=activations)
    x = torch.randn(2, 19, K, generator=torch.Generator().manual_seed(0))
    y = mlp(x)
    assert (y.shape, y.dtype) == ((2, 19, N), torch.float32)
    with torch.no_grad():
        wanted = fc2.double()(act(fc1.double()(x.double()), activation))
    assert relative(y, wanted) < {"nvfp4": 0.2, "16bit": 0.12, "fp8": 0.15}[activations]


@pytest.mark.parametrize("activation", ["gelu_tanh", "silu"])
def test_is_its_layers_one_after_the_other(activation: str) -> None:
    """With 16-bit activations nothing but roundings of y lies between; as the op after the layer does it, too."""
    fc1, fc2 = linears(activation)
    mlp = SVDQuantMLP.from_linears(fc1, fc2, activation, rank=16, activations="16bit", dtype=torch.float16)
    x = torch.randn(33, K, generator=torch.Generator().manual_seed(1)).half()
    between = mlp.fc1(x)
    fused = mlp.fc1.activated(x, activation)
    torch.testing.assert_close(fused.double(), act(between.double(), activation), rtol=2**-9, atol=2**-11)
    torch.testing.assert_close(
        linear_op._after(between, activation).double(), fused.double(), rtol=2**-9, atol=2**-11
    )
    assert torch.equal(mlp(x), mlp.fc2(fused))


def test_gates_of_packed_layers() -> None:
    """Interleaving a quantized layer moves its outputs and changes none."""
    fc1, fc2 = linears("swiglu")
    plain = SVDQuantLinear.from_linear(fc1, rank=16, activations="16bit")
    made = interleave_gates(plain)
    x = torch.randn(7, K, generator=torch.Generator().manual_seed(2)).bfloat16()
    y, moved = plain(x), made(x)
    for column in range(2 * HIDDEN):
        group, place = divmod(column, 16)
        source = group * 8 + place % 8 + (HIDDEN if place >= 8 else 0)
        assert torch.equal(moved[:, column], y[:, source])
    assert interleaved(32).tolist()[:16] == [*range(8), *range(16, 24)]
    mlp = SVDQuantMLP(made, SVDQuantLinear.from_linear(fc2, rank=16), "swiglu")
    between = made.activated(x, "swiglu")
    gate, up = y.double().chunk(2, dim=-1)
    torch.testing.assert_close(between.double(), torch.nn.functional.silu(gate) * up, rtol=2**-6, atol=2**-7)
    torch.testing.assert_close(
        linear_op._after(moved, "swiglu").double(), between.double(), rtol=2**-6, atol=2**-7
    )
    assert torch.equal(mlp(x), mlp.fc2(between))


@pytest.mark.slow
def test_compiled() -> None:
    fc1, fc2 = linears("swiglu")
    mlp = SVDQuantMLP.from_linears(fc1, fc2, "swiglu", rank=16)
    x = torch.randn(5, K, generator=torch.Generator().manual_seed(3))
    compiled = torch.compile(mlp, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), mlp(x))
    assert compiled(x[:0]).shape == (0, N)


def test_empty_and_loaded() -> None:
    fc1, fc2 = linears("swiglu")
    mlp = SVDQuantMLP.from_linears(fc1, fc2, "swiglu", rank=16)
    x = torch.randn(5, K, generator=torch.Generator().manual_seed(3))
    assert mlp(x[:0]).shape == (0, N)
    state = mlp.state_dict()
    other = SVDQuantMLP(SVDQuantLinear(K, 2 * HIDDEN, rank=16), SVDQuantLinear(HIDDEN, N, rank=16), "swiglu")
    other.load_state_dict(state)
    assert torch.equal(other(x), mlp(x))


def test_what_does_not_fit() -> None:
    fc1, fc2 = SVDQuantLinear(K, 104, rank=16), SVDQuantLinear(96, N, rank=16)
    with pytest.raises(
        InputError, match="activation must be one of none, gelu_tanh, silu, swiglu, got 'gelu'"
    ):
        SVDQuantMLP(fc1, fc2, "gelu")
    with pytest.raises(InputError, match="fc2 must take the 104 columns .* activation=silu, it takes 96"):
        SVDQuantMLP(fc1, fc2, "silu")
    with pytest.raises(InputError, match="N must be a multiple of 16 with activation=swiglu, got 104"):
        SVDQuantMLP(fc1, fc2, "swiglu")
    with pytest.raises(InputError, match="N must be a multiple of 16 with activation=swiglu, got 104"):
        interleave_gates(fc1)
    with pytest.raises(InputError, match="activation must be one of"):
        fc1.activated(torch.zeros(3, K), "gelu")
    with pytest.raises(InputError, match="activation must be one of"):
        fc1.activated(torch.zeros(0, K), "gelu")


# ------------------------------------------------------------------ fused or separate

H200 = DEVICE_CLASSES["h200"]
ASKED = LinearProblem(m=4352, k=3072, n=12288, r=128, activation="gelu_tanh")
PASS_US = 4352 * 12288 * 2 * 2 / 4.8e12 * 1e6  # y read and written, 16 bits each, at 4.8 TB/s: 44.6 us


def decided(
    monkeypatch: pytest.MonkeyPatch, fused_us: float | None, plain_us: float | None, **known: object
) -> Fusion:
    """With rows of these times and no others; ``known``: of the fused row."""

    def choice(library: object, problem: LinearProblem) -> object:
        plain = problem.activation == "none"
        us = plain_us if plain else fused_us
        if us is None:
            return None
        own = problem if plain else dataclasses.replace(problem, **known)
        key = types.SimpleNamespace(problem=own)
        row = types.SimpleNamespace(time_us=us, key=key)
        return types.SimpleNamespace(row=row, launched=problem, config=None)

    monkeypatch.setattr(fusion, "choice_of", choice)
    monkeypatch.setattr(expected, "efforts", lambda config, problems, rates: None)
    library: Any = None
    return decide_fusion(library, H200, "nvfp4", ASKED)


def test_a_pass_by_hand() -> None:
    assert pass_us(ASKED, H200) == pytest.approx(PASS_US)
    assert pass_us(dataclasses.replace(ASKED, activation="swiglu"), H200) == pytest.approx(0.75 * PASS_US)


def test_fused_where_a_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decided(monkeypatch, 400.0 + PASS_US - 0.1, 400.0).fused
    assert not decided(monkeypatch, 400.0 + PASS_US + 0.1, 400.0).fused
    assert decided(monkeypatch, 400.0, None).fused
    assert not decided(monkeypatch, None, 400.0).fused
    # a row of half the tokens stands for nearly twice its time
    assert not decided(monkeypatch, 300.0, 400.0, m=2176).fused
    # what was tuned with another activation, or without one, says nothing
    assert not decided(monkeypatch, 10.0, 400.0, activation="silu").fused
    assert not decided(monkeypatch, 10.0, 400.0, activation="none").fused


@pytest.mark.parametrize(
    ("activations", "op"), [("16bit", "svdquant_linear_16bit"), ("fp8", "svdquant_linear_fp8")]
)
def test_fused_by_a_row_of_these_activations(
    activations: str, op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVFP4 has none here, and the row of the kind that is asked for says it all."""

    def choice(library: object, problem: LinearProblem) -> object:
        if problem.operator != op:
            return None
        row = types.SimpleNamespace(
            time_us=400.0 if problem.activation == "none" else 410.0,
            key=types.SimpleNamespace(problem=problem),
        )
        return types.SimpleNamespace(row=row, launched=problem, config=None)

    monkeypatch.setattr(fusion, "choice_of", choice)
    monkeypatch.setattr(expected, "efforts", lambda config, problems, rates: None)
    library: Any = None
    assert decide_fusion(library, H200, activations, ASKED).fused
    assert not decide_fusion(library, H200, "nvfp4", ASKED).fused


def test_shipped_tables_have_no_row_with_one() -> None:
    """Then the layer runs as ever, and torch's kernels come after it."""
    found = decide_fusion(state.active()[0].library(H200), H200, "16bit", ASKED)
    assert found == Fusion(False, "no row of activation=gelu_tanh can be launched")


# ------------------------------------------------------------------ y handed over in NVFP4


def without_a_branch(activation: str, dtype: torch.dtype) -> SVDQuantMLP:
    """Of which fc1 has one, and fc2 smooths what it gets."""
    fc1, fc2 = linears(activation)
    one = SVDQuantLinear.from_linear(fc1, rank=16, dtype=dtype, activations="nvfp4")
    if activation == "swiglu":
        one = interleave_gates(one)
    y = one.activated(torch.randn(64, K, generator=torch.Generator().manual_seed(4)).to(dtype), activation)
    two = SVDQuantLinear.from_linear(fc2, rank=0, calibration=y.float(), dtype=dtype, activations="nvfp4")
    return SVDQuantMLP(one, two, activation)


@pytest.mark.parametrize(("activation", "dtype"), [("gelu_tanh", torch.float16), ("swiglu", torch.bfloat16)])
def test_handed_over_is_the_same_to_the_bit(
    activation: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlp = without_a_branch(activation, dtype)
    x = torch.randn(2, 65, K, generator=torch.Generator().manual_seed(5))
    apart = mlp.fc2(mlp.fc1.activated(x, activation))
    assert torch.equal(mlp(x), apart)
    seen: list[Any] = []
    monkeypatch.setattr(mlp_op, "hands_over", lambda *asked: not seen.append(asked))
    monkeypatch.setattr(mlp_op, "_handed", Recent(16))
    assert torch.equal(mlp(x), apart)
    assert torch.equal(mlp(x.to(dtype)), mlp.fc2(mlp.fc1.activated(x.to(dtype), activation)))
    ((first, second, device),) = seen  # decided once
    own = {"m": 130, "dtype": "fp16" if dtype == torch.float16 else "bf16"}
    wide = mlp.fc1.out_features
    assert first == LinearProblem(k=K, n=wide, r=16, activation=activation, **own)
    assert second == LinearProblem(k=HIDDEN, n=N, r=0, **own) and device == x.device
    mlp.fc2.activations = "16bit"
    mlp(x)
    assert len(seen) == 1
    with state.use_table(shipped("results") / "h200"):
        mlp.fc2.activations = "nvfp4"
        mlp(x)
    assert len(seen) == 2  # of other tables


def test_what_is_never_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch, another dtype between the layers, sizes that do not fit: by the layers, which say so."""
    monkeypatch.setattr(mlp_op, "handed", lambda *_: pytest.fail("handed over"))
    monkeypatch.setattr(mlp_op, "hands_over", lambda *_: True)
    mlp = without_a_branch("silu", torch.bfloat16)
    x = torch.randn(3, K)
    with pytest.raises(pytest.fail.Exception):
        mlp(x)
    assert mlp(x[:0]).shape == (0, N)
    mlp(x.half())
    with torch.autocast("cpu", torch.float16):
        mlp(x)
    with pytest.raises(InputError, match=r"x must be \[..., 128\]"):
        mlp(x[:, :96])
    fc1, fc2 = linears("silu")
    SVDQuantMLP.from_linears(fc1, fc2, "silu", rank=16, activations="nvfp4")(x)


B200 = DEVICE_CLASSES["b200"]
FIRST = LinearProblem(m=4352, k=3072, n=12288, r=128, activation="gelu_tanh")
LAST = LinearProblem(m=4352, k=12288, n=3072, r=0)
QUANTIZE, HIDDEN_GEMM, GEMM = "nvfp4_quantize", "svdquant_gemm_nvfp4", "svdquant_gemm"
TIMES = {QUANTIZE: 20.0, HIDDEN_GEMM: 77.0, GEMM: 60.0, "svdquant_linear": 100.0}  # both layers 200


def handover_of(
    monkeypatch: pytest.MonkeyPatch,
    times: dict[str, float | None],
    second: LinearProblem = LAST,
    **known: Any,
) -> Fusion:
    """With a row for every operator of ``times``, of the asked problem; ``known``: of the quantizing GEMM's."""

    def choice(library: object, problem: Any) -> object:
        us = times.get(problem.operator)
        if us is None:
            return None
        own = dataclasses.replace(problem, **known) if problem.operator == HIDDEN_GEMM else problem
        row = types.SimpleNamespace(time_us=us, key=types.SimpleNamespace(problem=own))
        return types.SimpleNamespace(row=row, launched=problem, config=None)

    monkeypatch.setattr(fusion, "choice_of", choice)
    monkeypatch.setattr(expected, "efforts", lambda config, problems, rates: None)
    monkeypatch.setattr(handover, "choice_of", choice)
    library: Any = None
    return handover.decide_handover(library, B200, FIRST, second)


def test_handed_over_where_rows_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """157 us by three launches; both layers 200, less if the second is smaller."""
    assert handover_of(monkeypatch, TIMES) == Fusion(True, "157 us, 200 us by layers")
    assert not handover_of(monkeypatch, {**TIMES, HIDDEN_GEMM: 120.5}).fused
    assert handover_of(monkeypatch, {**TIMES, "svdquant_linear": None}).fused
    for name in (QUANTIZE, GEMM):
        assert "not every one" in handover_of(monkeypatch, {**TIMES, name: None}).reason
    missing = handover_of(monkeypatch, {**TIMES, HIDDEN_GEMM: None})
    assert missing == Fusion(False, "no row of svdquant_gemm_nvfp4 with activation=gelu_tanh can be launched")
    assert not handover_of(monkeypatch, TIMES, activation="silu").fused
    # a row of half the tokens stands for nearly twice its time: 342 us at 1000 TFLOP/s, and a launch
    bound = 2 * 4352 * 12288 * (3072 + 128) / 1e15 * 1e6
    us = 77 * (bound + 1.4) / (bound / 2 + 1.4)
    assert handover_of(monkeypatch, TIMES, m=2176) == Fusion(False, f"{80 + us:.4g} us, 200 us by layers")


def test_not_handed_over_to_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    second = dataclasses.replace(LAST, r=128)
    assert (
        handover_of(monkeypatch, TIMES, second).reason
        == "the branch of rank 128 behind it reads y in 16 bits"
    )


@pytest.mark.slow
def test_compiled_without_a_branch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp_op, "hands_over", lambda *_: True)
    mlp = without_a_branch("gelu_tanh", torch.bfloat16)
    x = torch.randn(5, K, generator=torch.Generator().manual_seed(3))
    compiled = torch.compile(mlp, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), mlp(x))
