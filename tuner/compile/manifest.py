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

from kernel_space.build import footprint_store
from kernel_space.build.build import HEADER, OBJECT, CompiledKernel, cached_build
from kernel_space.build.cache import META, BuildCache
from kernel_space.build.key import Toolchain, adopt_toolchain, space_source_hash, toolchain
from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import below
from kernel_space.core.problem import ProblemClass
from kernel_space.core.registry import kernels_of, parse_config
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.compile.manifest_checks import check_footprints, checked, checked_toolchain, text_of
from tuner.compile.worker import CompileResult
from tuner.files.record_checks import check_plain, shown
from tuner.files.store import CorruptFile, make_folder, read_json, update_json
from tuner.space.candidate import Candidate
from tuner.trials.outcome import Origin, Status

VERSION = 1
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
    """``problems``: entries per problem, in the order in which they are measured. ``footprints``: by key, of
    ``footprint_store``. ``device`` is a class such as ``h200``.
    """

    device: str
    arch: str
    source_hash: str
    toolchain: Toolchain
    footprints: Mapping[str, Any]
    problems: Mapping[GemmProblem, tuple[Entry, ...]]

    @classmethod
    def empty(cls, device: str, arch: Arch) -> Self:
        """Of this machine's compiler. Raises ``InputError`` without one."""
        return cls(
            device=device,
            arch=arch.name,
            source_hash=space_source_hash(kernels_of(GemmProblem.operator, arch)),
            toolchain=toolchain(),
            footprints={},
            problems={},
        )

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Raises ``InputError`` when there is none, or one of another version."""
        try:
            record = read_json(folder / FILE_NAME)
        except CorruptFile as error:
            raise InputError(f"{error}; compile again") from None
        if record is None:
            raise InputError(f"{folder} must hold what tune.py compile-only wrote, but has no {FILE_NAME}")
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
                **{name: text_of(record, name) for name in ("device", "arch", "source_hash")},
                toolchain=checked_toolchain(Toolchain(**made_by)),
                footprints=record["footprints"],
                problems={
                    GemmProblem(**one["problem"]): tuple(map(_entry, one["candidates"]))
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
            "source_hash": self.source_hash,
            "toolchain": dataclasses.asdict(self.toolchain),
            "footprints": dict(self.footprints),
            "problems": [
                {
                    "problem": dataclasses.asdict(problem),
                    "candidates": [dataclasses.asdict(entry) for entry in entries],
                }
                for problem, entries in self.problems.items()
            ],
        }

    def with_entries(self, problem: GemmProblem, entries: Iterable[Entry]) -> Self:
        """New entries go behind those there are; one about the same kernel takes its place."""
        merged = {entry.resolved: entry for entry in self.problems.get(problem, ())}
        merged.update((entry.resolved, entry) for entry in entries)
        return dataclasses.replace(self, problems={**self.problems, problem: tuple(merged.values())})

    def adopt(self, arch: Arch) -> None:
        """Make this process one that measures what the manifest's compiler made. Raises ``InputError`` when that is not
        what this checkout would have compiled: its times would stand for another kernel.
        """
        if arch.name != self.arch:
            raise InputError(f"the objects are for {self.arch}, this card runs {arch.name}")
        if (here := space_source_hash(kernels_of(GemmProblem.operator, arch))) != self.source_hash:
            raise InputError(
                f"the objects were compiled from other sources ({self.source_hash[:12]}) than this checkout's "
                f"({here[:12]}); run tune.py compile-only with these, or measure with those"
            )
        adopt_toolchain(self.toolchain)
        for kernel in kernels_of(GemmProblem.operator, arch):
            footprint_store.adopt(kernel, dict(self.footprints))


class Folder:
    """A folder of objects on the machine that compiles, made if need be. Raises ``InputError`` when it holds others."""

    def __init__(self, path: Path, device: str, arch: Arch) -> None:
        self.path = path
        self._arch = arch
        self._own = Manifest.empty(device, arch)
        self._cache = BuildCache(below(path, OBJECTS), max_bytes=NO_LIMIT)
        self._refused: dict[tuple[GemmProblem, str], Entry] = {}
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

    def refused(self, problem: GemmProblem, resolved: str) -> Entry | None:
        """What an earlier run found that the compiler does not accept; it would say so again."""
        return self._refused.get((problem, resolved))

    def take(self, compiled: CompiledKernel) -> None:
        """Copy the object and what describes it."""
        meta = json.loads((compiled.directory / META).read_bytes())
        files = {name: (compiled.directory / name).read_bytes() for name in (OBJECT, HEADER)}
        self._cache.store(
            compiled.key, files, {name: value for name, value in meta.items() if name != "files"}
        )

    def write(self, problem: GemmProblem, entries: Iterable[Entry]) -> None:
        """Add ``entries`` to the manifest. Raises ``InputError`` and ``StoreError``."""
        entries = list(entries)
        prefix = f"{self._arch.name} {problem.problem_class} "
        known = {}
        for kernel in kernels_of(GemmProblem.operator, self._arch):
            known |= footprint_store.entries(kernel)
        footprints = {key: fields for key, fields in known.items() if key.startswith(prefix)}

        def change(record: Any | None) -> Any:
            there = self._own if record is None else self._joinable(Manifest.from_record(record, self.path))
            there = dataclasses.replace(there, footprints={**there.footprints, **footprints})
            return there.with_entries(problem, entries).to_record()

        update_json(self.path / FILE_NAME, change)

    def _joinable(self, there: Manifest) -> Manifest:
        for what in ("device", "source_hash", "toolchain"):
            if getattr(there, what) != getattr(self._own, what):
                raise InputError(
                    f"{self.path} holds objects of another {what.replace('_', ' ')}; choose another folder"
                )
        return there


def check_objects(folder: Path) -> Path:
    """``folder`` of a ``--objects`` option. Raises ``InputError`` when compile-only did not leave it."""
    if not below(folder, OBJECTS).is_dir():
        raise InputError(
            f"--objects must hold a folder {OBJECTS}, as tune.py compile-only leaves it, got {folder}"
        )
    return folder


class GivenCandidates:
    """The candidates of one problem in a manifest, as ``candidate.Asks``; without those that are not legal any more.

    ``Manifest.adopt`` must come first: legality reads sizes.
    """

    def __init__(self, entries: Iterable[Entry], problem: GemmProblem, arch: Arch) -> None:
        self.rejected: dict[KernelConfig, Rejection] = {}
        self._waiting: list[Candidate] = []
        for entry in entries:
            config = parse_config(GemmProblem.operator, arch, entry.config)
            legal = legalize(config, problem, arch)
            if isinstance(legal, Legal):
                number = len(self._waiting)
                self._waiting.append(
                    Candidate(number=number, config=config, legal=legal, origin=entry.origin, seed=entry.seed)
                )
            else:
                self.rejected[config] = legal
        self.planned = len(self._waiting)
        self._next = 0

    def ask(self) -> Candidate | None:
        if self._next == self.planned:
            return None
        self._next += 1
        return self._waiting[self._next - 1]

    def tell(self, number: int, us: float | None) -> None:
        """What was compiled beforehand does not depend on times."""


class ObjectsPool:
    """``loop.Pool`` that answers from the folder; what is not there it passes on to ``otherwise``, if there is one."""

    def __init__(self, folder: Path, entries: Iterable[Entry] = (), *, otherwise: Any | None = None) -> None:
        self._objects = below(folder, OBJECTS)  # somebody else's, perhaps: it is only read
        self._failed = {entry.resolved: entry for entry in entries if entry.status is not Status.OK}
        self._otherwise = otherwise

    def submit(
        self, config: KernelConfig, problem_class: ProblemClass, arch: Arch
    ) -> concurrent.futures.Future[CompileResult]:
        found = cached_build(config, problem_class, arch, cache_dir=self._objects, foreign=True)
        if found is None and self._otherwise is not None:
            return self._otherwise.submit(config, problem_class, arch)
        future: concurrent.futures.Future[CompileResult] = concurrent.futures.Future()
        future.set_result(CompileResult(status=Status.OK, compiled=found) if found else self._missing(config))
        return future

    def _missing(self, config: KernelConfig) -> CompileResult:
        if entry := self._failed.get(str(config)):
            return CompileResult(status=entry.status, reason=entry.reason, seconds=entry.seconds)
        # Transient: the next visit may bring it.
        return CompileResult(status=Status.COMPILE_CRASHED, reason="its object is missing or damaged")


def fill(
    folder: Folder,
    problem: GemmProblem,
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
