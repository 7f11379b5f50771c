"""Where tensors come from: a file, a folder of files, or a ``state_dict`` that is there already.

Nothing that is read can run: safetensors holds no code, and torch's own files are read with ``weights_only``.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import MIB, AnyPath, check_plain_file, read_plain
from tuner.files.store import CorruptFile, parse_json
from tuner.layers.checkpoints.tensor_file import read_tensors

_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_CONFIGS = ("config.json", "hf_quant_config.json", "quantization_config.json")
_MOST_CONFIG = 4 * MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """``name``: for messages. ``metadata``: of the file; that of several files together. ``method``: ``quant_method``
    of a ``config.json`` beside the tensors, empty where nothing says.
    """

    name: str
    tensors: dict[str, torch.Tensor]
    metadata: dict[str, str] = dataclasses.field(default_factory=dict)
    method: str = ""


def open_source(given: AnyPath | Mapping[str, torch.Tensor]) -> Source:
    """Raises ``InputError``, in one line, for what is no checkpoint."""
    if isinstance(given, Mapping):
        return Source(name=f"{len(given)} tensors", tensors=_plain(given, "the state_dict"))
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"a checkpoint must be a path or tensors by name, got {type(given).__name__}")
    path = Path(given)
    if path.is_dir():
        return _folder(path)
    if not path.exists():
        raise InputError(f"there is no checkpoint {path}")
    tensors, metadata = _file(path)
    return Source(name=str(path), tensors=tensors, metadata=metadata, method=_method(path.parent))


def _folder(folder: Path) -> Source:
    """All safetensors files of a folder together: shards, or a model in two files as earlier nunchaku has it.

    They may be links, as in the cache of the Hugging Face hub: nothing is written, and what is read is checked.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise InputError(f"there is no safetensors file in {folder}")
    tensors: dict[str, torch.Tensor] = {}
    metadata: dict[str, str] = {}
    for path in paths:
        found, about = _file(path)
        if both := sorted(tensors.keys() & found.keys()):
            raise InputError(f"{both[0]} is in {path} and in another file of the folder: name one file")
        tensors |= found
        metadata |= about
    return Source(name=str(folder), tensors=tensors, metadata=metadata, method=_method(folder))


def _file(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    if path.suffix not in _TORCH:
        return read_tensors(path)
    check_plain_file(path.resolve(), limit=1 << 62)
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of a pickle that somebody wrote by hand: of any kind
        reason = str(error).strip().partition("\n")[0][:200]
        raise InputError(
            f"{path} is no file of tensors that torch loads without running code: {reason}"
        ) from None
    if isinstance(found, dict) and isinstance(found.get("state_dict"), dict):
        found = found["state_dict"]
    if not isinstance(found, Mapping):
        raise InputError(f"{path} must hold tensors by name, it holds {type(found).__name__}")
    return _plain(found, str(path)), {}


def _plain(tensors: Mapping[Any, Any], where: str) -> dict[str, torch.Tensor]:
    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise InputError(f"{where} must hold tensors by name, {name!a:.100} is {type(tensor).__name__}")
        if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
            raise InputError(f"{where}: {name!a:.100} must be a dense tensor with memory")
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _method(folder: Path) -> str:
    """``quant_method`` of the first configuration beside the tensors that has one."""
    for name in _CONFIGS:
        try:
            document = parse_json(read_plain(folder / name, limit=_MOST_CONFIG, follow=True), folder / name)
        except FileNotFoundError:
            continue
        except (OSError, CorruptFile) as error:
            raise InputError(f"cannot read {folder / name}, which says how tensors lie: {error}") from None
        inner = document.get("quantization_config", document) if isinstance(document, dict) else None
        found = inner.get("quant_method") if isinstance(inner, dict) else None
        if isinstance(found, str):
            return found
    return ""
