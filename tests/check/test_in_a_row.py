"""Launches that overlap, in checks: links of a chain that follow each other, and what a launch before may still write.

The oracle is float64 for the numbers, and PTX's text on ``griddepcontrol`` for what must be reported.
"""

from __future__ import annotations

import dataclasses
import functools
import re

import pytest

from kernel_space.build.build import CompiledKernel, build
from kernel_space.check.memory import CheckMemory
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM90A, SM100A, Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator, parse_config
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.machine.run.run import SimResult, run_compiled

LAYER = (
    "kernel=rows+sm100a quantize_tile_mk=8x256 quantize_row_loads=1 quantize_use_pdl=true gemm_use_pdl=true "
    "gemm_mma_tiler_mn=128x64 gemm_cluster_shape_mn=1x1 gemm_num_ab_stage=2 gemm_epi_tile_n=32"
)
WAIT = r"griddepcontrol\.wait;"
Case = tuple[CompiledKernel, KernelConfig, Problem]


@functools.cache
def compiled(name: str, text: str, shape: str, arch: Arch = SM100A) -> Case:
    problem = operator(name).problem.parse(shape)
    legal = legalize(parse_config(name, arch, text), problem, arch)
    assert isinstance(legal, Legal), legal
    return build(legal.config, problem.problem_class, arch), legal.config, problem


def layers(
    without_wait: int | None = None, *, former: bool = True, times: int = 2
) -> tuple[SimResult, CheckMemory]:
    """Calls of quantizer and GEMM in a row; ``without_wait``: the link whose wait is taken out."""
    kernel, config, problem = compiled("svdquant_linear", LAYER, "9,160,72,0")
    ptx = None
    if without_wait is not None:
        start, *links = re.split(r"(?=\.visible \.entry)", kernel.ptx)
        links[without_wait], count = re.subn(WAIT, "", links[without_wait])
        assert count == 1 and len(links) == 2
        ptx = start + "".join(links)
    memory = CheckMemory(config, problem, 0)
    memory.poison()
    before = memory.unfinished() if former else []
    return run_compiled(kernel, *memory.values(2), sms=16, ptx=ptx, times=times, former=before), memory


def test_links_follow_each_other_in_one_machine() -> None:
    result, memory = layers()
    assert result.ok, str(result)
    assert all(check.ok for check in memory.check().values())


def test_a_gemm_that_does_not_wait_reads_what_the_quantizer_has_yet_to_write() -> None:
    result, memory = layers(1, times=1)
    found = str(result)
    assert re.search(
        r"RAW on global memory, byte \d+ of act: .* \(launch 2.* no griddepcontrol.wait orders", found
    )
    assert re.search(r"overwrites what .*\(launch 2\S* .* read", found), (
        "the quantizer writes behind its back"
    )
    assert not memory.check()["y"].ok, "it has begun before the quantizer wrote anything"


def test_a_quantizer_that_does_not_wait_overwrites_what_the_gemm_before_it_loads() -> None:
    result, _ = layers(0, former=False)
    found = str(result)
    assert "(launch 3" in found and "(launch 2" in found
    assert re.search(r"of (act|ascales): st\.global of .*\(launch 3", found) or re.search(
        r"of (act|ascales): .*\(launch 2.* reads what .*\(launch 3.* wrote", found
    )
    waits, _ = layers(0)
    assert "of x: ld.global" in str(waits), "x is what the launch before the first may still be writing"


@pytest.mark.parametrize(("knob", "calls"), [("true", [3, 1]), ("false", [1, 1])])
def test_the_first_run_of_what_begins_early_is_of_several_calls(knob: str, calls: list[int]) -> None:
    text = f"tile_mk=8x64 threads_per_cta=32 threads_per_row=4 row_loads=1 use_pdl={knob}"
    kernel, config, problem = compiled("nvfp4_quantize", f"kernel=rows {text}", "1,32,0")
    result = check_candidate(kernel, config, problem, schedules=("eager", "slow_tma"))
    assert result.ok, str(result)
    assert [run.calls for run in result.runs] == calls * len(result.problems)
    assert ("eager of 3 calls in a row" in str(result)) == (knob == "true")
    several = result.runs[0].instructions, result.runs[1].instructions
    assert several[0] == calls[0] * several[1]


def test_inputs_that_the_launch_before_may_write_are_all_but_weights() -> None:
    _, config, problem = compiled("svdquant_linear", LAYER, "9,160,72,0")
    memory = CheckMemory(config, problem, 0)
    unfinished = {tensor.data_ptr() for tensor in memory.unfinished() if tensor.numel()}
    names = {name for name, tensor in memory.tensors.items() if tensor.data_ptr() in unfinished}
    assert {"x", "act", "ascales", "y"} <= names
    assert not names & {"smooth", "lora_down", "wgt", "wscales", "lora_up", "wcscale", "bias"}


LOADED_BY_ONE = [("nvfp4_quantize", "kernel=lora_tma"), ("smooth_lora_down", "kernel=smooth_tma")]


@pytest.mark.parametrize(("name", "kernel"), LOADED_BY_ONE)
def test_warps_that_see_what_one_has_loaded_behind_its_wait_may_write(name: str, kernel: str) -> None:
    """The arrival on their barriers is ahead of the wait, the copies of x are behind it."""
    built, config, problem = compiled(name, f"{kernel} num_stage=2 use_pdl=true", "9,160,32", SM90A)
    result = check_candidate(built, config, problem, schedules=("eager",))
    assert result.ok, str(result)
    assert result.runs[0].calls == 3


def test_a_warp_whose_turn_has_no_chunk_is_reported() -> None:
    """Of K = 160 there are three chunks, for four turns: the last one has seen no x when it clears padding. A rule
    keeps such problems from the kernel, which is right where every turn has a chunk.
    """
    text = "kernel=lora_tma tile_m=8 quant_warps=4 turns=4 num_stage=4 use_pdl=true"
    built, config, problem = compiled("nvfp4_quantize", text, "9,256,32", SM90A)
    result = check_candidate(built, config, problem, schedules=("eager",))
    assert result.ok, str(result)
    few = dataclasses.replace(problem, k=160)
    assert isinstance(legalize(config, few, SM90A), Rejection)
    memory = CheckMemory(config, few, 0)
    found = str(run_compiled(built, *memory.values(3), sms=3, times=1, former=memory.unfinished()))
    assert re.search(r"WAW on global memory, byte \d+ of ascales: st.global", found), found


@pytest.mark.parametrize(("name", "kernel"), LOADED_BY_ONE)
@pytest.mark.parametrize("place", ["nowhere", "behind the copies"])
def test_warps_that_see_copies_without_a_wait_are_reported(name: str, kernel: str, place: str) -> None:
    built, config, problem = compiled(name, f"{kernel} num_stage=2 use_pdl=true", "9,160,32", SM90A)
    ptx, count = re.subn(WAIT, "", built.ptx)
    assert count
    if place == "behind the copies":
        ptx, last = re.subn(r"\n(\s*ret;)", r"\ngriddepcontrol.wait;\n\1", ptx)
        assert last
    memory = CheckMemory(config, problem, 0)
    before = memory.unfinished()
    found = str(run_compiled(built, *memory.values(3), sms=3, ptx=ptx, times=1, former=before))
    assert re.search(r"RAW on global memory, byte \d+ of x: TMA load", found), found
    assert re.search(r"WAW on global memory, byte \d+ of (act|xs): st.global", found), found
