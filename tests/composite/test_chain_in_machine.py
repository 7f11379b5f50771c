"""Chains compiled, checked in the machine and clocked: one object, all launches, each link's outputs judged."""

from __future__ import annotations

import functools
import re

import pytest

from kernel_space.build.build import CompiledKernel, build
from kernel_space.check.validate import CheckResult, CheckStatus, check_candidate, check_full
from kernel_space.core import registry
from kernel_space.core.arch import SM100A
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from tests.published import B200
from tuner.devices.simulated import Chip
from tuner.simulated.constants.sets import admissible_sets
from tuner.simulated.time import capture_launches, resident_ctas, simulate

TWICE = "first_rows=4 first_vec=2 second_rows=4 second_vec=2"
LAYER = (
    "kernel=rows+sm100a gemm_mma_tiler_mn=256x64 gemm_mma_tiler_k=256 gemm_cluster_shape_mn=2x1 "
    "quantize_tile_mk=8x256 quantize_row_loads=1"
)


def problem(name: str, text: str) -> Problem:
    return registry.operator(name).problem.parse(text)


@functools.cache
def compiled(name: str, config: str, text: str) -> tuple[CompiledKernel, KernelConfig, Problem]:
    whole = problem(name, text)
    legal = legalize(registry.parse_config(name, SM100A, config), whole, SM100A)
    assert isinstance(legal, Legal), legal
    return build(legal.config, whole.problem_class, SM100A), legal.config, whole


def check_twice(edited_entry: int | None = None, was: str = "", now: str = "") -> CheckResult:
    """``edited_entry``: the link whose PTX is another, by ``was`` and ``now``."""
    kernel, config, whole = compiled("twice", TWICE, "9,64")
    ptx = None
    if edited_entry is not None:
        start, first, second = re.split(r"(?=\.visible \.entry)", kernel.ptx)
        links = [first, second]
        links[edited_entry], count = re.subn(was, now, links[edited_entry])
        assert count, f"{was} is not in {links[edited_entry]}"
        ptx = start + "".join(links)
    return check_candidate(kernel, config, whole, ptx=ptx, schedules=("eager",))


def test_every_output_of_every_link_is_judged() -> None:
    result = check_twice()
    assert result.ok, result
    assert list(result.outputs) == ["half", "before", "y", "count"]


@pytest.mark.parametrize("link, wrong", [(0, "half"), (1, "y")])
def test_a_wrong_link_is_the_one_that_is_named(link: int, wrong: str) -> None:
    """One adds 0 to a number, not the number: the other link is right, given what it reads."""
    result = check_twice(link, r"add\.f16 (\s*%rs\d+), (%rs\d+), \2;", r"add.f16 \1, \2, %rs3;")
    assert not result.ok
    assert {name for name, one in result.outputs.items() if not one.ok} == {wrong}


def test_the_whole_layer_is_right_in_the_machine() -> None:
    """M and N that end within a tile, K that ends within a block of scales."""
    kernel, config, whole = compiled("svdquant_linear", LAYER, "131,416,72,0")
    result = check_full(kernel, config, whole)
    assert result.ok, result
    assert {"act", "ascales", "y"} <= set(result.outputs)
    assert result.outputs["act"].max_error == result.outputs["ascales"].max_error == 0


def test_time_is_that_of_the_links_one_after_the_other() -> None:
    """Compiled alone, with the same knobs, for the same problem."""
    name, text = "svdquant_linear", "300,1920,1536,0"
    kernel, config, whole = compiled(name, LAYER, text)
    composed = registry.operator(name).composed
    assert composed is not None
    sets, parts = admissible_sets(), []
    for link in composed.links:
        part = link.problem(whole)
        own = build(config.of(link.name), part.problem_class, SM100A)
        parts.append(simulate(own, config.of(link.name), part, B200, sets=sets).us)
    assert simulate(kernel, config, whole, B200, sets=sets).us == pytest.approx(sum(parts), rel=0.03)


def test_each_link_has_the_sm_for_itself() -> None:
    """The quantizer's CTAs of 128 threads share an SM, beside a GEMM that takes it whole."""
    kernel, config, whole = compiled("svdquant_linear", LAYER, "300,1920,1536,0")
    chip = Chip(name="b200", arch=SM100A, sm_count=148)
    launches = capture_launches(kernel, whole, 74)
    held = [resident_ctas(kernel, config, launch, chip) for launch in launches]
    assert len(held) == 2 and held[0] >= 4 and held[1] == 1


def test_a_fault_of_one_link_is_one_of_the_chain() -> None:
    result = check_twice(1, r"st\.global\.b32 (\s*)\[(%rd\d+)\]", r"st.global.b32 \1[\2+1048576]")
    assert result.status is CheckStatus.ILLEGAL_ACCESS
