"""Trials and rows of an operator are stale once its inputs or its oracle change; those of others stay as they were."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import kernel_space.build.key as key
from kernel_space.check.version import check_version, oracle_version
from kernel_space.core import registry
from kernel_space.core.arch import SM100A
from kernel_space.core.problem import Problem
from tests.fakes import FakeDevice
from tuner.stages.journal import identity
from tuner.stages.record import current
from tuner.tables.merge import stale_reason
from tuner.tables.row import DispatchKey, Provenance, Row
from tuner.trials.outcome import Kind

KINDS = (Kind.SIMULATED, Kind.MEASURED)
ROWSTATS, STAMP = "rowstats", "stamp"


def problem(op: str) -> Problem:
    known = registry.operator(op).problem
    return known.parse(known.example)


@contextlib.contextmanager
def oracle(data: bytes) -> Iterator[None]:
    """The oracle of ``rowstats`` as if its file held ``data``."""
    kept = (key.source_hash, check_version, oracle_version)
    read = key._source
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key, "_source", lambda module: data if module == "rowstats.oracle" else read(module))
        for one in kept:
            one.cache_clear()
        yield
    for one in kept:
        one.cache_clear()


def source() -> bytes:
    return (registry.folder_of(ROWSTATS) / "oracle.py").read_bytes()


def changed() -> bytes:
    assert b"x > 0" in source()
    return source().replace(b"x > 0", b"x >= 0")


def judges(op: str) -> list[str]:
    return [identity(problem(op), FakeDevice(kind=kind)).judge for kind in KINDS]


def test_trials_belong_to_another_journal_when_the_oracle_changed() -> None:
    before, other = judges(ROWSTATS), judges(STAMP)
    assert before == judges(ROWSTATS) and before[0] != before[1]
    with oracle(changed()):
        after = judges(ROWSTATS)
        assert not set(before) & set(after) and judges(STAMP) == other
    with oracle(source() + b"\n# a comment\n"):
        assert judges(ROWSTATS) == before
    assert judges(ROWSTATS) == before


def row(op: str, kind: Kind) -> Row:
    """Made today: by the judge of a simulated device, or measured."""
    asked = problem(op)
    kernel = registry.kernel(op, registry.operator(op).kernels[0])
    now = current(FakeDevice())
    return Row(
        key=DispatchKey.of(asked, SM100A.name),
        config=str(kernel.config_class()),
        kind=kind,
        time_us=1.0,
        low_us=1.0,
        high_us=1.0,
        provenance=Provenance(
            kernel_source=key.kernel_source_hash(kernel),
            dsl_version=now.dsl_version,
            model=now.model(kind, op),
        ),
        protocol="by hand",
        date="2025-01-02T00:00:00+00:00",
    )


def test_rows_of_the_operator_are_stale_when_the_oracle_changed() -> None:
    """In one table with another operator's rows, which are not; nor is a time that was measured."""
    simulated, measured, other = row(ROWSTATS, KINDS[0]), row(ROWSTATS, KINDS[1]), row(STAMP, KINDS[0])
    assert simulated.provenance.model.startswith("fake oracle ") and measured.provenance.model == ""
    assert [stale_reason(one, current(FakeDevice())) for one in (simulated, measured, other)] == ["", "", ""]
    with oracle(changed()):
        now = current(FakeDevice())
        assert stale_reason(simulated, now).startswith("model fake oracle ")
        assert [stale_reason(one, now) for one in (measured, other)] == ["", ""]
    with oracle(source() + b"\n# a comment\n"):
        assert stale_reason(simulated, current(FakeDevice())) == ""


def test_rows_of_an_operator_that_this_version_lacks_are_stale() -> None:
    assert current(FakeDevice()).oracle("no_such_operator") == ""
    assert current(FakeDevice()).oracle(STAMP) == check_version(STAMP)
