"""Checks of candidates: the problems they run on, what they catch, and that a right kernel passes."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re

import pytest
import torch

from kernel_space.build.build import CompiledKernel, build
from kernel_space.build.readback import with_layouts
from kernel_space.check.memory import GUARD_BYTES, CheckMemory, Guarded
from kernel_space.check.regions import RegionWatch, barrier_names, smem_slots
from kernel_space.check.validate import (
    ALL,
    CheckResult,
    CheckStatus,
    check_candidate,
    check_full,
)
from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.budget import budget
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.exercise import cut, exercise, full_seconds
from kernel_space.operators.svdquant_gemm.sm100a.machine import is_barrier
from kernel_space.operators.svdquant_gemm.sm100a.rules import EPI_TILES_N, MMA_TILERS_MN

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
SMALL = "mma_tiler_mn=128x64 cluster_shape_mn=1x1 num_ab_stage=3 epi_tile_n=32"
PAIR = "mma_tiler_mn=256x64 cluster_shape_mn=2x1 num_ab_stage=3 epi_tile_n=32"
SPLIT = f"{SMALL} split_k=2"


def resolved(text: str, problem: GemmProblem = PROBLEM) -> KernelConfigSm100a:
    legal = legalize(KernelConfigSm100a.parse(text), problem, SM100A)
    assert isinstance(legal, Legal), legal
    return legal.config


@functools.cache
def built(text: str, problem: GemmProblem = PROBLEM) -> tuple[KernelConfigSm100a, CompiledKernel]:
    config = resolved(text, problem)
    return config, build(config, problem.problem_class, SM100A)


def check(text: str, ptx: str | None = None, **options: object) -> CheckResult:
    config, compiled = built(text)
    return check_candidate(compiled, config, PROBLEM, ptx=ptx, **options)


def mutated(text: str, pattern: str, replacement: str, count: int = 1) -> str:
    """The kernel's PTX with ``count`` places changed; there must be as many."""
    ptx, found = re.subn(pattern, replacement, built(text)[1].ptx, count=count)
    assert found == count, f"{pattern} occurs {found} times"
    return ptx


def random_configs(count: int, problem: GemmProblem) -> list[KernelConfigSm100a]:
    source, found = random.Random(5), []
    while len(found) < count:
        legal = legalize(
            KernelConfigSm100a(
                mma_tiler_mn=source.choice(sorted(MMA_TILERS_MN)),
                mma_tiler_k=source.choice((128, 256)),
                cluster_shape_mn=(source.choice((1, 2, 4)), source.choice((1, 2, 4))),
                num_ab_stage=source.choice(("auto", 1, 2, 3, 5)),
                epi_tile_n=source.choice(EPI_TILES_N),
                split_k=source.choice((1, 1, 2, 4, 8, 16)),
                swap_ab=source.choice((False, True)),
                lora_buffer=source.choice(("dedicated", "ab_stage")),
            ),
            problem,
            SM100A,
        )
        if isinstance(legal, Legal):
            found.append(legal.config)
    return found


# -- the problem that exercises a candidate --


