"""``load_svdquant`` against the producer's formula in float64, from an independent writer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch

from kernel_space.numerics.nvfp4 import dequantize_nvfp4, quantize_nvfp4
from tests.layers.checkpoints import packer
from tests.layers.checkpoints.packer import Drawn, draw, named
from tests.layers.test_linear import relative, weight_of
from tuner.runtime import InputError, SVDQuantLinear, load_svdquant

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_linear on cpu is the torch reference")

ROUNDED = 2.0**-9  # what rounding to bf16 takes of a norm, at most; of a single number it is twice that


def output64(drawn: Drawn, x: torch.Tensor) -> torch.Tensor:
    """y of the producer, activations quantized in one level."""
    act = dequantize_nvfp4(quantize_nvfp4(x.float() / drawn.smooth.float()), torch.float64)
    branch = (x.double() @ drawn.down.double().T) @ drawn.up.double().T
    return act @ drawn.residual64().T + branch + drawn.bias.double()


def require_layer(layer: torch.nn.Module, drawn: Drawn) -> None:
    """4-bit part and vectors to the bit, the branch as rounded, and y."""
    assert isinstance(layer, SVDQuantLinear)
    n, k = drawn.codes.shape
    assert (layer.out_features, layer.in_features) == (n, k)
    assert torch.equal(layer.wgt, drawn.rows_bytes())
    assert torch.equal(layer.smooth, drawn.smooth.float())
    assert torch.equal(layer.bias, drawn.bias.float())
    assert torch.allclose(layer.wcscale, drawn.wcscales.float() * drawn.wtscale.float(), rtol=2**-23)
    branch = (layer.lora_up.double() * layer.wcscale.double().unsqueeze(1)) @ layer.lora_down.double().T
    exact = drawn.up.double() @ drawn.down.double()
    assert (branch - exact).norm() <= ROUNDED * exact.norm()
    assert relative(weight_of(layer), drawn.weight64()) < ROUNDED
    x = torch.randn(5, k, generator=torch.Generator().manual_seed(9)).to(layer.dtype)
    assert relative(layer(x), output64(drawn, x)) < 4 * ROUNDED  # a code at a tie may be another


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n", "k", "rank"), [(128, 128, 16), (384, 640, 48)])
def test_fragments(n: int, k: int, rank: int, dtype: torch.dtype) -> None:
    drawn = draw(n, k, rank, dtype=dtype)
    loaded = load_svdquant(named("blocks.0.fc", drawn.fragments()))
    require_layer(loaded["blocks.0.fc"], drawn)
    assert loaded["blocks.0.fc"].dtype == dtype
    assert "nunchaku assumed" in str(loaded.report)


@pytest.mark.parametrize(
    ("n", "k", "rank"), [(120, 96, 16), (136, 160, 32), (8, 32, 8), (264, 416, 24), (40, 96, 376)]
)
def test_awkward_sizes_of_fragments(n: int, k: int, rank: int) -> None:
    """Everything is padded, so only the reader's caller knows the sizes; a rank is padded to 16."""
    drawn = draw(n, k, rank)
    loaded = load_svdquant(named("fc", drawn.fragments()), shapes={"fc": (n, k)})
    require_layer(loaded["fc"], drawn)
    assert "padding left out" in str(loaded.report)
    whole = load_svdquant(named("fc", drawn.fragments()))["fc"]
    assert (whole.out_features, whole.in_features) == (packer.up(n, 128), packer.up(k, 128))


@pytest.mark.parametrize(("n", "k"), [(144, 160), (16, 32)])
def test_vectors_padded_to_16_tell_the_sizes(n: int, k: int) -> None:
    drawn = draw(n, k, 16)
    require_layer(load_svdquant(named("fc", drawn.fragments(multiple=16)))["fc"], drawn)


@pytest.mark.parametrize(("n", "k", "rank"), [(120, 96, 24), (136, 544, 32), (8, 32, 0)])
def test_rows(n: int, k: int, rank: int) -> None:
    drawn = draw(n, k, rank)
    tensors = named("fc", drawn.rows())
    if not rank:
        tensors = {name: one for name, one in tensors.items() if "proj" not in name}
    loaded = load_svdquant(tensors)
    require_layer(loaded["fc"], drawn)
    assert loaded["fc"].rank == packer.up(rank, 16)
    assert ("R padded from 24 to 32" in str(loaded.report)) == (rank == 24)


