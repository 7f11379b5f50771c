"""Which kernel is launched for a problem: rows of one device's table, nearest first, and where their objects are."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kernel_space.build.cache import BuildCache
from kernel_space.core.arch import Arch
from kernel_space.core.arguments import Argument
from kernel_space.core.config import AUTO, KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import knob_rejection
from kernel_space.operators.svdquant_gemm.problem import MAX_R, GemmProblem
from tuner.devices.borrow import table_of
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.runtime.choice.nearest import Nearest
from tuner.runtime.choice.ranks import padded, rank_distance
from tuner.runtime.choice.remembered import Recent
from tuner.tables.bundle import FOLDER, Bundle, ObjectFile
from tuner.tables.dispatch import DispatchTable, Lookup
from tuner.tables.row import Row
from tuner.trials.checked import Check

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel

SHOWN_REFUSALS = 3
MAX_LAYERS = 512  # kinds of layers whose candidates are kept in order
_parsed = functools.lru_cache(maxsize=1024)(parse_config)
LAYER_MS = tuple(1 << power for power in range(14))  # of a layer, to find its rank
_OBJECT = "kernel.o"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """A kernel that was compiled in this process, for ``problem``. ``borrowed``: whose row's its config is."""

    problem: GemmProblem
    config: KernelConfig
    compiled: CompiledKernel
    borrowed: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """What is launched for ``problem``.

    ``launched``: that problem, with the R of the kernel, which may be larger: lora_act_in and lora_up are padded with
    zeros then. ``source``: ``exact``, ``nearest M <m>``, ``compiled for <problem>``, ``nearest layer <problem>`` or
    ``any shape of R=<r>``, of the launched problem. ``row``: the table's row behind it, None for one that has none.
    ``borrowed``: empty for a kernel from the device class's own table, else whose it is and why; ``reason`` ends in it.
    ``reason``: one line for people. ``str()`` is all of it.
    """

    problem: GemmProblem
    launched: GemmProblem
    config: KernelConfig
    source: str
    row: Row | None
    object: ObjectFile
    reason: str
    borrowed: str = ""

    @property
    def is_padded(self) -> bool:
        return self.launched.r != self.problem.r

    def __str__(self) -> str:
        launched = f"launched   {self.launched}: R padded with zeros\n" if self.is_padded else ""
        return (
            f"problem    {self.problem} (LoRA {self.problem.lora_dtype}, y {self.problem.out_dtype})\n"
            f"{launched}"
            f"source     {self.source}: {self.reason}\n"
            f"config     {self.config}\n"
            f"object     {self.object.path}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Candidate:
    """``known``: the problem it was tuned or compiled for; without ``row`` and ``compiled`` it is only bundled."""

    known: GemmProblem
    config: str
    row: Row | None = None
    compiled: CompiledKernel | None = None
    borrowed: str = ""

    @property
    def is_for_any_shape(self) -> bool:
        return self.row is None and self.compiled is None


class Library:
    """One device's table with its bundle and the build cache. Not changed while it is asked, except by ``add``.

    ``owner``: the class whose table it is, None if nobody said; ``borrowed``: what its answers say where another class
    asks.
    """

    def __init__(
        self,
        table: DispatchTable,
        bundle: Bundle,
        cache_dir: Path,
        *,
        owner: str | None = None,
        borrowed: str = "",
    ) -> None:
        self.table = table
        self.bundle = bundle
        self.owner = owner
        self.borrowed = borrowed
        self._cache_dir = cache_dir
        self._prepared: list[Prepared] = []
        self._layers: Recent[tuple, Nearest[_Candidate]] = Recent(MAX_LAYERS)
        self._objects: dict[tuple, ObjectFile] = {}  # as many as there are objects

    @classmethod
    def load(cls, folder: Path, arch: Arch, *, cache_dir: Path) -> Self:
        """From a device's folder such as ``results/h200``; empty if there is none. Raises ``InputError`` if
        damaged."""
        table = DispatchTable.load(folder, arch=arch, checked_only=True)
        return cls(table, Bundle.load(folder / FOLDER, arch), cache_dir)

    @classmethod
    def of_class(cls, path: Path, device_class: DeviceClass, *, cache_dir: Path) -> Self:
        """What ``device_class`` launches from below ``path``: its own table, or a sibling's. Raises ``InputError``."""
        found = table_of(path, device_class, checked_only=True)
        bundle = Bundle.load(found.folder / FOLDER, device_class.arch)
        return cls(found.table, bundle, cache_dir, owner=found.owner, borrowed=found.borrowed)

    @property
    def arch(self) -> Arch:
        return self.table.arch

    def add(self, prepared: Prepared) -> None:
        self._prepared.append(prepared)
        self._layers.clear()

    def has_object(self, answer: Lookup, problem: GemmProblem) -> bool:
        """Can what the table answered be launched without compiling?"""
        if any((one.problem, one.config) == (problem, answer.config) for one in self._prepared):
            return True
        if answer.row is None:
            return False
        known = answer.row.key.problem
        return (
            self._object(_Candidate(known=known, config=str(answer.config), row=answer.row), problem)
            is not None
        )

    def choose(self, problem: GemmProblem) -> Choice:
        """The nearest kernel that is legal for ``problem`` and whose object is at hand.

        Raises ``InputError`` saying what was passed over, and what to do.
        """
        refused: list[str] = []
        for candidate in self._candidates(problem):
            answer = self._try(candidate, problem)
            if isinstance(answer, Choice):
                passed = [f"passed over {'; '.join(refused[:SHOWN_REFUSALS])}"] if refused else []
                lent = [answer.borrowed] if answer.borrowed else []
                return dataclasses.replace(answer, reason="; ".join([answer.reason, *passed, *lent]))
            refused.append(answer)
        raise InputError(self._nothing(problem, refused))

    def rank_of_layer(self, problem: GemmProblem) -> int:
        """The smallest rank from which on no M of this layer is padded; that of ``problem`` where nothing is launched.

        Asked for powers of two of M. Without a branch there is nothing to pad ahead of a call.
        """
        if not problem.r:
            return 0
        rank = problem.r
        while True:
            try:
                asked = [dataclasses.replace(problem, m=m, r=rank) for m in LAYER_MS]
                larger = max(self.choose(one).launched.r for one in asked)
            except InputError:  # a call says what is missing
                return rank
            if larger == rank:
                return rank
            rank = larger

    def _nothing(self, problem: GemmProblem, refused: list[str]) -> str:
        why = (
            "; ".join(refused[:SHOWN_REFUSALS]) or f"no row with R={problem.r} or more in the dispatch table"
        )
        more = f"; and {len(refused) - SHOWN_REFUSALS} more" if len(refused) > SHOWN_REFUSALS else ""
        return (
            f"no kernel for {problem} ({problem.problem_class}) on {self.arch.name}: {why}{more}. Where the CuTe DSL "
            f"is installed, {self._bundling(problem)} makes an object of R={MAX_R}, to which any R is padded; "
            f"for a fast one run tune.py --shape {problem} first, or call prepare(problem, compile=True)"
        )

    def _bundling(self, problem: GemmProblem) -> str:
        """The command that makes an object for any rank of these dtypes, beside the rows of this table."""
        owner = self.owner or next(one.name for one in DEVICE_CLASSES.values() if one.arch == self.arch)
        also = "" if _of(problem) == "fp16" else f" --also-dtype {_of(problem)}"
        return f"tune.py bundle --device {owner}{also}"

    def _candidates(self, problem: GemmProblem) -> Iterator[_Candidate]:
        """Nearest first: this layer before others, this dtype before others."""
        layer = (problem.k, problem.n, problem.r, problem.lora_dtype, problem.out_dtype)
        nearest = self._layers.get(layer)
        if nearest is None:
            nearest = Nearest(self._of_layer(problem), functools.partial(_distance_at_its_m, problem))
            self._layers.put(layer, nearest)
        return nearest.order(problem.m)

    def _of_layer(self, problem: GemmProblem) -> list[_Candidate]:
        """Kernels of this R and larger ones, for any M."""
        found = [
            _Candidate(known=row.key.problem, config=row.config, row=row, borrowed=self.borrowed)
            for row in self.table.rows.values()
            if row.key.r >= problem.r
        ]
        found += [
            _Candidate(
                known=one.problem, config=str(one.config), compiled=one.compiled, borrowed=one.borrowed
            )
            for one in self._prepared
            if one.problem.r >= problem.r and _dtypes(one.problem) == _dtypes(problem)
        ]
        rows = {(one.config, one.known.r) for one in found}
        found += [
            _Candidate(known=known, config=config, borrowed=self.borrowed)
            for known, config in self.bundle.kernels(MAX_R)
            if (config, MAX_R) not in rows and _dtypes(known) == _dtypes(problem)
        ]
        return found

    def _try(self, candidate: _Candidate, problem: GemmProblem) -> Choice | str:
        """The answer ``candidate`` gives for ``problem``, or why it gives none."""
        asked, problem, row = problem, padded(problem, candidate.known.r), candidate.row
        source = _source(candidate, problem)
        if problem != asked:
            source = f"{source}, R padded to {problem.r}"
        if row is not None and row.check is Check.NONE:
            return f"{source}: {row.check}"
        if AUTO in candidate.config:
            return f"{source}: its config is not resolved"
        try:
            config = _parsed(GemmProblem.operator, self.arch, candidate.config)
        except InputError as error:  # a knob that this version no longer has
            return f"{source}: {error}"
        if rejection := knob_rejection(config, problem, self.arch):
            return f"{source}: {rejection}"
        file = self._object(candidate, problem)
        if file is None:
            return (
                f"{source}: its object for {problem.problem_class} is neither bundled nor in the build cache"
            )
        return Choice(
            problem=asked,
            launched=problem,
            config=config,
            source=source,
            row=row,
            object=file,
            reason=_reason(candidate, problem, file),
            borrowed=candidate.borrowed,
        )

    def _object(self, candidate: _Candidate, problem: GemmProblem) -> ObjectFile | None:
        """What was found once is found while it is there; its bytes are compared with their hash when loaded."""
        if candidate.compiled is not None:
            return object_file(candidate.compiled)
        row = candidate.row
        key = (candidate.config, row and row.object, problem.r, problem.lora_dtype, problem.out_dtype)
        found = self._objects.get(key)
        if found is None or not os.path.exists(found.path):
            found = self._search(candidate, problem)
            if found is not None:
                self._objects[key] = found
        return found

    def _search(self, candidate: _Candidate, problem: GemmProblem) -> ObjectFile | None:
        config = _parsed(GemmProblem.operator, self.arch, candidate.config)
        if (bundled := self.bundle.find(config, problem)) is not None:
            return bundled
        return self._cached(candidate, problem)

    def _cached(self, candidate: _Candidate, problem: GemmProblem) -> ObjectFile | None:
        """From the build cache, by the key that the row recorded: needs no compiler."""
        row = candidate.row
        if row is None or row.object is None or candidate.known.problem_class != problem.problem_class:
            return None
        meta = BuildCache(self._cache_dir).load(row.object.key)
        if meta is None or meta["object_sha256"] != row.object.sha256:
            return None
        return ObjectFile(
            path=self._cache_dir / row.object.key / _OBJECT,
            prefix=meta["prefix"],
            arguments=tuple(Argument(**argument) for argument in meta["arguments"]),
            sha256=meta["object_sha256"],
        )


def object_file(compiled: CompiledKernel) -> ObjectFile:
    return ObjectFile(
        path=compiled.object_path,
        prefix=compiled.prefix,
        arguments=compiled.arguments,
        sha256=compiled.object_sha256,
    )


def _reason(candidate: _Candidate, problem: GemmProblem, file: ObjectFile) -> str:
    """What is known of the kernel that is launched: the row's time, and what a card said of this very object.

    That of a row's own dtypes was judged when it was tuned; one compiled here on request nobody checked.
    """
    row = candidate.row
    said = f"was {file.checked}" if file.checked else "was not checked on a card"
    if candidate.is_for_any_shape:
        return f"bundled for ranks that no row has, never timed: tune a shape of this rank; it {said}"
    if row is None:
        return f"compiled in this process, {Check.NONE}"
    time = f"{row.kind} {row.time_us:.4g} us at {row.key.problem}"
    how = "" if row.check is Check.WINNER else f", {row.check}"
    if _dtypes(candidate.known) != _dtypes(problem):
        return f"{time} as {_of(candidate.known)}{how}; this {_of(problem)} object {said}"
    return f"{time}{how}" + (f"; {file.checked} again" if file.checked else "")


def _of(problem: GemmProblem) -> str:
    """``bf16``, or ``fp16/bf16`` of LoRA and y."""
    return "/".join(dict.fromkeys(_dtypes(problem)))


def _source(candidate: _Candidate, problem: GemmProblem) -> str:
    known = candidate.known
    if candidate.compiled is not None:
        return f"compiled for {known}"
    if candidate.is_for_any_shape:
        return f"any shape of R={known.r}"
    if known == problem:
        return "exact"
    same_layer = (known.k, known.n, known.problem_class) == (problem.k, problem.n, problem.problem_class)
    return f"nearest M {known.m}" if same_layer else f"nearest layer {known}"


def _distance_at_its_m(problem: GemmProblem, candidate: _Candidate) -> tuple[Any, ...]:
    return _distance(dataclasses.replace(problem, m=candidate.known.m), candidate)


def _dtypes(problem: GemmProblem) -> tuple[str, str]:
    return problem.lora_dtype, problem.out_dtype


def _distance(problem: GemmProblem, candidate: _Candidate) -> tuple[bool, bool, bool, float, int, str]:
    """Order of candidates: powers of two between the sizes, of two equally near the larger M first.

    A larger rank counts as in ``ranks.py``; what was made for any shape, and not timed, comes last.
    """
    known = candidate.known
    other_dtypes = _dtypes(known) != _dtypes(problem)
    sizes = ((known.m, problem.m), (known.k, problem.k), (known.n, problem.n))
    doublings = sum(abs(math.log2(a / b)) for a, b in sizes) + rank_distance(problem, known.r)
    other_layer = (known.k, known.n) != (problem.k, problem.n)
    return (candidate.is_for_any_shape, other_layer, other_dtypes, doublings, -known.m, str(known))
