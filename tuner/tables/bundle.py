"""Compiled objects beside a dispatch table: ``objects/index.json`` and one file per object.

A serving process launches from them without the compiler and without a build cache. The index has one line per kernel,
config and problem class; a file's name is the beginning of its SHA-256. Entries of operators that are not installed
here are passed over, and kept by whoever writes the index.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from kernel_space.core.arch import Arch
from kernel_space.core.arguments import Argument
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below, read_plain
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of, parse_config
from kernel_space.places import COMMAND
from tuner.files.notice import Say, notice, say_each
from tuner.files.record_checks import (
    check_object_name,
    check_plain,
    check_sha256,
    check_symbol,
    check_texts,
    shown,
)
from tuner.files.store import CorruptFile, read_json
from tuner.tables.card_check import CardCheck
from tuner.trials.subject import MIGRATE, NotInstalled, foreign_lines, problem_from_record

FOLDER = "objects"
INDEX = "index.json"
SCHEMA = 2
_AGAIN = f"move it away and run {COMMAND} bundle again"
_CLUSTERS_OF = 132  # SMs for which an entry states its launch argument; any number would do


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectFile:
    """An object on disk. ``prefix`` of its symbols, ``arguments`` of its host function, ``sha256`` of its bytes.

    ``checked``: what the check of a bundled object on a card said, None if there was none.
    """

    path: Path
    prefix: str
    arguments: tuple[Argument, ...]
    sha256: str
    checked: CardCheck | None = None

    def read(self) -> bytes:
        """Raises ``InputError`` when the file is gone or is not what was recorded."""
        try:
            data = read_plain(self.path)
        except OSError as error:
            raise InputError(f"cannot read the object {self.path}: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != self.sha256:
            raise InputError(f"the object {self.path} is damaged: its SHA-256 is not {self.sha256[:16]}...")
        return data


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One object of a bundle.

    ``config``: printed; ``problem``: for which it was bundled, one of its class; ``host``: the machine type the host
    code is for; ``file``: name in the folder. ``launch``: what ``launch_facts`` gave for ``problem`` when it was
    bundled. ``checked``: what a card's check of this very object said; None: nobody asked (the tune that judged a
    row's object says so in the row).
    """

    arch: str
    config: str
    problem: Problem
    host: str
    file: str
    sha256: str
    cubin_sha256: str
    prefix: str
    arguments: tuple[Argument, ...]
    launch: dict[str, int]
    source_hash: str
    dsl_version: str
    checked: CardCheck | None = None

    @property
    def op(self) -> str:
        return self.problem.operator

    @property
    def problem_class(self) -> str:
        """Printed: sizes and options that are compiled in."""
        return str(self.problem.problem_class)

    def to_record(self) -> dict[str, Any]:
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            "op": self.op,
            **fields,
            "problem": self.problem.record(),
            "arguments": ", ".join(f"{argument.name} {argument.kind}" for argument in self.arguments),
            "checked": None if self.checked is None else self.checked.to_record(),
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Raises ``InputError`` when the record is not what ``to_record`` writes, ``NotInstalled`` when it may be and
        its operator is not here.
        """
        try:
            check_plain(record)
            fields = dict(record)
            problem = problem_from_record(fields.pop("op"), fields.pop("problem"))
            arguments = tuple(Argument(*text.split(" ")) for text in fields.pop("arguments").split(", "))
            checked = CardCheck.from_record(fields.pop("checked", None))
            entry = cls(problem=problem, arguments=arguments, checked=checked, **fields)
            _check(entry)
            return entry
        except NotInstalled:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"not an entry of a bundle: {type(error).__name__}: {error}") from None


def _check(entry: Entry) -> None:
    """What the types of an entry that came from a file must be. Raises ``InputError``."""
    check_texts(entry, ("arch", "config", "host", "cubin_sha256", "source_hash", "dsl_version"))
    check_sha256("sha256", entry.sha256)
    check_object_name("file", entry.file, entry.sha256)
    check_symbol("prefix", entry.prefix)
    if not isinstance(entry.launch, dict) or not all(type(value) is int for value in entry.launch.values()):
        raise InputError("launch must hold whole numbers")


class Bundle:
    """The objects in ``folder``; empty when there is none. ``foreign``: records of operators that are not here."""

    def __init__(
        self,
        folder: AnyPath,
        arch: Arch,
        entries: Iterable[Entry],
        foreign: Iterable[dict[str, Any]] = (),
        *,
        beneath: Bundle | None = None,
    ) -> None:
        self.folder = Path(folder)
        self.arch = arch
        self.foreign = tuple(foreign)
        own = tuple(entries)
        self._own, self._beneath = own, beneath
        self._found = {_identity(arch, entry): entry for entry in own if entry.host == platform.machine()}
        hidden = {_identity(arch, entry) for entry in own}
        lower = beneath.entries if beneath is not None else ()
        self.entries: tuple[Entry, ...] = (
            *own,
            *(entry for entry in lower if _identity(arch, entry) not in hidden),
        )

    @classmethod
    def load(cls, folder: AnyPath, arch: Arch, *, say: Say = notice, beneath: Bundle | None = None) -> Self:
        """``say`` is told, in a line each, which entries are passed over because they are none. ``beneath``: objects of
        another folder, which this one's shadow.

        Raises ``InputError`` for an index that is none or of another schema or arch, and for a folder that is a link.
        """
        folder = Path(folder)
        path = below(folder.parent, folder.name, INDEX)
        try:
            document = read_json(path)
        except CorruptFile as error:
            raise InputError(f"{error}; {_AGAIN}") from None
        entries, foreign, bad = ([], [], []) if document is None else _entries_of(document, path)
        say_each([*bad, *foreign_lines(path, foreign, "object")], say)
        wrong = {entry.arch for entry in entries} - {arch.name}
        if wrong:
            raise InputError(f"{path} must hold objects for {arch.name}, got {', '.join(sorted(wrong))}")
        return cls(folder, arch, entries, foreign, beneath=beneath)

    @classmethod
    def over(
        cls, folders: Sequence[AnyPath], arch: Arch, *, say: Say = notice, beneath: Bundle | None = None
    ) -> Self:
        """The bundles of several folders of one device as one: the first that has an object gives it, then
        ``beneath``.
        """
        first, *rest = folders
        beneath = cls.over(rest, arch, say=say, beneath=beneath) if rest else beneath
        return cls.load(Path(first) / FOLDER, arch, say=say, beneath=beneath)

    def without(self, configs: Collection[tuple[str, str]]) -> Bundle:
        """Those objects that are not of ``configs``: (operator, printed config)."""
        beneath = self._beneath.without(configs) if self._beneath is not None else None
        own = [entry for entry in self._own if (entry.problem.operator, entry.config) not in configs]
        return Bundle(self.folder, self.arch, own, beneath=beneath)

    def find(self, config: KernelConfig, problem: Problem) -> ObjectFile | None:
        """The object of ``config`` for the class of ``problem`` on this kind of machine.

        Raises ``InputError`` when it was bundled by a version that launches it in another way: with too small a
        workspace, say.
        """
        entry = self._found.get((problem.operator, str(config), str(problem.problem_class)))
        if entry is None:
            return None if self._beneath is None else self._beneath.find(config, problem)
        expected = launch_facts(config, entry.problem)
        if entry.launch != expected:
            raise InputError(
                f"the object {entry.file} was bundled with launch facts {entry.launch}, this version has {expected}; "
                f"run {COMMAND} bundle again"
            )
        return self.file_of(entry)

    def file_of(self, entry: Entry) -> ObjectFile:
        return ObjectFile(
            path=self.folder / entry.file,
            prefix=entry.prefix,
            arguments=entry.arguments,
            sha256=entry.sha256,
            checked=entry.checked,
        )


def launch_facts(config: KernelConfig, problem: Problem) -> dict[str, int]:
    """What a launch of ``config`` takes from this version of the sources rather than from the object."""
    room = kernel_of(config, problem).room(config, problem)
    return {
        "workspace_bytes": room.size,
        "zeroed_bytes": room.zeroed,
        "clusters_of_132_sms": config.max_active_clusters(_CLUSTERS_OF),
    }


def render_index(entries: Iterable[Entry], foreign: Iterable[dict[str, Any]] = ()) -> str:
    """Valid JSON with one entry per line, sorted, so that a new tune is a readable diff."""
    ordered = sorted(entries, key=lambda entry: (entry.problem_class, entry.config, entry.host))
    records = [*(entry.to_record() for entry in ordered), *foreign]
    lines = ",\n".join(json.dumps(record) for record in sorted(records, key=lambda record: record["op"]))
    return f'{{"schema": {SCHEMA}, "objects": [\n{lines}\n]}}\n'


def _identity(arch: Arch, entry: Entry) -> tuple[str, str, str]:
    """(operator, config, class) as this version prints them: a knob added since takes its default."""
    try:
        config = str(parse_config(entry.op, arch, entry.config))
    except InputError:  # a knob that this version no longer has: nobody will ask for it
        config = entry.config
    return entry.op, config, entry.problem_class


def _entries_of(document: Any, path: Path) -> tuple[list[Entry], list[dict[str, Any]], list[str]]:
    """The entries that are good, those of operators that are not installed here, and a line about each of the rest."""
    if not isinstance(document, dict) or not isinstance(document.get("objects"), list):
        raise InputError(f'{path} is damaged: it needs a list "objects"; {_AGAIN}')
    if (schema := document.get("schema")) != SCHEMA:
        hint = f"; {MIGRATE}" if schema == SCHEMA - 1 else ""
        raise InputError(f"{path} has schema {shown(schema)}, this version reads {SCHEMA}{hint}")
    entries, foreign, bad = [], [], []
    for number, record in enumerate(document["objects"], start=1):
        try:
            entries.append(Entry.from_record(record))
        except NotInstalled:
            foreign.append(record)
        except InputError as error:
            bad.append(f"{path}: entry {number} is passed over: {error}")
    return entries, foreign, bad
