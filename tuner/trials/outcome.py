"""What became of one candidate: Status, Kind, Timing, Outcome and the flat Trial that is written down."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any, Self

from kernel_space.core.arch import arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import parse_config
from tuner.files.record_checks import check_numbers, check_texts, check_whole
from tuner.trials.subject import MIGRATE, NotInstalled, subject_of


class Status(enum.StrEnum):
    """How the evaluation of a candidate ended."""

    OK = "ok"
    ILLEGAL = "illegal"  # a rule rejects it; never compiled
    FILTERED = "filtered"  # legal, but hopeless by the timing model; never compiled
    COMPILE_FAILED = "compile_failed"  # the compiler said no
    COMPILE_TIMEOUT = "compile_timeout"  # the worker was killed at its limit
    COMPILE_CRASHED = "compile_crashed"  # the worker died
    WRONG_RESULT = "wrong_result"  # differs from the reference
    DEADLOCK = "deadlock"
    RACE = "race"
    ILLEGAL_ACCESS = "illegal_access"
    UNSUPPORTED = "unsupported"  # the device cannot judge it
    TIMED_OUT = "timed_out"  # validation or timing took too long
    WORKER_LOST = "worker_lost"  # somebody else killed the process that ran it
    FAILED = "failed"


# What a busy or interrupted machine can cause: worth another try when the study is resumed.
TRANSIENT = frozenset({Status.COMPILE_TIMEOUT, Status.COMPILE_CRASHED, Status.TIMED_OUT, Status.WORKER_LOST})

# Points that a search proposed and that are no trials: in reports and ``trials.parquet``, not in journals.
NEVER_COMPILED = frozenset({Status.ILLEGAL, Status.FILTERED})

# What speaks against a kernel for good.
REFUTED = frozenset({Status.WRONG_RESULT, Status.DEADLOCK, Status.RACE, Status.ILLEGAL_ACCESS})


class Kind(enum.StrEnum):
    """What a time is: taken on hardware, by the PTX machine, or from a formula."""

    MEASURED = "measured"
    SIMULATED = "simulated"
    MODELLED = "modelled"


class Origin(enum.StrEnum):
    """Why a candidate was tried."""

    DEFAULT = "default"
    NEIGHBOUR = "neighbour"
    PUBLISHED = "published"
    EXHAUSTIVE = "exhaustive"
    SAMPLED = "sampled"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """Time of one launch in microseconds with the interval that holds it.

    ``evidence`` says how ``us`` came about: model terms in microseconds, or samples, clocks, versions.
    Raises ``ValueError`` unless 0 < low_us <= us <= high_us, all finite.
    """

    kind: Kind
    us: float
    low_us: float
    high_us: float
    evidence: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (0 < self.low_us <= self.us <= self.high_us and math.isfinite(self.high_us)):
            raise ValueError(
                f"a time needs 0 < low_us <= us <= high_us, got {self.low_us}, {self.us}, {self.high_us}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """One verdict. ``reason`` says why when ``status`` is not OK, and what was not checked when it is."""

    status: Status
    reason: str = ""
    timing: Timing | None = None

    @property
    def ok(self) -> bool:
        return self.status is Status.OK


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """One evaluation as one flat record.

    ``number`` counts the candidates of one search, which ``seed`` names; -1 for a point that was never a candidate.
    ``op`` is the operator, ``problem`` its printed sizes, ``options`` its options by name; ``config`` is the candidate
    as asked, ``resolved`` its canonical legal form (empty when a rule rejected it): the key under which a candidate is
    evaluated only once.
    ``us``, ``low_us``, ``high_us`` are microseconds, None unless timed. ``validation`` is empty until the
    device was asked, then ``passed`` or its reason. ``evidence`` holds scalars: the model's terms or samples;
    ``build`` holds scalars: registers, cubin hash, versions. Seconds are wall time of each stage.
    """

    number: int
    op: str
    problem: str
    options: dict[str, str]
    device: str
    arch: str
    config: str
    resolved: str
    status: Status
    reason: str = ""
    origin: Origin = Origin.SAMPLED
    seed: int = 0
    kind: Kind | None = None
    us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    validation: str = ""
    evidence: dict[str, Any] = dataclasses.field(default_factory=dict)
    build: dict[str, Any] = dataclasses.field(default_factory=dict)
    legal_seconds: float = 0.0
    compile_seconds: float = 0.0
    validate_seconds: float = 0.0
    time_seconds: float = 0.0
    finished: str = ""  # UTC, ISO 8601

    @property
    def ok(self) -> bool:
        """It compiled, nothing speaks against it, and it has a time."""
        return self.status is Status.OK and self.us is not None

    @property
    def subject(self) -> Problem:
        """The problem that it is about."""
        return subject_of(self.op, self.problem, self.options)

    @property
    def resolved_config(self) -> KernelConfig:
        return parse_config(self.op, arch(self.arch), self.resolved)

    @property
    def timing(self) -> Timing | None:
        if self.kind is None or self.us is None or self.low_us is None or self.high_us is None:
            return None
        return Timing(
            kind=self.kind, us=self.us, low_us=self.low_us, high_us=self.high_us, evidence=self.evidence
        )

    def with_timing(self, timing: Timing) -> Self:
        return dataclasses.replace(
            self,
            kind=timing.kind,
            us=timing.us,
            low_us=timing.low_us,
            high_us=timing.high_us,
            evidence=timing.evidence,
        )

    def to_record(self) -> dict[str, Any]:
        """What JSON can hold; ``from_record`` gives the same Trial back."""
        return dataclasses.asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Self:
        """Raises ``InputError`` when the record lacks a field, has one too many or a word nobody knows,
        ``NotInstalled`` when its operator is not here."""
        if isinstance(record, dict) and "problem" in record and "op" not in record:
            raise InputError(f"not the record of a trial: it does not name its operator; {MIGRATE}")
        try:
            words = {
                "status": Status(record["status"]),
                "origin": Origin(record["origin"]),
                "kind": None if record["kind"] is None else Kind(record["kind"]),
            }
            trial = cls(**{**record, **words})
            _check(trial)
            return trial
        except NotInstalled:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"not the record of a trial: {error}") from error


_TEXTS = (
    "op", "problem", "device", "arch", "config", "resolved", "reason", "validation", "finished",
)  # fmt: skip
_NUMBERS = (
    "us", "low_us", "high_us", "legal_seconds", "compile_seconds", "validate_seconds", "time_seconds",
)  # fmt: skip


def _check(trial: Trial) -> None:
    """What the types of a trial that came from a file must be. Raises ``InputError``."""
    check_texts(trial, _TEXTS)
    check_whole(trial, ("number", "seed"))
    check_numbers(trial, _NUMBERS)
    if not isinstance(trial.evidence, dict) or not isinstance(trial.build, dict):
        raise InputError("evidence and build must be objects")
    _ = trial.subject
