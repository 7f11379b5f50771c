"""The dispatch table of one device, ``results/<device>/dispatch.json``: what to launch for which problem."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from kernel_space.core.arch import Arch
from kernel_space.core.arch import arch as arch_record
from kernel_space.core.config import AUTO, KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below
from kernel_space.core.problem import Problem, ProblemClass
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, Rejection, knob_rejection, legalize
from tuner.files.notice import Say, notice, say_each
from tuner.files.store import CorruptFile, is_whole, locked, set_aside, write_if_new
from tuner.tables.dispatch_file import SCHEMA, TableFile, one_arch, read_table
from tuner.tables.distance import batch_names, nearness_order, shown_bucket, shown_sizes
from tuner.tables.estimates import Estimates
from tuner.tables.merge import Current, Decision, choose, outdated_reason
from tuner.tables.order import Offer, by_estimate, in_steps
from tuner.tables.row import DispatchKey, Row
from tuner.trials.checked import Check

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel

FILE_NAME = "dispatch.json"
MAX_READY = (
    65536  # problems answered from memory; a batch is whatever the user's is, so the number is not bounded
)

Default = Callable[[Problem], KernelConfig]
Legalize = Callable[[KernelConfig, Problem, Arch], Legal | Rejection]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Lookup:
    """What to launch. ``config`` is legal for the problem and resolved (no ``auto``).

    ``source``: ``exact``, ``nearest M 4352`` (its batch sizes) or ``default``. ``row``: the table's row behind it,
    None for the default. ``reason``: one line for people.
    """

    config: KernelConfig
    problem_class: ProblemClass
    arch: Arch
    source: str
    row: Row | None
    reason: str

    def object_path(self, cache_dir: AnyPath) -> Path | None:
        """The row's object in ``cache_dir`` if it is there with the recorded bytes, else None: build it."""
        if self.row is None or self.row.object is None:
            return None
        reference = self.row.object
        path = below(cache_dir, reference.key, reference.file)
        return path if is_whole(path, reference.sha256) else None

    def build(self, cache_dir: AnyPath | None = None) -> CompiledKernel:
        """Compile it, or fetch it from the build cache. Needs the DSL. Raises ``CompileError``."""
        from kernel_space.build.build import build

        cache = None if cache_dir is None else Path(cache_dir)
        return build(self.config, self.problem_class, self.arch, cache_dir=cache)


