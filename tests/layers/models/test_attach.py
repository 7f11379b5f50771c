"""``attach_svdquant``: every linear of the model multiplies with what the checkpoint's writer meant for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.layers.checkpoints.packer import Drawn, draw, named
from tests.layers.checkpoints.test_load import ROUNDED, awq
from tests.layers.models.published import MODELS, flux, llama, output
from tests.layers.test_linear import activations, linear_of, relative, weight_of
from tuner.layers.models.slices import InputParts
from tuner.runtime import (
    InputError,
    SVDQuantLinear,
    attach_svdquant,
    load_svdquant,
    quantize_model,
    save_svdquant,
)

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_linear on cpu is the torch reference")
SINGLE, DOUBLE = "single_transformer_blocks.0", "transformer_blocks.0"


def near(layer: torch.nn.Module, weight: torch.Tensor) -> bool:
    assert isinstance(layer, SVDQuantLinear)
    return layer.out_features == weight.shape[0] and relative(weight_of(layer), weight) < ROUNDED


class Gated(torch.nn.Module):
    """A gated unit as Z-Image and Llama have it: w2(silu(w1(x)) * w3(x))."""

    def __init__(self, hidden: int = 96) -> None:
        super().__init__()
        self.w1, self.w2, self.w3 = (
            torch.nn.Linear(64, hidden, bias=False),
            torch.nn.Linear(hidden, 64, bias=False),
            torch.nn.Linear(64, hidden, bias=False),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(torch.nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.feed_forward = Gated()
        self.norm = torch.nn.LayerNorm(64)


def fused_flux() -> tuple[dict[str, torch.Tensor], dict[str, Drawn]]:
    """A checkpoint in the earlier spelling for the small FLUX of ``published``: sizes are padded everywhere."""
    shapes = {
        f"{DOUBLE}.qkv_proj": (192, 64),
        f"{DOUBLE}.qkv_proj_context": (192, 64),
        f"{DOUBLE}.out_proj": (64, 64),
        f"{DOUBLE}.out_proj_context": (64, 64),
        f"{DOUBLE}.mlp_fc1": (256, 64),
        f"{DOUBLE}.mlp_fc2": (64, 256),
        f"{DOUBLE}.mlp_context_fc1": (256, 64),
        f"{DOUBLE}.mlp_context_fc2": (64, 256),
        f"{SINGLE}.qkv_proj": (192, 64),
        f"{SINGLE}.out_proj": (64, 64),
        f"{SINGLE}.mlp_fc1": (256, 64),
        f"{SINGLE}.mlp_fc2": (64, 256),
    }
    drawn = {name: draw(n, k, 16, seed=number) for number, (name, (n, k)) in enumerate(shapes.items())}
    for one in drawn.values():
        one.wtscale = torch.tensor(2.0**-14).bfloat16()
        one.bias = one.bias * 0.1
    tensors: dict[str, torch.Tensor] = {}
    for name, one in drawn.items():
        tensors |= named(name, one.fragments())
    tensors[f"{SINGLE}.norm_q.weight"] = torch.full((32,), 1.25)
    tensors["proj_out.bias"] = torch.full((32,), 0.5)
    return tensors, drawn


def dense_flux(drawn: dict[str, Drawn]) -> dict[str, torch.Tensor]:
    """What that checkpoint says of diffusers' linears, by hand: their weights in float64."""

    def thirds(name: str, targets: tuple[str, ...], block: str) -> dict[str, torch.Tensor]:
        weight = drawn[f"{block}.{name}"].weight64()
        return {f"{block}.attn.{one}": weight[64 * i : 64 * i + 64] for i, one in enumerate(targets)}

    whole = {
        f"{DOUBLE}.attn.to_out.0": "out_proj",
        f"{DOUBLE}.attn.to_add_out": "out_proj_context",
        f"{DOUBLE}.ff.net.0.proj": "mlp_fc1",
        f"{DOUBLE}.ff.net.2": "mlp_fc2",
        f"{DOUBLE}.ff_context.net.0.proj": "mlp_context_fc1",
        f"{DOUBLE}.ff_context.net.2": "mlp_context_fc2",
    }
    return {
        **thirds("qkv_proj", ("to_q", "to_k", "to_v"), DOUBLE),
        **thirds("qkv_proj_context", ("add_q_proj", "add_k_proj", "add_v_proj"), DOUBLE),
        **thirds("qkv_proj", ("to_q", "to_k", "to_v"), SINGLE),
        **{target: drawn[f"{DOUBLE}.{name}"].weight64() for target, name in whole.items()},
        f"{SINGLE}.proj_mlp": drawn[f"{SINGLE}.mlp_fc1"].weight64(),
        f"{SINGLE}.proj_out": torch.cat(
            [drawn[f"{SINGLE}.out_proj"].weight64(), drawn[f"{SINGLE}.mlp_fc2"].weight64()], dim=1
        ),
    }


