"""Which kernel is launched for a problem: rows of one device's table, nearest first, and where their objects are."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self

from kernel_space.build.cache import BuildCache
from kernel_space.core import registry
from kernel_space.core.arch import Arch
from kernel_space.core.arguments import Argument
from kernel_space.core.config import AUTO, KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Form, Problem, ProblemClass
from kernel_space.core.rules import knob_rejection
from kernel_space.core.stand_in import compiled_sizes
from kernel_space.operators import DEFAULT
from kernel_space.places import COMMAND
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.runtime.choice.choice import (
    Candidate,
    Choice,
    Prepared,
    options_of,
    reason_of,
    sizes_of,
    source_of,
)
from tuner.runtime.choice.contract import runtime_of
from tuner.runtime.choice.nearest import Nearest, batch_of, bucket_of, compiled_of, distance
from tuner.runtime.choice.remembered import Recent
from tuner.runtime.choice.spares import spares_of
from tuner.tables.borrow import Source, table_of
from tuner.tables.bundle import FOLDER, Bundle, ObjectFile
from tuner.tables.dispatch import DispatchTable, Lookup
from tuner.tables.order import Offer, by_estimate, in_steps
from tuner.tables.row import Row
from tuner.trials.checked import Check

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel

SHOWN_REFUSALS = 3
MAX_LAYERS = 512  # kinds of layers whose candidates are kept in order
_parsed = functools.lru_cache(maxsize=1024)(registry.parse_config)
_OBJECT = "kernel.o"


class Library:
    """One device's table with its bundle and the build cache. Not changed while it is asked, except by ``add``.

    ``source``: whose the table and its rows are, None if nobody said.
    """

    def __init__(
        self, table: DispatchTable, bundle: Bundle, cache_dir: Path, *, source: Source | None = None
    ) -> None:
        self.table = table
        self.bundle = bundle
        self._source = source
        self._lending = source.lending if source is not None else {}
        self._cache_dir = cache_dir
        self._prepared: list[Prepared] = []
        self._rows = [(row.key.problem, row) for row in table.rows.values()]
        self._known = {known for known, _ in self._rows}  # problems that have a kernel of their own
        self._widest: dict[ProblemClass, list[Candidate]] = {}  # as many as there are options
        self._layers: Recent[tuple, Nearest[Candidate]] = Recent(MAX_LAYERS)
        self._spares: Recent[tuple, list[Candidate]] = Recent(MAX_LAYERS)
        self._orders: Recent[Problem, list[Candidate]] = Recent(MAX_LAYERS)  # by estimate
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
        return cls.of_source(found, found.bundle(), cache_dir=cache_dir)

    @classmethod
    def of_source(cls, found: Source, bundle: Bundle, *, cache_dir: Path) -> Self:
        return cls(found.table, bundle, cache_dir, source=found)

    @property
    def arch(self) -> Arch:
        return self.table.arch

    @property
    def borrowed(self) -> str:
        """Whose all rows are, for people; empty where some are the class's own."""
        return "" if self._source is None else self._source.borrowed

    def borrowed_for(self, row: Row) -> str:
        """Whose ``row`` is, for people; empty for one's own."""
        return "" if self._source is None else self._source.borrowed_for(row)

    def add(self, prepared: Prepared) -> None:
        self._prepared.append(prepared)
        self._known.add(prepared.problem)
        self._layers.clear()
        self._spares.clear()
        self._orders.clear()

    def has_object(self, answer: Lookup, problem: Problem) -> bool:
        """Can what the table answered be launched without compiling?"""
        if any((one.problem, one.config) == (problem, answer.config) for one in self._prepared):
            return True
        if answer.row is None:
            return False
        known = answer.row.key.problem
        return (
            self._object(Candidate(known=known, config=str(answer.config), row=answer.row), problem)
            is not None
        )

    def choose(self, problem: Problem) -> Choice:
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

    def _nothing(self, problem: Problem, refused: list[str]) -> str:
        runtime = runtime_of(problem.operator)
        more = " or more" if runtime.widest else ""
        sizes = sizes_of(problem)
        why = "; ".join(refused[:SHOWN_REFUSALS]) or (
            f"no row with {sizes}{more} in the dispatch table"
            if sizes
            else f"no row of {problem.operator} in the dispatch table"
        )
        others = f"; and {len(refused) - SHOWN_REFUSALS} more" if len(refused) > SHOWN_REFUSALS else ""
        compiled = f" ({problem.problem_class})" if problem.problem_class.values else ""
        return (
            f"no kernel for {problem}{compiled} on {self.arch.name}: {why}{others}. {self._bundling(problem)}"
            f"run {COMMAND} --shape {problem}{_op(problem)} first, or call prepare(problem, compile=True)"
        )

    def _bundling(self, problem: Problem) -> str:
        """The command that makes an object for any sizes with these options, beside the rows of this table; nothing
        for an operator whose problems cannot be adapted to one.
        """
        runtime = runtime_of(problem.operator)
        if not runtime.widest:
            return "For one "
        named = self._source and self._source.owner
        owner = named or next(one.name for one in DEVICE_CLASSES.values() if one.arch == self.arch)
        usual = all(form.choices[0] == getattr(problem, name) for name, form in _options(problem))
        also = "" if usual else f" --also-dtype {options_of(problem)}"
        names = ", ".join(name.upper() for name in runtime.widest)
        return (
            f"Where the CuTe DSL is installed, {COMMAND} bundle --device {owner}{also}{_op(problem)} makes an object "
            f"of {sizes_of(runtime.widest_of(problem)[0])}, to which any {names} is padded; for a fast one "
        )

    def _candidates(self, problem: Problem) -> Iterator[Candidate]:
        """Nearest first, or by estimate."""
        if self.table.estimates is None:
            return self._nearest(problem).order(batch_of(problem))
        return self._estimated(problem)

    def _nearest(self, problem: Problem) -> Nearest[Candidate]:
        """Of the layer of ``problem``."""
        layer = (problem.operator, *bucket_of(problem))
        nearest = self._layers.get(layer)
        if nearest is None:
            nearest = Nearest(self._of_layer(problem), functools.partial(distance, problem))
            self._layers.put(layer, nearest)
        return nearest

    def _estimated(self, problem: Problem) -> Iterator[Candidate]:
        """What was tuned or compiled for ``problem``, then all by estimate; what is for any shape stays last."""
        if problem in self._known:
            own = next(self._nearest(problem).order(batch_of(problem)))
            if own.known == problem and not own.is_for_any_shape:
                yield own
        asked = in_steps(problem)
        ranked = self._orders.get(asked)
        if ranked is None:
            ranked = self._ranked(asked, list(self._nearest(asked).order(batch_of(asked))))
            self._orders.put(asked, ranked)
        yield from ranked

    def _ranked(self, problem: Problem, candidates: list[Candidate]) -> list[Candidate]:
        spares = self._spares_of_layer(problem, candidates)
        offers = [
            offer
            for one in (*candidates, *spares)
            if not one.is_for_any_shape and (offer := self._offer(one, problem)) is not None
        ]
        return [
            *by_estimate(offers, self.table.estimates),
            *(one for one in candidates if one.is_for_any_shape),
        ]

    def _spares_of_layer(self, problem: Problem, others: list[Candidate]) -> list[Candidate]:
        layer = (problem.operator, *bucket_of(problem))
        found = self._spares.get(layer)
        if found is None:
            found = spares_of(self.bundle, problem, others, borrowed=self.borrowed)
            self._spares.put(layer, found)
        return found

    def _offer(self, candidate: Candidate, problem: Problem) -> Offer[Candidate] | None:
        """None for a config that this version cannot read, and for a spare of which nobody knows what it takes."""
        stand_in = runtime_of(problem.operator).stand_in(problem, candidate.known)
        assert stand_in is not None, "it was a candidate because it may stand in"
        try:
            config = _parsed(problem.operator, self.arch, candidate.config)
        except InputError:
            return None
        estimates = self.table.estimates
        if candidate.spare and (estimates is None or estimates.of(config, stand_in.problem) is None):
            return None
        return Offer(
            item=candidate,
            config=config,
            launched=stand_in.problem,
            known=None if candidate.spare else candidate.known,
            adapting_us=stand_in.us,
            took_us=candidate.row.time_us if candidate.row else None,
            origin=self.table.origins.get(candidate.row.key) if candidate.row else None,
        )

    def _of_layer(self, problem: Problem) -> list[Candidate]:
        """Kernels that may serve, for any batch."""
        stand_in = runtime_of(problem.operator).stand_in
        found = [
            Candidate(known=known, config=row.config, row=row, borrowed=self.borrowed_for(row))
            for known, row in self._rows
            if known.operator == problem.operator and stand_in(problem, known) is not None
        ]
        found += [
            Candidate(known=one.problem, config=str(one.config), compiled=one.compiled, borrowed=one.borrowed)
            for one in self._prepared
            if _alike(one.problem, problem) and stand_in(problem, one.problem) is not None
        ]
        have = [(one.config, compiled_sizes(one.known)) for one in found]
        return found + [
            one for one in self._bundled(problem) if (one.config, compiled_sizes(one.known)) not in have
        ]

    def _bundled(self, problem: Problem) -> list[Candidate]:
        """Bundled objects that serve any shape with these options."""
        found = []
        for wide in runtime_of(problem.operator).widest_of(problem):
            widest = wide.problem_class
            if widest not in self._widest:
                self._widest[widest] = [
                    Candidate(known=known, config=config, borrowed=self.borrowed)
                    for known, config in self._bundled_for(widest)
                ]
            found += self._widest[widest]
        return found

    def _bundled_for(self, widest: ProblemClass) -> Iterator[tuple[Problem, str]]:
        for entry in self.bundle.entries:
            known = entry.problem
            if known.problem_class != widest or entry.host != platform.machine():
                continue
            try:
                yield known, str(_parsed(known.operator, self.arch, entry.config))
            except InputError:  # a knob that this version no longer has
                continue

    def _try(self, candidate: Candidate, problem: Problem) -> Choice | str:
        """The answer ``candidate`` gives for ``problem``, or why it gives none."""
        asked, row = problem, candidate.row
        stand_in = runtime_of(problem.operator).stand_in(problem, candidate.known)
        assert stand_in is not None, "it was a candidate because it may stand in"
        problem = stand_in.problem
        source = source_of(candidate, problem)
        if problem != asked:
            source = f"{source}, {stand_in.note}"
        if row is not None and row.check is Check.NONE:
            return f"{source}: {row.check}"
        if AUTO in candidate.config:
            return f"{source}: its config is not resolved"
        try:
            config = _parsed(problem.operator, self.arch, candidate.config)
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
            stand_in=stand_in,
            config=config,
            source=source,
            row=row,
            object=file,
            reason=self._estimate(candidate, config, problem) + reason_of(candidate, problem, file),
            borrowed=candidate.borrowed or self._lending.get(file.path.parent, ""),
        )

    def _estimate(self, candidate: Candidate, config: KernelConfig, problem: Problem) -> str:
        """Where nobody timed it: what it is estimated to take."""
        return "" if candidate.known == problem else self.table.estimate(config, problem)

    def _object(self, candidate: Candidate, problem: Problem) -> ObjectFile | None:
        """What was found once is found while it is there; its bytes are compared with their hash when loaded."""
        if candidate.compiled is not None:
            return object_file(candidate.compiled)
        row = candidate.row
        key = (candidate.config, row and row.object, problem.operator, *compiled_of(problem))
        found = self._objects.get(key)
        if found is None or not os.path.exists(found.path):
            found = self._search(candidate, problem)
            if found is not None:
                self._objects[key] = found
        return found

    def _search(self, candidate: Candidate, problem: Problem) -> ObjectFile | None:
        config = _parsed(problem.operator, self.arch, candidate.config)
        if (bundled := self.bundle.find(config, problem)) is not None:
            return bundled
        return self._cached(candidate, problem)

    def _cached(self, candidate: Candidate, problem: Problem) -> ObjectFile | None:
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


def _alike(known: Problem, problem: Problem) -> bool:
    return known.operator == problem.operator and known.options == problem.options


def _options(problem: Problem) -> list[tuple[str, Form]]:
    return [(name, form) for name, form in problem.forms().items() if form.choices and not form.unsaid]


def _op(problem: Problem) -> str:
    """What a command needs besides the shape."""
    return "" if problem.operator == DEFAULT else f" --op {problem.operator}"
