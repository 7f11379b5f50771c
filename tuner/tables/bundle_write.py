"""Write a bundle: the objects of a dispatch table beside it, so that serving needs no compiler (runtime/bundle.py).

An object is taken from the build cache by the key its row recorded, or built again; then its cubin must be the one
that was judged, or the row is refused: a table must not launch what nobody measured.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernel_space.build.cache import BuildCache, default_cache_dir
from kernel_space.build.dsl_compile import CompileError
from kernel_space.core.arch import Arch
from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below, is_plain
from kernel_space.core.problem import Problem
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from tuner.files.store import is_whole, locked, make_folder, write_if_new
from tuner.tables.bundle import FOLDER, INDEX, Bundle, Entry, launch_facts, render_index
from tuner.tables.bundle_widest import is_of_today, kept_widest, widest_config, widest_entry, widest_problems
from tuner.tables.row import Row
from tuner.tables.spares import Spare

SUFFIX = ".o"
_NAME_DIGITS = 16
_OURS = re.compile(rf"[0-9a-f]{{{_NAME_DIGITS}}}{re.escape(SUFFIX)}")
_OBJECT = "kernel.o"
Options = Mapping[str, str]
_Key = tuple[str, str, str, str]
_Found = dict[_Key, tuple[Entry, bytes | None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundled:
    """What became of a table: ``entries`` as written, ``refused`` rows with the reason, ``removed`` file names."""

    folder: Path
    entries: tuple[Entry, ...]
    refused: tuple[tuple[Problem, str], ...]
    removed: tuple[str, ...]


def write_bundle(
    device_folder: AnyPath,
    arch: Arch,
    rows: Iterable[Row],
    *,
    also: Sequence[Options] = (),
    caches: Sequence[AnyPath] = (),
    spares: Sequence[Spare] = (),
) -> Bundled:
    """Write ``device_folder/objects``: an object for every row and spare, and what is there without is removed.

    ``also``: further options, by name, for which every row's config is compiled too, as far as its operator has them
    and it is legal: for problems that were not tuned with them. A row that cannot be had keeps the object that an
    earlier bundle has for it, if that is the judged one. ``caches``: folders laid out like the build cache, asked in
    this order; by default the build cache alone. ``spares``: compiled anew unless what is there is of today's sources.

    Objects are written first, then the index, then the rest goes: whoever reads meanwhile finds a whole bundle.
    Raises ``StoreError`` when the disk refuses.
    """
    folder = make_folder(below(device_folder, FOLDER))
    with locked(folder / INDEX):
        old, rows = Bundle.load(folder, arch), list(rows)
        found, refused = _collect(
            old, arch, rows, also, [Path(one) for one in caches] or [default_cache_dir()]
        )
        _add_spares(found, refused, old, _spares_asked(spares, rows, also, arch))
        return _written(folder, old, found, refused)


def bundle_spares(
    device_folder: AnyPath,
    arch: Arch,
    rows: Iterable[Row],
    spares: Sequence[Spare],
    *,
    also: Sequence[Options] = (),
) -> Bundled:
    """The objects of ``spares`` beside what ``device_folder/objects`` holds, of which those of ``rows`` stay as they
    are. ``also``: as of ``write_bundle``. Raises ``StoreError`` when the disk refuses."""
    folder = make_folder(below(device_folder, FOLDER))
    with locked(folder / INDEX):
        old = Bundle.load(folder, arch)
        found: _Found = {_key(entry): (entry, None) for entry in old.entries}
        refused: list[tuple[Problem, str]] = []
        _add_spares(found, refused, old, _spares_asked(spares, list(rows), also, arch))
        return _written(folder, old, found, refused)


def _written(folder: Path, old: Bundle, found: _Found, refused: Sequence[tuple[Problem, str]]) -> Bundled:
    _keep_evidence(found, old)
    for entry, data in found.values():
        if data is not None:
            write_if_new(folder / entry.file, data)
    entries = tuple(entry for entry, _ in found.values())
    write_if_new(folder / INDEX, render_index(entries, old.foreign).encode())
    kept = {entry.file for entry in entries} | {str(record.get("file")) for record in old.foreign}
    removed = _remove_others(folder, kept)
    return Bundled(folder=folder, entries=entries, refused=tuple(refused), removed=removed)


def take_over(
    theirs: Bundle,
    device_folder: AnyPath,
    arch: Arch,
    configs: Collection[tuple[str, str]],
    *,
    lacking: Collection[tuple[str, str]] = (),
) -> int:
    """Copy the objects of ``configs``, (operator, config), from the bundle of another results folder, and those of
    ``lacking`` that the bundle beside ``device_folder``'s table has not, or has damaged; returns how many.

    What the rows no longer need stays until the next ``write_bundle``. Objects are written before the index. Raises
    ``InputError`` for a damaged index or object, ``StoreError`` when the disk refuses.
    """
    wanted = [entry for entry in theirs.entries if (entry.op, entry.config) in {*configs, *lacking}]
    if not wanted:
        return 0
    folder = make_folder(below(device_folder, FOLDER))
    with locked(folder / INDEX):
        ours = Bundle.load(folder, arch)
        entries = {_key(entry): entry for entry in ours.entries}
        new = 0
        for entry in wanted:
            there = entries.get(_key(entry))
            whole = there is not None and is_whole(folder / there.file, there.sha256)
            stands = _combined(there, entry, anew=(entry.op, entry.config) in configs or not whole)
            if stands == there and whole:
                continue
            write_if_new(below(folder, stands.file), theirs.file_of(entry).read())
            entries[_key(entry)] = stands
            new += 1
        if new:
            write_if_new(folder / INDEX, render_index(entries.values(), ours.foreign).encode())
    return new


def _combined(ours: Entry | None, theirs: Entry, *, anew: bool) -> Entry:
    """Theirs if it is wanted ``anew``, else ours; where both are the same object, with the evidence of either."""
    if ours is None:
        return theirs
    stands = theirs if anew else ours
    if ours.sha256 != theirs.sha256:
        return stands
    return dataclasses.replace(stands, checked=stands.checked or ours.checked or theirs.checked)


def _key(entry: Entry) -> _Key:
    return entry.op, entry.config, entry.problem_class, entry.host


def _key_of(row: Row | Spare, problem: Problem) -> _Key:
    """Of the object that launches ``problem`` with the config of ``row`` on this machine."""
    return problem.operator, row.config, str(problem.problem_class), platform.machine()


def _collect(
    old: Bundle, arch: Arch, rows: list[Row], also: Sequence[Options], caches: Sequence[Path]
) -> tuple[_Found, list[tuple[Problem, str]]]:
    """(operator, config, class, host) -> entry and its bytes, None for those that stay as they are; and what was
    refused."""
    # Host code of other kinds of machine cannot be made here: it stays while its config has a row.
    wanted = {(row.key.op, row.config) for row in rows}
    asked = [(row, problem) for row in rows for problem in _problems(row, also, arch)]
    # Own problems first: what a row was judged with no other row's config with its options takes the place of.
    asked.sort(key=lambda one: one[1] != one[0].key.problem)
    widest = widest_problems(problem for _, problem in asked)
    classes = {(problem.operator, str(problem.problem_class)) for problem in widest}
    found: _Found = {
        _key(entry): (entry, None)
        for entry in old.entries
        if entry.host != platform.machine()
        and ((entry.op, entry.config) in wanted or (entry.op, entry.problem_class) in classes)
    }
    refused: list[tuple[Problem, str]] = []
    for row, problem in asked:
        key = _key_of(row, problem)
        if key in found:
            continue
        try:
            found[key] = _entry(row, problem, arch, old, caches)
        except (InputError, CompileError) as error:
            refused.append((problem, str(error)))
    _add_widest(found, refused, old, rows, widest)
    return found, refused


def _add_widest(
    found: _Found,
    refused: list[tuple[Problem, str]],
    old: Bundle,
    rows: list[Row],
    widest: Sequence[Problem],
) -> None:
    """For each of ``widest`` an object that launches any size of its class; see ``bundle_widest.py``."""
    arch = old.arch
    for problem in widest:
        if widest_entry((entry for entry, _ in found.values()), problem, arch):
            continue
        try:
            entry, data = kept_widest(old, problem, arch), None
            if entry is None:
                own = [row for row in rows if row.key.op == problem.operator]
                row = dataclasses.replace(own[0], config=str(widest_config(own, problem, arch)))
                entry, data = _made(row, problem, arch)
            found[_key(entry)] = (entry, data)
        except (InputError, CompileError) as error:
            refused.append((problem, str(error)))


def _spares_asked(
    spares: Sequence[Spare], rows: Sequence[Row], also: Sequence[Options], arch: Arch
) -> list[tuple[Spare, Problem]]:
    """Without those whose object is a row's by now, which was judged."""
    taken = {_key_of(row, one) for row in rows for one in _problems(row, also, arch)}
    asked = ((spare, one) for spare in spares for one in _problems(spare, also, arch))
    return [(spare, one) for spare, one in asked if _key_of(spare, one) not in taken]


