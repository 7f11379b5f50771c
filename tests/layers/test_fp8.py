"""Layers on FP8 activations against float64: y, and wpeak, which no weight exceeds whatever was done to the layer."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from kernel_space.numerics.nvfp4 import NVFP4Tensor, dequantize_nvfp4, unblock_scales
from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from kernel_space.operators.svdquant_linear_fp8.peaks import row_peaks
from tests.layers.test_linear import activations, linear_of, relative
from tuner.layers import linear_op
from tuner.layers.activations import Decision
from tuner.layers.linear_op import linear as linear_op_call
from tuner.layers.models.slices import stacked
from tuner.runtime import (
    InputError,
    SVDQuantLinear,
    SVDQuantMLP,
    interleave_gates,
    reserve_adapters,
    set_adapters,
    shard,
)
from tuner.runtime.choice.remembered import Recent

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_linear.* on cpu is the torch reference")
N, K, RANK = 72, 160, 16
KEYS = {"wgt", "wscales", "lora_down", "lora_up", "smooth", "wcscale", "bias", "error"}


def made(*, rank: int = RANK, **options: Any) -> SVDQuantLinear:
    options = {"activations": "fp8", "calibration": activations(64, K), **options}
    return SVDQuantLinear.from_linear(linear_of(N, K), rank=rank, **options)


def adapter(scale: float, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor, float]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(K, 16, generator=rng) / 8, scale * torch.randn(N, 16, generator=rng) / 4, 1.0


def require_peaks(layer: SVDQuantLinear) -> None:
    """No merged weight, in float64, is beyond wpeak; and wpeak is the bound of its definition, in float64."""
    peaks, (down, up) = layer.wpeak.double(), branch(layer)
    assert (merged(layer).abs().amax(1) <= peaks).all()
    used = (up != 0).any(dim=0)
    norms = up.norm(dim=1) * (down[:, used].norm(dim=1).max() if used.any() else 0.0)
    torch.testing.assert_close(peaks, largest_of_blocks(layer) + norms, rtol=2**-9, atol=1e-30)


def branch(layer: SVDQuantLinear) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 ``[K, R]`` and ``[N, R]``, with the columns of adapters."""
    return unpack_lora_down(layer.lora_down_packed, layer.in_features).double(), layer.lora_up.double()


def merged(layer: SVDQuantLinear) -> torch.Tensor:
    """float64 ``[N, K]``, in units of wcscale."""
    n, k = layer.out_features, layer.in_features
    codes = NVFP4Tensor(codes=layer.wgt, scales=unblock_scales(layer.wscales, n, k))
    down, up = branch(layer)
    return dequantize_nvfp4(codes, torch.float64) / layer.smooth.double() + up @ down.T


def whole_weight(layer: SVDQuantLinear) -> torch.Tensor:
    return merged(layer) * layer.wcscale.double().unsqueeze(1)


