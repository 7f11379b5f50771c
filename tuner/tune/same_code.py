"""Stale rows whose kernel is still the code that was timed: fresh again, and nothing is timed.

A row is stale when the sources of its kernel or the compiler changed, and most such changes leave most kernels as they
were: a kernel beside it, a shared helper, a docstring in code. Built again, such a kernel gives the cubin that was
timed, to the byte, launched by the same host code with the same room beside its operands. Then the row's time, check
and runner-up stand as they were found, and the row says in its evidence as of which sources it was found to be so.
No card is needed, as nothing about a time is claimed that a card did not say.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kernel_space.build.build import build
from kernel_space.build.dsl_compile import CompileError
from kernel_space.core.arch import Arch
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel_of, parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.launch.host_code import same_host_code
from tuner.search.trial_of import utc_now
from tuner.tables.bundle import Bundle, Entry, launch_facts
from tuner.tables.merge import Current
from tuner.tables.row import Row
from tuner.tune.retime import Outdated

EVIDENCE = "same_code"  # list of {"date", "kernel_source", "dsl_version"}: when, and of what the code was built before


@dataclasses.dataclass(frozen=True, kw_only=True)
class SameCode:
    """``row`` of today's sources where its code is the same, else None and ``reason`` says what differs."""

    outdated: Outdated
    row: Row | None
    reason: str


def same_code(outdated: Outdated, now: Current, bundles: Sequence[Bundle], arch: Arch) -> SameCode:
    """Builds the row's kernel (about a second, no card). ``bundles``: of the device, where the timed object may be."""
    row = outdated.row
    try:
        if reason := _not_by_code_alone(row, now):
            return SameCode(outdated=outdated, row=None, reason=reason)
        _compare(row, bundles, arch)
    except (_DiffersError, CompileError) as error:
        return SameCode(outdated=outdated, row=None, reason=str(error))
    return SameCode(outdated=outdated, row=_renewed(row, now), reason="")


class _DiffersError(Exception):
    """What keeps a row from standing."""


def _not_by_code_alone(row: Row, now: Current) -> str:
    """What else a stale row's time depends on; empty if its code is all that can have changed."""
    if row.provenance.model != now.provenance(row).model:
        return "the machine and clock that judged it are others now: only a retime tells"
    return "" if now.kernel_source(row) else "there is no such kernel any more"


def _compare(row: Row, bundles: Sequence[Bundle], arch: Arch) -> None:
    """Raises ``_DiffersError``, and ``CompileError`` where today's sources give no kernel."""
    problem = row.key.problem
    config = parse_config(row.key.op, arch, row.config)
    legal = legalize(config, problem, arch)
    # Not by their texts: a row is silent about a knob that it did not have yet, which then has its default.
    if not isinstance(legal, Legal) or legal.config != config:
        raise _DiffersError("its config is not what today's rules make of it")
    entry, then = _timed(row, bundles)
    today = build(config, problem.problem_class, arch, kernel=kernel_of(config, problem))
    if not row.cubin_sha256 or today.cubin_sha256 != row.cubin_sha256:
        raise _DiffersError(
            f"its cubin is {today.cubin_sha256[:12]} now, {row.cubin_sha256[:12] or 'unknown'} was timed"
        )
    if today.arguments != entry.arguments:
        raise _DiffersError("its host function takes other arguments now")
    if entry.launch != launch_facts(config, entry.problem):
        raise _DiffersError("it is launched with another room or number of clusters now")
    try:
        same = same_host_code(then, entry.prefix, today.object_path.read_bytes(), today.prefix)
    except InputError as error:
        raise _DiffersError(f"its host code cannot be compared: {error}") from None
    if not same:
        raise _DiffersError("its cubin is the same, the host code that launches it is not")


def _timed(row: Row, bundles: Sequence[Bundle]) -> tuple[Entry, bytes]:
    """The object that was timed, by its SHA-256 in the row, from a bundle: that keeps what a launch takes besides.

    Raises ``_DiffersError`` where it is in none, or damaged."""
    if row.object is None:
        raise _DiffersError("the row names no object")
    for bundle in bundles:
        for entry in bundle.entries:
            if entry.sha256 == row.object.sha256:
                try:
                    return entry, bundle.file_of(entry).read()
                except InputError as error:
                    raise _DiffersError(str(error)) from None
    raise _DiffersError("the object that was timed is in no bundle")


def _renewed(row: Row, now: Current) -> Row:
    """The time, its date, check and object stay: they are of the code, not of its sources."""
    then = row.provenance
    seen = {"date": utc_now(), "kernel_source": then.kernel_source, "dsl_version": then.dsl_version}
    evidence = {**row.evidence, EVIDENCE: [*_before(row), seen]}
    return dataclasses.replace(row, provenance=now.provenance(row), evidence=evidence)


def _before(row: Row) -> list[Any]:
    before = row.evidence.get(EVIDENCE)
    return before if isinstance(before, list) else []
