"""One row of a dispatch table: a key, the winning config, its time, and the evidence for it."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import Any, Self

from kernel_space.core.arch import arch
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from tuner.files.record_checks import (
    check_file_name,
    check_numbers,
    check_plain,
    check_sha256,
    check_texts,
)
from tuner.trials.checked import Check, check_of
from tuner.trials.outcome import Kind, Trial
from tuner.trials.rank_stability import SETS_US, faster_in
from tuner.trials.subject import NotInstalled, problem_from_record

_NOT_IN_ROW = frozenset({"noise_us", SETS_US})  # has a field of its own; long, and in the journal


@functools.total_ordering
@dataclasses.dataclass(frozen=True)
class DispatchKey:
    """What a row answers for. Rows are sorted by operator, arch, options and sizes, these as numbers."""

    arch: str
    problem: Problem

    @classmethod
    def of(cls, problem: Problem, arch_name: str) -> Self:
        return cls(arch_name, problem)

    @property
    def op(self) -> str:
        return self.problem.operator

    @property
    def bucket(self) -> tuple[Any, ...]:
        """Everything but the batch sizes: rows that can stand in for one another."""
        return (self.op, self.arch, *self.problem.bucket)

    def __lt__(self, other: DispatchKey) -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[Any, ...]:
        problem = self.problem
        return self.op, self.arch, tuple(problem.options.values()), tuple(problem.sizes.values())

    def __str__(self) -> str:
        options = "/".join(self.problem.options.values())
        return " ".join(filter(None, (self.op, self.arch, options, str(self.problem))))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Provenance:
    """What a time depends on besides its problem and config; a difference to today's makes a row stale.

    ``kernel_source``: hash of the sources of the row's own kernel. ``dsl_version``: of the CuTe DSL. ``model``: of the
    timing model or simulator with its constants, empty for a measured time.
    """

    kernel_source: str
    dsl_version: str
    model: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectRef:
    """The compiled object a row needs: folder in the build cache, file in it, SHA-256 of its bytes."""

    key: str
    file: str
    sha256: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunnerUp:
    """The next best candidate of the same tune; ``margin`` is its time over the winner's, less one.

    ``slower_in``: share of the simulator's admissible constants under which it is the slower one, if it was simulated.
    """

    config: str
    time_us: float
    margin: float
    slower_in: float | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """The winner for one key with its evidence. ``config`` is the printed resolved config.

    ``low_us`` .. ``high_us`` is the interval around ``time_us``, microseconds. ``noise_us``, when stated, is
    the difference below which two times of this kind under this model cannot be told apart; it takes the
    interval's place there, which for a model also holds errors that are the same for both. ``evidence`` holds
    samples or model terms, versions and whatever else the protocol records. ``date`` is UTC in ISO 8601.
    Raises ``InputError`` unless 0 < low_us <= time_us <= high_us, all finite.
    """

    key: DispatchKey
    config: str
    kind: Kind
    time_us: float
    low_us: float
    high_us: float
    noise_us: float | None = None
    provenance: Provenance
    protocol: str
    date: str
    cubin_sha256: str = ""
    evidence: dict[str, Any] = dataclasses.field(default_factory=dict)
    runner_up: RunnerUp | None = None
    object: ObjectRef | None = None

    def __post_init__(self) -> None:
        if not (0 < self.low_us <= self.time_us <= self.high_us and math.isfinite(self.high_us)):
            raise InputError(
                f"a row needs 0 < low_us <= time_us <= high_us, got {self.low_us}, {self.time_us}, "
                f"{self.high_us} for {self.key}"
            )
        if self.noise_us is not None and not (self.noise_us >= 0 and math.isfinite(self.noise_us)):
            raise InputError(f"noise_us must be a time of 0 or more, got {self.noise_us} for {self.key}")

    @property
    def check(self) -> Check:
        """How much its results were checked; ``NONE`` where the evidence does not say."""
        return check_of(self.evidence.get("checked"))

    def to_record(self) -> dict[str, Any]:
        """JSON, in the order in which a person reads it; ``from_record`` gives the same row back."""
        return {
            "op": self.key.op,
            "arch": self.key.arch,
            "problem": self.key.problem.record(),
            "config": self.config,
            "kind": self.kind.value,
            "time_us": self.time_us,
            "low_us": self.low_us,
            "high_us": self.high_us,
            "noise_us": self.noise_us,
            "runner_up": self.runner_up and dataclasses.asdict(self.runner_up),
            "object": self.object and dataclasses.asdict(self.object),
            "evidence": {
                "protocol": self.protocol,
                "date": self.date,
                "provenance": dataclasses.asdict(self.provenance),
                "cubin_sha256": self.cubin_sha256,
                **self.evidence,
            },
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Raises ``InputError`` when the record is not what ``to_record`` writes, ``NotInstalled`` when it may be and
        its operator is not here."""
        try:
            check_plain(record)
            fields = dict(record)
            evidence = dict(fields.pop("evidence"))
            named = {name: evidence.pop(name) for name in ("protocol", "date", "cubin_sha256")}
            row = cls(
                key=_key(fields.pop("op"), fields.pop("arch"), fields.pop("problem")),
                kind=Kind(fields.pop("kind")),
                provenance=Provenance(**evidence.pop("provenance")),
                runner_up=_optional(RunnerUp, fields.pop("runner_up")),
                object=_optional(ObjectRef, fields.pop("object")),
                evidence=evidence,
                **named,
                **fields,
            )
            _check(row)
            return row
        except NotInstalled:
            raise
        except InputError as error:
            raise InputError(f"not a row of a dispatch table: {error}") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"not a row of a dispatch table: {type(error).__name__}: {error}") from None


