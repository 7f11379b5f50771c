"""Whose dispatch table a device class launches from: its own, or while that has no rows, a sibling's.

Objects of one architecture run on every card of it. What was fastest on the sibling need not be fastest here, so a
borrowed row is never passed off as the class's own: ``Source.borrowed`` says whose it is, in every answer.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from kernel_space.core.plain_files import below
from kernel_space.places import layers
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass, siblings
from tuner.tables.dispatch import FILE_NAME, DispatchTable
from tuner.tables.estimates import Estimates
from tuner.tables.row import Row


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """``table`` from ``folders``, the first of which shadow the others. ``owner``: the class whose it is. ``borrowed``:
    for people, empty for one's own.
    """

    table: DispatchTable
    folders: tuple[Path, ...]
    owner: str
    borrowed: str = ""

    @property
    def folder(self) -> Path:
        """The first that has rows."""
        own = self.table.origins.values()
        return next((one for one in self.folders if one in own), self.folders[0])

    def folder_of(self, row: Row) -> Path:
        return self.table.origins.get(row.key, self.folder)


def table_of(path: Path, device_class: DeviceClass, **options: Any) -> Source:
    """The table that answers for ``device_class``; an empty one if no class of its architecture has rows.

    ``path``: a folder with one folder per class, or one class's folder, which then answers for any. The user's folder
    lies over what is shipped (``places.layers``). ``options`` as of ``DispatchTable.load``. Raises ``InputError`` for a
    damaged table.
    """
    if (path / FILE_NAME).is_file():
        owner = path.resolve().name
        lent = owner in DEVICE_CLASSES and owner != device_class.name
        why = _borrowed(owner, device_class, f"its table was named for {device_class.name}") if lent else ""
        estimates = Estimates.over([path], device_class)
        table = DispatchTable.load(path, arch=device_class.arch, estimates=estimates, **options)
        return Source(table=table, folders=(path,), owner=owner if lent else device_class.name, borrowed=why)
    own = _load(path, device_class, device_class, options)
    if own.table.rows:
        return own
    for sibling in siblings(device_class):
        lender = _load(path, sibling, device_class, options)
        if lender.table.rows:
            why = _borrowed(sibling.name, device_class, f"no table for {device_class.name}")
            return dataclasses.replace(lender, borrowed=why)
    return own


def _load(path: Path, one: DeviceClass, asked: DeviceClass, options: dict[str, Any]) -> Source:
    """That of ``one``, with estimates for ``asked``."""
    folders = tuple(below(layer, one.name) for layer in layers(path))
    estimates = Estimates.over(folders, asked)
    table = DispatchTable.over(folders, arch=one.arch, estimates=estimates, **options)
    return Source(table=table, folders=folders, owner=one.name)


def _borrowed(owner: str, device_class: DeviceClass, why: str) -> str:
    return f"borrowed from {owner}: {why}"
