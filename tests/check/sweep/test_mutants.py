"""The mutants of a sweep, of a kernel of a dozen lines: counted by hand, and what the rules say of survivors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernel_space.check.sweep.coverage import Coverage, Seen
from kernel_space.check.sweep.harmless import Facts, why_harmless
from kernel_space.check.sweep.mutant import Kernel, Mutant
from kernel_space.check.sweep.run import (
    NOT_APPLICABLE,
    REPORTED,
    SURVIVES,
    Answer,
    chosen,
    judged,
    mutants_of,
    table,
)
from kernel_space.check.sweep.text import Source
from kernel_space.machine.run.run import run_ptx
from tests.machine.ptx import program

# Two warps; the first writes a word by every lane and sends 128 bytes by lane 0.
BODY = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
ld.param.u64 %d1, [out];
setp.ge.u32 %p2, %r1, 32;
@%p2 bra DONE;
mad.lo.u32 %r11, %r1, 4, %r10;
st.shared.u32 [%r11], %r1;
fence.proxy.async.shared::cta;
bar.sync 1, 32;
elect.sync %r12|%p1, -1;
not.pred %p3, %p1;
@%p3 bra SENT;
cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r10], 128;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
SENT:
bar.sync 1, 32;
DONE:
griddepcontrol.launch_dependents;
"""
FACTS = Facts(cluster_size=1, ctas_per_sm=1, launches_early=False)


def ran(ptx: str, **options: Any) -> tuple[str, list[int]]:
    out = np.zeros(32, np.uint32)
    result = run_ptx(ptx, out, block=(64, 1, 1), smem_bytes=1024, **options)
    return str(result.status), out.tolist()


@pytest.fixture(scope="module")
def seen() -> Seen:
    coverage = Coverage()
    assert ran(program(BODY), observer=coverage) == ("OK", list(range(32)))
    return coverage.seen


@pytest.fixture(scope="module")
def mutants(seen: Seen) -> list[Mutant]:
    return mutants_of(program(BODY), seen)


def test_coverage_is_who_executes_what(seen: Seen) -> None:
    source = Source(program(BODY))
    kernel = Kernel(source=source, seen=seen)
    by_opcode = {one.instr.opcode: kernel.warps(one) for one in source.statements}
    every = (1 << 32) - 1
    assert by_opcode["st.shared.u32"] == {0: every}
    assert by_opcode["cp.async.bulk.commit_group"] == {0: 1}
    assert by_opcode["griddepcontrol.launch_dependents"] == {0: every, 1: every}


def test_every_kind_of_mutant_is_there(mutants: list[Mutant]) -> None:
    """Counted by hand. Instructions: st, fence, bar, elect, copy, commit, wait, bar, launch_dependents."""
    count = {kind: [one for one in mutants if one.kind == kind] for kind in {one.kind for one in mutants}}
    assert len(count["removed"]) == 8  # all but elect
    # fence: global only, and a memory fence; bars: arrive only; wait_group: .read
    assert sorted(one.what for one in count["weakened"]) == [
        ".shared::cta -> .global", ".sync -> .arrive", ".sync -> .arrive", ".wait_group -> .wait_group.read",
        "proxy fence -> fence.acq_rel.gpu",
    ]  # fmt: skip
    # st and fence, fence and bar, copy and commit, commit and wait; the branch with bar before and behind
    assert len(count["misplaced"]) >= 4
    assert {one.what for one in count["wrong mask"]} == {"members 0 to 15 only"}
    assert len([one for one in count["wrong size"] if "threads" in one.what]) == 4


