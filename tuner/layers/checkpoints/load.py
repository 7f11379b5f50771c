"""``load_svdquant``: the layers of a checkpoint, whoever wrote it, as ``SVDQuantLinear`` by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath
from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from tuner.layers.checkpoints import modelopt, nunchaku, own
from tuner.layers.checkpoints.group import Group
from tuner.layers.checkpoints.names import adanorm_parts, is_fused_qkv, new_spelling, split_name
from tuner.layers.checkpoints.nunchaku import Layout
from tuner.layers.checkpoints.parts import Parts
from tuner.layers.checkpoints.report import LayerReport, Loaded, LoadReport, described
from tuner.layers.checkpoints.source import Source, open_source

LAYOUTS = ("auto", *Layout)
ADANORM = ("auto", "interleaved", "plain")
_HALF = tuple(TORCH_DTYPES.values())
# Parameters of modules that are no linears, by their own names; whatever else is unknown.
_PLAIN = {"weight", "bias", "scale_shift_table", "x_pad_token", "cap_pad_token", "pos_embed", "inv_freq"}
_OF_A_LAYER = {
    "wscales",
    "wtscale",
    "wcscales",
    "proj_down",
    "proj_up",
    "smooth_factor",
    "lora_down_packed",
    "svdquant_lora_a",
    "svdquant_lora_b",
    "weight_scale_2",
    "pre_quant_scale",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Ways:
    """How tensors are read, decided once for a checkpoint."""

    layout: Layout
    interleaved: bool
    dtype: torch.dtype | None
    shapes: Mapping[str, tuple[int, int]]


def load_svdquant(
    source: AnyPath | Mapping[str, torch.Tensor],
    *,
    layout: str = "auto",
    adanorm: str = "auto",
    dtype: torch.dtype | None = None,
    shapes: Mapping[str, tuple[int, int]] | None = None,
    strict: bool = True,
) -> Loaded:
    """Layers by name, converted once and on the CPU; the same every time.

    ``source``: a safetensors file, a folder of them, a file of torch (read with ``weights_only``), or tensors by name:
    of nunchaku, diffusers' Nunchaku Lite, DeepCompressor, vllm-omni, ModelOpt (``NVFP4_SVD``) or ``save_svdquant``.

    ``layout``: of tensors with nunchaku's names: ``nunchaku`` (fragments), ``row-major`` (vllm-omni), or ``auto``:
    what a ``config.json`` beside them says, or sizes that only one of both can have, else nunchaku's; the report tells.
    ``adanorm``: whether rows of AWQ layers of AdaNorm are ``interleaved`` with ones in the bias, as nunchaku's own
    models have them, or ``plain``; ``auto``: interleaved where Q, K and V are fused. Here they become the model's.
    ``dtype``: float16 or bfloat16 of layers, by default that of the checkpoint. ``shapes``: (N, K) by layer where the
    checkpoint is padded. ``strict``: whether a tensor that nothing here knows is an error; it is left otherwise.

    Raises ``InputError`` for what does not fit: one line that names tensor and reason.
    """
    _require_one_of("layout", layout, LAYOUTS)
    _require_one_of("adanorm", adanorm, ADANORM)
    if dtype not in (None, *_HALF):
        raise InputError(f"dtype must be float16 or bfloat16, got {str(dtype).removeprefix('torch.')}")
    given = open_source(source)
    document = (
        own.document_of(given.metadata[own.METADATA], given.name) if own.METADATA in given.metadata else None
    )
    groups = _groups(given.tensors)
    way, note = _layout(layout, given, groups)
    ways = _Ways(
        layout=way,
        interleaved=adanorm == "interleaved"
        or (adanorm == "auto" and any(map(is_fused_qkv, _given_layers(given)))),
        dtype=dtype,
        shapes=shapes or {},
    )
    loaded = _loaded(given, groups, ways, strict, note)
    if missing := sorted(set(ways.shapes) - loaded.keys()):
        raise InputError(f"shapes names layer {missing[0]!r}, which {given.name} does not have")
    if document is not None:
        own.require_same(document, given.tensors, loaded, given.name)
    return loaded


def _require_one_of(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _given_layers(given: Source) -> set[str]:
    return {name.rpartition(".")[0] for name in given.tensors}


def _groups(tensors: Mapping[str, torch.Tensor]) -> dict[str, Group]:
    """Tensors by layer, in the order of names."""
    groups: dict[str, Group] = {}
    for full in sorted(tensors):
        layer, name = split_name(full)
        groups.setdefault(layer, Group(layer)).add(name, full, tensors[full])
    return {layer: _spelled(group) for layer, group in groups.items()}


def _spelled(group: Group) -> Group:
    """A layer of nunchaku's in the later spelling of its tensors; others as they are."""
    if "qweight" not in group:
        return group
    spelled = Group(group.name)
    for name, tensor in group.tensors.items():
        spelled.add(new_spelling(name), group.names[name], tensor)
    return spelled


