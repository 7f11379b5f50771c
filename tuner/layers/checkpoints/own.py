"""The project's own form: the buffers of ``SVDQuantLinear``, row-major, and metadata that says what they are.

    <layer>.wgt          uint8 [N, K/2]           <layer>.lora_down    fp16 or bf16 [K, R]
    <layer>.wscales      float8_e4m3fn [N, K/16]  <layer>.lora_up      fp16 or bf16 [N, R], divided by wcscale
    <layer>.smooth       fp32 [K]                 <layer>.wcscale      fp32 [N]
    <layer>.bias         fp32 [N]                 <layer>.error        fp64 [], relative_error
    <layer>.weight, .bias                         of a 16-bit linear

A ``state_dict`` is read too: there ``wscales`` are the bytes of the blocked layout. Metadata is one JSON text under
``METADATA``: format, version, SHA-256 of the tensors, and what each layer is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath
from kernel_space.numerics.blocked import blocked_scale_bytes
from kernel_space.numerics.nvfp4 import block_scales, require_scale_bytes, unblock_scales
from kernel_space.operators.svdquant_gemm.packing import PackedSVDQuant
from tuner.files.store import CorruptFile, parse_json
from tuner.layers.checkpoints.group import Group
from tuner.layers.checkpoints.tensor_file import raw_bytes, write_tensors
from tuner.layers.linear import SVDQuantLinear

METADATA = "svdquant-autotuner"
FORMAT = "svdquant"
VERSION = 1
_HALF = (torch.float16, torch.bfloat16)
_FP32 = (torch.float32,)


def read(group: Group) -> SVDQuantLinear:
    """Raises ``InputError`` for tensors that do not fit, with their names."""
    wgt = group.take("wgt", (torch.uint8,), (None, None))
    n, k = wgt.shape[0], 2 * wgt.shape[1]
    wscales = _scales(group, n, k)
    wcscale = group.take("wcscale", _FP32, (n,))
    if not (wcscale.abs() >= torch.finfo(torch.float32).smallest_normal).all():
        raise InputError(f"{group.names['wcscale']} must be normal fp32 numbers and not zero")
    down, up = _branch(group, n, k)
    packed = PackedSVDQuant(
        wgt=wgt.contiguous(),
        wscales=block_scales(wscales),
        lora_up=up.contiguous(),
        wcscale=wcscale,
        bias=group.take("bias", _FP32, (n,)),
    )
    smooth = group.take("smooth", _FP32, (k,))
    error = group.tensors.get("error")
    group.taken.add("error")
    if error is not None and (error.dtype != torch.float64 or error.numel() != 1):
        raise InputError(f"{group.names['error']} must be one float64")
    return SVDQuantLinear.from_packed(
        packed, down, smooth, error=float("nan") if error is None else error.item()
    )


def _scales(group: Group, n: int, k: int) -> torch.Tensor:
    given = group.tensors.get("wscales")
    if given is not None and given.ndim == 1:
        raw = group.take("wscales", (torch.uint8,), (blocked_scale_bytes(n, k),))
        found = unblock_scales(raw, n, k)
    else:
        found = group.take("wscales", (torch.float8_e4m3fn,), (n, k // 16)).contiguous()
    require_scale_bytes(found, group.names["wscales"])
    return found


def _branch(group: Group, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    down = group.tensors.get("lora_down")
    if down is not None and down.ndim == 2 and down.shape[1] == 0 and down.dtype in _HALF:
        group.taken |= {"lora_down", "lora_up"}
        return down.new_empty(k, 0), down.new_empty(n, 0)
    down = group.take("lora_down", _HALF, (k, None))
    return down.contiguous(), group.take("lora_up", (down.dtype,), (n, down.shape[1]))


def save_svdquant(layers: Mapping[str, torch.nn.Module] | torch.nn.Module, path: AnyPath) -> None:
    """Write layers, or all ``SVDQuantLinear`` of a model, to a safetensors file that ``load_svdquant`` reads.

    ``layers``: ``SVDQuantLinear`` and 16-bit ``torch.nn.Linear`` by name. The same layers give the same bytes. The
    file is whole or not there. Raises ``InputError`` for anything else, ``StoreError`` when the disk refuses.
    """
    if isinstance(layers, torch.nn.Module):
        model: torch.nn.Module = getattr(layers, "_orig_mod", layers)  # inside what torch.compile made of it
        layers = {name: one for name, one in model.named_modules() if isinstance(one, SVDQuantLinear)}
    if not layers:
        raise InputError("there is no SVDQuantLinear to save")
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(layers):
        prefix = f"{name}." if name else ""
        tensors |= {f"{prefix}{own}": tensor for own, tensor in _tensors(name, layers[name]).items()}
    document = {
        "format": FORMAT,
        "version": VERSION,
        "layers": {name: about(layers[name]) for name in sorted(layers)},
        "sha256": digest(tensors),
    }
    write_tensors(path, tensors, {METADATA: json.dumps(document, separators=(",", ":"))})


def _tensors(name: str, layer: torch.nn.Module) -> dict[str, torch.Tensor]:
    if isinstance(layer, SVDQuantLinear):
        found = {own: tensor.detach().cpu() for own, tensor in layer.state_dict().items()}
        found["wscales"] = unblock_scales(found["wscales"], layer.out_features, layer.in_features)
        return found
    if isinstance(layer, torch.nn.Linear) and layer.weight.dtype in _HALF:
        found = {"weight": layer.weight.detach()}
        return found if layer.bias is None else {**found, "bias": layer.bias.detach()}
    raise InputError(f"layer {name!r} must be SVDQuantLinear or a 16-bit Linear, got {type(layer).__name__}")


def about(layer: torch.nn.Module) -> dict[str, Any]:
    """What metadata says of a layer."""
    if isinstance(layer, SVDQuantLinear):
        dtype = str(layer.dtype).removeprefix("torch.")
        return {"k": layer.in_features, "n": layer.out_features, "rank": layer.rank, "dtype": dtype}
    assert isinstance(layer, torch.nn.Linear)
    dtype = str(layer.weight.dtype).removeprefix("torch.")
    return {"k": layer.in_features, "n": layer.out_features, "linear": dtype}


def digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 over name, dtype, shape and bytes of all tensors, by name."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        if tensor.numel():
            found.update(raw_bytes(tensor))
    return found.hexdigest()


def document_of(text: str, source: str) -> dict[str, Any]:
    """The parsed metadata. Raises ``InputError`` for another format or a later version."""
    try:
        document = parse_json(text, Path(source))
    except CorruptFile as error:
        raise InputError(f"{source}: its metadata does not parse, {error.what}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{source}: its metadata must be of format {FORMAT!r}")
    if document.get("version") != VERSION:
        came = str(document.get("version"))[:20]
        raise InputError(f"{source} has version {came!r} of the format, this program reads {VERSION}")
    return document


def require_same(
    document: dict[str, Any],
    tensors: Mapping[str, torch.Tensor],
    layers: Mapping[str, torch.nn.Module],
    source: str,
) -> None:
    """Raises ``InputError`` unless tensors and layers are those that the metadata speaks of."""
    if document.get("sha256") != digest(tensors):
        raise InputError(f"{source} is damaged: its tensors do not have the SHA-256 of its metadata")
    said = document.get("layers")
    made = {name: about(layer) for name, layer in layers.items()}
    if said != made:
        names = {*made, *said} if isinstance(said, dict) else set(made)
        first = min(name for name in names if not isinstance(said, dict) or said.get(name) != made.get(name))
        raise InputError(f"{source} is damaged: its metadata says something else of layer {first!a:.100}")
