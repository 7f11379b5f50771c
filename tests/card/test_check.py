"""The check of a card, on CPU memory with kernels written in torch: each defect is found and named. The oracle of the
correct kernel's result is the oracle's decoding (``model_kernels``); the defects are what the tests put in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.operators.svdquant_gemm.inputs import TORCH_DTYPES
from kernel_space.operators.svdquant_gemm.operands import ARGUMENT_ORDER, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.operators.svdquant_gemm.model_kernels import (
    NARROW_SUMS,
    RIGHT,
    WRONG_SCALES,
    Model,
    fp16,
    shaped,
    without_subnormals,
)
from tuner.card.worker.arena import ALIGNMENT, GUARD_BYTES, Arena
from tuner.card.worker.candidate import Case
from tuner.card.worker.check import CaseReport, CheckFailed, check_case
from tuner.trials.outcome import Status

pytestmark = pytest.mark.usefixtures("one_thread")

PROBLEM = GemmProblem(m=37, k=96, n=24, r=16)
SEED = 7
SPLIT = Case(problem=PROBLEM, workspace_bytes=4096, zeroed_bytes=256)
Kernel = Callable[[Arena, torch.Tensor, int], None]  # memory, right result, number of the launch


def split_in(parts: int) -> Any:
    """A config as the oracle sees it."""
    return SimpleNamespace(partial_sums=parts)


def run(
    kernel: Kernel,
    case: Case = SPLIT,
    repeats: int = 4,
    *,
    model: Model = RIGHT["rounding"],
    seed: int = SEED,
) -> tuple[CaseReport, int]:
    known: dict[bytes, torch.Tensor] = {}
    count = 0

    def result(arena: Arena) -> torch.Tensor:
        """Of the operands that lie there now."""
        key = arena.bytes_of("ascales").numpy().tobytes()
        if key not in known:
            tensors = {name: arena.bytes_of(name) for name in ARGUMENT_ORDER}
            dtype = TORCH_DTYPES[case.problem.out_dtype]
            known[key] = model(shaped(tensors, case.problem), dtype)
        return known[key]

    def bind(arena: Arena) -> Callable[[], None]:
        def launch() -> None:
            nonlocal count
            count += 1
            kernel(arena, result(arena), count)

        return launch

    report = check_case(
        bind,
        case,
        config=split_in(model.splits),
        repeats=repeats,
        seed=seed,
        device="cpu",
        wait=lambda what: None,
    )
    assert len(known) == 2, "operands of a layer, and of every scale"
    return report, count


def only(arena: Arena, right: torch.Tensor, count: int) -> None:
    """A kernel without a workspace."""
    arena.view("y", right.dtype, tuple(right.shape)).copy_(right)


def output(arena: Arena, problem: GemmProblem = PROBLEM) -> torch.Tensor:
    return arena.view("y", TORCH_DTYPES[problem.out_dtype], (problem.m, problem.n))


def good(arena: Arena, right: torch.Tensor, count: int) -> None:
    output(arena).copy_(right)
    arena.bytes_of("workspace")[256:].fill_(9)  # partial sums may stay


def memory_around(arena: Arena, name: str, offset: int) -> torch.Tensor:
    """One byte at ``offset`` from the start of a buffer, wherever that is."""
    start = arena.bytes_of(name).data_ptr() - arena._memory.data_ptr()
    return arena._memory[start + offset : start + offset + 1]


def stray(name: str, offset: int) -> Kernel:
    def kernel(arena: Arena, right: torch.Tensor, count: int) -> None:
        good(arena, right, count)
        memory_around(arena, name, offset).fill_(0x11)

    return kernel


def wrong_element(arena: Arena, right: torch.Tensor, count: int) -> None:
    good(arena, right, count)
    output(arena)[36, 23] *= 1.05


def left_out(arena: Arena, right: torch.Tensor, count: int) -> None:
    output(arena)[:-1] = right[:-1]


def flaky(arena: Arena, right: torch.Tensor, count: int) -> None:
    good(arena, right, count)
    if count == 5:  # the second on the second operands
        output(arena).view(torch.int16)[5, 3] += 1


def reads_behind_act(arena: Arena, right: torch.Tensor, count: int) -> None:
    good(arena, right, count)
    beyond = memory_around(arena, "act", arena.bytes_of("act").numel())
    output(arena).view(torch.int16)[0, 0] += int(beyond) & 1


def adds_to_what_y_held(arena: Arena, right: torch.Tensor, count: int) -> None:
    old = output(arena).nan_to_num(nan=0.0)
    output(arena).copy_(right)
    output(arena)[2, 2] += old[2, 2] * 0.01


def keeps_counters(arena: Arena, right: torch.Tensor, count: int) -> None:
    good(arena, right, count)
    arena.bytes_of("workspace")[252] = 1


def test_a_right_kernel_passes_and_is_launched_often_enough() -> None:
    report, count = run(good, repeats=6)
    assert report.launches == count == 3 + 7
    assert report.elements == 37 * 24
    assert report.max_ratio <= 0.5, "rounded correctly it is half a unit in the last place off at most"


Y_BYTES = 37 * 24 * 2
DEFECTS = {
    "one byte behind y": (stray("y", Y_BYTES), Status.ILLEGAL_ACCESS, "1 bytes changed behind y, the first 0 past"),
    "a row behind y": (stray("y", Y_BYTES + 47), Status.ILLEGAL_ACCESS, "behind y, the first 47 past its end"),
    "ahead of y": (stray("y", -2), Status.ILLEGAL_ACCESS, "1 bytes changed before y, the first 2 bytes ahead of it"),
    "behind the workspace": (stray("workspace", 4096), Status.ILLEGAL_ACCESS, "behind workspace"),
    "ahead of everything": (stray("act", -GUARD_BYTES), Status.ILLEGAL_ACCESS, f"before act, the first {GUARD_BYTES}"),
    "into a weight": (stray("wgt", 100), Status.ILLEGAL_ACCESS, "input: 1 bytes changed in wgt, the first at byte 100"),
    "into the scales' padding": (stray("ascales", 1023), Status.ILLEGAL_ACCESS, "in ascales"),
    "a wrong element": (wrong_element, Status.WRONG_RESULT, "1 of 888 elements beyond the tolerance; worst"),
    "a row left out": (left_out, Status.WRONG_RESULT, "24 of 888 elements"),
    "one launch differs": (flaky, Status.RACE, "launch 2 differs from the first"),
    "reads behind act": (reads_behind_act, Status.WRONG_RESULT, "depends on memory that is no operand"),
    "adds to what y held": (adds_to_what_y_held, Status.WRONG_RESULT, "depends on memory that is no operand"),
    "keeps its counters": (keeps_counters, Status.WRONG_RESULT, "counters were not left zero"),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_and_named(name: str) -> None:
    kernel, status, words = DEFECTS[name]
    with pytest.raises(CheckFailed) as failure:
        run(kernel)
    assert failure.value.status is status
    assert words in str(failure.value)
    assert str(failure.value).startswith("37,96,24,16: ") or "37,96,24,16" in str(failure.value)


# -- every scale factor, and how sums are kept

LONG = {"fp16": GemmProblem.parse("24,3840,48,32")}
LONG["bf16"] = dataclasses.replace(LONG["fp16"], lora_dtype="bf16", out_dtype="bf16")


@pytest.mark.parametrize("dtype", LONG)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_passes_however_it_sums_in_fp32(name: str, dtype: str) -> None:
    for seed in range(3):
        report, _ = run(only, Case(problem=LONG[dtype]), 2, model=RIGHT[name], seed=seed)
        assert report.max_ratio <= 1 and 0.3 < report.mean_error < report.mean_limit < 0.75


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.parametrize("shape", ["1,32,8,0", "3,96,24,256", "17,1056,8,16", "5,288,256,0"])
def test_a_right_kernel_passes_on_small_problems_of_many_seeds(shape: str, name: str) -> None:
    for seed in range(6):
        problem = GemmProblem.parse(shape, lora_dtype="bf16", out_dtype="fp16" if seed % 2 else "bf16")
        run(only, Case(problem=problem), 2, model=RIGHT[name], seed=seed)


@pytest.mark.parametrize("dtype", LONG)
@pytest.mark.parametrize("name", [*WRONG_SCALES, *NARROW_SUMS])
def test_a_wrong_decoding_and_a_narrow_sum_are_found(name: str, dtype: str) -> None:
    model = {**WRONG_SCALES, **NARROW_SUMS}[name]
    for seed in range(2):
        with pytest.raises(CheckFailed) as failure:
            run(only, Case(problem=LONG[dtype]), 2, model=model, seed=seed)
        assert failure.value.status is Status.WRONG_RESULT and "\n" not in str(failure.value)


def test_what_only_the_mean_shows_is_said_so() -> None:
    """Parts of split-K rounded to the output's format: no element is beyond its tolerance."""
    words = r"mean error \S+, at most \S+ for sums in fp32 .* in less than fp32"
    model = Model(splits=2, partials=fp16)
    with pytest.raises(CheckFailed, match=words) as failure:
        run(only, Case(problem=dataclasses.replace(LONG["fp16"], m=128)), 2, model=model)
    assert failure.value.status is Status.WRONG_RESULT