@pytest.mark.slow
def test_a_checkpoint_of_nunchaku_in_the_model_of_diffusers() -> None:
    tensors, drawn = fused_flux()
    model, call = flux()
    dense, _ = flux()
    norm_tensors, norm_weight, norm_bias = awq(384, 64)
    tensors |= named(f"{DOUBLE}.norm1.linear", norm_tensors)
    shapes = {f"{SINGLE}.attn.to_out": (64, 64), f"{SINGLE}.mlp_fc2": (64, 256)}
    report = attach_svdquant(model, load_svdquant(tensors, shapes=shapes))
    weights = dense_flux(drawn)
    assert {one.target for one in report.placed} == {*weights, f"{DOUBLE}.norm1.linear"}
    assert set(report.rest) == {f"{SINGLE}.attn.norm_q.weight", "proj_out.bias"}
    with torch.no_grad():
        for name, weight in weights.items():
            linear = dense.get_submodule(name)
            linear.weight.copy_(weight)
            placed = model.get_submodule(name)
            if isinstance(placed, InputParts):
                assert near(placed.parts[0], weight[:, :64]) and near(placed.parts[1], weight[:, 64:])
                linear.bias.copy_(placed.parts[0].bias + placed.parts[1].bias)
            else:
                assert near(placed, weight)
                linear.bias.copy_(placed.bias)
        order = [row * 6 + chunk for chunk in range(6) for row in range(64)]
        norm = dense.get_submodule(f"{DOUBLE}.norm1.linear")
        norm.weight.copy_(norm_weight[order])
        ones = torch.tensor([0.0, 1, 0, 0, 1, 0]).repeat_interleave(64)
        norm.bias.copy_(norm_bias[order] - ones)
        dense.get_submodule(f"{SINGLE}.attn.norm_q").weight.fill_(1.25)
        dense.proj_out.bias.fill_(0.5)
    before, after = output(dense, call), output(model, call)
    assert relative(after, before) < 0.15
    assert relative(flux()[0](**call)[0], before) > 0.5  # so this model is another one


@pytest.mark.slow
def test_q_k_and_v_joined_where_the_model_has_them_fused() -> None:
    model, call = flux()
    fused, _ = flux()
    fused.fuse_qkv_projections()
    drawn = {name: draw(64, 64, 16, seed=seed) for seed, name in enumerate(("to_q", "to_k", "to_v"))}
    for one in drawn.values():
        one.smooth = drawn["to_q"].smooth
    layers: dict[str, torch.nn.Module] = {}
    for name, one in drawn.items():
        layers[f"{DOUBLE}.attn.{name}"] = load_svdquant(named("x", one.rows()))["x"]
    attach_svdquant(model, layers)
    report = attach_svdquant(fused, layers)
    assert "joined, 3 to one" in str(report)
    joined = fused.get_submodule(f"{DOUBLE}.attn.to_qkv")
    assert joined.rank == 48 and near(joined, torch.cat([one.weight64() for one in drawn.values()]))
    assert relative(output(fused, call), output(model, call)) < 0.01


