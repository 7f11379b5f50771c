"""How much of a weight is in 4 bits, against float64 by hand; where it is little, ``auto`` never takes FP8."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from tests.layers.test_fp8 import Counted, operands
from tests.layers.test_linear import activations, draw, linear_of, relative
from tuner.layers import linear, linear_op, mlp_op
from tuner.layers.activations import FP8_LEAST_SHARE, Decision
from tuner.layers.models.slices import packed_of, stacked
from tuner.runtime import (
    SVDQuantLinear,
    SVDQuantMLP,
    interleave_gates,
    load_svdquant,
    reserve_adapters,
    save_svdquant,
    set_adapters,
    shard,
)
from tuner.runtime.choice.remembered import Recent

pytestmark = pytest.mark.filterwarnings("ignore:(svdquant|nvfp4)_.* on cpu is the torch reference")
N, K, RANK = 72, 160, 16
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def gaussian(n: int = N, k: int = K) -> torch.nn.Linear:
    """Nothing that a branch could hold."""
    made = torch.nn.Linear(k, n)
    with torch.no_grad():
        made.weight.copy_(torch.randn(n, k, generator=draw(11)) / k**0.5)
    return made


def dominated(n: int = N, k: int = K) -> torch.nn.Linear:
    """By eight directions, with a fiftieth of the squares beside them."""
    made = gaussian(n, k)
    strong = torch.randn(n, 8, generator=draw(12)) @ torch.randn(8, k, generator=draw(13)) / (8 * k) ** 0.5
    with torch.no_grad():
        made.weight.mul_(0.02**0.5).add_(strong, alpha=0.98**0.5)
    return made


def quantized(of: torch.nn.Linear, **options: Any) -> SVDQuantLinear:
    return SVDQuantLinear.from_linear(of, **{"rank": RANK, **options})


def parts_of(layer: SVDQuantLinear) -> tuple[torch.Tensor, torch.Tensor]:
    """float64 ``[N, K]``: the 4-bit part, and with the branch; of y, smoothed. Codes and scales one by one."""
    n, k, rank = layer.out_features, layer.in_features, layer.rank
    codes, scales = layer.wgt.tolist(), layer.wscales.view(torch.float8_e4m3fn).float().tolist()
    wide = math.ceil(k / 64)
    part = torch.zeros(n, k, dtype=torch.float64)
    for row in range(n):
        for at in range(k):
            code = codes[row][at // 2] >> (4 * (at % 2)) & 15
            tile, group = (row // 128) * wide + at // 64, at // 16
            scale = scales[tile * 512 + (row % 32) * 16 + (row % 128) // 32 * 4 + group % 4]
            part[row, at] = (-1) ** (code // 8) * E2M1[code % 8] * scale
    branch = layer.lora_up[:, :rank].double() @ layer.lora_down.double().T * layer.smooth.double()
    return part * layer.wcscale.double()[:, None], (part + branch) * layer.wcscale.double()[:, None]


def shares_of(layer: SVDQuantLinear, rows: slice | list[int] = slice(None)) -> tuple[float, float]:
    """Of all squares; of squares times those of x, whose columns are as large as the weight's."""
    part, whole = (one[rows].square() for one in parts_of(layer))
    like_weight = whole.sum(0)
    return (
        (part.sum() / whole.sum()).item(),
        ((part * like_weight).sum() / (whole * like_weight).sum()).item(),
    )