def _add_spares(
    found: _Found,
    refused: list[tuple[Problem, str]],
    old: Bundle,
    asked: Sequence[tuple[Spare, Problem]],
) -> None:
    """Nobody judged the object of a spare, so it is of today's sources: kept if it is, else made anew."""
    for spare, problem in asked:
        key = _key_of(spare, problem)
        kept = next((one for one in old.entries if _key(one) == key and is_of_today(one, old)), None)
        try:
            found[key] = (kept, None) if kept else _made(spare, problem, old.arch)
        except (InputError, CompileError) as error:
            refused.append((problem, str(error)))


def _made(row: Row | Spare, problem: Problem, arch: Arch) -> tuple[Entry, bytes]:
    meta, data = _built(row, problem, arch)
    return _make_entry(row, problem, arch, meta, data), data


def _keep_evidence(found: _Found, old: Bundle) -> None:
    """An object that comes again, to the byte, was checked already."""
    before = {(_key(entry), entry.sha256): entry.checked for entry in old.entries}
    for key, (entry, data) in found.items():
        checked = entry.checked or before.get((key, entry.sha256))
        found[key] = (dataclasses.replace(entry, checked=checked), data)


def _problems(row: Row | Spare, also: Sequence[Options], arch: Arch) -> list[Problem]:
    """The row's own, and with other options those that its config is legal for."""
    own = row.problem if isinstance(row, Spare) else row.key.problem
    known = [options for options in also if set(options) <= set(own.option_names())]
    others = [dataclasses.replace(own, **options) for options in known]
    return list(dict.fromkeys([own, *(one for one in others if _is_for(row, one, arch))]))