def _layout(asked: str, given: Source, groups: Mapping[str, Group]) -> tuple[Layout, str]:
    """(the layout, how it was found; empty where nothing has one)."""
    those = [group for group in groups.values() if "qweight" in group and "wzeros" not in group]
    if not those:
        return Layout.FRAGMENTS, ""
    if asked != "auto":
        return Layout(asked), f"layout {asked}, as asked for"
    if given.metadata.get("model_class", "").startswith("Nunchaku"):
        return Layout.FRAGMENTS, f"layout {Layout.FRAGMENTS}, as the metadata says"
    if given.method == "svdquant":
        return Layout.ROWS, f"layout {Layout.ROWS}, as quant_method in the configuration beside it says"
    if given.method == "nunchaku_lite":
        return (
            Layout.FRAGMENTS,
            f"layout {Layout.FRAGMENTS}, as quant_method in the configuration beside it says",
        )
    if not all(map(nunchaku.fits_fragments, those)):
        return Layout.ROWS, f"layout {Layout.ROWS}, as sizes are not padded"
    return (
        Layout.FRAGMENTS,
        f"layout {Layout.FRAGMENTS} assumed, nothing says; row-major needs layout='row-major'",
    )


def _loaded(given: Source, groups: Mapping[str, Group], ways: _Ways, strict: bool, note: str) -> Loaded:
    loaded, reports, unused = Loaded(), [], []
    loaded.rest, left = {}, []
    for name, group in groups.items():
        read = _read(group, ways, given)
        if read is None:
            prefix = f"{name}." if name else ""
            loaded.rest |= {f"{prefix}{one}": tensor for one, tensor in group.tensors.items()}
            left += _left(group, strict, given)
            continue
        loaded[name], form, notes = read
        if unknown := group.unknown():
            if strict:
                raise InputError(
                    f"{unknown[0]} is a tensor that nothing here knows, in layer {name!r}; strict=False leaves it"
                )
            unused += unknown
        unused += [group.names[one] for one in ("smooth_factor_orig",) if one in group]
        reports.append(LayerReport(name=name, form=form, became=described(loaded[name]), notes=tuple(notes)))
    if not loaded:
        raise InputError(f"{given.name} has no quantized layer of a form that is known here")
    loaded.report = LoadReport(
        source=given.name,
        layers=tuple(reports),
        notes=(note,) if note else (),
        left=tuple(left),
        unused=tuple(unused),
    )
    return loaded


def _read(group: Group, ways: _Ways, given: Source) -> tuple[torch.nn.Module, str, list[str]] | None:
    """(layer, whose form it had, notes); None for a module that is not quantized."""
    try:
        if "wgt" in group:
            return own.read(group), "own", []
        if "wzeros" in group:
            return _awq(group, ways)
        parts, form = _parts(group, ways)
        if parts is None:
            return _own_linear(group, given)
        if group.name in ways.shapes:
            parts.cut(*ways.shapes[group.name])
        layer = parts.layer(_dtype(group, ways))
    except InputError as error:
        text = str(error)
        known = f"layer {group.name!r}" in text or any(full in text for full in group.names.values())
        raise InputError(text if known else f"layer {group.name!r}: {text}") from None
    return layer, form, parts.notes


def _parts(group: Group, ways: _Ways) -> tuple[Parts | None, str]:
    if "qweight" in group:
        return nunchaku.read(group, ways.layout), f"{ways.layout} NVFP4"
    if "weight_scale" in group:
        return modelopt.read(group), "modelopt NVFP4"
    if found := sorted(_OF_A_LAYER & group.tensors.keys()):
        raise InputError(
            f"{group.names[found[0]]} is there without the layer's weight (qweight, wgt or weight)"
        )
    return None, ""


def _awq(group: Group, ways: _Ways) -> tuple[torch.nn.Module, str, list[str]]:
    chunks = adanorm_parts(group.name) if ways.interleaved else 0
    notes = [f"{chunks} chunks put in the model's order, ones taken from the scales' bias"] if chunks else []
    return nunchaku.read_awq(group, chunks), "AWQ W4A16", notes


def _own_linear(group: Group, given: Source) -> tuple[torch.nn.Module, str, list[str]] | None:
    """A 16-bit linear of the project's own form."""
    weight = group.tensors.get("weight")
    if own.METADATA not in given.metadata or weight is None:
        return None
    weight = group.take("weight", _HALF, (None, None))
    bias = group.maybe("bias", (weight.dtype,), (weight.shape[0],))
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    linear.weight = torch.nn.Parameter(weight.clone(), requires_grad=False)
    if bias is not None:
        linear.bias = torch.nn.Parameter(bias.clone(), requires_grad=False)
    return linear, "own", []


def _dtype(group: Group, ways: _Ways) -> torch.dtype:
    if ways.dtype is not None:
        return ways.dtype
    return group.dtype("proj_up", "svdquant_lora_b", "bias", "smooth_factor", "pre_quant_scale", "wcscales")


def _left(group: Group, strict: bool, given: Source) -> list[str]:
    """Full names of the tensors of a module that is not quantized. Raises ``InputError`` for one that nobody knows."""
    for name, full in group.names.items():
        tensor = group.tensors[name]
        if strict and not (name in _PLAIN and tensor.is_floating_point() and tensor.itemsize > 1):
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise InputError(
                f"{full} ({dtype} {list(tensor.shape)}) is a tensor that nothing here knows; strict=False leaves it"
            )
    return list(group.names.values())