def _check(row: Row) -> None:
    """What the types of a row that came from a file must be. Raises ``InputError``."""
    check_texts(row, ("config", "protocol", "date", "cubin_sha256"))
    check_numbers(row, ("time_us", "low_us", "high_us", "noise_us"))
    check_texts(row.provenance, ("kernel_source", "dsl_version", "model"))
    if row.runner_up is not None:
        check_texts(row.runner_up, ("config",))
        check_numbers(row.runner_up, ("time_us", "margin", "slower_in"))
    if row.object is not None:
        check_sha256("the object's key", row.object.key)
        check_sha256("the object's sha256", row.object.sha256)
        check_file_name("the object's file", row.object.file)


def _key(op: Any, arch_name: Any, problem: Any) -> DispatchKey:
    key = DispatchKey(arch_name, problem_from_record(op, problem))
    check_texts(key, ("arch",))
    arch(key.arch)
    return key


def _optional(record_type: type, record: dict[str, Any] | None) -> Any:
    return None if record is None else record_type(**record)


def make_row(
    trial: Trial,
    *,
    model: str,
    protocol: str,
    runner_up: Trial | None = None,
    object: ObjectRef | None = None,
    versions: Mapping[str, str] | None = None,
) -> Row:
    """The row of a tune's winner; its build record and evidence hold the rest.

    ``noise_us`` is what the evidence states. A simulated or modelled time has none unless stated: it comes out the same
    every time, and what may be wrong with it is wrong for its rivals too, so the interval must not keep a config in
    the table that the same model calls slower. ``model``: hash of the model or simulator that timed it, empty if
    measured. ``protocol``: how it was timed, in words. ``versions``: torch, driver and the like, as far as known.
    Raises ``ValueError`` for a trial without a time.
    """
    timing = trial.timing
    if timing is None:
        raise ValueError(f"trial {trial.number} has no time, so it cannot be a row")
    evidence = {name: _short(value) for name, value in timing.evidence.items() if name not in _NOT_IN_ROW}
    noise_us = timing.evidence.get("noise_us", None if timing.kind is Kind.MEASURED else 0.0)
    return Row(
        key=DispatchKey.of(trial.subject, trial.arch),
        config=trial.resolved,
        kind=timing.kind,
        time_us=_short(timing.us),
        low_us=min(_short(timing.low_us), _short(timing.us)),
        high_us=max(_short(timing.high_us), _short(timing.us)),
        noise_us=None if noise_us is None else _short(noise_us),
        provenance=Provenance(
            kernel_source=trial.build["source_hash"], dsl_version=trial.build["dsl_version"], model=model
        ),
        protocol=protocol,
        date=trial.finished,
        cubin_sha256=trial.build["cubin_sha256"],
        evidence={**evidence, **({"versions": dict(versions)} if versions else {})},
        runner_up=_runner_up(trial, runner_up) if runner_up else None,
        object=object,
    )


def _runner_up(winner: Trial, second: Trial) -> RunnerUp:
    if winner.us is None or second.us is None:
        raise ValueError(f"trial {second.number} has no time, so it cannot be a runner-up")
    share = faster_in(winner, second)
    return RunnerUp(
        config=second.resolved,
        time_us=_short(second.us),
        margin=round(second.us / winner.us - 1, 4),
        slower_in=None if share is None else round(share, 4),
    )


def _short(value: Any) -> Any:
    """Six significant digits: readable diffs, and far below any noise."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