def largest_of_blocks(layer: SVDQuantLinear) -> torch.Tensor:
    """float64 ``[N]``: six times a block's scale over its smallest smooth, the largest of a row; one by one."""
    scale, smooth = layer.wscales.view(torch.float8_e4m3fn).float().tolist(), layer.smooth.double().tolist()
    groups = layer.in_features // 16
    wide = -(-groups // 4)  # of blocks of 128 rows x 4 scales
    found = []
    for row in range(layer.out_features):
        largest = 2.0**-100
        for group in range(groups):
            tile = (row // 128) * wide + group // 4
            at = tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + group % 4
            largest = max(largest, 6 * scale[at] / min(smooth[16 * group : 16 * group + 16]))
        found.append(largest)
    return torch.tensor(found, dtype=torch.float64)


# -- y


def errors_of(linear: torch.nn.Linear, rank: int) -> dict[str, float]:
    """Of y against float64 of ``linear``, by what its layer does with activations; ``added``: what two roundings to
    E4M3, each 2.6 % in the root mean square, would add to the error of 16 bits.
    """
    x = torch.randn(512, linear.in_features, generator=torch.Generator().manual_seed(0)).to(
        linear.weight.dtype
    )
    layer = SVDQuantLinear.from_linear(linear, rank=rank)
    exact = x.double() @ linear.weight.double().T + linear.bias.double()
    errors = {}
    for layer.activations in ("16bit", "fp8", "nvfp4"):
        errors[layer.activations] = relative(layer(x), exact)
    return errors | {"added": (errors["16bit"] ** 2 + 2 * 0.026**2) ** 0.5}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rank", [0, 32])
def test_closer_to_the_layer_than_nvfp4_and_not_than_16_bits(rank: int, dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    errors = errors_of(torch.nn.Linear(256, 128, dtype=dtype), rank)
    assert errors["16bit"] < errors["fp8"] < 0.9 * errors["nvfp4"], errors
    # Without a branch the roundings to E4M3 and those to NVFP4 are not independent: they share their grid.
    assert errors["fp8"] < (1.1 if rank else 1.15) * errors["added"], errors


def test_not_closer_than_nvfp4_where_the_branch_is_nearly_all() -> None:
    """There NVFP4 rounds the activations of the small rest alone, and FP8 those of all. Less than a tenth of the
    square of this weight is beyond rank 32."""
    linear = linear_of(128, 256)
    squares = torch.linalg.svdvals(linear.weight.detach().double()).square()
    assert squares[32:].sum() < 0.1 * squares.sum()
    errors = errors_of(linear, 32)
    assert errors["16bit"] < errors["nvfp4"] < errors["fp8"] < 1.1 * errors["added"], errors


def test_of_its_buffers_to_the_roundings_of_fp8() -> None:
    """With adapters fifty times as large as the layer: by a wpeak from before they would be cut off."""
    layer, x = made().reserve_adapters(32), torch.randn(64, K, generator=torch.manual_seed(1))
    for scale in (50.0, 0.0, 0.1):
        one = adapter(scale)
        layer.set_adapters({"one": one} if scale else {})
        wanted = x.double() @ whole_weight(layer).T + layer.bias.double()
        assert relative(layer(x), wanted) < 0.06


def test_an_mlp_takes_it() -> None:
    fc1, fc2 = linear_of(96, 128), linear_of(64, 96)
    x = torch.randn(19, 128, generator=torch.manual_seed(2))
    mlp = SVDQuantMLP.from_linears(fc1, fc2, "silu", rank=32, activations="fp8")
    wanted = fc2(torch.nn.functional.silu(fc1(x)))
    assert relative(mlp(x), wanted.detach()) < 0.15
    two = SVDQuantLinear.from_linear(fc2, rank=0, activations="fp8")
    joined = SVDQuantMLP(mlp.fc1, two, "silu")  # by torch.ops.svdquant.mlp
    assert torch.equal(joined(x), two(mlp.fc1.activated(x, "silu")))


# -- wpeak


def test_of_a_new_layer_and_of_none() -> None:
    for rank in (0, RANK):
        require_peaks(made(rank=rank))
        require_peaks(made(rank=rank, calibration=None))
    require_peaks(SVDQuantLinear(K, N, rank=RANK))


def test_a_state_dict_has_none_and_old_ones_load() -> None:
    layer = made()
    saved = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    assert saved.keys() == KEYS
    other = SVDQuantLinear(K, N, rank=RANK, activations="fp8")
    assert not torch.equal(other.wpeak, layer.wpeak)
    assert str(other.load_state_dict(saved)) == "<All keys matched successfully>"
    require_peaks(other)
    x = activations(5, K)
    assert torch.equal(other(x), layer(x))


@pytest.mark.parametrize("pieces", [False, True])
def test_loaded_by_assigning_into_a_layer_without_memory(pieces: bool) -> None:
    layer = made()
    saved = layer.state_dict()
    other = SVDQuantLinear(K, N, rank=RANK, device="meta", activations="fp8")
    assert other.wpeak.is_meta and other.wpeak.shape == (N,)
    if pieces:  # as checkpoints of several files come
        for name, tensor in saved.items():
            other.load_state_dict({name: tensor}, assign=True, strict=False)
    else:
        other.load_state_dict(saved, assign=True)
    require_peaks(other)
    x = activations(5, K)
    assert torch.equal(other(x), layer(x))


def test_emptied_and_filled() -> None:
    layer = made()
    other = SVDQuantLinear(K, N, rank=RANK, device="meta").to_empty(device="cpu")
    other.load_state_dict(layer.state_dict())
    require_peaks(other)


def test_follows_adapters_in_its_place() -> None:
    layer = made().reserve_adapters(48)
    place = layer.wpeak.data_ptr()
    plain = layer.wpeak.clone()
    for scale in (20.0, 0.5):
        layer.set_adapters({"one": adapter(scale), "two": adapter(0.1, 4)})
        require_peaks(layer)
        assert (layer.wpeak > plain).all()
    layer.set_adapters({})
    assert torch.equal(layer.wpeak, plain) and layer.wpeak.data_ptr() == place
    layer.set_adapters({"one": adapter(20.0)})
    layer.reserve_adapters(32)
    require_peaks(layer)


class Counted(TorchDispatchMode):
    """Operators that run, views aside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_an_adapter_costs_eight_kernels() -> None:
    layer = made().reserve_adapters(48)
    layer.set_adapters({"one": adapter(1.0)})
    with Counted() as ran:
        layer._peaks.refresh_branch(layer._buffers)
    assert len(ran.names) == 8, ran.names
    require_peaks(layer)


def written(layer: SVDQuantLinear) -> None:
    layer.lora_up.mul_(40)


def rescaled(layer: SVDQuantLinear) -> None:
    layer.wscales.view(torch.float8_e4m3fn).copy_(layer.wscales.view(torch.float8_e4m3fn).float() * 4)


def assigned(layer: SVDQuantLinear) -> None:
    layer.smooth = layer.smooth / 8


def put_by_name(layer: SVDQuantLinear) -> None:
    """As accelerate does."""
    layer._buffers["lora_down_packed"] = layer.lora_down_packed * 16


def other_data(layer: SVDQuantLinear) -> None:
    layer.lora_up.data = layer.lora_up * 40


def zeroed(layer: SVDQuantLinear) -> None:
    layer.wpeak.zero_()


CHANGES = [written, rescaled, assigned, put_by_name, other_data, zeroed]


@pytest.mark.parametrize("change", CHANGES)
def test_an_eager_call_sees_what_was_done_to_buffers(change: Callable[[SVDQuantLinear], None]) -> None:
    layer, x = made(), activations(9, K)
    layer(x)
    place = layer.wpeak.data_ptr()
    change(layer)
    wanted = x.double() @ whole_weight(layer).T + layer.bias.double()
    assert relative(layer(x), wanted) < 0.06
    require_peaks(layer)
    assert layer.wpeak.data_ptr() == place


@pytest.mark.parametrize("change", CHANGES)
def test_a_replica_of_what_was_changed(change: Callable[[SVDQuantLinear], None]) -> None:
    layer, x = made(), activations(9, K)
    change(layer)
    replica = replica_of(layer)
    wanted = x.double() @ whole_weight(layer).T + layer.bias.double()
    assert relative(replica(x), wanted) < 0.06
    require_peaks(replica)


def replica_of(layer: SVDQuantLinear) -> SVDQuantLinear:
    """As DataParallel makes one: copies of all buffers."""
    copies = {name: buffer.clone() for name, buffer in layer._buffers.items() if buffer is not None}
    replica = layer._replicate_for_data_parallel()
    replica._buffers.update(copies)
    return replica


def test_a_replica_computes_nothing_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = made()
    replica = replica_of(layer)
    monkeypatch.setattr(SVDQuantLinear, "refresh_peaks", lambda _: pytest.fail("computed"))
    x = activations(9, K)
    assert torch.equal(replica(x), layer(x))


def test_copied_pickled_and_moved() -> None:
    layer, x = made().reserve_adapters(32), activations(9, K)
    layer.set_adapters({"one": adapter(5.0)})
    y = layer(x)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    others = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), torch.load(file, weights_only=False)]
    for other in others:
        require_peaks(other)
        assert torch.equal(other(x), y)
        written(other)
        other(x)
        require_peaks(other)
    require_peaks(layer)
    assert torch.equal(layer(x), y), "a copy's wpeak is its own"
    for moved in (layer.to("cpu"), layer.half(), layer.to(torch.float64)):
        require_peaks(moved)
        assert torch.equal(moved(x), y)


def test_pickled_before_there_was_one() -> None:
    layer, x = made(), activations(9, K)
    state = copy.copy(layer.__dict__)
    state["_buffers"] = {name: one for name, one in layer._buffers.items() if name != "wpeak"}
    state["_non_persistent_buffers_set"] = set()
    del state["_peaks"]
    old = SVDQuantLinear.__new__(SVDQuantLinear)
    old.__setstate__(state)
    require_peaks(old)
    assert torch.equal(old(x), layer(x)) and old.state_dict().keys() == KEYS


def test_made_in_inference_mode() -> None:
    with torch.inference_mode():
        layer = made()
    x = activations(9, K)
    assert torch.equal(layer(x), made()(x))
    layer.refresh_peaks()
    require_peaks(layer)


def test_parts_of_layers() -> None:
    layer = made(calibration=None)
    require_peaks(shard(layer, 1, 3, "column"))
    require_peaks(shard(SVDQuantLinear.from_linear(linear_of(N, 128), rank=RANK), 1, 2, "row"))
    require_peaks(stacked([layer, layer]))
    wide = SVDQuantLinear.from_linear(linear_of(96, K), rank=RANK)
    require_peaks(interleave_gates(wide))


def test_adapters_of_a_model_of_layers_of_many_sizes() -> None:
    """They are written into one tensor, and wpeak of all layers comes from it by a few kernels."""
    sizes = [(72, 160), (136, 64), (96, 320)]
    model = torch.nn.ModuleDict(
        {
            f"{n}x{k}": SVDQuantLinear.from_linear(linear_of(n, k), rank=16, activations="fp8")
            for n, k in sizes
        }
    )
    reserve_adapters(model, 32)
    layers: list[Any] = list(model.values())
    plain = [layer.wpeak.clone() for layer in layers]
    for scale in (30.0, 0.2):
        rng = torch.Generator().manual_seed(7)
        tensors = {
            f"{n}x{k}": (
                torch.randn(k, 16, generator=rng),
                scale * torch.randn(n, 16, generator=rng) / (n + k),
            )
            for n, k in sizes
        }
        with Counted() as ran:
            set_adapters(model, {"one": (tensors, 1.0)})
        first, ran.names[:] = len(ran.names), []
        with ran:
            set_adapters(model, {"one": (tensors, 0.5)})
        assert len(ran.names) <= 12 < first, ran.names
        for layer in layers:
            require_peaks(layer)
    layers[1].smooth.div_(4)  # the bound of its scales is another one now
    set_adapters(model, {"one": (tensors, 0.5)})
    require_peaks(layers[1])
    layers[1].smooth.mul_(4)
    set_adapters(model, {})
    for layer, before in zip(layers, plain, strict=True):
        torch.testing.assert_close(layer.wpeak, before, rtol=2**-20, atol=0)


def test_as_row_peaks_has_it() -> None:
    layer = made().reserve_adapters(32)
    layer.set_adapters({"one": adapter(5.0)})
    wanted = row_peaks(layer.wscales, layer.smooth, layer.lora_down_packed, layer.lora_up)
    torch.testing.assert_close(layer.wpeak, wanted, rtol=2**-20, atol=0)


# -- compiled, and the operator of torch


def test_compiled_and_exported_sees_adapters() -> None:
    layer, x = made().reserve_adapters(32), activations(5, K)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for scale in (0.0, 40.0):
            layer.set_adapters({"one": adapter(scale)})
            assert torch.equal(compiled(x), layer(x))
        program = torch.export.export(layer, (x,))
        assert torch.equal(program.module()(x), layer(x))
        assert compiled(x[:0]).shape == layer(x[:0]).shape == (0, N)


def operands(layer: SVDQuantLinear) -> list[torch.Tensor]:
    branch = (layer.lora_down_packed, layer.wgt, layer.wscales, layer.lora_up)
    return [layer.smooth, *branch, layer.wcscale, layer.bias]


def test_the_operator_with_and_without_it() -> None:
    layer, x = made(), activations(5, K).bfloat16()
    op, rest = torch.ops.svdquant.linear, operands(layer)
    y = op(x, *rest, "fp8", "none", layer.wpeak)
    assert torch.equal(y, layer(x))
    assert torch.equal(op(x, *rest, "fp8", "none", 2 * layer.wpeak).isfinite(), torch.ones_like(y).bool())
    assert torch.equal(op(x, *rest, "auto"), op(x, *rest, "nvfp4"))
    for call in (
        lambda: op(x, *rest, "fp8"),
        lambda: op(x[:0], *rest, "fp8"),
        lambda: linear_op_call(x, *rest, "fp8"),
        lambda: torch.compile(op, backend="eager", fullgraph=True)(x, *rest, "fp8"),
    ):
        with pytest.raises(Exception, match='activations="fp8" reads wpeak, which was not given'):
            call()
    for wrong in (layer.wpeak[:-1], layer.wpeak.double()):
        for rows in (x, x[:0]):
            with pytest.raises(InputError, match="wpeak must be"):
                op(rows, *rest, "fp8", "none", wrong)
    torch.library.opcheck(op, (x, *rest, "fp8", "none", layer.wpeak), test_utils="test_schema")
    torch.library.opcheck(op, (x, *rest, "fp8", "silu", layer.wpeak), test_utils="test_faketensor")


def test_auto_takes_it_only_with_wpeak(monkeypatch: pytest.MonkeyPatch) -> None:
    """And remembers both answers apart."""
    monkeypatch.setattr(linear_op, "_ways", Recent(16))
    monkeypatch.setattr(
        linear_op, "decide", lambda *_, has_peaks: Decision("fp8" if has_peaks else "16bit", "")
    )
    layer, x = SVDQuantLinear.from_linear(torch.nn.Linear(K, N), rank=RANK), activations(5, K).bfloat16()
    rest = operands(layer)
    fp8, half = (torch.ops.svdquant.linear(x, *rest, one, "none", layer.wpeak) for one in ("fp8", "16bit"))
    layer.activations = "auto"
    for _ in range(2):
        assert torch.equal(layer(x), fp8)
        assert torch.equal(torch.ops.svdquant.linear(x, *rest, "auto", "none", layer.wpeak), fp8)
        assert torch.equal(torch.ops.svdquant.linear(x, *rest, "auto"), half)
        assert torch.equal(linear_op_call(x, *rest), half)
    assert not torch.equal(fp8, half)
    asked: list[str] = []
    for name in linear_op._QUICK:
        monkeypatch.setitem(linear_op._QUICK, name, lambda *_, name=name: asked.append(name))
    layer(x)
    linear_op_call(x, *rest)
    torch.ops.svdquant.linear(x, *rest, "auto", "none", layer.wpeak)
    torch.ops.svdquant.linear(x, *rest, "auto")
    assert asked == ["fp8", "16bit", "fp8", "16bit"]


def test_the_short_way_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine inputs, then no output, then the activation; other kinds are called without it and never ask for it. Of an
    operator with one output a short call gives that, of the others all (``quick_source.py``).
    """
    layer, x = made(), activations(5, K).bfloat16()
    calls: list[tuple[Any, ...]] = []
    outputs = {name: len(caller.signature.outputs) for name, caller in linear_op.CALLERS.items()}

    def quick(name: str) -> Callable[..., Any]:
        return lambda *given: calls.append(given) or (x if outputs[name] == 1 else (x,) * outputs[name])

    monkeypatch.setattr(linear_op, "_QUICK", {name: quick(name) for name in outputs})
    monkeypatch.setattr(linear_op, "_Y", dict.fromkeys(outputs, 0))
    assert layer.activated(x, "silu").shape == x.shape
    assert torch.ops.svdquant.linear(x, *operands(layer), "fp8", "silu", layer.wpeak).shape == x.shape
    monkeypatch.setattr(SVDQuantLinear, "current_peaks", lambda _: pytest.fail("asked"))
    for layer.activations in ("nvfp4", "16bit"):
        layer(x)
    assert [len(one) for one in calls[:2]] == [11, 11]
    assert all(one[8].data_ptr() == layer.wpeak.data_ptr() for one in calls[:2])
    assert [one[-1] for one in calls] == ["silu", "silu", "none", "none"]
    assert [len(one) for one in calls[2:]] == [9 + outputs["nvfp4"], 9 + outputs["16bit"]]
