"""``setmaxnreg``: counts, the pool of a CTA, warpgroups. Rules: PTX ISA "setmaxnreg"; counts at launch: ptxas."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_space.build.resources import read_resources
from kernel_space.core.arch import SM90A
from kernel_space.core.config import KernelConfig
from kernel_space.machine.ptx.parse import parse_ptx
from kernel_space.machine.run.launch import Exported
from kernel_space.machine.run.run import SimResult, run_compiled, run_ptx
from kernel_space.machine.units.registers import registers_at_launch
from kernel_space.machine.values.faults import SimStatus
from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.signature import SIGNATURE
from tests.compiled_cases import compile_case
from tests.machine.ptx import program
from tests.operators.svdquant_gemm.candidates import EXPAND, RING, SMALL_M, legal

GROUP = """
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 7;
setp.eq.u32 %p1, %r2, 0;
@%p1 bra first;
setp.eq.u32 %p2, %r2, 1;
@%p2 bra second;
{third}
bra end;
first:
{first}
bra end;
second:
{second}
end:
"""
DIRECTIVES = ".reqntid {threads}, 1, 1\n.minnctapersm 1\n"


def change(how: str, count: int) -> str:
    return f"setmaxnreg.{how}.sync.aligned.u32 {count};"


def run(*groups: str, threads: int = 384, schedule: str = "eager", directives: str = DIRECTIVES) -> SimResult:
    """Three warpgroups that execute ``groups``; a launch of 384 threads has 65536 / 384 = 168 registers a thread."""
    first, second, third = groups
    text = program(GROUP.format(first=first, second=second, third=third), "")
    text = text.replace("kernel()", "kernel()\n" + directives.format(threads=threads))
    return run_ptx(text, block=(threads, 1, 1), schedule=schedule, seed=3)


def fails(result: SimResult, *words: str, status: SimStatus = SimStatus.PROTOCOL_ERROR) -> None:
    assert result.status is status, str(result)
    assert all(word in str(result) for word in words), str(result)


@pytest.mark.parametrize("schedule", ["eager", "random"])
@pytest.mark.parametrize("inc", [168, 240])
def test_what_one_warpgroup_releases_two_others_get(inc: int, schedule: str) -> None:
    """(168 - 24) x 128 threads = 72 x 256: an ``inc`` to 240 fits exactly, whoever comes first."""
    result = run(change("inc", inc), change("inc", inc), change("dec", 24), schedule=schedule)
    assert result.ok, str(result)


def test_a_pool_that_is_too_small_is_a_deadlock_with_its_numbers() -> None:
    """248 needs 80 x 256 = 20480 of 18432: 8 warps of which one and more can never go on."""
    result = run(change("dec", 24), change("inc", 248), change("inc", 248))
    fails(result, "needs 2560 registers", "168 a thread at launch", status=SimStatus.DEADLOCK)


def test_registers_that_nobody_releases() -> None:
    result = run("", change("inc", 176), "")
    fails(result, "needs 256 registers", "0 free", status=SimStatus.DEADLOCK)


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ((change("dec", 176), "", change("inc", 240)), ("setmaxnreg.dec to 176", "has 168 registers")),
        ((change("dec", 24), change("inc", 160), change("inc", 240)), ("setmaxnreg.inc to 160", "has 168")),
        ((change("dec", 100), "", change("inc", 240)), ("multiple of 8 from 24 to 256, got 100",)),
        ((change("dec", 16), "", change("inc", 240)), ("multiple of 8 from 24 to 256, got 16",)),
        ((change("dec", 24), "", change("inc", 264)), ("multiple of 8 from 24 to 256, got 264",)),
    ],
)
def test_counts(groups: tuple[str, ...], words: tuple[str, ...]) -> None:
    fails(run(*groups), *words)


SOME_WARPS = "setp.lt.u32 %p3, %r1, 96;\n@!%p3 bra past;\n{inside}\npast:\n{outside}"


def test_a_warp_that_leaves_it_out() -> None:
    skipping = SOME_WARPS.format(inside=change("dec", 24), outside="")
    fails(run(skipping, "", ""), "must be executed by all warps of a warpgroup; warp3 did not")


def test_warps_of_a_warpgroup_may_execute_different_ones() -> None:
    """3 x 144 x 32 + 64 x 32 = 15872 registers: enough for 8 warps with 56 more, not for 72 and 64 more (17408)."""
    split = SOME_WARPS.format(inside=change("dec", 24) + "\nbra end;", outside=change("dec", 104))
    assert run(split, change("inc", 224), change("inc", 224)).ok
    result = run(split, change("inc", 240), change("inc", 232))
    fails(result, "2048 registers", status=SimStatus.DEADLOCK)


def test_some_lanes_of_a_warp() -> None:
    lane = f"setp.eq.u32 %p3, %r1, 5;\n@!%p3 bra past;\n{change('dec', 24)}\npast:\n"
    fails(run(lane, "", ""), "executed by 1 of the 32 threads of warp0")


def test_a_warpgroup_that_is_not_whole() -> None:
    fails(run("", "", change("dec", 24), threads=320), "has 2 of 4 warps")


@pytest.mark.parametrize("schedule", ["eager", "random"])
def test_again_only_behind_a_barrier(schedule: str) -> None:
    twice = [change("dec", 104), change("dec", 24)]
    assert run("\nbar.sync 1, 128;\n".join(twice), "", "", schedule=schedule).ok
    fails(run("\n".join(twice), "", "", schedule=schedule), "executes setmaxnreg again")


def test_without_a_count_at_launch_it_has_no_effect() -> None:
    """ptxas: "setmaxnreg ignored; unable to determine register count at entry"."""
    result = run(change("dec", 240), change("inc", 256), "", directives=".reqntid {threads}, 1, 1\n")
    assert result.ok, str(result)


def test_maxnreg_is_the_count_at_launch() -> None:
    directives = ".maxntid {threads}, 1, 1\n.maxnreg 96\n"
    fails(run(change("dec", 104), "", "", directives=directives), "has 96 registers")
    assert run(change("dec", 96), "", "", directives=directives).ok


# ------------------------------------------------------------------ kernels

FEW_ROWS = f"{SMALL_M} consumer_warpgroups=1"
KERNELS = [
    (f"{FEW_ROWS} register_operand=wgt tile_mnk=64x16x128 num_dq_stage=2", "17,288,72,16"),
    (f"{EXPAND} tile_mnk=128x64x128", "133,288,72,16"),
    (f"{RING} tile_mnk=64x40x128 consumer_warpgroups=1", "45,288,72,16"),
    (f"{RING} tile_mnk=128x32x128 consumer_warpgroups=2", "45,288,72,16"),
    (f"{FEW_ROWS} tile_mnk=64x40x128 num_dequant_warpgroups=2 ctas_per_sm=2", "17,288,72,16"),
]


def case(text: str, shape: str) -> tuple[KernelConfig, GemmProblem]:
    problem = GemmProblem.parse(shape)
    return legal(text, problem).config, problem


@pytest.mark.parametrize(("text", "shape"), KERNELS)
def test_count_at_launch_is_that_of_the_cubin(text: str, shape: str, tmp_path: Path) -> None:
    config, problem = case(text, shape)
    artifacts = compile_case(config, problem.problem_class, SM90A)
    (tmp_path / "kernel.cubin").write_bytes(artifacts.cubin)
    found = {
        name: (registers_at_launch(parse_ptx(artifacts.ptx, name)), resources.registers)
        for name, resources in read_resources(tmp_path / "kernel.cubin").items()
    }
    shares = {name: counts for name, counts in found.items() if counts[0] is not None}
    assert len(shares) == 1
    assert all(ours == theirs for ours, theirs in shares.values()), shares


def test_a_kernel_that_asks_for_too_many_and_one_that_asks_for_too_few(tmp_path: Path) -> None:
    """The loading warpgroup keeps more than its 168 at launch: on an H200 an illegal instruction."""
    config, problem = case(*KERNELS[0])
    artifacts = compile_case(config, problem.problem_class, SM90A)
    (tmp_path / "kernel.o").write_bytes(artifacts.object_code)
    exported = Exported(artifacts.ptx, tmp_path / "kernel.o", artifacts.prefix, SIGNATURE.abi)
    operands = make_operands(problem, seed=3)

    def result(old: str, new: str) -> SimResult:
        assert artifacts.ptx.count(old) == 1
        ptx = artifacts.ptx.replace(old, new)
        values = (*operands.tensors().values(), 0, problem.m, problem.n, problem.k, 132)
        return run_compiled(exported, *values, ptx=ptx)

    how = "setmaxnreg.dec.sync.aligned.u32 \t"
    assert (intact := result(how + "24;", how + "24;")).ok, str(intact)
    fails(result(how + "24;", how + "176;"), "setmaxnreg.dec to 176", "168 registers")
    fails(result(how + "24;", how + "168;"), "needs", "168 a thread at launch", status=SimStatus.DEADLOCK)
