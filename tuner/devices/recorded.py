"""``results/<class>/device.json``: the numbers of a class that is not shipped, for who reads its results elsewhere.

Such a class belongs to a card that this project does not list; without the card nobody else knows them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from kernel_space.core.arch import arch as arch_record
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.places import layers
from tuner.devices.classes import BANDWIDTH_TOLERANCE, DEVICE_CLASSES, READ, DeviceClass, is_class_name
from tuner.files.record_checks import check_plain
from tuner.files.store import CorruptFile, atomic_write, make_folder, read_json

FILE_NAME = "device.json"
SCHEMA = 1
_FIELDS = {"schema", "name", "arch", "sm_count", "dram_bytes_s", "l2_bytes", "product"}


@runtime_checkable
class OfClass(Protocol):
    """A device that knows the numbers of its class itself: a card."""

    @property
    def device_class(self) -> DeviceClass: ...


def keep_class(results: str | os.PathLike[str], device_class: DeviceClass) -> None:
    """Write it below ``results``, unless it is shipped or there already.

    Raises ``InputError`` when another card's numbers stand under this name, ``StoreError`` when the disk refuses.
    """
    if device_class.name in DEVICE_CLASSES:
        return
    there = recorded_class(results, device_class.name)
    if there is None:
        folder = make_folder(below(Path(results), device_class.name))
        atomic_write(folder / FILE_NAME, json.dumps(_record(device_class), indent=1) + "\n")
    elif not _alike(there, device_class):
        raise InputError(
            f"{_path(results, device_class.name)} must tell of the card whose results are kept beside it, "
            f"{device_class}, but tells of {there}; take another --out"
        )


def keep_class_of(results: str | os.PathLike[str], device: object) -> None:
    """``keep_class`` for a device that knows its own: others are of a class that is known here. Raises likewise."""
    if isinstance(device, OfClass):
        keep_class(results, device.device_class)


def recorded_class(results: str | os.PathLike[str], name: str) -> DeviceClass | None:
    """The class ``name`` that was kept below ``results``; None if there is none, and for a shipped one.

    Raises ``InputError`` for a file that is none of ours.
    """
    if name in DEVICE_CLASSES or not is_class_name(name):
        return None
    for layer in layers(results):
        path = _path(layer, name)
        try:
            record = read_json(path)
        except CorruptFile as error:
            raise InputError(f"{error}; move it away, a tune on the card writes it again") from None
        if record is not None:
            return _recorded(record, name, path)
    return None


def _recorded(record: Any, name: str, path: Path) -> DeviceClass:
    try:
        return _parse(record, name)
    except InputError as error:
        raise InputError(f"{path} is no record of a device class: {error}; move it away") from None


def recorded_names(results: str | os.PathLike[str]) -> list[str]:
    """Of classes that are not shipped, in order: folders below ``results`` with a ``device.json``."""
    folder = Path(results)
    if not folder.is_dir():
        return []
    found = [
        one.name for one in folder.iterdir() if is_class_name(one.name) and one.name not in DEVICE_CLASSES
    ]
    return sorted(name for name in found if os.path.lexists(folder / name / FILE_NAME))


def _path(results: str | os.PathLike[str], name: str) -> Path:
    return below(Path(results), name, FILE_NAME)


def _record(one: DeviceClass) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "name": one.name,
        "arch": one.arch.name,
        "sm_count": one.sm_count,
        "dram_bytes_s": one.dram_bytes_s,
        "l2_bytes": one.l2_bytes,
        "product": one.products[0],
    }


def _parse(record: Any, name: str) -> DeviceClass:
    check_plain(record)
    if not isinstance(record, dict) or set(record) != _FIELDS:
        raise InputError(f"it must have the fields {', '.join(sorted(_FIELDS))} and no other")
    if record["schema"] != SCHEMA:
        raise InputError(f"its schema must be {SCHEMA}, got {record['schema']!r:.40}")
    if record["name"] != name:
        raise InputError(f"it must be of {name}, as its folder is, got {record['name']!r:.80}")
    for field in ("arch", "product"):
        if not isinstance(record[field], str):
            raise InputError(f"{field} must be text, got {record[field]!r:.40}")
    return DeviceClass(
        name=name,
        arch=arch_record(record["arch"]),
        sm_count=_count(record, "sm_count"),
        dram_bytes_s=None if record["dram_bytes_s"] is None else float(_positive(record, "dram_bytes_s")),
        l2_bytes=None if record["l2_bytes"] is None else _count(record, "l2_bytes"),
        products=(record["product"],),
        kind=READ,
        source=f"driver of {record['product']}",
    )


def _positive(record: dict[str, Any], field: str) -> float:
    value = record[field]
    if type(value) not in (int, float) or not value > 0:
        raise InputError(f"{field} must be a number above 0, got {value!r:.40}")
    return value


def _count(record: dict[str, Any], field: str) -> int:
    value = _positive(record, field)
    if not isinstance(value, int):
        raise InputError(f"{field} must be a whole number, got {value!r:.40}")
    return value


def _alike(one: DeviceClass, other: DeviceClass) -> bool:
    """Of one card? Drivers differ a little in the bandwidth of the same memory."""
    if (one.arch, one.sm_count) != (other.arch, other.sm_count):
        return False
    if one.dram_bytes_s is None or other.dram_bytes_s is None:
        return True
    return abs(one.dram_bytes_s / other.dram_bytes_s - 1) <= BANDWIDTH_TOLERANCE
