"""The union of the three sm_90a kernels: its default rule, its choices, and its counts against brute force."""

from __future__ import annotations

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.space.brute_force import every_point, small
from tests.space.test_space import DEFAULT_GRID
from tuner.space.space import SearchSpace

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
PROBLEMS = (PROBLEM, GemmProblem.parse("16,3840,3072,128"))  # the second for sm90a_small_m
NARROW = {
    "sm90a_ring.tile_mnk": "256x128x128 256x144x128 64x128x128",
    "sm90a_expand.tile_mnk": "128x200x128 64x128x128",
    "sm90a_small_m.tile_mnk": "32x8x128 64x32x128 128x104x128",
    "consumer_warpgroups": "2 1",
    "num_ab_stage": "auto 4",
    "sm90a_small_m.num_dq_stage": "auto 0 3",
    "num_lora_stage": "auto 2",
    "epi_tile_n": "0 16",
    "register_operand": "act wgt",
    "num_dequant_warpgroups": "1 2",
    "ctas_per_sm": "1 2",
    "split_k": "1 10",
    "stream_k": "false true",
}


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace.load(GemmProblem.operator, SM90A)


def test_kernels_in_the_order_of_the_operator(space: SearchSpace) -> None:
    assert [*space.kernels] == ["sm90a_ring", "sm90a_expand", "sm90a_small_m"]
    assert {rule.config.kernel for rule in space.defaults} == {*space.kernels}


def test_default_is_legal_for_every_problem(space: SearchSpace) -> None:
    for m, k, n, r, dtype in DEFAULT_GRID:
        problem = GemmProblem(m=m, k=k, n=n, r=r, lora_dtype=dtype, out_dtype=dtype)
        assert isinstance(legalize(space.default(problem), problem, SM90A), Legal), problem


def test_every_choice_is_legal_somewhere(space: SearchSpace) -> None:
    """A choice that no rule ever lets through would be dead weight for the sampler."""
    for one in space.kernels.values():
        for name, choice in ((name, choice) for name, knob in one.knobs.items() for choice in knob.choices):
            part = one.restrict({name: (choice,)})
            found = next((legal for p in PROBLEMS for legal in part.legal_points(p, SM90A)), None)
            assert found is not None, (one.kernel, name, choice)


@pytest.mark.parametrize("shape", ["4352,3840,3072,128", "64,3840,3072,0"])
def test_count_and_enumeration_equal_brute_force(space: SearchSpace, shape: str) -> None:
    part, problem = small(space, **NARROW), GemmProblem.parse(shape)
    found, count = every_point(part, problem, SM90A), part.count(problem, SM90A)
    assert (count.raw, count.spelled, count.legal) == (part.raw_size, found.spelled, len(found.resolved))
    assert count.rejected == dict(found.rejected) and len(found.rejected) >= 3
    points = [str(legal.config) for legal in part.legal_points(problem, SM90A)]
    assert len(points) == len(set(points)) and set(points) == found.resolved
    assert (part.counts(problem, SM90A)["sm90a_small_m"].legal == 0) == (problem.m == 4352)


def test_solved_stages_are_spelled_as_auto(space: SearchSpace) -> None:
    asked = parse_config(GemmProblem.operator, SM90A, "kernel=sm90a_ring tile_mnk=128x128x128")
    legal = legalize(asked, PROBLEM, SM90A)
    assert isinstance(legal, Legal) and "auto" not in str(legal.config)
    part = space.restrict({f"num_{ring}_stage": ("auto",) for ring in ("ab", "dq")})
    spelled = part.spell(legal.config, PROBLEM, SM90A)
    assert spelled is not None and (spelled["kernel"], spelled["num_dq_stage"]) == ("sm90a_ring", "auto")
    again = legalize(part.config(spelled), PROBLEM, SM90A)
    assert isinstance(again, Legal) and again.config == legal.config
    assert space.spell(asked.replace(swizzle_size=2), PROBLEM, SM90A) is None
