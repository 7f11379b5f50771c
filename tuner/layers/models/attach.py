"""``attach_svdquant``: loaded layers in the place of a model's linears, split or joined as the model has them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

import torch

from kernel_space.core.errors import InputError
from tuner.layers.checkpoints.report import Loaded
from tuner.layers.linear import SVDQuantLinear
from tuner.layers.models.slices import InputParts, columns, cut_to, rows, stacked
from tuner.layers.models.tree import bare, is_conv1d, put

# A layer of several linears, one behind the other, by the ends of their names. The halves of SwiGLU stand in another
# order in diffusers' feed-forward (value, gate) than in the models' own names.
FUSED = (
    ("to_qkv", ("to_q", "to_k", "to_v")),
    ("add_qkv_proj", ("add_q_proj", "add_k_proj", "add_v_proj")),
    ("to_added_qkv", ("add_q_proj", "add_k_proj", "add_v_proj")),
    ("qkv_proj", ("q_proj", "k_proj", "v_proj")),
    ("gate_up_proj", ("gate_proj", "up_proj")),
    ("w13", ("w1", "w3")),
    ("net.0.proj", ("w3", "w1")),
)
# The same linear under another name.
RENAMED = (
    ("mlp_fc1", "proj_mlp"),
    ("net.2", "w2"),
    ("add_qkv_proj", "to_added_qkv"),
    ("to_added_qkv", "add_qkv_proj"),
)
# A linear whose inputs were quantized in parts.
PARTS = (("proj_out", ("attn.to_out", "mlp_fc2")),)
_SAVED_PART = re.compile(r"(?P<whole>.+)\.parts\.(?P<number>\d+)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Placed:
    """``layers`` of the mapping that became module ``target``, and ``how``."""

    target: str
    layers: tuple[str, ...]
    how: str

    def __str__(self) -> str:
        return f"{self.target}: {', '.join(self.layers)} {self.how}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttachReport:
    """``left``: layers that the model has no place for. ``rest``: other parameters that were taken over."""

    placed: tuple[Placed, ...]
    left: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{len(self.placed)} linears replaced, {len(self.rest)} other parameters taken over"]
        return "\n".join([*lines, *map(str, self.placed), *(f"left {name}" for name in self.left)])


def attach_svdquant(
    model: torch.nn.Module, layers: Mapping[str, torch.nn.Module], *, strict: bool = True
) -> AttachReport:
    """Put ``layers`` in the place of the linears of ``model`` with their names; the model is changed.

    Where the model has separate linears and the layer is fused (Q, K and V; the halves of a gated unit), or the other
    way round, layers are split or joined. FLUX's ``proj_out`` is two layers. Padding is cut off. A layer goes to the
    device of the linear that it replaces. What ``load_svdquant`` left (``layers.rest``) is copied into parameters of
    the same name. ``strict``: a layer without a place is an error.

    Raises ``InputError``, before anything is changed, for layers and sizes that do not fit.
    """
    model = bare(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    plan: list[tuple[Placed, torch.nn.Module]] = []
    used: set[str] = set()
    for step in (_joined, _direct, _split, _parts):  # a model that has both uses the joined one
        for name in [name for name in layers if name not in used]:
            if found := step(name, layers, modules):
                plan += found
                used.update(one for placed, _ in found for one in placed.layers)
    left = tuple(name for name in layers if name not in used)
    if left and strict:
        raise InputError(
            f"the model has no linear for layer {left[0]!r}; strict=False leaves such layers out"
        )
    if not plan:
        raise InputError("none of the layers has a place in the model")
    targets = {placed.target for placed, _ in plan}
    rest = _rest(model, layers, targets)
    for placed, layer in plan:
        before = modules[placed.target]
        home = _at_home(layer, before)
        put(model, placed.target, home)
        for other, one in modules.items():  # a linear may be in several places
            if one is before and other not in targets:
                put(model, other, home)
    _take_over(model, rest)
    return AttachReport(placed=tuple(placed for placed, _ in plan), left=left, rest=tuple(rest))


_Plan = list[tuple[Placed, torch.nn.Module]]
_Layers = Mapping[str, torch.nn.Module]
_Modules = Mapping[str, torch.nn.Module]


def _is_linear(module: torch.nn.Module | None) -> bool:
    return isinstance(module, torch.nn.Linear | SVDQuantLinear | InputParts) or is_conv1d(module)


def _sizes(module: torch.nn.Module) -> tuple[int, int]:
    if is_conv1d(module):
        k, n = module.get_parameter("weight").shape
        return n, k
    return int(module.out_features), int(module.in_features)  # type: ignore[arg-type]  # of a linear


def _fitting(name: str, layer: torch.nn.Module, target: str, modules: _Modules) -> torch.nn.Module:
    try:
        return cut_to(layer, *_sizes(modules[target]))
    except InputError as error:
        raise InputError(f"layer {name!r} does not fit {target!r} of the model: {error}") from None


def _other_ends(name: str, old: str, new: Sequence[str]) -> list[str]:
    """``name`` with the end ``old`` replaced by each of ``new``; nothing where it ends otherwise."""
    if name != old and not name.endswith(f".{old}"):
        return []
    return [name[: len(name) - len(old)] + one for one in new]


def _direct(name: str, layers: _Layers, modules: _Modules) -> _Plan:
    targets = [name, *(one for old, new in RENAMED for one in _other_ends(name, old, (new,)))]
    for target in targets:
        if _is_linear(modules.get(target)) and (target == name or target not in layers):
            return [
                (
                    Placed(target=target, layers=(name,), how="as it is"),
                    _fitting(name, layers[name], target, modules),
                )
            ]
    return []


def _split(name: str, layers: _Layers, modules: _Modules) -> _Plan:
    for fused, ends in FUSED:
        targets = _other_ends(name, fused, ends)
        if not targets or not all(_is_linear(modules.get(one)) for one in targets):
            continue
        sizes = [_sizes(modules[one]) for one in targets]
        if len({k for _, k in sizes}) > 1:
            continue
        return _cut_rows(name, layers[name], targets, sizes)
    return []


def _cut_rows(
    name: str, layer: torch.nn.Module, targets: Sequence[str], sizes: Sequence[tuple[int, int]]
) -> _Plan:
    """Only behind the last part there is padding."""
    if not isinstance(layer, SVDQuantLinear):
        raise InputError(f"layer {name!r} is {type(layer).__name__}, only SVDQuantLinear can be split")
    total, k = sum(n for n, _ in sizes), sizes[0][1]
    try:
        whole = cut_to(layer, total, k)
        assert isinstance(whole, SVDQuantLinear)
        starts = [sum(n for n, _ in sizes[:number]) for number in range(len(sizes))]
        parts = [rows(whole, start, start + n) for start, (n, _) in zip(starts, sizes, strict=True)]
    except InputError as error:
        raise InputError(f"layer {name!r} does not fit {', '.join(targets)} of the model: {error}") from None
    how = f"split into {len(targets)}"
    return [
        (Placed(target=target, layers=(name,), how=how), part)
        for target, part in zip(targets, parts, strict=True)
    ]


def _joined(name: str, layers: _Layers, modules: _Modules) -> _Plan:
    for fused, ends in FUSED:
        if not (whole := _other_ends(name, ends[0], (fused,))):
            continue
        names = [one for end in ends for one in _other_ends(name, ends[0], (end,))]
        given = [layers.get(one) for one in names]
        parts = [one for one in given if isinstance(one, SVDQuantLinear)]
        if not _is_linear(modules.get(whole[0])) or len(parts) != len(names):
            continue
        n, k = _sizes(modules[whole[0]])
        try:
            layer = cut_to(stacked([columns(one, 0, min(k, one.in_features)) for one in parts]), n, k)
        except InputError as error:
            raise InputError(
                f"layers {', '.join(names)} do not fit {whole[0]!r} of the model: {error}"
            ) from None
        return [(Placed(target=whole[0], layers=tuple(names), how=f"joined, {len(names)} to one"), layer)]
    return []


def _parts(name: str, layers: _Layers, modules: _Modules) -> _Plan:
    for target, names in _wholes(name, layers):
        if not _is_linear(modules.get(target)) or not all(one in layers for one in names):
            continue
        n, k = _sizes(modules[target])
        sizes = [_sizes(layers[one])[1] for one in names]
        if sum(sizes) != k:
            raise InputError(
                f"layers {', '.join(names)} have {' + '.join(map(str, sizes))} inputs, {target!r} of the model has "
                f"{k}; if they are padded, load them with shapes"
            )
        parts = [_fitting_part(one, layers[one], target, n) for one in names]
        how = f"side by side, {len(names)} parts of its inputs"
        return [(Placed(target=target, layers=tuple(names), how=how), InputParts(parts))]
    return []


def _fitting_part(name: str, layer: torch.nn.Module, target: str, n: int) -> torch.nn.Module:
    try:
        return cut_to(layer, n, _sizes(layer)[1])
    except InputError as error:
        raise InputError(f"layer {name!r} does not fit {target!r} of the model: {error}") from None


def _wholes(name: str, layers: _Layers) -> list[tuple[str, list[str]]]:
    """(linear of the model, the layers of its inputs in order) that layer ``name`` may be the first part of."""
    found = []
    for whole, ends in PARTS:
        if target := _other_ends(name, ends[0], (whole,)):
            found.append((target[0], _other_ends(name, ends[0], ends)))
    if (match := _SAVED_PART.fullmatch(name)) and match["number"] == "0":
        numbers = range(sum(one.startswith(f"{match['whole']}.parts.") for one in layers))
        found.append((match["whole"], [f"{match['whole']}.parts.{number}" for number in numbers]))
    return found


def _at_home(layer: torch.nn.Module, before: torch.nn.Module) -> torch.nn.Module:
    """On the device of what it replaces; 16-bit linears in its dtype too."""
    old = next(iter([*before.parameters(), *before.buffers()]))
    device = "cpu" if old.is_meta else old.device
    if isinstance(layer, torch.nn.Linear):
        return layer.to(device=device, dtype=old.dtype)
    return layer.to(device)


def _rest(model: torch.nn.Module, layers: _Layers, replaced: set[str]) -> dict[str, torch.Tensor]:
    """What ``load_svdquant`` left, as far as the model has a place for it."""
    if not isinstance(layers, Loaded):
        return {}
    state = model.state_dict()
    found = {}
    for name, tensor in layers.rest.items():
        if name not in state or name.rpartition(".")[0] in replaced:
            continue
        if state[name].shape != tensor.shape:
            sizes = f"{list(tensor.shape)}, the model's is {list(state[name].shape)}"
            raise InputError(f"{name} of the checkpoint is {sizes}")
        found[name] = tensor
    return found


def _take_over(model: torch.nn.Module, rest: Mapping[str, torch.Tensor]) -> None:
    """Into the tensors that are there, in their dtype; where there is no memory yet, as they are."""
    state = model.state_dict()
    missing = {name: tensor.clone() for name, tensor in rest.items() if state[name].is_meta}
    with torch.no_grad():
        for name in rest.keys() - missing.keys():
            state[name].copy_(rest[name])
    if missing:
        model.load_state_dict(missing, strict=False, assign=True)