class DispatchTable:
    """Rows by key, and answers for problems that have none. Safe to share between threads."""

    def __init__(
        self,
        rows: Iterable[Row],
        arch: Arch,
        *,
        current: Current | None = None,
        default: Default | None = None,
        rules: Legalize = legalize,
        thorough: bool = False,
        checked_only: bool = False,
        estimates: Estimates | None = None,
    ) -> None:
        self.rows = {row.key: row for row in sorted(rows, key=lambda row: row.key)}
        self.arch = arch
        self._current = current
        self._default = default or _space_default(arch)
        self._rules = rules
        self._thorough = thorough
        self._checked_only = checked_only
        self.estimates = estimates
        self._buckets: dict[tuple, list[Row]] = defaultdict(list)
        for row in self.rows.values():
            self._buckets[row.key.bucket].append(row)
        self._ready: dict[Problem, Lookup] = {}
        self.origins: dict[DispatchKey, Path] = {}  # of ``over``: the folder that each row is from

    @classmethod
    def load(cls, path: AnyPath, *, arch: Arch | None = None, say: Say = notice, **options: Any) -> Self:
        """The table in ``path``, a file or a device's folder; empty when there is none and ``arch`` is given.

        ``current`` lets answers name stale rows; ``default`` and ``rules`` replace the search space's
        default rule and ``rules.legalize``; ``checked_only`` passes over rows that were never checked, ``thorough`` has
        the rules check every row that answers, budgets too, which needs the DSL. ``say`` is told, in a line each, which
        rows are passed over because they are none. Raises ``InputError`` for a file that is no table and for an unknown
        schema.
        """
        path = table_path(path)
        try:
            file = read_table(path)
        except CorruptFile as error:
            raise InputError(
                f"{error}; repair it, or tune again: the damaged file is kept aside then"
            ) from None
        name = one_arch(file.rows, file.arch, path, *([arch.name] if arch else []))
        say_each(file.passed_over, say)
        if name is None:
            what = f"no usable row in {path}" if file.data else f"no dispatch table at {path}"
            raise InputError(f"there is {what}; tune first, or name another folder")
        table = cls(file.rows, arch_record(name), **options)
        say_each([f"{path}: {line}" for line in table.unreadable()], say)
        return table

    @classmethod
    def over(cls, folders: Sequence[AnyPath], *, arch: Arch, say: Say = notice, **options: Any) -> Self:
        """The tables in several folders of one device as one: a row shadows those of its key in later folders, unless
        this version cannot read its config. ``options`` as of ``load``. Raises ``InputError`` likewise.
        """
        rows: dict[DispatchKey, Row] = {}
        origins: dict[DispatchKey, Path] = {}
        for folder in reversed(folders):
            for key, row in cls.load(folder, arch=arch, say=say).rows.items():
                if key not in rows or _is_readable(row, arch):
                    rows[key], origins[key] = row, Path(folder)
        table = cls(rows.values(), arch, **options)
        table.origins = origins
        return table

    def unreadable(self) -> Iterator[str]:
        """A line about each row that stays in the table but is never launched: this version cannot read its config."""
        for row in self.rows.values():
            try:
                parse_config(row.key.op, self.arch, row.config)
            except InputError as error:
                yield f"the row of {row.key.problem} is passed over: {error}"

    def lookup(self, problem: Problem) -> Lookup:
        """This problem's row, else that of the nearest batch with everything else equal, else the default rule."""
        ready = self._ready.get(problem)
        return ready if ready is not None else self._resolve(problem)

    def lookup_key(self, key: DispatchKey) -> Lookup:
        """``lookup`` of the key's problem. Raises ``InputError`` for a key of another arch."""
        if key.arch != self.arch.name:
            raise InputError(f"this table answers for {self.arch.name}, got a key of {key.arch}")
        return self.lookup(key.problem)

    def own(self, problem: Problem) -> list[Row]:
        """The row of ``problem`` itself, or none."""
        row = self.rows.get(DispatchKey.of(problem, self.arch.name))
        return [] if row is None else [row]

    def neighbours(self, problem: Problem, limit: int) -> list[Row]:
        """Rows of other problems of the same operator, nearest first: where a search may start.

        Distance: ``distance.nearness_order``; other options come after equal ones; ties in key order.
        """
        own = DispatchKey.of(problem, self.arch.name)
        others = [
            row
            for row in self.rows.values()
            if row.key != own and (row.key.op, row.key.arch) == (own.op, own.arch)
        ]
        return sorted(others, key=functools.partial(_distance, problem))[:limit]

    def _resolve(self, problem: Problem) -> Lookup:
        key = DispatchKey.of(problem, self.arch.name)
        lookup, refused = None, []
        for row in self._candidates(key):
            answer = self._try(row, problem)
            if isinstance(answer, Lookup):
                lookup = answer
                break
            refused.append(answer)
        lookup = lookup or self._default_lookup(problem)
        if refused:
            lookup = dataclasses.replace(lookup, reason=f"{lookup.reason}; passed over {'; '.join(refused)}")
        if len(self._ready) >= MAX_READY:
            self._ready.clear()
        self._ready[problem] = lookup
        return lookup

    def _candidates(self, key: DispatchKey) -> list[Row]:
        """Rows of the bucket, nearest first. With estimates all rows of the problem's class, by estimate."""
        problem = key.problem
        bucket = self._near(problem, self._buckets.get(key.bucket, ()))
        if self.estimates is None or (bucket and bucket[0].key == key):
            return bucket
        asked = in_steps(problem)
        offers = [
            Offer(
                item=row,
                config=config,
                launched=asked,
                known=row.key.problem,
                took_us=row.time_us,
                origin=self.origins.get(row.key),
            )
            for row in self._near(problem, self._of_class(key))
            if (config := _config_of(row, self.arch)) is not None
        ]
        return by_estimate(offers, self.estimates) if offers else bucket

    def _near(self, problem: Problem, rows: Iterable[Row]) -> list[Row]:
        return sorted(rows, key=lambda row: nearness_order(problem, row.key.problem))

    def _of_class(self, key: DispatchKey) -> list[Row]:
        """Rows whose objects could compute ``key``."""
        wanted = key.problem.problem_class
        return [
            row
            for row in self.rows.values()
            if row.key.op == key.op and row.key.problem.problem_class == wanted
        ]

    def _try(self, row: Row, problem: Problem) -> Lookup | str:
        """The answer that ``row`` gives for ``problem``, or why it gives none.

        The budget of a fresh, resolved row was checked when it was recorded, and it is the same for the whole
        bucket; only the rules that look at knobs and sizes are asked again. So a machine that only launches
        needs no DSL, from whose layouts the budgets are read.
        """
        known = row.key.problem
        source = self._source(known, problem)
        if self._checked_only and row.check is Check.NONE:
            return f"{source}: {row.check}"
        stale = outdated_reason(row, self._current)
        try:
            config = parse_config(row.key.op, self.arch, row.config)
        except InputError as error:  # a knob that this version no longer has
            return f"{source}: {error}"
        if stale or AUTO in row.config or self._thorough:
            legal = self._rules(config, problem, self.arch)
            if isinstance(legal, Rejection):
                return f"{source}: {legal}"
            config = legal.config
        elif rejection := knob_rejection(config, problem, self.arch):
            return f"{source}: {rejection}"
        check = "" if row.check is Check.WINNER else f", {row.check}"
        estimate = self.estimate(config, problem) if known != problem else ""
        reason = f"{source} row, {estimate}{row.kind} {row.time_us:.4g} us{check}" + (
            f", of {row.date[:10] or 'no date'}, stale ({stale})" if stale else ""
        )
        return self._lookup(config, problem, source, row, reason)

    def _source(self, known: Problem, problem: Problem) -> str:
        if known == problem:
            return "exact"
        layer = "" if known.bucket == problem.bucket else f"layer {known}"
        return f"nearest {layer or shown_sizes(known, batch_names(known))}"

    def estimate(self, config: KernelConfig, problem: Problem) -> str:
        """For people, before what is measured of it: what ``config`` is estimated to take for the step of batches that
        ``problem`` is in; empty if nobody knows."""
        found = self.estimates and self.estimates.of(config, in_steps(problem))
        return f"{found}, " if found else ""

    def _default_lookup(self, problem: Problem) -> Lookup:
        legal = self._rules(self._default(problem), problem, self.arch)
        if isinstance(legal, Rejection):
            raise AssertionError(
                f"the default rule must be legal for every problem, {problem} is refused by {legal}"
            )
        reason = f"default rule: no usable row with {shown_bucket(problem)}"
        return self._lookup(legal.config, problem, "default", None, reason)

    def _lookup(
        self, config: KernelConfig, problem: Problem, source: str, row: Row | None, reason: str
    ) -> Lookup:
        return Lookup(
            config=config,
            problem_class=problem.problem_class,
            arch=self.arch,
            source=source,
            row=row,
            reason=reason,
        )


