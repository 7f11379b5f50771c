"""A folder of compiled candidates that travels from machines with a compiler to one with a card.

``manifest.json``   what was compiled for which problems, by which compiler, with the sizes that legality needs
``objects/<key>/``  object, C header and ``meta.json``, as in the build cache (PTX and cubin stay at home)

Everything is written whole; several compiling runs may share the folder, for the same problems or others. On the other
machine ``Manifest.adopt`` lets this project find the objects and solve budgets without the DSL.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from kernel_space.build.build import HEADER, OBJECT, CompiledKernel, cached_build
from kernel_space.build.cache import META, BuildCache
from kernel_space.build.key import Toolchain, adopt_toolchain, space_source_hash, toolchain
from kernel_space.core.arch import Arch
from kernel_space.core.arch import arch as find_arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below
from kernel_space.core.problem import Problem, ProblemClass
from kernel_space.core.registry import kernels_of
from kernel_space.places import COMMAND
from tuner.compile.footprints import adopt_footprints, check_footprints, known_footprints
from tuner.compile.manifest_checks import checked, checked_toolchain, text_of
from tuner.compile.worker import CompileResult
from tuner.files.record_checks import check_plain, shown
from tuner.files.store import CorruptFile, make_folder, read_json, update_json
from tuner.trials.candidate import Candidate
from tuner.trials.outcome import Origin, Status
from tuner.trials.subject import problem_from_record

VERSION = 2
FILE_NAME = "manifest.json"
OBJECTS = "objects"
NO_LIMIT = 1 << 62  # bytes: nothing is evicted from a folder that somebody will carry away


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """One candidate of one problem. ``status`` OK: its object is there; else why there is none."""

    config: str
    resolved: str
    origin: Origin
    seed: int
    status: Status
    reason: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, candidate: Candidate, result: CompileResult) -> Self:
        return cls(
            config=str(candidate.config),
            resolved=candidate.resolved,
            origin=candidate.origin,
            seed=candidate.seed,
            status=result.status,
            reason=result.reason,
            seconds=round(result.seconds, 3),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """``problems``: entries per problem, in the order in which they are measured. ``sources``: operator -> hash over
    the sources of its kernels. ``footprints``: kernel -> those of ``footprint_store`` by key. ``device`` is a class
    such as ``h200``.
    """

    device: str
    arch: str
    sources: Mapping[str, str]
    toolchain: Toolchain
    footprints: Mapping[str, Any]
    problems: Mapping[Problem, tuple[Entry, ...]]

    @classmethod
    def empty(cls, device: str, arch: Arch) -> Self:
        """Of this machine's compiler. Raises ``InputError`` without one."""
        return cls(
            device=device,
            arch=arch.name,
            sources={},
            toolchain=toolchain(),
            footprints={},
            problems={},
        )

    @classmethod
    def load(cls, folder: AnyPath) -> Self:
        """Raises ``InputError`` when there is none, or one of another version."""
        folder = Path(folder)
        try:
            record = read_json(folder / FILE_NAME)
        except CorruptFile as error:
            raise InputError(f"{error}; compile again") from None
        if record is None:
            raise InputError(f"{folder} must hold what {COMMAND} compile-only wrote, but has no {FILE_NAME}")
        return cls.from_record(record, folder)

    @classmethod
    def from_record(cls, record: Any, folder: Path) -> Self:
        try:
            check_plain(record)
            if record["version"] != VERSION:
                raise InputError(
                    f"{folder} has version {shown(record['version'])}, this reads {VERSION}; compile again"
                )
            made_by = {**record["toolchain"], "packages": tuple(record["toolchain"]["packages"])}
            check_footprints(record["footprints"])
            return cls(
                **{name: text_of(record, name) for name in ("device", "arch")},
                sources={op: text_of(record["sources"], op) for op in record["sources"]},
                toolchain=checked_toolchain(Toolchain(**made_by)),
                footprints=record["footprints"],
                problems={
                    problem_from_record(one["op"], one["problem"]): tuple(map(_entry, one["candidates"]))
                    for one in record["problems"]
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{folder / FILE_NAME} is no manifest: {error!r}; compile again") from None

    def to_record(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "device": self.device,
            "arch": self.arch,
            "sources": dict(self.sources),
            "toolchain": dataclasses.asdict(self.toolchain),
            "footprints": dict(self.footprints),
            "problems": [
                {
                    "op": problem.operator,
                    "problem": problem.record(),
                    "candidates": [dataclasses.asdict(entry) for entry in entries],
                }
                for problem, entries in self.problems.items()
            ],
        }

    def with_entries(self, problem: Problem, entries: Iterable[Entry]) -> Self:
        """New entries, of today's sources, go behind those there are; one about the same kernel takes its place."""
        merged = {entry.resolved: entry for entry in self.problems.get(problem, ())}
        merged.update((entry.resolved, entry) for entry in entries)
        return dataclasses.replace(
            self,
            sources={**self.sources, problem.operator: sources_here(problem.operator, find_arch(self.arch))},
            problems={**self.problems, problem: tuple(merged.values())},
        )

    def adopt(self, arch: Arch) -> None:
        """Make this process one that measures what the manifest's compiler made. Raises ``InputError`` when that is not
        what this checkout would have compiled: its times would stand for another kernel.
        """
        if arch.name != self.arch:
            raise InputError(f"the objects are for {self.arch}, this card runs {arch.name}")
        for op in dict.fromkeys(problem.operator for problem in self.problems):
            if (here := sources_here(op, arch)) != self.sources.get(op):
                there = self.sources.get(op, "")
                raise InputError(
                    f"the objects of {op} were compiled from other sources ({there[:12]}) than this checkout's "
                    f"({here[:12]}); run {COMMAND} compile-only with these, or measure with those"
                )
        adopt_toolchain(self.toolchain)
        adopt_footprints(self.footprints, self.problems, arch)


def sources_here(op: str, arch: Arch) -> str:
    """Hash over the sources of the kernels of ``op``, as they are here."""
    return space_source_hash(kernels_of(op, arch))


class Folder:
    """A folder of objects on the machine that compiles, made if need be. Raises ``InputError`` when it holds others."""

    def __init__(self, path: AnyPath, device: str, arch: Arch) -> None:
        self.path = path = Path(path)
        self._arch = arch
        self._own = Manifest.empty(device, arch)
        self._cache = BuildCache(below(path, OBJECTS), max_bytes=NO_LIMIT)
        self._refused: dict[tuple[Problem, str], Entry] = {}
        if (path / FILE_NAME).exists():
            there = self._joinable(Manifest.load(path))
            self._refused = {
                (problem, entry.resolved): entry
                for problem, entries in there.problems.items()
                for entry in entries
                if entry.status is Status.COMPILE_FAILED
            }
        make_folder(path)

    def has(self, config: KernelConfig, problem_class: ProblemClass) -> bool:
        """Is the object there, whole?"""
        return cached_build(config, problem_class, self._arch, cache_dir=self.path / OBJECTS) is not None

    def refused(self, problem: Problem, resolved: str) -> Entry | None:
        """What an earlier run found that the compiler does not accept; it would say so again."""
        return self._refused.get((problem, resolved))

    def take(self, compiled: CompiledKernel) -> None:
        """Copy the object and what describes it."""
        meta = json.loads((compiled.directory / META).read_bytes())
        files = {name: (compiled.directory / name).read_bytes() for name in (OBJECT, HEADER)}
        self._cache.store(
            compiled.key, files, {name: value for name, value in meta.items() if name != "files"}
        )

    def write(self, problem: Problem, entries: Iterable[Entry]) -> None:
        """Add ``entries`` to the manifest. Raises ``InputError`` and ``StoreError``."""
        entries = list(entries)
        known = known_footprints(problem, self._arch)

        def change(record: Any | None) -> Any:
            there = self._own if record is None else self._joinable(Manifest.from_record(record, self.path))
            footprints = {name: {**there.footprints.get(name, {}), **own} for name, own in known.items()}
            there = dataclasses.replace(there, footprints={**there.footprints, **footprints})
            return there.with_entries(problem, entries).to_record()

        update_json(self.path / FILE_NAME, change)

    def _joinable(self, there: Manifest) -> Manifest:
        for what in ("device", "toolchain"):
            if getattr(there, what) != getattr(self._own, what):
                raise InputError(f"{self.path} holds objects of another {what}; choose another folder")
        for op, source in there.sources.items():
            if source != sources_here(op, self._arch):
                raise InputError(
                    f"{self.path} holds objects of another source hash of {op}; choose another folder"
                )
        return there


def check_objects(folder: AnyPath) -> Path:
    """``folder`` of a ``--objects`` option. Raises ``InputError`` when compile-only did not leave it."""
    folder = Path(folder)
    if not below(folder, OBJECTS).is_dir():
        raise InputError(
            f"--objects must hold a folder {OBJECTS}, as {COMMAND} compile-only leaves it, got {folder}"
        )
    return folder


def fill(
    folder: Folder,
    problem: Problem,
    candidates: Iterable[Candidate],
    pool: Any,
    arch: Arch,
    *,
    tell: Callable[[Entry], None] = lambda entry: None,
) -> list[Entry]:
    """Compile what the folder lacks, with ``pool`` (``loop.Pool``); every object is there as soon as it is compiled.
    What the compiler refused before is not tried again, a timeout or a crash is.

    Interrupted, what was compiled is in the manifest. Raises what a bug in a compile worker raises.
    """
    waiting: dict[concurrent.futures.Future[CompileResult], Candidate] = {}
    order = list(candidates)
    done: dict[str, Entry] = {}
    try:
        for candidate in order:
            if folder.has(candidate.legal.config, problem.problem_class):
                done[candidate.resolved] = Entry.of(candidate, CompileResult(status=Status.OK))
                tell(done[candidate.resolved])
            elif refused := folder.refused(problem, candidate.resolved):
                done[candidate.resolved] = refused
                tell(refused)
            else:
                waiting[pool.submit(candidate.legal.config, problem.problem_class, arch)] = candidate
        for future in concurrent.futures.as_completed(waiting):
            result, candidate = future.result(), waiting[future]
            if result.compiled is not None:
                folder.take(result.compiled)
            done[candidate.resolved] = Entry.of(candidate, result)
            tell(done[candidate.resolved])
    finally:
        for future in waiting:
            future.cancel()
        entries = [done[one.resolved] for one in order if one.resolved in done]
        folder.write(problem, entries)
    return entries


def _entry(record: Mapping[str, Any]) -> Entry:
    words = {"origin": Origin(record["origin"]), "status": Status(record["status"])}
    return checked(Entry(**{**record, **words}))
