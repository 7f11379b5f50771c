"""The check knows operators by the object alone: one from outside, two outputs, no module for the machine, then one.

The operator is ``tests/plugins/rowstats``; what must come out is counted by hand or follows from the edit of its PTX.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kernel_space.build.build import CompiledKernel, build
from kernel_space.check.memory import CheckMemory
from kernel_space.check.problem import cut, exercises, most_instructions, seconds
from kernel_space.check.validate import ALL, CheckResult, CheckStatus, check_candidate, check_full
from kernel_space.check.version import check_version
from kernel_space.core import registry
from kernel_space.core.arch import SM100A
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel, Room
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from kernel_space.core.traits import MachineTraits, traits_of

PLAIN = "rows=4 vec=2"
TWO = "fused=false use_pdl=true"
PROBLEM_TEXT = "21,136"


def problem(text: str = PROBLEM_TEXT) -> Problem:
    return registry.operator("rowstats").problem.parse(text)


def resolved(text: str) -> KernelConfig:
    legal = legalize(registry.parse_config("rowstats", SM100A, text), problem(), SM100A)
    assert isinstance(legal, Legal), legal
    return legal.config


@functools.cache
def built(text: str) -> CompiledKernel:
    return build(resolved(text), problem().problem_class, SM100A)


def check(text: str = PLAIN, edit: tuple[str, str] | None = None, **options: Any) -> CheckResult:
    """``edit``: (what of the PTX, in one place, by what)."""
    ptx = None
    if edit:
        ptx, count = re.subn(*edit, built(text).ptx)
        assert count == 1, f"{edit[0]} occurs {count} times"
    return check_candidate(built(text), resolved(text), problem(), ptx=ptx, **options)


# -- the problems --


def test_small_problems_are_the_operator_s_own_and_its_ragged_ones() -> None:
    """2 * 4 + 1 rows, and columns of three turns of a warp and a bit: what ragged says for rows=4 vec=2; 3 SMs."""
    found = exercises(resolved(PLAIN), problem("4096,3072"), SM100A)
    sizes = [(small.m, small.k) for small, _ in found]
    assert sizes[1:] == [(9, 196), (1, 4)] and {sms for _, sms in found} == {3}
    assert sizes[0][0] < 4096 and seconds(found[0][0]) <= 1.0 < seconds(problem("4096,3072"))


def test_variants_that_a_kernel_cannot_take_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = registry.operator("rowstats")
    odd = lambda config, problem: [dataclasses.replace(problem, k=134), dataclasses.replace(problem, m=2)]  # noqa: E731
    monkeypatch.setattr(registry, "operator", lambda name: dataclasses.replace(operator, ragged=odd))
    config = resolved("vec=8")
    assert [str(small) for small, _ in exercises(config, problem(), SM100A)] == ["21,136", "2,136"]


def test_operator_without_ragged_variants_gets_sizes_one_step_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator = registry.operator("rowstats")
    monkeypatch.setattr(registry, "operator", lambda name: dataclasses.replace(operator, ragged=None))
    found = {str(small) for small, _ in exercises(resolved(PLAIN), problem(), SM100A)}
    assert found == {"21,136", "20,136", "1,136", "21,134", "21,2"}


def test_a_cut_keeps_what_is_left_beyond_whole_steps() -> None:
    whole = problem("100007,1034")
    smaller = cut(resolved(PLAIN), whole, SM100A, 30.0)
    assert seconds(smaller) <= 30.0 and smaller.m < whole.m
    assert (smaller.m % 256, smaller.k) == (100007 % 256, 1034)
    assert cut(resolved(PLAIN), whole, SM100A, 1e9) == whole


def test_no_correct_run_comes_near_the_budget_of_instructions() -> None:
    for small, sms in exercises(resolved(PLAIN), problem(), SM100A):
        result = check(schedules=("eager",))
        assert result.ok and max(run.instructions for run in result.runs) * 10 < most_instructions(
            resolved(PLAIN), small, sms
        )


# -- right and wrong --


@pytest.mark.parametrize("text", [PLAIN, TWO, "rows=1 vec=8"])
def test_right_kernel_passes_on_every_problem_under_every_schedule(text: str) -> None:
    result = check(text)
    assert result.ok, result.findings
    assert len(result.problems) == 3
    assert [run.schedule for run in result.runs] == list(ALL) * 3
    assert result.bitwise is True and list(result.outputs) == ["y", "count"]
    assert result.outputs["y"].elements == sum(one.m * one.k for one in result.problems)
    assert result.outputs["count"].elements == sum(one.m for one in result.problems)
    assert "y and count to the bit" in str(result)


NOT_DOUBLED = r"add\.f16 (\s*%rs\d+), (%rs\d+), \2;(?=\s+setp)"
NOT_COUNTED = r"shfl\.sync\.bfly\.b32 (\s*%r\d+), (%r\d+), 16,"
WRONG = {
    "half of y is not doubled": (NOT_DOUBLED, r"mov.b16 \1, \2;", "y: "),
    "half of the warp is not counted": (NOT_COUNTED, r"shfl.sync.bfly.b32 \1, \2, 0,", "count: "),
    "0 counts as positive": (r"setp\.gt\.f16 (\s*%p3)", r"setp.ge.f16 \1", "count: "),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_output_is_named(what: str) -> None:
    pattern, replacement, named = WRONG[what]
    result = check(edit=(pattern, replacement), schedules=("eager",))
    assert result.status is CheckStatus.WRONG_RESULT, result
    assert result.reason.startswith(named) and "elements differ; the first at" in result.reason
    other = "count" if named == "y: " else "y"
    assert result.outputs[other].ok and "\n" not in result.reason


def test_output_that_is_never_written_is_told_though_its_bytes_may_look_right() -> None:
    result = check(edit=(r"st\.global\.b32[^;]*;", ""), schedules=("eager",))
    assert result.status is CheckStatus.WRONG_RESULT
    assert result.reason.startswith("count: 21 of 21 elements differ")
    assert result.reason.endswith("21 elements were never written")


def test_poison_changes_from_run_to_run() -> None:
    """All ones are -1, which may be what an integer output must hold: no byte stands there in every run."""
    memory = CheckMemory(resolved(PLAIN), problem(), 0)
    seen = []
    for run in range(2):
        memory.poison(run)
        assert memory.unwritten("count") == 21 and memory.unwritten("y") == 21 * 136
        seen.append(memory.tensors["count"].clone())
    assert not torch.equal(*seen)


def test_write_beyond_an_output_is_illegal() -> None:
    """The last row's count goes 4 bytes further, into the guard."""
    result = check(
        edit=(r"st\.global\.b32 (\s*)\[(%rd\d+)\]", r"st.global.b32 \1[\2+4]"), schedules=("eager",)
    )
    assert result.status is CheckStatus.ILLEGAL_ACCESS and "count" in result.findings