def test_rows_of_padded_sizes_need_a_word(tmp_path: Path) -> None:
    """Nothing in the tensors tells then: the argument does, or the configuration beside the file."""
    drawn = draw(128, 128, 16)
    tensors = named("fc", drawn.rows())
    require_layer(load_svdquant(tensors, layout="row-major")["fc"], drawn)
    assert not torch.equal(load_svdquant(tensors)["fc"].wgt, drawn.rows_bytes())
    path = tmp_path / "diffusion_pytorch_model.safetensors"
    safetensors.torch.save_file(tensors, path)
    config = {"quantization_config": {"quant_method": "svdquant", "rank": 16, "precision": "nvfp4"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for source in (path, tmp_path):
        loaded = load_svdquant(source)
        require_layer(loaded["fc"], drawn)
        assert "as quant_method in the configuration" in str(loaded.report)


def test_a_cache_of_links(tmp_path: Path) -> None:
    """As the hub's client keeps what it downloads."""
    drawn = draw(128, 128, 16)
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    safetensors.torch.save_file(named("fc", drawn.rows()), tmp_path / "blobs" / "one")
    (tmp_path / "blobs" / "two").write_text(json.dumps({"quantization_config": {"quant_method": "svdquant"}}))
    (tmp_path / "snapshot" / "model.safetensors").symlink_to("../blobs/one")
    (tmp_path / "snapshot" / "config.json").symlink_to("../blobs/two")
    for source in (tmp_path / "snapshot", tmp_path / "snapshot" / "model.safetensors"):
        require_layer(load_svdquant(source)["fc"], drawn)


def test_earlier_names_of_flux() -> None:
    drawn = draw(128, 128, 16)
    old = {
        "smooth_factor": "smooth",
        "proj_down": "lora_down",
        "proj_up": "lora_up",
    }
    tensors = {old.get(name, name): tensor for name, tensor in drawn.fragments().items()}
    tensors["smooth_orig"] = tensors["smooth"]
    places = {
        "transformer_blocks.3.qkv_proj_context": "transformer_blocks.3.attn.add_qkv_proj",
        "transformer_blocks.3.mlp_context_fc2": "transformer_blocks.3.ff_context.net.2",
        "transformer_blocks.3.out_proj": "transformer_blocks.3.attn.to_out.0",
        "single_transformer_blocks.7.out_proj": "single_transformer_blocks.7.attn.to_out",
        "single_transformer_blocks.7.mlp_fc1": "single_transformer_blocks.7.mlp_fc1",
    }
    state = {}
    for place in places:
        state |= named(place, tensors)
    loaded = load_svdquant(state)
    assert set(loaded) == set(places.values())
    for layer in loaded.values():
        require_layer(layer, drawn)
    assert "transformer_blocks.3.out_proj.smooth_orig" in loaded.report.unused


@pytest.mark.parametrize(
    "missing", [("wtscale",), ("wcscales",), ("wtscale", "wcscales", "smooth_factor", "bias")]
)
def test_what_may_be_missing_is_neutral(missing: tuple[str, ...]) -> None:
    drawn = draw(128, 128, 16)
    for name in missing:
        own = "smooth" if name == "smooth_factor" else name
        neutral = torch.zeros_like if name == "bias" else torch.ones_like
        setattr(drawn, own, neutral(getattr(drawn, own)))
    tensors = {name: one for name, one in drawn.fragments().items() if name not in missing}
    require_layer(load_svdquant(named("fc", tensors))["fc"], drawn)


def test_negative_block_scales() -> None:
    """DeepCompressor may write them; the tensor core would read them as positive."""
    drawn = draw(128, 128, 16)
    raw = drawn.scales.view(torch.uint8)
    raw[::3, ::2] |= 0x80
    loaded = load_svdquant(named("fc", drawn.fragments()))
    assert relative(weight_of(loaded["fc"]), drawn.weight64()) < ROUNDED
    assert f"{raw[::3, ::2].numel()} negative block scales" in str(loaded.report)


def test_a_branch_too_large_for_fp16_once_it_is_folded() -> None:
    drawn = draw(128, 128, 16, dtype=torch.float16)
    drawn.wtscale = torch.tensor(2.0**-14).half()
    drawn.up = (drawn.up * 64).half()
    drawn.scales = torch.full_like(drawn.scales.float(), 448.0).to(torch.float8_e4m3fn)
    loaded = load_svdquant(named("fc", drawn.fragments()))
    assert "moved from lora_up to lora_down" in str(loaded.report)
    assert relative(weight_of(loaded["fc"]), drawn.weight64()) < ROUNDED


def modelopt(drawn: Drawn, level: float, second: float | None) -> dict[str, torch.Tensor]:
    """As ModelOpt has the layer: x * pre_quant_scale feeds both branches."""
    scale = (1 / drawn.smooth.float()).to(torch.bfloat16)
    tensors = {
        "weight": drawn.rows_bytes(),
        "weight_scale": drawn.scales,
        "weight_scale_2": torch.tensor(level),
        "pre_quant_scale": scale,
        "svdquant_lora_a": drawn.down,
        "svdquant_lora_b": drawn.up,
        "bias": drawn.bias,
    }
    return tensors if second is None else {**tensors, "input_scale": torch.tensor(second)}


@pytest.mark.parametrize("second", [None, 0.0078125, 0.013])
@pytest.mark.parametrize(("n", "k", "rank"), [(128, 128, 16), (120, 96, 24)])
def test_modelopt(n: int, k: int, rank: int, second: float | None) -> None:
    drawn = draw(n, k, rank)
    level = 0.0013
    tensors = modelopt(drawn, level, second)
    layer = load_svdquant(named("fc", tensors))["fc"]
    scale = tensors["pre_quant_scale"].double()
    values = packer.E2M1[drawn.codes.long()] * drawn.scales.double().repeat_interleave(16, dim=1) * level
    weight = (values + drawn.up.double() @ drawn.down.double()) * scale
    assert relative(weight_of(layer), weight) < 2 * ROUNDED
    x = torch.randn(5, k, generator=torch.Generator().manual_seed(9)).bfloat16() * 100
    z, g = x.double() * scale, second or 1.0
    act = dequantize_nvfp4(quantize_nvfp4((z / g).float()), torch.float64) * g
    y = act @ values.T + (z @ drawn.down.double().T) @ drawn.up.double().T + drawn.bias.double()
    assert relative(layer(x), y) < 6 * ROUNDED


def test_modelopt_without_a_branch() -> None:
    drawn = draw(64, 64, 16)
    tensors = {name: one for name, one in modelopt(drawn, 0.5, None).items() if "lora" not in name}
    layer = load_svdquant(named("fc", tensors))["fc"]
    assert layer.rank == 0
    scale = tensors["pre_quant_scale"].double()
    values = packer.E2M1[drawn.codes.long()] * drawn.scales.double().repeat_interleave(16, dim=1) * 0.5
    assert relative(weight_of(layer), values * scale) < 2**-20


def awq(n: int, k: int, size: int = 64) -> tuple[dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    """(tensors, weight, bias) in float64, rows as stored."""
    rng = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 16, (n, k), generator=rng, dtype=torch.uint8)
    scale = (torch.rand(k // size, n, generator=rng) / 64 + 2.0**-8).bfloat16()
    zero = (-7.5 * scale.float()).bfloat16()
    bias = torch.randn(n, generator=rng).bfloat16()
    by_column = [one.double().T.repeat_interleave(size, dim=1) for one in (scale, zero)]
    weight = codes.double() * by_column[0] + by_column[1]
    tensors = {"qweight": packer.pack_awq(codes), "wscales": scale, "wzeros": zero, "bias": bias}
    return tensors, weight, bias.double()


@pytest.mark.parametrize("size", [64, 128])
def test_awq_layers_become_linears(size: int) -> None:
    tensors, weight, bias = awq(16, 256, size)
    tensors["wscales"], tensors["wzeros"] = (  # as tinychat pads groups
        torch.cat([tensors[own], torch.zeros(16 - 256 // size if size == 64 else 6, 16).bfloat16()])
        for own in ("wscales", "wzeros")
    )
    linear = load_svdquant(named("final", tensors))["final"]
    assert isinstance(linear, torch.nn.Linear) and linear.weight.dtype == torch.bfloat16
    assert (linear.weight.double() - weight).abs().max() <= weight.abs().max() * 2 * ROUNDED
    assert torch.equal(linear.bias.double(), bias)


@pytest.mark.parametrize(
    ("name", "chunks", "ones"),
    [
        ("transformer_blocks.0.norm1.linear", 6, (1, 4)),
        ("transformer_blocks.0.norm1_context.linear", 6, (1, 4)),
        ("transformer_blocks.0.img_mod.1", 6, (1, 4)),
        ("single_transformer_blocks.2.norm.linear", 3, (1,)),
    ],
)
def test_adanorm_in_the_order_of_the_model(name: str, chunks: int, ones: tuple[int, ...]) -> None:
    """nunchaku's row c * chunks + s is the model's s * width + c, and its bias has a one for scales."""
    tensors, weight, bias = awq(48, 64)
    qkv = named("transformer_blocks.0.attn.to_qkv", draw(128, 128, 16).fragments())
    width = 48 // chunks
    wanted = torch.stack([weight[c * chunks + s] for s in range(chunks) for c in range(width)])
    shift = torch.stack([bias[c * chunks + s] - int(s in ones) for s in range(chunks) for c in range(width)])
    linear = load_svdquant({**named(name, tensors), **qkv})[name]
    assert (linear.weight.double() - wanted).abs().max() <= wanted.abs().max() * 2 * ROUNDED
    assert (linear.bias.double() - shift).abs().max() <= shift.abs().max() * 2 * ROUNDED
    for plain in (
        load_svdquant(named(name, tensors)),
        load_svdquant({**named(name, tensors), **qkv}, adanorm="plain"),
    ):
        assert (plain[name].weight.double() - weight).abs().max() <= weight.abs().max() * 2 * ROUNDED
    assert torch.equal(load_svdquant(named(name, tensors), adanorm="interleaved")[name].weight, linear.weight)


def test_other_tensors_are_left() -> None:
    tensors = {
        **named("fc", draw(128, 128, 16).fragments()),
        "norm.weight": torch.ones(4),
        "x.bias": torch.zeros(2),
    }
    loaded = load_svdquant(tensors)
    assert list(loaded) == ["fc"]
    assert set(loaded.rest) == {"norm.weight", "x.bias"} and loaded.report.left == ("norm.weight", "x.bias")


@pytest.mark.parametrize("name", ["fc.mystery", "mystery", "other.table"])
def test_a_tensor_that_nobody_knows(name: str) -> None:
    tensors = {**named("fc", draw(128, 128, 16).fragments()), name: torch.ones(4)}
    with pytest.raises(InputError, match=f"^{name} .*strict=False"):
        load_svdquant(tensors)
    loaded = load_svdquant(tensors, strict=False)
    assert list(loaded) == ["fc"]
    assert name in (*loaded.report.left, *loaded.report.unused)


def test_loading_is_deterministic_and_does_not_touch_what_is_given() -> None:
    tensors = named("fc", draw(136, 160, 24).rows())
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    states = [load_svdquant(tensors)["fc"].state_dict() for _ in range(2)]
    reordered = load_svdquant(dict(reversed(tensors.items())))["fc"].state_dict()
    for state in (states[1], reordered):
        assert all(torch.equal(states[0][name].nan_to_num(), state[name].nan_to_num()) for name in state)
    assert all(
        torch.equal(before[name].view(torch.uint8), tensors[name].view(torch.uint8)) for name in before
    )


def test_a_model_in_two_files(tmp_path: Path) -> None:
    """As earlier nunchaku ships it."""
    drawn = draw(128, 128, 16)
    safetensors.torch.save_file(named("fc", drawn.fragments()), tmp_path / "transformer_blocks.safetensors")
    safetensors.torch.save_file({"norm.weight": torch.ones(4)}, tmp_path / "unquantized_layers.safetensors")
    loaded = load_svdquant(tmp_path)
    require_layer(loaded["fc"], drawn)
    assert set(loaded.rest) == {"norm.weight"}


def test_a_file_of_torch(tmp_path: Path) -> None:
    drawn = draw(128, 128, 16)
    for content in (named("fc", drawn.fragments()), {"state_dict": named("fc", drawn.fragments())}):
        torch.save(content, tmp_path / "model.pt")
        require_layer(load_svdquant(tmp_path / "model.pt")["fc"], drawn)
