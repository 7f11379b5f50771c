"""Whose dispatch table a device class launches from: its own, and a sibling's for problems that it has not tuned.

Objects of one architecture run on every card of it. What was fastest on the sibling need not be fastest here, but it is
nearer than one's own row of another batch. A borrowed row is never passed off as the class's own: ``Source`` says whose
it is, in every answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import Problem
from kernel_space.places import layers, shipped
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass, siblings
from tuner.files.notice import Say, notice
from tuner.tables.bundle import FOLDER, Bundle
from tuner.tables.dispatch import FILE_NAME, DispatchTable
from tuner.tables.estimates import Estimates
from tuner.tables.row import DispatchKey, Row

Config = tuple[str, str]  # operator, printed


@dataclasses.dataclass(frozen=True)
class Lender:
    """A sibling whose rows lie beneath others. ``shadowed``: configs of its rows that are not taken. ``why``: for
    people.
    """

    folders: tuple[Path, ...]
    shadowed: frozenset[Config]
    why: str


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """``table`` from ``folders``, the first of which shadow the others. ``owner``: the class whose it is. ``borrowed``:
    for people, empty for one's own. ``lent``: the same of single rows, whose objects come from ``lenders``.
    """

    table: DispatchTable
    folders: tuple[Path, ...]
    owner: str
    borrowed: str = ""
    lent: Mapping[DispatchKey, str] = dataclasses.field(default_factory=dict)
    lenders: tuple[Lender, ...] = ()

    def borrowed_for(self, row: Row) -> str:
        """Whose ``row`` is, for people; empty for one's own."""
        return self.borrowed or self.lent.get(row.key, "")

    def bundle(self, *, say: Say = notice) -> Bundle:
        """The objects of all rows. Raises ``InputError`` for a damaged bundle."""
        beneath: Bundle | None = None
        for one in reversed(self.lenders):
            bundle = Bundle.over(one.folders, self.table.arch, say=say, beneath=beneath)
            beneath = bundle.without(one.shadowed)
        return Bundle.over(self.folders, self.table.arch, say=say, beneath=beneath)

    @property
    def lending(self) -> dict[Path, str]:
        """The folders of lent objects, and whose they are, for people."""
        return {folder / FOLDER: one.why for one in self.lenders for folder in one.folders}

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
        why = f"no row of the problem for {device_class.name}"
        return _with_lent(own, device_class, list(_lenders(path, device_class, options)), why, options)
    found = [_load(path, sibling, device_class, options) for sibling in siblings(device_class)]
    found = [one for one in found if one.table.rows]
    why = f"no table for {device_class.name}"
    if len(found) == 1:
        return dataclasses.replace(found[0], borrowed=_borrowed(found[0].owner, device_class, why))
    return _with_lent(own, device_class, found, why, options)


def _lenders(path: Path, device_class: DeviceClass, options: dict[str, Any]) -> Iterator[Source]:
    """Siblings, the nearest first. A damaged table of one takes nothing from a class that has its own."""
    for sibling in siblings(device_class):
        try:
            yield _load(path, sibling, device_class, options)
        except InputError as error:
            notice(f"nothing is borrowed from {sibling.name}: {error}")


def _with_lent(
    own: Source, device_class: DeviceClass, lenders: Sequence[Source], why: str, options: dict[str, Any]
) -> Source:
    """``own`` and rows of problems that it has none of, each from the nearest sibling that has."""
    rows, origins = dict(own.table.rows), dict(own.table.origins)
    lent: dict[DispatchKey, str] = {}
    taken: list[Lender] = []
    for lender in lenders:
        more = {key: row for key, row in lender.table.rows.items() if key not in rows}
        if more:
            said = _borrowed(lender.owner, device_class, why)
            lent |= dict.fromkeys(more, said)
            shadowed = _configs(lender.table.rows) - _configs(more)
            taken.append(Lender(lender.folders, shadowed, said))
            rows, origins = rows | more, origins | {key: lender.table.origins[key] for key in more}
    if not lent:
        return own
    folders = [folder for one in (own, *lenders) for folder in one.folders]
    estimates = Estimates.over(folders, device_class)
    table = DispatchTable(rows.values(), own.table.arch, estimates=estimates, **options)
    table.origins = origins
    return dataclasses.replace(own, table=table, lent=lent, lenders=tuple(taken))


def _configs(rows: Mapping[DispatchKey, Row]) -> frozenset[Config]:
    return frozenset((key.op, row.config) for key, row in rows.items())


def lent_rows(path: Path, device_class: DeviceClass, problem: Problem, limit: int) -> list[Row]:
    """The rows of ``problem`` and its neighbours that the nearest sibling with rows of the operator has, ``limit`` of
    them at most: where a tune may begin on a class that has none of ``problem``. They are nobody's verdict here.
    """
    # A folder that was named has nothing shipped below it.
    for folder in dict.fromkeys((path, shipped("results"))):
        for lender in _lenders(folder, device_class, {}):
            if found := [*lender.table.own(problem), *lender.table.neighbours(problem, limit)]:
                return found[:limit]
    return []


def _load(path: Path, one: DeviceClass, asked: DeviceClass, options: dict[str, Any]) -> Source:
    """That of ``one``, with estimates for ``asked``."""
    folders = tuple(below(layer, one.name) for layer in layers(path))
    estimates = Estimates.over(folders, asked)
    table = DispatchTable.over(folders, arch=one.arch, estimates=estimates, **options)
    return Source(table=table, folders=folders, owner=one.name)


def _borrowed(owner: str, device_class: DeviceClass, why: str) -> str:
    return f"borrowed from {owner}: {why}"