def _is_readable(row: Row, arch: Arch) -> bool:
    return _config_of(row, arch) is not None


def _config_of(row: Row, arch: Arch) -> KernelConfig | None:
    """The row's config, None if it names a knob that this version no longer has."""
    try:
        return parse_config(row.key.op, arch, row.config)
    except InputError:
        return None


def table_path(path: AnyPath) -> Path:
    """``path`` itself, or ``dispatch.json`` in it when it is a folder."""
    path = Path(path)
    return path / FILE_NAME if path.is_dir() else path


def record(
    path: AnyPath,
    rows: Sequence[Row],
    current: Current,
    *,
    refuted: Collection[str] = (),
    say: Say = notice,
    before: Callable[[list[Decision]], None] = lambda decisions: None,
) -> list[Decision]:
    """Merge ``rows`` of one arch into the table at ``path`` under its lock; one Decision per row, in order.

    ``refuted``: configs that failed since on the problems of ``rows``; a row of theirs does not defend itself.
    ``before``: called with the decisions before they are written, for what must be there first.

    A file that is no table is renamed and ``say`` told so; then a new one begins. A table with bad rows is copied
    aside before it is written without them; rows of operators that are not installed here stay as they are. Raises
    ``InputError`` for a table of another schema or arch (it is left alone) and ``StoreError`` when the disk or the
    lock refuses.
    """
    path = table_path(path)
    with locked(path):
        file = _readable(path, say)
        table = {row.key: row for row in file.rows}
        arch = one_arch([*table.values(), *rows], file.arch, path)
        decisions = []
        for row in rows:
            old = table.get(row.key)
            decision = choose(None if old is not None and old.config in refuted else old, row, current)
            decisions.append(decision)
            table[row.key] = decision.row
        text = render_table(sorted(table.values(), key=lambda row: row.key), arch, foreign=file.foreign)
        before(decisions)
        if file.bad:
            aside = file.keep_aside()
            say_each(file.bad, say)
            say(f"{path} is written without its bad rows; the file with them is kept as {aside.name}")
        write_if_new(path, text.encode())
    return decisions


def _readable(path: Path, say: Say) -> TableFile:
    """The table there is. What is no table makes way for a new one, and ``say`` is told its new name."""
    try:
        return read_table(path)
    except CorruptFile as error:
        say(f"{error}; kept as {set_aside(path).name}, a new table begins")
        return TableFile(path=path)


def render_table(
    rows: Sequence[Row], arch: str | None = None, *, foreign: Sequence[dict[str, Any]] = ()
) -> str:
    """The document: valid JSON with one row per line in key order, so that a new tune is a readable diff.

    ``arch``: of a table that may have no rows. ``foreign``: records of operators that are not installed here.
    """
    names = {row.key.arch for row in rows} | ({arch} if arch else set())
    if len(names) > 1:
        raise InputError(f"a dispatch table holds rows of one arch, got {', '.join(sorted(names))}")
    head = f'"schema": {SCHEMA}, "arch": {json.dumps(next(iter(names), None))}'
    records = sorted([*(row.to_record() for row in rows), *foreign], key=lambda record: record["op"])
    lines = ",\n".join(json.dumps(record, allow_nan=False) for record in records)
    return f'{{{head}, "rows": [\n{lines}\n]}}\n'


def _distance(own: Problem, row: Row) -> tuple[Any, ...]:
    other = row.key.problem
    return own.options != other.options, *nearness_order(own, other), row.key


def _space_default(arch: Arch) -> Default:
    """The default rule of an operator's search space, read when it is first needed."""

    @functools.cache
    def space(op: str) -> Any:
        from tuner.space.space import SearchSpace

        return SearchSpace.load(op, arch)

    return lambda problem: space(problem.operator).default(problem)