def walked(config: KernelConfigSm100a, problem: GemmProblem, sms: int) -> list[list[tuple[int, int, int]]]:
    """The kernel's persistent loop by brute force: per cluster, its (tile m, tile n, split), of the MMA."""
    rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
    cta_m, cta_n = 128, config.mma_tiler_mn[1]
    tiles_m = len(range(0, rows, cta_m * config.cluster_shape_mn[0]))
    tiles_n = len(range(0, columns, cta_n * config.cluster_shape_mn[1]))
    work = list(itertools.product(range(tiles_m), range(tiles_n), range(config.split_k)))
    clusters = min(len(work), sms // config.cluster_size)
    return [work[first::clusters] for first in range(clusters)]


@pytest.mark.parametrize(
    "shape",
    [pytest.param("4352,3840,3072,128", marks=pytest.mark.slow), "17,3840,3072,0", "256,8192,4096,256"],
)
def test_exercise_is_what_it_promises(shape: str) -> None:
    problem = dataclasses.replace(GemmProblem.parse(shape), lora_dtype="bf16")
    for config in random_configs(150, problem):
        small, sms = exercise(config, problem)
        about = f"{config} -> {small} on {sms} SMs"
        assert small.problem_class == problem.problem_class
        same = legalize(config, small, SM100A)
        assert isinstance(same, Legal) and same.config == config, about
        share = walked(config, small, sms)
        assert min(len(items) for items in share) >= 3, about
        cta_m, cta_n, block_k = config.cta_tile_mnk
        extent_m, extent_n = (cta_n, cta_m) if config.swap_ab else (cta_m, cta_n)
        assert small.m % extent_m and small.n % extent_n and small.m % 2, about
        assert small.n % 16 == 8, about
        k_tiles = -(-small.k // block_k)
        assert small.k % block_k and small.k % 64 == 32, about
        stages = int(config.num_ab_stage)
        assert stages == 1 or k_tiles % stages, about
        assert config.split_k == 1 or k_tiles % config.split_k, about
        turns = sum(len(items) for items in share) // len(share) * (k_tiles // config.split_k)
        assert turns >= stages + 1, about  # the ring wraps around
        assert sms <= 48 and small.m * small.n * small.k < 3e9, about


def test_exercise_meets_odd_tiles_along_n() -> None:
    """Tiles of 64 and 192 columns read other scale-factor columns when their number is odd."""
    for n, cluster in itertools.product((64, 192), ("1x1", "1x2", "2x2", "4x4")):
        config = resolved(f"mma_tiler_mn=128x{n} cluster_shape_mn={cluster}")
        small, _ = exercise(config, PROBLEM)
        assert small.n > n


@pytest.mark.parametrize(
    "text",
    [SMALL, PAIR, f"{SMALL} split_k=2", "mma_tiler_mn=128x256 cluster_shape_mn=1x1", "cluster_shape_mn=2x2",
     "mma_tiler_mn=128x128 cluster_shape_mn=1x4", "mma_tiler_mn=256x128 cluster_shape_mn=2x2", "cluster_shape_mn=4x4"],
)  # fmt: skip
def test_some_cluster_ends_on_the_first_of_two_accumulators(text: str) -> None:
    """A wait for the other accumulator is right until the last of an odd number of tiles."""
    config = resolved(text)
    assert int(config.num_acc_stage) == 2
    small, sms = exercise(config, PROBLEM)
    assert any(len(items) % 2 for items in walked(config, small, sms))


def test_every_split_meets_every_cluster() -> None:
    config = resolved(f"{SMALL} split_k=4")
    small, sms = exercise(config, PROBLEM)
    for items in walked(config, small, sms):
        assert len({split for _, _, split in items}) > 1


# -- names and memory --


@pytest.mark.parametrize("text", [SMALL, PAIR, "mma_tiler_mn=128x256 cluster_shape_mn=1x1", SPLIT])
def test_barrier_offsets_are_those_of_the_layouts(text: str) -> None:
    config = resolved(text)

    def offsets(layouts: object) -> dict[int, str]:
        names, offset = {}, 0
        barriers = {name for name, _, _ in layouts.barriers()}
        for region in layouts.allocations():
            offset = -(-offset // region.align) * region.align
            if region.name in barriers:
                names |= {offset + 8 * n: f"{region.name}[{n}]" for n in range(int(region.bytes) // 8)}
            offset += int(region.bytes)
        return names

    expected = with_layouts(config, PROBLEM.problem_class, "sm_100a", offsets)
    assert barrier_names(budget(config, PROBLEM.problem_class, SM100A), is_barrier) == expected
    assert {"ab_full[1]", "ab_empty[0]", "acc_full[0]"} < set(expected.values())


def test_slots_fill_the_budget() -> None:
    found = budget(resolved(PAIR), PROBLEM.problem_class, SM100A)
    slots = smem_slots(found)
    assert slots[0].start == 0 and slots[-1].end == found.smem_bytes
    assert all(one.end == other.start for one, other in itertools.pairwise(slots))


def test_guards_tell_a_byte_on_either_side() -> None:
    for at in (-1, -GUARD_BYTES, 40, 40 + GUARD_BYTES - 1):
        guarded = Guarded(40)
        assert guarded.touched() is None and guarded.bytes.data_ptr() % 256 == 0
        guarded.bytes.fill_(0)
        assert guarded.touched() is None
        guarded._whole[guarded._start + at] = 7
        assert guarded.touched() == at


def test_changed_operands_and_counters_are_told() -> None:
    config = resolved(SPLIT)
    memory = CheckMemory(config, exercise(config, PROBLEM)[0], 0)
    memory.poison()
    assert memory.illegal_writes() == [] and memory.left_counters() == ""
    assert memory.unwritten("y") == memory.tensors["y"].numel()
    memory.workspace.bytes.view(torch.int32)[2] = 1
    assert memory.left_counters().startswith("counter 2 of the workspace is 1 after the launch")
    memory.tensors["bias"][3] += 1
    assert memory.illegal_writes() == ["operand bias was overwritten"]


# -- right kernels --


@pytest.mark.parametrize(
    "text",
    [SMALL, PAIR, *(pytest.param(text, marks=pytest.mark.slow) for text in (SPLIT, f"{SMALL} swap_ab=true"))],
)
def test_right_kernel_passes_under_every_schedule(text: str) -> None:
    result = check(text)
    assert result.ok, result.findings
    assert [run.schedule for run in result.runs] == list(ALL)
    assert result.bitwise is True and len({run.digest for run in result.runs}) == 1
    assert result.outputs["y"].bad == 0
    assert result.outputs["y"].elements == result.problem.m * result.problem.n
    assert result.instructions == sum(run.instructions for run in result.runs) > 0
    assert str(result).startswith(f"OK: {result.problem} on {result.sms} SMs")


def test_full_problem_runs_once() -> None:
    config, compiled = built(SMALL)
    problem = GemmProblem.parse("130,288,72,128")
    result = check_full(compiled, config, problem)
    assert result.ok, result.findings
    assert result.problem == problem and [run.schedule for run in result.runs] == ["eager"]
    assert not result.races and result.bitwise is None


def test_large_problem_is_cut_and_says_so() -> None:
    config = resolved(SMALL)
    problem = GemmProblem.parse("4357,15360,15368,128")
    assert cut(config, problem, 1e9) == problem
    smaller = cut(config, problem, 60.0)
    assert full_seconds(config, smaller) <= 60.0 < full_seconds(config, problem)
    assert (smaller.k, smaller.r) == (problem.k, problem.r)
    assert smaller.m % 128 == problem.m % 128 and smaller.n % 64 == problem.n % 64
    assert smaller.m > 128 and smaller.n > 64 and smaller.m <= problem.m and smaller.n <= problem.n


def test_full_check_of_a_cut_problem_names_what_ran() -> None:
    config, compiled = built(SMALL)
    problem = GemmProblem.parse("1000,288,1000,128")
    result = check_full(compiled, config, problem, limit_s=full_seconds(config, problem) / 3)
    assert result.ok and result.problem.m * result.problem.n < 1000 * 1000
    assert result.problem.k == 288


# -- wrong kernels --


def test_missing_column_scale_is_a_wrong_result() -> None:
    """The epilogue multiplies two of its columns by their bias in place of wcscale."""
    ptx = mutated(SMALL, r"fma\.rn\.f32x2\s+(%\w+), (%\w+), (%\w+), (%\w+);", r"fma.rn.f32x2 \1, \2, \4, \4;")
    result = check(SMALL, ptx, schedules=("eager",))
    assert result.status is CheckStatus.WRONG_RESULT
    assert "elements beyond the tolerance" in result.reason and "\n" not in result.reason
    assert result.outputs["y"].bad > 0
    column = result.outputs["y"].worst_index[1]
    assert column % 32 < 2, "the worst element lies in one of the two columns of a subtile"


def with_16_bytes_too_many() -> str:
    """The first full barrier of the A/B ring expects 16 bytes more than the loads of a stage bring."""
    ptx = built(SMALL)[1].ptx
    register = re.search(r"mbarrier\.arrive\.expect_tx[^;]*, (%r\d+);", ptx)
    assert register is not None
    constant = re.search(rf"mov\.b32\s+{register[1]}, (\d+);", ptx)
    assert constant is not None
    # A, B, SFA, SFB of one stage: (128 + 64) * 128 bytes of E2M1, two groups of 128 rows * 16 factors
    assert int(constant[1]) == (128 + 64) * 128 + 2 * 128 * 16
    return mutated(SMALL, rf"(mov\.b32\s+{register[1]}), \d+;", rf"\1, {int(constant[1]) + 16};")


def test_too_many_expected_bytes_are_a_deadlock_that_names_the_barrier() -> None:
    result = check(SMALL, with_16_bytes_too_many())
    assert result.status is CheckStatus.DEADLOCK
    assert len(result.runs) == 1, "one failure is enough"
    assert "ab_full[0]" in result.findings and "expects 16 bytes more than arrived" in result.findings
    assert "mma_warp" in result.findings and "schedule eager" in result.findings


def test_all_schedules_run_if_asked() -> None:
    result = check(SMALL, with_16_bytes_too_many(), keep_going=True)
    assert [run.status for run in result.runs] == [CheckStatus.DEADLOCK] * len(ALL)


def test_missing_proxy_fence_is_a_race_though_the_numbers_are_right() -> None:
    ptx = mutated(SMALL, r"fence\.proxy\.async\.shared::cta;", "")
    result = check(SMALL, ptx, schedules=("eager",))
    assert result.status is CheckStatus.RACE and "fence.proxy.async" in result.reason
    assert result.outputs["y"].ok
    silent = check(SMALL, ptx, schedules=("eager",), check_races=False)
    assert silent.ok, "only the race checker sees it"


def test_unknown_instruction_is_unsupported_and_names_its_line() -> None:
    ptx = mutated(
        SMALL,
        r"\n(\s*)tcgen05\.relinquish_alloc_permit",
        r"\n\1frobnicate.b32 %r1, %r1;\n\1tcgen05.relinquish_alloc_permit",
    )
    result = check(SMALL, ptx)
    assert result.status is CheckStatus.UNSUPPORTED
    assert "frobnicate" in result.reason and re.search(r"PTX line \d+", result.reason)


def test_counter_left_behind_is_a_wrong_result() -> None:
    """The last split to arrive resets the tile's counter; left at 1, the numbers are right, but only this time."""
    ptx = mutated(SPLIT, r"(st\.global\.b32\s+\[%rd\d+\]), 0;", r"\1, 1;")
    result = check(SPLIT, ptx, schedules=("eager",))
    assert result.status is CheckStatus.WRONG_RESULT and result.outputs["y"].ok
    assert "counter 0 of the workspace is 1 after the launch" in result.reason


def test_copies_must_keep_to_one_slot() -> None:
    watch = RegionWatch(budget(resolved(SMALL), PROBLEM.problem_class, SM100A), is_barrier)
    watch._base = 1024
    watch._within("TMA load", 1024, 16384)
    assert watch.findings == []
    watch._within("TMA load", 1024 + 128, 16384)
    assert watch.findings == [
        "a TMA load of 16384 bytes at offset 0x80 must lie inside one slot, but reaches from A[0] to A[1]"
    ]
    watch._on_barrier(1024)
    assert watch.findings[1] == "an mbarrier at offset 0x0 is no barrier of the budget (A[0])"


def test_operands_of_a_seed_are_the_same_and_of_another_differ() -> None:
    small, _ = exercise(resolved(SMALL), PROBLEM)
    one, same, other = (make_operands(small, seed, source="codes") for seed in (0, 0, 1))
    assert torch.equal(one.act, same.act) and not torch.equal(one.act, other.act)
