"""Damaged and hostile checkpoints: one line that names tensor and reason, and nothing that runs."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.layers.checkpoints.packer import draw, named
from tests.layers.checkpoints.test_load import awq, modelopt
from tuner.runtime import InputError, load_svdquant

ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def good() -> dict[str, torch.Tensor]:
    return named("fc", draw(128, 128, 16).fragments())


def refused(source: Any, message: str, **options: Any) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_svdquant(source, **options)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def file_of(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "header too small"),
    "short": (b"abc", "header too small"),
    "a header longer than the file": (file_of(b"{}", length=1 << 20), "invalid header length"),
    "a huge header": (file_of(b"{}", length=(1 << 64) - 1), "header too large"),
    "no JSON": (file_of(b"hello"), "invalid JSON in header"),
    "not UTF-8": (file_of(b'{"\xff":1}'), "invalid UTF-8 in header"),
    "nested": (file_of(nested(100_000)), "recursion limit exceeded"),
    "a list": (file_of(b"[]"), "invalid type: sequence"),
    "one name twice": (
        file_of(
            b'{"a":' + json.dumps(ENTRY).encode() + b',"a":' + json.dumps(ENTRY).encode() + b"}", b"abcd"
        ),
        "a tensor that nothing here knows",
    ),
    "NaN": (file_of(b'{"a": NaN}'), "expected value"),
    "metadata of numbers": (file_of(b'{"__metadata__": {"a": 1}}'), "expected a string"),
    "an entry that is none": (file_of(b'{"a": 3}'), "expected struct TensorInfo"),
    "a strange dtype": (
        file_of(json.dumps({"a": {**ENTRY, "dtype": "Q9"}}).encode(), b"abcd"),
        "unknown variant `Q9`",
    ),
    "negative sizes": (
        file_of(json.dumps({"a": {**ENTRY, "shape": [-2, -2]}}).encode(), b"abcd"),
        "integer `-2`, expected usize",
    ),
    "sizes that are true": (
        file_of(json.dumps({"a": {**ENTRY, "shape": [True, 4]}}).encode(), b"abcd"),
        "boolean `true`, expected usize",
    ),
    "a shape that lies": (
        file_of(json.dumps({"a": {**ENTRY, "shape": [1 << 40, 1 << 40]}}).encode(), b"abcd"),
        "overflow computing buffer size",
    ),
    "overlapping tensors": (
        file_of(json.dumps({"a": ENTRY, "b": {**ENTRY, "data_offsets": [2, 6]}}).encode(), b"abcdef"),
        "invalid offset for tensor `b`",
    ),
    "a hole": (
        file_of(json.dumps({"a": ENTRY, "b": {**ENTRY, "data_offsets": [6, 10]}}).encode(), b"0123456789"),
        "invalid offset for tensor `b`",
    ),
    "bytes behind": (file_of(json.dumps({"a": ENTRY}).encode(), b"abcdef"), "not fully covered"),
    "bytes missing": (file_of(json.dumps({"a": ENTRY}).encode(), b"ab"), "not fully covered"),
    "a number of thousands of digits": (
        file_of(b'{"a":{"dtype":"U8","shape":[' + b"9" * 5000 + b'],"data_offsets":[0,4]}}', b"abcd"),
        "number out of range",
    ),
    "no layers": (file_of(b"{}"), "no quantized layer"),
}


@pytest.mark.parametrize(("data", "message"), FILES.values(), ids=FILES.keys())
def test_damaged_files(data: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    refused(path, message)


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    safetensors.torch.save_file(good(), tmp_path / "whole.safetensors")
    data = (tmp_path / "whole.safetensors").read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in (1, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        refused(path, "is no whole safetensors file")


def test_what_is_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "missing.safetensors", "there is no checkpoint")
    refused(5, "a checkpoint must be a path or tensors by name, got int")
    refused(tmp_path, "there is no safetensors file")
    os.mkfifo(tmp_path / "pipe.safetensors")
    refused(tmp_path / "pipe.safetensors", "must be a plain file, it is a FIFO")
    os.mkfifo(tmp_path / "pipe.pt")
    refused(tmp_path / "pipe.pt", "must be a plain file, it is a FIFO")


def test_one_tensor_in_two_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        safetensors.torch.save_file(good(), tmp_path / f"{name}.safetensors")
    refused(tmp_path, r"fc.bias is in .*b.safetensors and in another file")


def test_a_damaged_configuration(tmp_path: Path) -> None:
    safetensors.torch.save_file(good(), tmp_path / "m.safetensors")
    (tmp_path / "config.json").write_text("{")
    refused(tmp_path, "cannot read .*config.json, which says how tensors lie")


class _Runs:
    def __reduce__(self) -> tuple[Callable, tuple]:
        return os.system, (f"touch {os.environ['MARK']}",)


@pytest.mark.parametrize("save", [torch.save, lambda what, path: path.write_bytes(pickle.dumps(what, 2))])
def test_a_pickle_runs_nothing(save: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("MARK", str(mark))
    path = tmp_path / "model.pt"
    save({"fc.qweight": _Runs()}, path)
    refused(path, "is no file of tensors that torch loads without running code")
    assert not mark.exists()
    assert os.system(f"touch {mark}") == 0 and mark.exists()  # so the mark would have been there


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "must hold tensors by name, it holds list"),
        ({"a": 3}, "'a' is int"),
        ({3: torch.ones(2)}, "3 is Tensor"),
        ({"a": torch.eye(3).to_sparse()}, "'a' must be a dense tensor"),
    ],
)
def test_torch_files_of_other_things(content: object, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "model.pt")
    refused(tmp_path / "model.pt", message)


def changed(name: str, tensor: torch.Tensor | None) -> dict[str, torch.Tensor]:
    tensors = {**good(), name: tensor}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


def with_element(name: str, value: float) -> dict[str, torch.Tensor]:
    tensors = good()
    tensors[name].view(-1)[37 % tensors[name].numel()] = value
    return tensors


def ones(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.ones(sizes, dtype=torch.float32).to(dtype)


E4M3 = torch.float8_e4m3fn
TENSORS: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "no qweight": (
        changed("fc.qweight", None),
        "fc.bias is there|fc.proj_down is there without the layer's weight",
    ),
    "no wscales": (changed("fc.wscales", None), "layer 'fc' lacks wscales; it has"),
    "half a branch": (changed("fc.proj_up", None), "fc.proj_down is one half of a low-rank branch"),
    "qweight of floats": (changed("fc.qweight", ones(128, 64)), "fc.qweight must be int8 or uint8"),
    "qweight flat": (changed("fc.qweight", ones(8192, dtype=torch.int8)), "fc.qweight must be int8"),
    "qweight empty": (
        changed("fc.qweight", ones(0, 0, dtype=torch.int8)),
        r"fc.qweight must be .*got int8 \[0, 0\]",
    ),
    "wscales of another size": (
        changed("fc.wscales", ones(8, 256, dtype=E4M3)),
        r"fc.wscales must be float8_e4m3fn \[8, 128\], got float8_e4m3fn \[8, 256\]",
    ),
    "wscales of INT4": (changed("fc.wscales", ones(2, 128)), "fc.wscales has scales of INT4"),
    "wscales of MXFP4": (
        changed("fc.wscales", ones(4, 128, dtype=torch.uint8)),
        "fc.wscales has scales of MXFP4",
    ),
    "wscales NaN": (
        with_element("fc.wscales", float("nan")),
        r"fc.wscales must be finite, got nan at \[0, 37\]",
    ),
    "smooth NaN": (with_element("fc.smooth_factor", float("nan")), "fc.smooth_factor must be finite"),
    "smooth zero": (with_element("fc.smooth_factor", 0.0), "layer 'fc': smooth must be positive"),
    "smooth negative": (with_element("fc.smooth_factor", -1.0), "layer 'fc': smooth must be positive"),
    "smooth of integers": (
        changed("fc.smooth_factor", ones(128, dtype=torch.int32)),
        "fc.smooth_factor must be",
    ),
    "bias infinite": (with_element("fc.bias", float("inf")), r"fc.bias must be finite, got inf at \[37\]"),
    "bias of another size": (
        changed("fc.bias", ones(256)),
        r"fc.bias must be .* \[128\], got bfloat16 \[256\]",
    ),
    "proj_down NaN": (with_element("fc.proj_down", float("nan")), "fc.proj_down must be finite"),
    "proj_up of another rank": (changed("fc.proj_up", ones(128, 32)), r"fc.proj_up must be .* \[128, 16\]"),
    "wtscale of two": (changed("fc.wtscale", ones(2)), "fc.wtscale must be one number"),
    "wtscale zero": (
        changed("fc.wtscale", ones(1) * 0),
        "layer 'fc': alpha \\* wcscale must be a finite normal",
    ),
    "wcscales NaN": (with_element("fc.wcscales", float("nan")), "fc.wcscales must be finite"),
    "rank beyond the kernels": (
        {**changed("fc.proj_down", ones(128, 1024)), "fc.proj_up": ones(128, 1024)},
        "layer 'fc': R must be",
    ),
    "one tensor under two names": (
        {**good(), "fc.smooth": ones(128)},
        "fc.smooth_factor and fc.smooth are the same tensor|fc.smooth and fc.smooth_factor are the same",
    ),
    "sparse": (changed("fc.bias", torch.eye(3).to_sparse()), "'fc.bias' must be a dense tensor"),
    "no tensor": ({"fc.bias": 3}, "'fc.bias' is int"),  # type: ignore[dict-item]
    "nothing": ({}, "no quantized layer"),
    "ordinary": ({"fc.weight": ones(4, 4)}, "no quantized layer"),
    "modelopt, a weight of floats": (
        named("fc", {**modelopt(draw(64, 64, 16), 1.0, None), "weight": ones(64, 64)}),
        "fc.weight must be uint8",
    ),
    "modelopt, a level of zero": (
        named("fc", modelopt(draw(64, 64, 16), 0.0, None)),
        "fc.weight_scale_2 must be positive, got 0.0",
    ),
    "modelopt, an input scale below zero": (
        named("fc", modelopt(draw(64, 64, 16), 1.0, -1.0)),
        "fc.input_scale must be positive",
    ),
    "awq, zeros of another size": (
        named("fc", {**awq(16, 64)[0], "wzeros": ones(3, 16)}),
        r"fc.wzeros must be .* \[1, 16\]",
    ),
    "awq, too many groups": (
        named("fc", {**awq(16, 64)[0], "wscales": ones(5, 16), "wzeros": ones(5, 16)}),
        "fc.wscales must have a row per 64, 128 or 32 columns",
    ),
    "own, scales with a sign": (
        named(
            "fc",
            {"wgt": ones(16, 16, dtype=torch.uint8), "wscales": (-ones(16, 2)).to(E4M3)},
        ),
        "fc.wscales must be finite and not negative",
    ),
}


@pytest.mark.parametrize(("tensors", "message"), TENSORS.values(), ids=TENSORS.keys())
def test_tensors_that_do_not_fit(tensors: dict[str, torch.Tensor], message: str) -> None:
    refused(tensors, message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "columns"}, "layout must be one of auto, nunchaku, row-major"),
        ({"adanorm": "yes"}, "adanorm must be one of"),
        ({"dtype": torch.float32}, "dtype must be float16 or bfloat16"),
        ({"shapes": {"fc": (256, 128)}}, r"layer 'fc': \[128, 128\] cannot be cut to \[256, 128\]"),
        ({"shapes": {"other": (128, 128)}}, "shapes names layer 'other'"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    refused(good(), message, **options)


def test_unpadded_fragments() -> None:
    refused(named("fc", draw(120, 96, 16).rows()), "must be padded to multiples of 128", layout="nunchaku")
