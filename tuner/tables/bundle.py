"""Compiled objects beside a dispatch table: ``objects/index.json`` and one file per object.

A serving process launches from them without the compiler and without a build cache. The index has one line per kernel
and problem class; a file's name is the beginning of its SHA-256.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from kernel_space.core.arch import Arch
from kernel_space.core.arguments import Argument
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below, read_plain
from kernel_space.core.registry import parse_config
from kernel_space.operators.svdquant_gemm.problem import HALF_DTYPES, GemmProblem
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes, zeroed_bytes
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

FOLDER = "objects"
INDEX = "index.json"
SCHEMA = 1
_AGAIN = "move it away and run tune.py bundle again"
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

    ``config``, ``problem_class``: printed forms; ``host``: the machine type the host code is for; ``file``: name in
    the folder. ``launch``: what ``launch_facts`` gave for ``problem`` when it was bundled. ``checked``: what a card's
    check of this very object said; None: nobody asked (the tune that judged a row's object says so in the row).
    """

    arch: str
    config: str
    problem_class: str
    problem: str
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

    def to_record(self) -> dict[str, Any]:
        arguments = ", ".join(f"{argument.name} {argument.kind}" for argument in self.arguments)
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        checked = None if self.checked is None else self.checked.to_record()
        return {**fields, "arguments": arguments, "checked": checked}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Raises ``InputError`` when the record is not what ``to_record`` writes."""
        try:
            check_plain(record)
            fields = dict(record)
            arguments = tuple(Argument(*text.split(" ")) for text in fields.pop("arguments").split(", "))
            checked = CardCheck.from_record(fields.pop("checked", None))  # older indices have no such field
            entry = cls(arguments=arguments, checked=checked, **fields)
            _check(entry)
            return entry
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"not an entry of a bundle: {type(error).__name__}: {error}") from None


def _check(entry: Entry) -> None:
    """What the types of an entry that came from a file must be. Raises ``InputError``."""
    check_texts(
        entry, ("arch", "config", "problem_class", "host", "cubin_sha256", "source_hash", "dsl_version")
    )
    check_sha256("sha256", entry.sha256)
    check_object_name("file", entry.file, entry.sha256)
    check_symbol("prefix", entry.prefix)
    problem_of(entry)
    if not isinstance(entry.launch, dict) or not all(type(value) is int for value in entry.launch.values()):
        raise InputError("launch must hold whole numbers")


class Bundle:
    """The objects in ``folder``; empty when there is none."""

    def __init__(self, folder: Path, arch: Arch, entries: Iterable[Entry]) -> None:
        self.folder = folder
        self.arch = arch
        self.entries = tuple(entries)
        self._found = {
            _identity(arch, entry): entry for entry in self.entries if entry.host == platform.machine()
        }
        self._of_rank: dict[int, list[tuple[GemmProblem, str]]] = {}

    @classmethod
    def load(cls, folder: Path, arch: Arch, *, say: Say = notice) -> Self:
        """``say`` is told, in a line each, which entries are passed over because they are none.

        Raises ``InputError`` for an index that is none or of another schema or arch, and for a folder that is a link.
        """
        path = below(folder.parent, folder.name, INDEX)
        try:
            document = read_json(path)
        except CorruptFile as error:
            raise InputError(f"{error}; {_AGAIN}") from None
        entries, bad = ([], []) if document is None else _entries_of(document, path)
        say_each(bad, say)
        wrong = {entry.arch for entry in entries} - {arch.name}
        if wrong:
            raise InputError(f"{path} must hold objects for {arch.name}, got {', '.join(sorted(wrong))}")
        return cls(folder, arch, entries)

    def find(self, config: KernelConfig, problem: GemmProblem) -> ObjectFile | None:
        """The object of ``config`` for the class of ``problem`` on this kind of machine.

        Raises ``InputError`` when it was bundled by a version that launches it in another way: with too small a
        workspace, say.
        """
        entry = self._found.get((str(config), str(problem.problem_class)))
        if entry is None:
            return None
        expected = launch_facts(config, GemmProblem.parse(entry.problem))
        if entry.launch != expected:
            raise InputError(
                f"the object {entry.file} was bundled with launch facts {entry.launch}, this version has {expected}; "
                "run tune.py bundle again"
            )
        return self.file_of(entry)

    def kernels(self, rank: int) -> list[tuple[GemmProblem, str]]:
        """(problem, config) of every object of ``rank`` for this kind of machine."""
        if rank not in self._of_rank:
            classes = _classes(rank)
            self._of_rank[rank] = [
                (problem_of(entry), config)
                for (config, problem_class), entry in self._found.items()
                if problem_class in classes and GemmProblem.parse(entry.problem).r == rank
            ]
        return self._of_rank[rank]

    def file_of(self, entry: Entry) -> ObjectFile:
        return ObjectFile(
            path=self.folder / entry.file,
            prefix=entry.prefix,
            arguments=entry.arguments,
            sha256=entry.sha256,
            checked=entry.checked,
        )


def launch_facts(config: KernelConfig, problem: GemmProblem) -> dict[str, int]:
    """What a launch of ``config`` takes from this version of the sources rather than from the object."""
    return {
        "workspace_bytes": workspace_bytes(config, problem),
        "zeroed_bytes": zeroed_bytes(config, problem),
        "clusters_of_132_sms": config.max_active_clusters(_CLUSTERS_OF),
    }


def render_index(entries: Iterable[Entry]) -> str:
    """Valid JSON with one entry per line, sorted, so that a new tune is a readable diff."""
    ordered = sorted(entries, key=lambda entry: (entry.problem_class, entry.config, entry.host))
    lines = ",\n".join(json.dumps(entry.to_record()) for entry in ordered)
    return f'{{"schema": {SCHEMA}, "objects": [\n{lines}\n]}}\n'


def problem_of(entry: Entry) -> GemmProblem:
    """``problem`` of an entry in the dtypes of its class. Raises ``InputError`` when the class is none."""
    problem = GemmProblem.parse(entry.problem)
    dtypes = _classes(problem.r).get(entry.problem_class)
    if dtypes is not None:
        return dataclasses.replace(problem, lora_dtype=dtypes[0], out_dtype=dtypes[1])
    raise InputError(f"{entry.problem_class!r} is no class of {entry.problem}; run tune.py bundle again")


def _classes(rank: int) -> dict[str, tuple[str, str]]:
    """The problem classes of ``rank``, printed -> their dtypes."""
    pairs = itertools.product(HALF_DTYPES, repeat=2)
    return {
        str(GemmProblem.class_of(r=rank, lora_dtype=lora, out_dtype=out)): (lora, out) for lora, out in pairs
    }


def _identity(arch: Arch, entry: Entry) -> tuple[str, str]:
    """(config, class) as this version prints them: a knob added since takes its default."""
    try:
        return str(parse_config(GemmProblem.operator, arch, entry.config)), entry.problem_class
    except InputError:  # a knob that this version no longer has: nobody will ask for it
        return entry.config, entry.problem_class


def _entries_of(document: Any, path: Path) -> tuple[list[Entry], list[str]]:
    """The entries that are good, and a line about each that is not."""
    if not isinstance(document, dict) or not isinstance(document.get("objects"), list):
        raise InputError(f'{path} is damaged: it needs a list "objects"; {_AGAIN}')
    if document.get("schema") != SCHEMA:
        raise InputError(f"{path} has schema {shown(document.get('schema'))}, this version reads {SCHEMA}")
    entries, bad = [], []
    for number, record in enumerate(document["objects"], start=1):
        try:
            entries.append(Entry.from_record(record))
        except InputError as error:
            bad.append(f"{path}: entry {number} is passed over: {error}")
    return entries, bad
