"""The project's own form: round trips to the bit, bytes that are the same, and the format's own library as a reader."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from tests.layers.checkpoints.packer import draw, named
from tests.layers.test_linear import activations, linear_of
from tuner.layers.checkpoints.tensor_file import read_tensors, write_tensors
from tuner.runtime import InputError, SVDQuantLinear, load_svdquant, save_svdquant

pytestmark = pytest.mark.filterwarnings("ignore:svdquant_linear on cpu is the torch reference")
KEY = "svdquant-autotuner"


def layers() -> dict[str, torch.nn.Module]:
    linear = torch.nn.Linear(24, 12).bfloat16()
    return {
        "b.fc": SVDQuantLinear.from_linear(linear_of(72, 160), rank=16, calibration=activations(64, 160)),
        "a.fc": SVDQuantLinear.from_linear(linear_of(136, 96), rank=0, dtype=torch.float16),
        "a.ada": linear,
        "a.plain": torch.nn.Linear(8, 8, bias=False).half(),
    }


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    state, others = one.state_dict(), other.state_dict()
    return state.keys() == others.keys() and all(
        torch.equal(state[name], others[name]) and state[name].dtype == others[name].dtype for name in state
    )


def test_round_trip(tmp_path: Path) -> None:
    made = layers()
    save_svdquant(made, tmp_path / "layers.safetensors")
    loaded = load_svdquant(tmp_path / "layers.safetensors")
    assert sorted(loaded) == sorted(made)
    assert all(same(made[name], loaded[name]) for name in made)
    assert not loaded.report.left and not loaded.report.unused
    x = activations(5, 160)
    assert torch.equal(loaded["b.fc"](x), made["b.fc"](x))
    assert loaded["b.fc"].relative_error == made["b.fc"].relative_error


def test_the_same_bytes_every_time(tmp_path: Path) -> None:
    made = layers()
    save_svdquant(made, tmp_path / "one.safetensors")
    save_svdquant(dict(reversed(made.items())), tmp_path / "other.safetensors")
    save_svdquant(load_svdquant(tmp_path / "one.safetensors"), tmp_path / "again.safetensors")
    written = {(tmp_path / f"{name}.safetensors").read_bytes() for name in ("one", "other", "again")}
    assert len(written) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "again.safetensors",
        "one.safetensors",
        "other.safetensors",
    ]


def test_the_formats_own_library_reads_it(tmp_path: Path) -> None:
    made = layers()
    save_svdquant(made, tmp_path / "layers.safetensors")
    with safetensors.safe_open(tmp_path / "layers.safetensors", framework="pt") as file:
        metadata = json.loads(file.metadata()[KEY])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
    assert (metadata["format"], metadata["version"]) == ("svdquant", 1) and len(metadata["sha256"]) == 64
    assert metadata["layers"]["b.fc"] == {"k": 160, "n": 72, "rank": 16, "dtype": "bfloat16"}
    assert metadata["layers"]["a.ada"] == {"k": 24, "n": 12, "linear": "bfloat16"}
    layer = made["b.fc"]
    assert torch.equal(tensors["b.fc.wgt"], layer.wgt)
    assert torch.equal(tensors["b.fc.lora_down"], layer.lora_down)
    assert tensors["b.fc.wscales"].shape == (72, 10) and tensors["b.fc.wscales"].dtype == torch.float8_e4m3fn


def test_what_the_formats_own_library_writes_is_read(tmp_path: Path) -> None:
    tensors = {
        "half": torch.randn(3, 5).half(),
        "byte": torch.arange(7, dtype=torch.uint8),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "scale": torch.rand(3).to(torch.float8_e4m3fn),
        "long": torch.arange(3),
    }
    safetensors.torch.save_file(tensors, tmp_path / "x.safetensors", metadata={"a": "b"})
    found, metadata = read_tensors(tmp_path / "x.safetensors")
    assert metadata == {"a": "b"} and found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert found[name].flatten().view(torch.uint8).tolist() == tensor.flatten().view(torch.uint8).tolist()


def test_a_tensor_at_an_odd_byte(tmp_path: Path) -> None:
    """Other writers need not align."""
    header = json.dumps(
        {
            "byte": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
            "wide": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
        }
    ).encode()
    data = bytes([7]) + torch.tensor([1.5, -2.0]).numpy().tobytes()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + data)
    assert read_tensors(tmp_path / "x")[0]["wide"].tolist() == [1.5, -2.0]


def test_a_state_dict_is_read() -> None:
    made = layers()
    model = torch.nn.ModuleDict({"fc": made["b.fc"], "norm": torch.nn.LayerNorm(4)})
    loaded = load_svdquant(model.state_dict())
    assert same(loaded["fc"], made["b.fc"])
    assert set(loaded.rest) == {"norm.weight", "norm.bias"}


def test_a_model_is_saved_by_its_layers(tmp_path: Path) -> None:
    made = layers()
    model = torch.nn.Sequential(made["b.fc"], torch.nn.Linear(72, 8))
    save_svdquant(model, tmp_path / "m.safetensors")
    loaded = load_svdquant(tmp_path / "m.safetensors")
    assert list(loaded) == ["0"] and same(loaded["0"], made["b.fc"])


def test_a_converted_checkpoint_comes_back(tmp_path: Path) -> None:
    loaded = load_svdquant(named("fc", draw(136, 160, 24).rows()))
    save_svdquant(loaded, tmp_path / "m.safetensors")
    again = load_svdquant(tmp_path / "m.safetensors")["fc"]
    assert math.isnan(again.relative_error)
    again.error.zero_()
    loaded["fc"].error.zero_()
    assert same(again, loaded["fc"])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({}, "no SVDQuantLinear to save"),
        (torch.nn.Linear(8, 8), "no SVDQuantLinear to save"),
        ({"fc": torch.nn.Linear(8, 8)}, "layer 'fc' must be SVDQuantLinear or a 16-bit Linear, got Linear"),
        ({"fc": torch.nn.LayerNorm(8)}, "layer 'fc' must be .* got LayerNorm"),
    ],
)
def test_what_cannot_be_saved(what: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        save_svdquant(what, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def document(path: Path) -> tuple[dict, dict[str, torch.Tensor]]:
    tensors, metadata = read_tensors(path)
    return json.loads(metadata[KEY]), {name: tensor.clone() for name, tensor in tensors.items()}


def written(path: Path, changed: dict, tensors: dict[str, torch.Tensor]) -> None:
    write_tensors(path, tensors, {KEY: json.dumps(changed)})


def test_a_changed_tensor_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_svdquant(layers(), path)
    about, tensors = document(path)
    tensors["b.fc.wgt"][3, 5] ^= 1
    written(path, about, tensors)
    with pytest.raises(InputError, match="is damaged: its tensors do not have the SHA-256 of its metadata"):
        load_svdquant(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "has version '2' of the format, this program reads 1"),
        ({"format": "other"}, "must be of format 'svdquant'"),
        ({"layers": {}}, "metadata says something else of layer 'a.ada'"),
        ({"layers": 3}, "metadata says something else of layer 'a.ada'"),
        ({"sha256": "0" * 64}, "SHA-256"),
    ],
)
def test_metadata_that_lies(change: dict, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_svdquant(layers(), path)
    about, tensors = document(path)
    written(path, {**about, **change}, tensors)
    with pytest.raises(InputError, match=message) as caught:
        load_svdquant(path)
    assert "\n" not in str(caught.value)
