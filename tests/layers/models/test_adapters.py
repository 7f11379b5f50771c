"""Adapters of a whole model: every layer its own tensors, one strength, and nothing changed where one does not fit."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.layers.test_linear import activations, linear_of, relative
from tuner.layers import adapters
from tuner.layers.models.slices import InputParts
from tuner.runtime import InputError, SVDQuantLinear, reserve_adapters, set_adapters

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_linear on cpu is the torch reference")


def layer(n: int, k: int) -> SVDQuantLinear:
    return SVDQuantLinear.from_linear(linear_of(n, k), rank=16)


def model() -> torch.nn.ModuleDict:
    found = torch.nn.ModuleDict(
        {
            "first": layer(72, 160),
            "both": InputParts([layer(72, 64), layer(72, 96)]),
            "norm": torch.nn.LayerNorm(8),
        }
    )
    reserve_adapters(found, 64)
    return found


def tensors(rank: int, seed: int, *, transposed: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(seed)
    down, up = torch.randn(160, rank, generator=rng) / 8, torch.randn(72, rank, generator=rng) / 4
    return (down.T.contiguous() if transposed else down), up


@pytest.mark.parametrize("transposed", [False, True])
def test_each_layer_gets_its_own(transposed: bool) -> None:
    made, x = model(), activations(5, 160)
    base = {name: made[name](x).double() for name in ("first", "both")}
    a = {"first": tensors(16, 1, transposed=transposed), "both": tensors(8, 2, transposed=transposed)}
    b = {"first": tensors(24, 3)}
    for strengths in ((1.0, -0.5), (2.0, 0.0)):
        set_adapters(made, {"a": (a, strengths[0]), "b": (b, strengths[1])})
        for name in ("first", "both"):
            wanted = base[name].clone()
            for drawn, strength in zip((a, b), strengths, strict=True):
                if name in drawn:
                    down, up = drawn[name]
                    down = down if down.shape[0] == 160 else down.T
                    wanted += strength * (x.double() @ down.double()) @ up.double().T
            assert relative(made[name](x), wanted) < 2.0**-6
    set_adapters(made, {"a": ({"both": a["both"]}, 1.0)})
    assert torch.equal(made["first"](x).double(), base["first"])
    set_adapters(made, {})
    assert torch.equal(made["both"](x).double(), base["both"])


def test_switching_packs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where a tensor is cut for the two layers of one linear."""
    made, x = model(), activations(5, 160)
    given = {
        name: {"first": tensors(8, seed), "both": tensors(8, seed + 5)} for seed, name in enumerate("ab")
    }
    base = {name: made[name](x).double() for name in ("first", "both")}
    for name in "ab":
        set_adapters(made, {name: (given[name], 1.0)})
    monkeypatch.setattr(adapters, "pack_lora_down", None)
    for name, strength in (("a", 2.0), ("b", 0.5), ("a", 1.0)):
        set_adapters(made, {name: (given[name], strength)})
        for place, (down, up) in given[name].items():
            wanted = base[place] + strength * (x.double() @ down.double()) @ up.double().T
            assert relative(made[place](x), wanted) < 2.0**-6


def test_tensors_of_inference_mode() -> None:
    """torch does not count writes to them: they are taken as they are now."""
    with torch.inference_mode():
        made, x = model(), activations(5, 160)
        down, up = tensors(8, 1)
        before = made["first"](x).double()
        for factor in (1.0, 2.0):
            up.mul_(factor)
            set_adapters(made, {"a": ({"first": (down, up)}, 1.0)})
            wanted = before + (x.double() @ down.double()) @ up.double().T
            assert relative(made["first"](x), wanted) < 2.0**-6


def three() -> torch.nn.ModuleDict:
    """Layers whose branches lie in one tensor."""
    found = torch.nn.ModuleDict({"0": layer(72, 160), "1": layer(72, 160), "2": layer(72, 160)})
    reserve_adapters(found, 64)
    return found


def check(made: torch.nn.ModuleDict, base: dict[str, torch.Tensor], state: dict, x: torch.Tensor) -> None:
    for name, one in made.items():
        wanted = base[name].clone()
        for given, strength in state.values():
            if name in given:
                down, up = given[name]
                wanted += strength * (x.double() @ down.double()) @ up.double().T
        assert relative(one(x), wanted) < 2.0**-6, name


def test_branches_of_a_model_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """One write for all layers; layers without the adapter keep their y to the bit."""
    made, x = three(), activations(5, 160)
    base = {name: one(x).double() for name, one in made.items()}
    writes = []
    real = adapters.Adapters.write
    monkeypatch.setattr(
        adapters.Adapters, "write", lambda self, *given: (writes.append(1), real(self, *given))[1]
    )
    a, b = {"0": tensors(8, 1), "2": tensors(20, 2)}, {"1": tensors(16, 3), "2": tensors(8, 4)}
    for state in ({"a": (a, 1.0)}, {"a": (a, 0.5), "b": (b, -2.0)}, {"b": (b, 1.0)}, {"a": (a, 2.0)}, {}):
        writes.clear()
        set_adapters(made, state)
        assert len(writes) == 1
        check(made, base, state, x)
        for name, one in made.items():
            if not any(name in given for given, _ in state.values()):
                assert torch.equal(one(x).double(), base[name])