def test_branches_that_are_the_same_are_not_doubled() -> None:
    model = torch.nn.ModuleDict({"to_qkv": torch.nn.Linear(96, 96)})
    drawn = draw(96, 96, 16)
    whole = load_svdquant(named("x", drawn.rows()))["x"]
    parts = torch.nn.ModuleDict({name: torch.nn.Linear(96, 32) for name in ("to_q", "to_k", "to_v")})
    attach_svdquant(parts, {"to_qkv": whole})
    attach_svdquant(model, dict(parts.items()))
    again = model["to_qkv"]
    for name, tensor in whole.state_dict().items():
        assert name == "error" or torch.equal(again.state_dict()[name], tensor), name


@pytest.mark.slow
def test_llama_with_fewer_keys_than_queries() -> None:
    model, call = llama()
    place = "model.layers.1"
    qkv, gate_up = draw(128, 64, 16), draw(320, 64, 16, seed=1)
    tensors = {
        **named(f"{place}.self_attn.qkv_proj", qkv.rows()),
        **named(f"{place}.mlp.gate_up_proj", gate_up.rows()),
    }
    attach_svdquant(model, load_svdquant(tensors, layout="row-major"))
    attention, mlp = model.model.layers[1].self_attn, model.model.layers[1].mlp
    weight = qkv.weight64()
    assert near(attention.q_proj, weight[:64]) and near(attention.k_proj, weight[64:96])
    assert near(attention.v_proj, weight[96:])
    assert near(mlp.gate_proj, gate_up.weight64()[:160]) and near(mlp.up_proj, gate_up.weight64()[160:])
    assert torch.isfinite(output(model, call)).all()


@pytest.mark.parametrize(("name", "order"), [("net.0.proj", ("w3", "w1")), ("w13", ("w1", "w3"))])
def test_halves_of_a_gated_unit(name: str, order: tuple[str, str]) -> None:
    """diffusers' projection gives value and gate, vllm-omni's gate and value; w1 is the gate."""
    block = Block()
    drawn = draw(192, 64, 16)
    down = draw(64, 96, 16, seed=1)
    tensors = {
        **named(f"feed_forward.{name}", drawn.fragments()),
        **named("feed_forward.net.2", down.fragments()),
        "norm.weight": torch.full((64,), 3.0),
    }
    report = attach_svdquant(block, load_svdquant(tensors))
    halves = drawn.weight64().chunk(2)
    for half, target in zip(halves, order, strict=True):
        assert near(getattr(block.feed_forward, target), half)
    assert near(block.feed_forward.w2, down.weight64())
    assert report.rest == ("norm.weight",) and block.norm.weight.tolist() == [3.0] * 64


def test_a_model_without_memory_yet() -> None:
    with torch.device("meta"):
        block = Block()
    layer = load_svdquant(named("feed_forward.w1", draw(96, 64, 16).fragments()))
    layer.rest["norm.weight"] = torch.full((64,), 3.0)
    attach_svdquant(block, layer)
    assert block.feed_forward.w1.wgt.device.type == "cpu" and block.norm.weight.tolist() == [3.0] * 64
    assert block.norm.bias.is_meta


def test_a_quantized_model_is_saved_and_put_into_a_new_one(tmp_path: Path) -> None:
    model = Block().feed_forward
    quantize_model(model, rank=16, progress=False)
    save_svdquant(model, tmp_path / "m.safetensors")
    fresh = Block().feed_forward
    attach_svdquant(fresh, load_svdquant(tmp_path / "m.safetensors"))
    x = torch.randn(3, 64)
    with torch.no_grad():
        assert torch.equal(fresh(x), model(x))