def test_results_that_are_subnormal_must_not_be_flushed() -> None:
    with pytest.raises(CheckFailed, match="beyond the tolerance"):
        run(only, Case(problem=PROBLEM), 2, model=Model(output=without_subnormals))


def test_operands_are_fresh_for_each_seed_and_in_the_arena() -> None:
    seen = []

    def bind(arena: Arena) -> Callable[[], None]:
        seen.append(arena.bytes_of("act").clone())
        raise InterruptedError

    for seed in (1, 2, 1):
        with pytest.raises(InterruptedError):
            check_case(
                bind, SPLIT, config=split_in(1), repeats=2, seed=seed, device="cpu", wait=lambda what: None
            )
    assert torch.equal(seen[0], seen[2]) and not torch.equal(seen[0], seen[1])
    assert torch.equal(seen[0].view(37, 48), make_operands(PROBLEM, 1).act)


def test_a_problem_without_lora_and_workspace_gets_null_pointers() -> None:
    problem = dataclasses.replace(PROBLEM, r=0)

    def kernel(arena: Arena, right: torch.Tensor, count: int) -> None:
        assert [arena.address(name) for name in ("lora_act_in", "lora_up", "workspace")] == [0, 0, 0]
        output(arena, problem).copy_(right)

    report, _ = run(kernel, Case(problem=problem))
    assert report.max_ratio <= 0.5