def test_a_layer_of_its_own_between_two_switches() -> None:
    """What a layer was given by itself does not survive the model's switch, nor the other way round."""
    made, x = three(), activations(5, 160)
    base = {name: one(x).double() for name, one in made.items()}
    a = {name: tensors(24, 5 + int(name)) for name in made}
    own = tensors(40, 9)
    for _ in range(2):
        set_adapters(made, {"a": (a, 1.0)})
        made["1"].set_adapters({"own": (*own, 0.5)})
        check(made, base, {"a": ({"0": a["0"], "2": a["2"]}, 1.0), "own": ({"1": own}, 0.5)}, x)
    set_adapters(made, {"a": (a, -1.0)})
    check(made, base, {"a": (a, -1.0)}, x)


@pytest.mark.parametrize("change", ["copied", "loaded", "reserved", "replaced"])
def test_layers_with_memory_of_their_own(change: str) -> None:
    made, x = three(), activations(5, 160)
    base = {name: one(x).double() for name, one in made.items()}
    a, b = ({name: tensors(24, 5 * seed + int(name)) for name in made} for seed in (1, 2))
    set_adapters(made, {"a": (a, 1.0)})
    if change == "copied":
        before, made = made, copy.deepcopy(made)
        set_adapters(made, {"b": (b, 1.0)})
        check(before, base, {"a": (a, 1.0)}, x)
    elif change == "loaded":
        made["1"].load_state_dict(made["1"].state_dict(), assign=True)
    elif change == "reserved":
        made["1"].reserve_adapters(48)
    else:
        made["1"] = copy.deepcopy(made["1"])
    for state in ({"b": (b, 1.0)}, {"a": (a, 0.5)}, {}):
        set_adapters(made, state)
        check(made, base, state, x)


def test_room_is_counted_by_layer() -> None:
    """Wide here and narrow there: side by side in every layer, though not where both are as wide as their widest."""
    made, x = three(), activations(5, 160)
    base = {name: one(x).double() for name, one in made.items()}
    state = {
        "a": ({"0": tensors(40, 1), "1": tensors(8, 2)}, 1.0),
        "b": ({"0": tensors(8, 3), "1": tensors(40, 4)}, 0.5),
    }
    set_adapters(made, state)
    check(made, base, state, x)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"norm": tensors(8, 1)}, "adapter 'b' has tensors for 'norm', which is no SVDQuantLinear"),
        ({"other": tensors(8, 1)}, "for 'other', which is no SVDQuantLinear"),
        ({"both": tensors(56, 1)}, r"layer 'both.parts.0': adapters need 64 columns, and the layer has 48"),
        (
            {"both": (torch.ones(9, 8), torch.ones(72, 8))},
            "layer 'both': down of an adapter must have 160 inputs",
        ),
        ({"first": (torch.ones(160, 8), torch.ones(8, 8))}, "layer 'first': up of an adapter must be float"),
    ],
)
def test_nothing_changes_where_one_does_not_fit(given: dict, message: str) -> None:
    made, x = model(), activations(5, 160)
    set_adapters(made, {"a": ({"first": tensors(8, 1), "both": tensors(8, 2)}, 1.0)})
    before = {name: made[name](x) for name in ("first", "both")}
    good = {"first": tensors(8, 5), "both": tensors(8, 6)}
    with pytest.raises(InputError, match=message):
        set_adapters(made, {"a": (good, 1.0), "b": (given, 1.0)})
    assert all(torch.equal(made[name](x), before[name]) for name in before)


def test_room_that_cannot_be() -> None:
    made = model()
    for rank, message in ((0, "at least the layers' rank 16"), (24, "R must be a multiple")):
        with pytest.raises(InputError, match=message):
            reserve_adapters(made, rank)
    with pytest.raises(InputError, match="the model has no SVDQuantLinear"):
        reserve_adapters(torch.nn.Linear(8, 8), 64)


@pytest.mark.slow
def test_a_compiled_model_by_the_names_of_its_own() -> None:
    made, x = three(), activations(5, 160)
    base = {name: one(x).double() for name, one in made.items()}
    compiled, a = torch.compile(made, backend="eager"), {name: tensors(24, 3) for name in made}
    reserve_adapters(compiled, 48)
    set_adapters(compiled, {"a": (a, 1.0)})
    check(made, base, {"a": (a, 1.0)}, x)
