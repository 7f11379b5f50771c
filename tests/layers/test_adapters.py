"""Adapters of a layer against float64: y without them plus what each adds."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from kernel_space.operators.nvfp4_quantize.packing import unpack_lora_down
from tests.layers.test_linear import activations, linear_of, relative
from tuner.layers import adapters as module
from tuner.runtime import InputError, SVDQuantLinear

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_linear on cpu is the torch reference")
N, K, RANK = 72, 160, 16
ROUNDED = 2.0**-7  # of y in bf16, and of the branch


def made(max_rank: int | None = 64, **options: Any) -> SVDQuantLinear:
    layer = SVDQuantLinear.from_linear(linear_of(N, K), rank=RANK, calibration=activations(64, K), **options)
    return layer if max_rank is None else layer.reserve_adapters(max_rank)


def adapter(rank: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(down ``[K, r]``, up ``[N, r]``), which change y by about as much as there is."""
    rng = torch.Generator().manual_seed(seed)
    down, up = torch.randn(K, rank, generator=rng) / 8, torch.randn(N, rank, generator=rng) / 4
    return down.bfloat16(), up.bfloat16()


def added(x: torch.Tensor, *parts: tuple[torch.Tensor, torch.Tensor, float]) -> torch.Tensor:
    y = torch.zeros(x.shape[0], N, dtype=torch.float64)
    for down, up, strength in parts:
        y += strength * (x.double() @ down.double()) @ up.double().T
    return y