def test_endless_loop_ends_with_the_budget() -> None:
    result = check(edit=(r"add\.s32 (\s*%r22), %r22, 64;", r"add.s32 \1, %r22, 0;"), schedules=("eager",))
    assert result.status is CheckStatus.BUDGET_EXCEEDED


def test_full_problem_is_cut_for_any_operator() -> None:
    whole = problem("2000,136")
    result = check_full(built(PLAIN), resolved(PLAIN), whole, limit_s=seconds(whole) / 2)
    assert result.ok, result.findings
    assert result.problem.k == 136 and result.problem.m < 2000 and not result.races
    assert check_full(built(PLAIN), resolved(PLAIN), problem(), limit_s=10).problem == problem()


# -- memory --


def test_operator_without_a_workspace_in_its_list_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the kernel says that it needs."""
    kernel = registry.kernel("rowstats", "rows")
    with_room = dataclasses.replace(kernel, room=lambda config, problem: Room(size=512, zeroed=8))
    monkeypatch.setattr(registry, "kernel", lambda operator, name: with_room)
    memory = CheckMemory(resolved(PLAIN), problem(), 0)
    assert memory.workspace is None and memory.left_counters() == ""


def test_changed_input_is_told() -> None:
    memory = CheckMemory(resolved(PLAIN), problem(), 0)
    memory.poison()
    assert memory.illegal_writes() == []
    memory.tensors["x"][2, 3] += 1
    assert memory.illegal_writes() == ["operand x was overwritten"]


def test_inputs_that_are_not_what_the_signature_says_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = registry.operator("rowstats")
    wrong = dataclasses.replace(operator, inputs=lambda *_: {"x": torch.zeros(21, 136)})
    monkeypatch.setattr("kernel_space.check.memory.operator_of", lambda problem: wrong)
    with pytest.raises(InputError, match=r"x must be float16 \[21, 136\], got float32 \[21, 136\]"):
        CheckMemory(resolved(PLAIN), problem(), 0)


# -- with a module for the machine --


@pytest.fixture
def with_machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernel]:
    kernel = registry.kernel("rowstats", "rows")
    stated = dataclasses.replace(kernel, machine="tests.check.rowstats_machine")
    monkeypatch.setattr(registry, "kernel", lambda operator, name: stated)
    yield stated


def test_kernel_s_own_problem_and_names_are_taken(with_machine: Kernel) -> None:
    result = check()
    assert result.ok and [str(one) for one in result.problems] == ["13,80"] and result.sms == 2
    assert check_full(built(PLAIN), resolved(PLAIN), problem()).problem.m == 5
    endless = (r"add\.s32 (\s*%r22), %r22, 64;", r"add.s32 \1, %r22, 0;")
    stuck = check(edit=endless, schedules=("eager",))
    assert stuck.status is CheckStatus.BUDGET_EXCEEDED and "row0" in stuck.findings
    assert most_instructions(resolved(PLAIN), problem(), 2) == 20_000


def test_module_that_is_not_there_or_holds_something_else_is_one_line() -> None:
    kernel = registry.kernel("rowstats", "rows")
    for module, words in (
        ("no.such.module", "names the module no.such.module"),
        ("rowstats.oracle", "TRAITS"),
    ):
        with pytest.raises(InputError, match=words):
            traits_of(dataclasses.replace(kernel, machine=module))
    assert traits_of(kernel) is traits_of(dataclasses.replace(kernel, name="other"))
    assert isinstance(traits_of(kernel), MachineTraits) and traits_of(kernel).exercise is None


# -- what a verdict depends on --


def test_version_follows_the_operator_s_own_oracle(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the folder, then a change of its oracle, of its kernel's rules and of a comment."""
    import kernel_space.build.key as key

    own = registry.folder_of("rowstats") / "oracle.py"
    before, stamp = check_version("rowstats"), check_version("stamp")
    assert before != stamp and before != check_version("svdquant_gemm")
    source = own.read_bytes()

    def with_oracle(data: bytes) -> str:
        read = key._source
        monkeypatch.setattr(
            key, "_source", lambda module: data if module == "rowstats.oracle" else read(module)
        )
        for kept in (check_version, key.source_hash):
            kept.cache_clear()
        try:
            return check_version("rowstats")
        finally:
            monkeypatch.undo()
            for kept in (check_version, key.source_hash):
                kept.cache_clear()

    assert with_oracle(source + b"\n# a comment\n") == before
    assert with_oracle(source.replace(b"x > 0", b"x >= 0")) != before
    assert check_version("rowstats") == before


def test_an_output_that_nobody_judges_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An oracle that forgets ``count`` would call any count right."""
    real = registry.operator("rowstats")
    forgetful = dataclasses.replace(
        real, check=lambda *asked: {"y": real.check(*asked)["y"]}, runtime=real.runtime
    )
    monkeypatch.setattr("kernel_space.check.memory.operator_of", lambda problem: forgetful)
    with pytest.raises(InputError, match="must judge each of its outputs, y, count; it judges y"):
        check(schedules=("eager",))