def test_parts_of_inputs_are_saved_and_come_back(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict({"proj_out": torch.nn.Linear(160, 72)})
    parts = {
        "attn.to_out": load_svdquant(named("x", draw(72, 64, 16).fragments()))["x"],
        "mlp_fc2": load_svdquant(named("x", draw(72, 96, 16, seed=1).fragments()))["x"],
    }
    with pytest.raises(InputError, match=r"have 128 \+ 128 inputs, 'proj_out' of the model has 160; if they"):
        attach_svdquant(model, parts)  # where the first ends cannot be known from padded sizes
    parts = {
        "attn.to_out": load_svdquant(named("x", draw(72, 64, 16).rows()))["x"],
        "mlp_fc2": load_svdquant(named("x", draw(72, 96, 16, seed=1).rows()))["x"],
    }
    attach_svdquant(model, parts)
    save_svdquant(model, tmp_path / "m.safetensors")
    fresh = torch.nn.ModuleDict({"proj_out": torch.nn.Linear(160, 72)})
    attach_svdquant(fresh, load_svdquant(tmp_path / "m.safetensors"))
    x = activations(5, 160)
    y = fresh["proj_out"](x)
    assert torch.equal(y, model["proj_out"](x))
    weight = torch.cat([draw(72, 64, 16).weight64(), draw(72, 96, 16, seed=1).weight64()], dim=1)
    bias = draw(72, 64, 16).bias.double() + draw(72, 96, 16, seed=1).bias.double()
    assert relative(y, x.double() @ weight.T + bias) < 0.15


def layer(n: int = 64, k: int = 64) -> SVDQuantLinear:
    return SVDQuantLinear.from_linear(linear_of(n, k), rank=16)


# Made when a test asks: a decomposition is no work for who only collects tests.
BAD: dict[str, tuple[Callable[[], dict[str, torch.nn.Module]], str]] = {
    "no place": (lambda: {"fc": layer(), "other": layer()}, "the model has no linear for layer 'other'"),
    "too small": (
        lambda: {"fc": layer(32, 64)},
        r"layer 'fc' does not fit 'fc'.* \[N, K\] = \[32, 64\].* \[64, 64\]",
    ),
    "too large": (lambda: {"fc": layer(256, 64)}, r"layer 'fc' does not fit 'fc'"),
    "fused of another size": (
        lambda: {"to_qkv": layer(64, 64)},
        "layer 'to_qkv' does not fit to_q, to_k, to_v",
    ),
    "a linear to split": (
        lambda: {"to_qkv": torch.nn.Linear(64, 192)},
        "is Linear, only SVDQuantLinear can be split",
    ),
    "nothing": (dict, "none of the layers has a place"),
}


def tree() -> torch.nn.Module:
    return torch.nn.ModuleDict({name: torch.nn.Linear(64, 64) for name in ("fc", "to_q", "to_k", "to_v")})


@pytest.mark.parametrize(("layers", "message"), BAD.values(), ids=BAD.keys())
def test_what_does_not_fit_changes_nothing(
    layers: Callable[[], dict[str, torch.nn.Module]], message: str
) -> None:
    model, given = tree(), layers()
    with pytest.raises(InputError, match=message) as caught:
        attach_svdquant(model, given)
    assert "\n" not in str(caught.value)
    assert all(type(one) is torch.nn.Linear for one in model.values())


def test_layers_without_a_place_may_be_left() -> None:
    model = tree()
    report = attach_svdquant(model, {"fc": layer(), "other": layer()}, strict=False)
    assert report.left == ("other",) and isinstance(model["fc"], SVDQuantLinear)


def test_parts_that_divide_x_by_different_numbers_cannot_be_joined() -> None:
    model = torch.nn.ModuleDict({"to_qkv": torch.nn.Linear(64, 96)})
    layers: dict[str, Any] = {
        name: load_svdquant(named("x", draw(32, 64, 16, seed=seed).rows()))["x"]
        for seed, name in enumerate(("to_q", "to_k", "to_v"))
    }
    with pytest.raises(InputError, match="layers to join must have one smooth"):
        attach_svdquant(model, layers)


def test_models_are_those_of_their_libraries() -> None:
    assert set(MODELS) == {"flux", "qwen-image", "llama"}