def test_room_changes_nothing() -> None:
    plain, layer, x = made(None), made(), activations(5, K)
    assert (plain.max_rank, layer.max_rank, layer.rank) == (RANK, 64, RANK)
    assert torch.equal(plain(x), layer(x))
    assert "max_rank=64" in repr(layer) and "max_rank" not in repr(plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("ranks", [(8,), (5,), (16, 24), (1, 3, 8, 16)])
def test_y_is_the_sum(ranks: tuple[int, ...], transposed: bool, dtype: torch.dtype) -> None:
    layer, x = made(dtype=dtype), activations(5, K).to(dtype)
    before = layer(x)
    drawn = [(*adapter(rank, seed), 0.5 + seed) for seed, rank in enumerate(ranks)]
    given = {
        str(number): (down.T.contiguous() if transposed else down, up, strength)
        for number, (down, up, strength) in enumerate(drawn)
    }
    layer.set_adapters(given)
    wanted = before.double() + added(x, *drawn)
    assert relative(layer(x), wanted) < ROUNDED
    assert relative(before, wanted) > 10 * ROUNDED
    layer.set_adapters({})
    assert torch.equal(layer(x), before)


def test_room_beyond_256_columns() -> None:
    layer, x = made(512), activations(5, K)
    before, wide = layer(x).double(), adapter(496, 3)
    layer.set_adapters({"a": (*wide, 0.75)})
    assert relative(layer(x), before + added(x, (*wide, 0.75))) < ROUNDED


def test_every_strength_is_its_own() -> None:
    layer, x = made(), activations(5, K)
    base = layer(x).double()
    first, second = adapter(16, 1), adapter(8, 2)
    for one, other in ((1.0, 0.0), (0.25, -1.5), (0.0, 2.0)):
        layer.set_adapters({"a": (*first, one), "b": (*second, other)})
        wanted = base + added(x, (*first, one), (*second, other))
        assert relative(layer(x), wanted) < ROUNDED


def test_memory_stays_where_it_is() -> None:
    """What a CUDA graph has recorded, and what torch.compile guards."""
    layer, x = made(), activations(5, K)
    before = {name: (buffer.data_ptr(), buffer.shape) for name, buffer in layer.named_buffers()}
    runs: list[int] = []

    def backend(graph: Any, inputs: Any) -> Any:
        runs.append(1)
        return graph.forward

    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    with torch.no_grad():
        base = compiled(x).double()
        for strength in (1.0, 3.0):
            drawn = adapter(16, 3)
            layer.set_adapters({"a": (*drawn, strength)})
            assert relative(compiled(x), base + added(x, (*drawn, strength))) < ROUNDED
    assert len(runs) == 1
    assert before == {name: (buffer.data_ptr(), buffer.shape) for name, buffer in layer.named_buffers()}


def test_what_was_there_is_not_packed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[int] = []
    real = module.pack_lora_down

    def counted(down: torch.Tensor) -> torch.Tensor:
        packed.append(1)
        return real(down)

    monkeypatch.setattr(module, "pack_lora_down", counted)
    layer, x = made(), activations(5, K)
    base = layer(x).double()
    first, second = adapter(16, 1), adapter(16, 2)
    for strength in (1.0, 2.0):
        layer.set_adapters({"a": (*first, strength)})
        layer.set_adapters({"b": (*second, strength)})
        assert relative(layer(x), base + added(x, (*second, strength))) < ROUNDED
    assert len(packed) == 2
    first[1].mul_(2)  # in place: the same tensor, another adapter
    layer.set_adapters({"a": (*first, 1.0)})
    assert len(packed) == 3 and relative(layer(x), base + added(x, (*first, 1.0))) < ROUNDED


def test_places_are_found_again_where_they_are_in_pieces() -> None:
    """48 columns: 16 + 16 + 16, then one of 32 in the place of the first and the last."""
    layer, x = made(), activations(5, K)
    base = layer(x).double()
    small = {name: adapter(16, seed) for seed, name in enumerate("abc")}
    wide = adapter(32, 9)
    layer.set_adapters({name: (*one, 1.0) for name, one in small.items()})
    layer.set_adapters({"b": (*small["b"], 1.0), "wide": (*wide, 1.0)})
    assert relative(layer(x), base + added(x, (*small["b"], 1.0), (*wide, 1.0))) < ROUNDED
    layer.set_adapters({"c": (*small["c"], 2.0)})
    assert relative(layer(x), base + added(x, (*small["c"], 2.0))) < ROUNDED


def test_state_dict_copies_and_moves() -> None:
    plain, layer, x = made(None), made(), activations(5, K)
    layer.set_adapters({"a": (*adapter(16, 1), 1.0)})
    with_adapter = layer(x)
    state = layer.state_dict()
    assert {name: tensor.shape for name, tensor in state.items()} == {
        name: tensor.shape for name, tensor in plain.state_dict().items()
    }
    assert torch.equal(copy.deepcopy(layer)(x), with_adapter)
    assert torch.equal(layer.half()(x), with_adapter)
    layer.load_state_dict(state)
    assert torch.equal(layer(x), plain(x)) and layer.max_rank == 64
    layer.set_adapters({"a": (*adapter(16, 1), 1.0)})
    assert torch.equal(layer(x), with_adapter)
    branch = unpack_lora_down(layer.lora_down_packed, K)[:, :RANK]
    assert torch.equal(branch, plain.lora_down)


def test_room_for_less_drops_what_was_set() -> None:
    layer, x = made(), activations(5, K)
    base = made(None)(x)
    layer.set_adapters({"a": (*adapter(16, 1), 1.0)})
    assert torch.equal(layer.reserve_adapters(32)(x), base)
    assert torch.equal(layer.reserve_adapters(RANK)(x), base)


DOWN, UP = adapter(16, 1)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "too many": (
        {"a": (*adapter(48, 1), 1.0), "b": (DOWN, UP, 1.0)},
        "adapters need 64 columns, and the layer has 48",
    ),
    "up": ({"a": (DOWN, UP[:64], 1.0)}, r"up of an adapter must be float \[72, r\], got bfloat16 \[64, 16\]"),
    "up without columns": ({"a": (DOWN[:, :0], UP[:, :0], 1.0)}, "up of an adapter must be"),
    "down": ({"a": (DOWN[:64], UP, 1.0)}, r"down of an adapter must be float \[160, 16\] or its transpose"),
    "down of integers": ({"a": (DOWN.int(), UP, 1.0)}, "down of an adapter must be float"),
    "NaN": ({"a": (DOWN * math.nan, UP, 1.0)}, "an adapter must be finite in bfloat16"),
    "strength": ({"a": (DOWN, UP, math.inf)}, "the strength of adapter 'a' must be a finite number, got inf"),
    "strength as text": ({"a": (DOWN, UP, "1")}, "the strength of adapter 'a' must be a finite number"),
}


@pytest.mark.parametrize(("given", "message"), BAD.values(), ids=BAD.keys())
def test_adapters_that_do_not_fit_change_nothing(given: dict[str, Any], message: str) -> None:
    layer, x = made(), activations(5, K)
    layer.set_adapters({"before": (*adapter(8, 5), 1.0)})
    before = layer(x)
    with pytest.raises(InputError, match=message) as caught:
        layer.set_adapters(given)
    assert "\n" not in str(caught.value) and torch.equal(layer(x), before)


@pytest.mark.parametrize(
    ("max_rank", "message"),
    [
        (0, "at least the layer's rank 16, got 0"),
        (24, "R must be a multiple of 16"),
        (528, "R must be between"),
    ],
)
def test_room_that_cannot_be(max_rank: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        made(None).reserve_adapters(max_rank)


def test_no_room_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"the layer has 0: reserve_adapters\(max_rank\) makes room"):
        made(None).set_adapters({"a": (DOWN, UP, 1.0)})