def sampled(n: int) -> list[int]:
    return [number * (n - 1) // 127 for number in range(128)] if n > 128 else list(range(n))


def require_known(layer: SVDQuantLinear) -> None:
    """From before the first call."""
    assert layer._share == pytest.approx(min(shares_of(layer, sampled(layer.out_features))), rel=1e-9)
    assert type(layer._share) is float
    assert layer._fp8_is_close == (layer._share >= FP8_LEAST_SHARE)


# -- the number


@pytest.mark.parametrize("of", [gaussian, dominated, lambda: linear_of(N, K)])
@pytest.mark.parametrize("options", [{}, {"rank": 0}, {"calibration": activations(64, K)}])
def test_of_layers_that_were_quantized(of: Callable[[], torch.nn.Linear], options: dict[str, Any]) -> None:
    require_known(quantized(of(), **options))


def test_both_sides_of_the_limit() -> None:
    close, far = quantized(gaussian()), quantized(dominated())
    assert close._share is not None and far._share is not None
    assert close._share > 2 * FP8_LEAST_SHARE and far._share < FP8_LEAST_SHARE / 2
    assert (close._fp8_is_close, far._fp8_is_close) == (True, False)


def test_rows_count_as_in_y() -> None:
    """A row that wcscale makes a hundred times larger is nearly all of it."""
    close, far = quantized(gaussian()), quantized(dominated())
    layer = quantized(gaussian())
    layer.wgt[::2], layer.lora_up[::2] = far.wgt[::2], far.lora_up[::2] * 0
    layer.wcscale[::2] *= 100
    layer.refresh_peaks()
    require_known(layer)
    assert layer._share != pytest.approx(close._share, rel=1e-3)


def test_a_large_layer_by_128_rows_from_the_first_to_the_last() -> None:
    layer, rows = quantized(linear_of(600, 64)), sampled(600)
    assert (rows[0], rows[-1], len(set(rows))) == (0, 599, 128)
    require_known(layer)
    assert layer._share == pytest.approx(min(shares_of(layer)), rel=0.2)


# -- what it says


def errors(layer: SVDQuantLinear, x: torch.Tensor) -> dict[str, float]:
    """Of y against float64 of the layer's own numbers."""
    _, whole = parts_of(layer)
    exact = (x.double() / layer.smooth.double()) @ whole.T + layer.bias.double()
    found = {}
    for layer.activations in ("fp8", "nvfp4"):
        found[layer.activations] = relative(layer(x), exact)
    layer.activations = "auto"
    return found


@pytest.mark.parametrize("strength", [None, 0.5, 0.8])
@pytest.mark.parametrize("larger", [1.0, 5.0, 15.0])
@pytest.mark.parametrize("beside", [0.05, 0.15, 0.5, 1.0])
def test_fp8_is_not_taken_where_nvfp4_is_closer(beside: float, larger: float, strength: float | None) -> None:
    """``beside`` strong directions this share of squares; some columns of x ``larger``."""
    of = gaussian(64, 256)
    strong = torch.randn(64, 8, generator=draw(21)) @ torch.randn(8, 256, generator=draw(22)) / 2048**0.5
    with torch.no_grad():
        of.weight.mul_(beside**0.5).add_(strong, alpha=(1 - beside) ** 0.5)
    x, seen = (torch.randn(64, 256, generator=draw(seed)) for seed in (23, 24))
    for one in (x, seen):
        one[:, 3::31] *= larger
    options = {} if strength is None else {"calibration": seen, "smoothing_strength": strength}
    layer = quantized(of, dtype=torch.float16, **options)
    found = errors(layer, x.half())
    assert not layer._fp8_is_close or found["fp8"] < found["nvfp4"], (layer._share, found)
    if (
        strength is None or larger == 1.0
    ):  # as far as x has no columns of its own, it is taken where it is closer
        assert layer._fp8_is_close == (beside >= 0.5), (layer._share, found)


def test_a_share_of_all_squares_would_not_do() -> None:
    """A branch holds the large columns of a smoothed weight, which meet the large columns of x."""
    x = torch.randn(96, 256, generator=draw(31))
    x[:, 3::31] *= 40
    layer = quantized(gaussian(64, 256), calibration=x[:64], dtype=torch.float16)
    found = errors(layer, x[64:].half())
    plain, weighted = shares_of(layer)
    assert plain > FP8_LEAST_SHARE > weighted
    assert found["fp8"] > 1.2 * found["nvfp4"] and not layer._fp8_is_close


# -- when it is looked at


def saved_and_loaded(layer: SVDQuantLinear, **options: Any) -> SVDQuantLinear:
    other = SVDQuantLinear(K, N, rank=RANK, device=options.pop("device", None))
    other.load_state_dict({name: one.clone() for name, one in layer.state_dict().items()}, **options)
    return other


def in_pieces(layer: SVDQuantLinear) -> SVDQuantLinear:
    """As checkpoints of several files come."""
    other = SVDQuantLinear(K, N, rank=RANK, device="meta")
    for name, one in layer.state_dict().items():
        other.load_state_dict({name: one}, assign=True, strict=False)
    return other


def through_a_file(layer: SVDQuantLinear) -> SVDQuantLinear:
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    found: SVDQuantLinear = torch.load(file, weights_only=False)
    return found


WAYS: dict[str, Callable[[SVDQuantLinear], SVDQuantLinear]] = {
    "packed": lambda one: SVDQuantLinear.from_packed(packed_of(one), one.lora_down, one.smooth),
    "loaded": saved_and_loaded,
    "assigned": lambda one: saved_and_loaded(one, assign=True),
    "assigned to meta": lambda one: saved_and_loaded(one, assign=True, device="meta"),
    "in pieces": in_pieces,
    "emptied": lambda one: _filled(SVDQuantLinear(K, N, rank=RANK, device="meta"), one),
    "copied": copy.deepcopy,
    "pickled": lambda one: pickle.loads(pickle.dumps(one)),
    "torch.save": through_a_file,
    "moved": lambda one: one.to("cpu").half(),
    "old pickle": lambda one: _old(one),
    "column shard": lambda one: shard(one, 1, 3, "column"),
    "stacked": lambda one: stacked([one, one]),
    "replica": lambda one: _replica(one),
}


def _filled(empty: SVDQuantLinear, one: SVDQuantLinear) -> SVDQuantLinear:
    made = empty.to_empty(device="cpu")
    made.load_state_dict(one.state_dict())
    return made


def _replica(layer: SVDQuantLinear) -> SVDQuantLinear:
    """As torch makes one for DataParallel, which assigns copies of all buffers."""
    replica = layer._replicate_for_data_parallel()
    for name, buffer in layer.named_buffers():
        setattr(replica, name, buffer.clone())
    return replica


def _old(layer: SVDQuantLinear) -> SVDQuantLinear:
    """Of a pickle from before layers were looked at."""
    state = {name: one for name, one in layer.__dict__.items() if name not in ("_share", "_fp8_is_close")}
    old = SVDQuantLinear.__new__(SVDQuantLinear)
    old.__setstate__(state)
    return old


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", [gaussian, dominated])
def test_known_without_a_call(of: Callable[[], torch.nn.Linear], way: str) -> None:
    require_known(WAYS[way](quantized(of())))


def test_known_of_checkpoints_row_shards_and_gates(tmp_path: Path) -> None:
    close, far = quantized(gaussian(96, 128)), quantized(dominated(96, 128))
    save_svdquant({"close": close, "far": far}, tmp_path / "layers.safetensors")
    loaded = load_svdquant(tmp_path / "layers.safetensors")
    for name, before in (("close", close), ("far", far)):
        found = loaded[name]
        assert isinstance(found, SVDQuantLinear)
        require_known(found)
        assert found._share == before._share
    require_known(shard(far, 1, 2, "row"))
    require_known(interleave_gates(far))


@pytest.fixture
def never_again(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setattr(linear, "residual_share", lambda *_: pytest.fail("looked again"))


@pytest.mark.parametrize("of", [gaussian, dominated])
def test_once(of: Callable[[], torch.nn.Linear], never_again: Callable[[], None]) -> None:
    """Not by calls, nor for adapters, whatever they are."""
    model = torch.nn.ModuleDict({"one": quantized(of()), "two": quantized(of())})
    shares = [one._share for one in model.values()]
    never_again()
    x = activations(5, K)
    reserve_adapters(model, 32)
    down, up = torch.randn(K, 16, generator=draw(1)), 50 * torch.randn(N, 16, generator=draw(2))
    set_adapters(model, {"large": ({name: (down, up) for name in model}, 1.0)})
    layer: Any = model["one"]
    layer.set_adapters({"larger": (down, 2 * up, 1.0)})
    for one in (layer, layer.half(), copy.deepcopy(layer), _replica(layer)):
        one(x)
        assert one.chosen(5).activations == "nvfp4"
    layer.load_state_dict({}, strict=False)
    assert [one._share for one in model.values()] == shares


def test_a_call_waits_for_nothing() -> None:
    """``item`` of a tensor is what would."""
    for of in (gaussian, dominated):
        layer, x = quantized(of(), activations="auto"), activations(5, K)
        layer(x)
        with Counted() as ran:
            layer.offered_peaks()
            layer.set_adapters({})
        assert not [name for name in ran.names if "local_scalar" in name]


def test_forgotten_when_buffers_are_assigned_and_looked_at_by_the_next_call() -> None:
    layer, other = quantized(gaussian()), quantized(dominated())
    for name in ("wgt", "wscales", "smooth", "wcscale", "lora_up", "lora_down_packed"):
        setattr(layer, name, other.get_buffer(name).clone())
        assert (layer._share, layer._fp8_is_close) == (None, False)
    layer(activations(5, K))
    require_known(layer)
    assert layer._share == other._share
    layer.bias = torch.ones(N)
    assert layer._share == other._share


def test_looked_at_again_with_adapters_they_do_not_count() -> None:
    layer = quantized(gaussian()).reserve_adapters(32)
    down, up = torch.randn(K, 16, generator=draw(1)), 50 * torch.randn(N, 16, generator=draw(2))
    before = layer._share
    layer.set_adapters({"large": (down, up, 1.0)})
    layer.refresh_peaks()
    assert layer._share == before


def test_a_replica_of_a_layer_that_was_not_looked_at() -> None:
    """It looks once, not every replica of every call."""
    layer = SVDQuantLinear(K, N, rank=RANK)
    layer._buffers.update(quantized(gaussian())._buffers)
    require_known(_replica(layer))
    require_known(layer)


def test_looked_at_again_when_told_so() -> None:
    layer, other = quantized(gaussian()), quantized(dominated())
    for name, buffer in other.named_buffers():
        layer.get_buffer(name).copy_(buffer)
    layer.refresh_peaks()
    require_known(layer)
    assert layer._share == other._share


def test_an_empty_layer_that_is_filled_by_hand() -> None:
    layer, other = SVDQuantLinear(K, N, rank=RANK), quantized(gaussian())
    assert layer._share is None
    layer._buffers.update({name: one.clone() for name, one in other.named_buffers()})  # as accelerate does
    assert layer._share is None and not layer._fp8_is_close
    layer(activations(5, K))
    require_known(layer)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_where_there_are_no_numbers_nothing_is_known() -> None:
    meta = SVDQuantLinear(K, N, rank=RANK, device="meta")
    assert meta.offered_peaks() is None and meta._share is None
    half = quantized(gaussian())
    half._buffers["wgt"] = half.wgt.to("meta")
    half._know_share(None)
    assert half.offered_peaks() is None and half._share is None
    with FakeTensorMode():
        fake = SVDQuantLinear(K, N, rank=RANK)
        fake.load_state_dict(fake.state_dict())
        fake(torch.zeros(5, K))
        assert fake.offered_peaks() is None and fake._share is None
    zeros = SVDQuantLinear(K, N, rank=RANK)
    assert zeros.offered_peaks() is None and math.isnan(zeros._share or 0)


def test_while_a_graph_is_captured_it_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    from tuner.layers import weight

    layer = SVDQuantLinear(K, N, rank=RANK)
    layer._buffers.update(quantized(gaussian())._buffers)
    with monkeypatch.context() as captured:
        captured.setattr(weight, "_is_capturing", lambda _: True)
        assert layer.offered_peaks() is None and layer._share is None
        known = quantized(gaussian())
        known._know_share(0.9)
        known.refresh_peaks()
        assert known._share == 0.9
    assert layer.offered_peaks() is not None
    require_known(layer)


# -- what is taken


class Table:
    """Where FP8 is faster than 16 bits wherever it may be taken; how often it was asked."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def decide(self, *_: Any, has_peaks: bool) -> Decision:
        self.asked.append(has_peaks)
        return Decision("fp8", "16bit 90 us, fp8 60 us") if has_peaks else Decision("16bit", "16bit 90 us")


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[Table]:
    made = Table()
    for module in (linear, linear_op, mlp_op):
        monkeypatch.setattr(module, "decide", made.decide)
    monkeypatch.setattr(linear_op, "_ways", Recent(16))
    monkeypatch.setattr(mlp_op, "_handed", Recent(16))
    yield made


def of_kind(layer: SVDQuantLinear, x: torch.Tensor, kind: str) -> torch.Tensor:
    y: torch.Tensor = torch.ops.svdquant.linear(x, *operands(layer), kind, "none", layer.wpeak)
    return y


@pytest.mark.parametrize("way", ["from_linear", "loaded", "assigned to meta", "in pieces", "replica"])
def test_auto_takes_fp8_for_one_of_two(way: str, table: Table) -> None:
    x = activations(5, K).bfloat16()
    for of, wanted in ((gaussian, "fp8"), (dominated, "16bit")):
        layer = WAYS.get(way, lambda one: one)(quantized(of()))
        kinds = {kind: of_kind(layer, x, kind) for kind in ("fp8", "16bit")}
        assert not torch.equal(kinds["fp8"], kinds["16bit"])
        for _ in range(2):
            assert torch.equal(layer(x), kinds[wanted])
        assert layer.chosen(5).activations == wanted
        layer.activations = "fp8"
        assert torch.equal(layer(x), kinds["fp8"]), "asked for"
        assert layer.chosen(5) == Decision("fp8", "asked for")


def test_chosen_says_why(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    close, far = quantized(gaussian()), quantized(dominated())
    assert close.chosen(5) == Decision("fp8", "16bit 90 us, fp8 60 us")
    share = min(shares_of(far))
    reason = f"16bit 90 us; fp8 left out: {100 * share:.1f}% of the weight is in 4 bits, below 25% nvfp4 may be more"
    assert far.chosen(5) == Decision("16bit", f"{reason} accurate")
    monkeypatch.setattr(linear, "residual_share", lambda *_: None)
    far._know_share(None)
    assert far.chosen(5).reason == (
        "16bit 90 us; fp8 left out: how much of the weight is in 4 bits is not known yet"
    )
    monkeypatch.setattr(linear, "decide", lambda *_, has_peaks: Decision("nvfp4", "no kernel runs there"))
    assert far.chosen(5).reason == "no kernel runs there", "fp8 was no matter"


def test_compiled_it_is_a_constant(table: Table, never_again: Callable[[], None]) -> None:
    x = activations(5, K).bfloat16()
    layers = [(quantized(of()), kind) for of, kind in ((gaussian, "fp8"), (dominated, "16bit"))]
    never_again()
    for layer, kind in layers:
        compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            assert torch.equal(compiled(x), of_kind(layer, x, kind))
            program = torch.export.export(layer, (x,))
            assert torch.equal(program.module()(x), of_kind(layer, x, kind))


def test_compiled_before_it_is_known_it_is_left_out(table: Table) -> None:
    """Until an eager call: then the graph is traced anew."""
    x, full = activations(5, K).bfloat16(), quantized(gaussian())
    layer = SVDQuantLinear(K, N, rank=RANK)
    layer._buffers.update({name: one.clone() for name, one in full.named_buffers()})
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        for _ in range(2):
            assert torch.equal(compiled(x), of_kind(full, x, "16bit")) and layer._share is None
        assert torch.equal(layer(x), of_kind(full, x, "fp8"))
        assert torch.equal(compiled(x), of_kind(full, x, "fp8"))


def test_layers_of_other_shares_are_not_traced_anew(table: Table) -> None:
    """Only what follows from them is guarded: blocks of a model share their code."""
    x, traced = activations(5, K).bfloat16(), []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        traced.append(graph)
        return graph.forward

    layer = quantized(gaussian())
    compiled = torch.compile(torch.nn.Sequential(layer), backend=backend, fullgraph=True)
    with torch.no_grad():
        compiled(x)
        layer._know_share(0.77)
        compiled(x)
        assert len(traced) == 1
        for share in (0.1, 0.12, 0.13):
            layer._know_share(share)
            assert torch.equal(compiled(x), of_kind(layer, x, "16bit"))
        assert len(traced) == 2


# -- two layers


@pytest.mark.parametrize("ofs", [(gaussian, dominated), (dominated, gaussian), (dominated, dominated)])
@pytest.mark.parametrize("rank", [RANK, 0])
def test_an_mlp_takes_it_for_the_layer_that_may(
    ofs: tuple[Callable[..., torch.nn.Linear], ...], rank: int, table: Table
) -> None:
    """With ``rank`` 0 the second one's branch is no matter, and it goes by torch.ops.svdquant.mlp."""
    first, second = quantized(ofs[0](96, 128)), quantized(ofs[1](64, 96), rank=rank)
    kinds = ["fp8" if of is gaussian else "16bit" for of in ofs]
    kinds[1] = kinds[1] if rank else "fp8"
    mlp = SVDQuantMLP(first, second, "none")
    x = torch.randn(7, 128, generator=draw(6)).bfloat16()
    wanted = of_kind(second, of_kind(first, x, kinds[0]), kinds[1])
    for _ in range(2):
        assert torch.equal(mlp(x), wanted)
    with torch.no_grad():
        compiled = torch.compile(mlp, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(x), wanted)
        assert mlp(x[:0]).shape == compiled(x[:0]).shape == (0, 64)
    for layer in (first, second):
        layer.activations = "fp8"
    assert torch.equal(mlp(x), of_kind(second, of_kind(first, x, "fp8"), "fp8")), "asked for"


def test_an_mlp_hands_over_by_what_each_layer_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where auto is nvfp4 without FP8 and FP8 with it, a layer that may take FP8 is not handed over."""
    monkeypatch.setattr(mlp_op, "_handed", Recent(16))
    monkeypatch.setattr(mlp_op, "decide", lambda *_, has_peaks: Decision("fp8" if has_peaks else "nvfp4", ""))
    monkeypatch.setattr(mlp_op, "hands_over", lambda *_: True)
    done: list[int] = []

    def handed(x: torch.Tensor, *_: Any) -> torch.Tensor:
        done.append(1)
        return x.new_zeros((len(x), 64))

    monkeypatch.setattr(mlp_op, "handed", handed)
    x = torch.randn(7, 128, generator=draw(6)).bfloat16()
    first, second = quantized(dominated(96, 128)), quantized(gaussian(64, 96), rank=0)
    mlp = SVDQuantMLP(first, second, "none")
    mlp(x)
    assert not done
    second._know_share(0.1)
    mlp(x)
    assert done == [1]
    first._know_share(0.9)
    mlp(x)
    assert done == [1]