def test_buffers_of_an_arena_are_aligned_apart_and_of_their_size() -> None:
    sizes = {"a": 1000, "b": 1, "c": 3}
    arena = Arena(sizes, "cpu", guards={"c": 5000})
    starts = {name: arena.address(name) for name in sizes}
    assert all(start % ALIGNMENT == 0 for start in starts.values())
    assert {name: arena.bytes_of(name).numel() for name in sizes} == sizes
    ends = {name: starts[name] + size for name, size in sizes.items()}
    assert starts["b"] - ends["a"] >= GUARD_BYTES and starts["c"] - ends["b"] >= 5000


def test_only_bytes_between_buffers_are_guards() -> None:
    """Every byte of the allocation is either in one buffer or guarded."""
    sizes = {"a": 10, "b": 300}
    arena = Arena(sizes, "cpu", guards={"a": 256, "b": 256})
    arena.fill_guards(0)
    for name in sizes:
        arena.bytes_of(name).fill_(1)
    assert not arena.damaged_guards(0)
    guarded = int((arena._memory == 0).sum())
    assert guarded == arena.nbytes - sum(sizes.values())
    found = 0
    for position in range(0, arena.nbytes, 7):
        before = int(arena._memory[position])
        arena._memory[position] = 2
        found += bool(arena.damaged_guards(0))
        arena._memory[position] = before
    expected = sum(int(arena._memory[position]) == 0 for position in range(0, arena.nbytes, 7))
    assert found == expected