def _is_for(row: Row | Spare, problem: Problem, arch: Arch) -> bool:
    """Whether the config of ``row`` is legal for ``problem``; one that cannot be read is refused with its own."""
    try:
        config = parse_config(problem.operator, arch, row.config)
    except InputError:
        return True
    return isinstance(legalize(config, problem, arch), Legal)


def _entry(
    row: Row, problem: Problem, arch: Arch, old: Bundle, caches: Sequence[Path]
) -> tuple[Entry, bytes | None]:
    """Raises ``InputError`` or ``CompileError`` when the judged kernel cannot be had."""
    judged = row.cubin_sha256 if problem == row.key.problem else ""
    meta, data = _cached(row, problem, caches) or (None, b"")
    if meta is None and (kept := _kept(old, row, problem, judged)) is not None:
        return kept, None
    if meta is None:
        meta, data = _built(row, problem, arch)
    try:
        made = _make_entry(row, problem, arch, meta, data)
    except (KeyError, TypeError) as error:
        raise InputError(f"what describes the object of {row.config} is damaged: {error!r}") from None
    if judged and made.cubin_sha256 != judged:
        raise InputError(
            f"building {row.config} gives cubin {made.cubin_sha256[:12]}, the row was judged with {judged[:12]}: "
            "kernel or compiler changed since; tune this problem again"
        )
    return Entry.from_record(
        made.to_record()
    ), data  # what another machine made is read as strictly as an index


def _cached(row: Row, problem: Problem, caches: Sequence[Path]) -> tuple[dict[str, Any], bytes] | None:
    """Under the key that the row recorded; needs no compiler."""
    if row.object is None or problem != row.key.problem:
        return None
    for folder in caches:
        cache = BuildCache(folder, foreign=folder != default_cache_dir())
        meta = cache.load(row.object.key)
        if meta is not None and meta.get("object_sha256") == row.object.sha256:
            return meta, cache.read(row.object.key, _OBJECT)
    return None


def _kept(old: Bundle, row: Row, problem: Problem, judged: str) -> Entry | None:
    """The present entry, when it is the judged kernel and its file is whole."""
    key = _key_of(row, problem)
    for entry in old.entries:
        if (
            _key(entry) == key
            and judged
            and entry.cubin_sha256 == judged
            and is_whole(old.folder / entry.file, entry.sha256)
        ):
            config = parse_config(problem.operator, old.arch, entry.config)
            return dataclasses.replace(entry, problem=problem, launch=launch_facts(config, problem))
    return None


def _built(row: Row | Spare, problem: Problem, arch: Arch) -> tuple[dict[str, Any], bytes]:
    from kernel_space.build.build import build

    compiled = build(parse_config(problem.operator, arch, row.config), problem.problem_class, arch)
    meta = json.loads((compiled.directory / "meta.json").read_text())
    return meta, compiled.object_path.read_bytes()


def _make_entry(row: Row | Spare, problem: Problem, arch: Arch, meta: dict[str, Any], data: bytes) -> Entry:
    digest = hashlib.sha256(data).hexdigest()
    if digest != meta["object_sha256"]:
        raise InputError(f"the object of {row.config} changed while it was read; run it again")
    return Entry(
        arch=arch.name,
        config=row.config,
        problem=problem,
        host=platform.machine(),
        file=f"{digest[:_NAME_DIGITS]}{SUFFIX}",
        sha256=digest,
        cubin_sha256=meta["cubin_sha256"],
        prefix=meta["prefix"],
        arguments=tuple(Argument(**argument) for argument in meta["arguments"]),
        launch=launch_facts(parse_config(problem.operator, arch, row.config), problem),
        source_hash=meta["source_hash"],
        dsl_version=meta["dsl_version"],
    )


def _remove_others(folder: Path, kept: set[str]) -> tuple[str, ...]:
    """Only what an earlier bundle can have left; of a link the link itself."""
    names = sorted(name for name in os.listdir(folder) if _OURS.fullmatch(name) and name not in kept)
    removed = [name for name in names if is_plain(folder / name) or (folder / name).is_symlink()]
    for name in removed:
        (folder / name).unlink(missing_ok=True)
    return tuple(removed)