def test_every_mutant_is_a_program_and_each_but_the_harmless_is_found(
    mutants: list[Mutant], seen: Seen
) -> None:
    """Survivors by hand: the launch orders nothing; nothing follows the last barrier; any lane may be elected for all
    three; the fence may stand behind the barrier, the last wait too; the CTA's end needs only the source read; a
    barrier of 0 threads is one of all that have not exited, here of the one warp."""
    survivors = []
    for one in mutants:
        status, out = ran(one.text)
        assert status != "UNSUPPORTED", one
        if status == "OK" and out == list(range(32)):
            survivors.append((one.statement.instr.opcode, one.kind, one.what))
    assert {what for _, kind, what in survivors if kind == "wrong size"} == {"-32 threads"}
    assert {(opcode, kind) for opcode, kind, _ in survivors} == {
        ("griddepcontrol.launch_dependents", "removed"), ("griddepcontrol.launch_dependents", "wrong thread"),
        ("bar.sync", "removed"), ("bar.sync", "weakened"), ("bar.sync", "wrong value"), ("bar.sync", "misplaced"),
        ("bar.sync", "wrong size"),
        ("elect.sync", "wrong thread"), ("fence.proxy.async.shared::cta", "misplaced"),
        ("cp.async.bulk.wait_group", "weakened"), ("cp.async.bulk.wait_group", "misplaced"),
    }, survivors  # fmt: skip


def test_a_seed_chooses_the_same_mutants_and_as_many_of_each_kind(mutants: list[Mutant]) -> None:
    few = chosen(mutants, 6, 3)
    assert few == chosen(mutants, 6, 3) and len(few) == 6
    assert few != chosen(mutants, 6, 4)
    kinds = [one.kind for one in few]
    assert max(kinds.count(kind) for kind in kinds) == 1
    assert chosen(mutants, None, 0) == mutants == chosen(mutants, 10_000, 0)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        ("RACE", REPORTED),
        ("HUNG", REPORTED),
        ("DIED", REPORTED),
        ("UNSUPPORTED", NOT_APPLICABLE),
        ("OK", SURVIVES),
    ],
)
def test_a_verdict_of_each_answer(mutants: list[Mutant], seen: Seen, status: str, verdict: str) -> None:
    mutant = next(one for one in mutants if "launch_dependents" in one.statement.text)
    found = judged(mutant, Answer(status=status, reason="why", seconds=0.0), program(BODY), seen, FACTS)
    assert found.verdict == verdict
    assert found.status == (status if verdict == REPORTED else "")
    if verdict == SURVIVES:
        assert "orders no memory" in found.reason and not found.unexplained
    counted = table([found])[0]
    assert sum(counted[name] for name in ("reported", "harmless", "unexplained", "not_applicable")) == 1


def test_what_nobody_executes_needs_no_run(seen: Seen) -> None:
    nobody = {key: warps for key, warps in seen.items() if key[1] != 6}
    body = mutants_of(program(BODY), nobody)
    stores = [one for one in body if one.statement.tokens[0] == "st" and one.other is None]
    assert stores and {one.proof for one in stores} == {"no thread executes it in the exercise"}


def test_no_rule_excuses_a_missing_fence(mutants: list[Mutant], seen: Seen) -> None:
    kernel = Kernel(source=Source(program(BODY)), seen=seen)
    missing = [
        one for one in mutants if one.kind == "removed" and one.statement.tokens[0] != "griddepcontrol"
    ]
    assert {why_harmless(kernel, one, FACTS) for one in missing} == {""}


READS = """
mov.u32 %r1, %tid.x;
mov.u32 %r10, smem;
bar.sync 1, 64;
mad.lo.u32 %r11, %r1, 4, %r10;
ld.shared.u32 %r5, [%r11];
{use}fence.proxy.async.shared::cta;
bar.sync 1, 64;
add.u32 %r6, %r5, 1;
"""


@pytest.mark.parametrize(("use", "excused"), [("", False), ("add.u32 %r7, %r5, 2;\n", True)])
def test_a_fence_behind_reads_that_are_over_is_excused(use: str, excused: bool) -> None:
    """And not behind one whose register nobody has needed yet."""
    text = program(READS.format(use=use))
    coverage = Coverage()
    run_ptx(text, np.zeros(32, np.uint32), block=(64, 1, 1), smem_bytes=1024, observer=coverage)
    found = [
        one
        for one in mutants_of(text, coverage.seen)
        if one.statement.tokens[0] == "fence" and one.kind in ("removed", "weakened")
    ]
    kernel = Kernel(source=Source(text), seen=coverage.seen)
    assert len(found) > 1
    assert {"under way" in why_harmless(kernel, one, FACTS) for one in found} == {excused}
