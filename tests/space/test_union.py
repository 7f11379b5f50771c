"""Several kernels in one space: counts by hand and by brute force, the default rule, and what crosses between kernels.

The operator ``tally`` is one of ``tests/plugins``; the numbers below follow from its few rules.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
from stamp.stamp.spec import StampConfig
from tally.deep.spec import DeepConfig
from tally.operator import TallyProblem
from tally.wide.spec import WideConfig

from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from tests.space.brute_force import every_point
from tuner.space.changes import changed, crossings, one_knob_changes, several_knobs_changed
from tuner.space.count import Count
from tuner.space.kernel import KernelSpace, Knob
from tuner.space.space import SearchSpace

PROBLEM = TallyProblem.parse("40,256")


@pytest.fixture
def space() -> SearchSpace:
    return SearchSpace.load("tally", SM90A)


# -- counts --


def test_counts_by_hand(space: SearchSpace) -> None:
    """wide: of 12 (columns, unroll) 3 do not fit; 256 columns fit no stage, 128 only ``auto``; 64 with ``auto`` are 3.
    deep: 4 lanes take 32 rows; fold with unroll 8 is 1 of 6; a block of one is a row.
    """
    assert space.raw_size == 4 * 2 * 3 * 3 + 4 * 3 * 3 * 2
    counts = space.counts(PROBLEM, SM90A)
    assert counts["wide"] == Count(
        raw=72,
        spelled=2 * (1 * 3 + 2 * 3 + 3 * 1),
        legal=2 * (1 * 3 + 2 * 2 + 3 * 1),
        rejected={"unroll_fits": 3 * 6, "smem_capacity": 2 * (3 * 2 + 3 * 3)},
    )
    assert counts["deep"] == Count(
        raw=72,
        spelled=3 * 15,
        legal=3 * (2 * 2 + 3 * 2 + 3),
        rejected={"few_rows": 18, "fold_unrolled": 9},
    )
    assert space.count(PROBLEM, SM90A) == Count(
        raw=144,
        spelled=24 + 45,
        legal=20 + 39,
        rejected={"unroll_fits": 18, "smem_capacity": 30, "few_rows": 18, "fold_unrolled": 9},
    )


@pytest.mark.parametrize("shape", ["40,256", "1,256", "1,96", "200,96", "1000,256", "1000,32"])
def test_count_and_enumeration_equal_brute_force(space: SearchSpace, shape: str) -> None:
    """Of a kernel that serves no problem of so many rows, too."""
    problem = TallyProblem.parse(shape)
    found, count = every_point(space, problem, SM90A), space.count(problem, SM90A)
    assert (count.raw, count.spelled, count.legal) == (144, found.spelled, len(found.resolved))
    assert count.rejected == dict(found.rejected)
    points = [str(legal.config) for legal in space.legal_points(problem, SM90A)]
    assert len(points) == len(set(points)) and set(points) == found.resolved
    assert space.legal_up_to(5, problem, SM90A) == 5
    assert space.legal_up_to(1000, problem, SM90A) == len(points)
    assert (space.counts(problem, SM90A)["deep"].legal == 0) == shape.startswith("1000")


def test_an_arch_has_the_kernels_that_are_for_it() -> None:
    alone = SearchSpace.load("tally", SM100A)
    assert [*alone.kernels] == ["wide"] and [*alone.knobs] == ["columns", "order", "unroll", "num_stage"]
    assert alone.count(PROBLEM, SM100A).raw == 72


# -- the default rule --


@pytest.mark.parametrize(
    ("shape", "kind", "on_sm90a"),
    [
        ("16,256", "plain", DeepConfig(lanes=4)),
        ("17,256", "plain", WideConfig(columns=32)),
        ("17,256", "signed", DeepConfig(lanes=8, fold=True)),
        ("65,256", "signed", WideConfig(columns=32)),
    ],
)
def test_first_rule_that_holds_decides_across_kernels(shape: str, kind: str, on_sm90a: KernelConfig) -> None:
    problem = TallyProblem.parse(shape, kind=kind)
    assert SearchSpace.load("tally", SM90A).default(problem) == on_sm90a
    assert SearchSpace.load("tally", SM100A).default(problem) == WideConfig(columns=32)


@pytest.mark.parametrize("arch", [SM90A, SM100A])
def test_default_is_legal_for_every_problem(arch: object) -> None:
    space = SearchSpace.load("tally", arch)  # type: ignore[arg-type]
    for rows in (1, 15, 16, 17, 63, 64, 65, 1000, 2**31 - 1):
        for width in (32, 64, 96, 1024):
            for kind in ("plain", "signed"):
                problem = TallyProblem(rows=rows, width=width, kind=kind)
                legal = legalize(space.default(problem), problem, arch)  # type: ignore[arg-type]
                assert isinstance(legal, Legal), problem


# -- points and their parameters --


def test_a_point_is_its_kernel_and_its_knobs(space: SearchSpace) -> None:
    config = DeepConfig(lanes=16, order="row")
    params = space.spell(config, PROBLEM, SM90A)
    assert params == {"kernel": "deep", "lanes": "16", "order": "row", "unroll": "1", "fold": "false"}
    assert space.config(params) == config == parse_config("tally", SM90A, str(config))
    assert space.spell(DeepConfig(unroll=4), PROBLEM, SM90A) is None, "4 is a choice of the other kernel"
    assert space.spell(StampConfig(), PROBLEM, SM90A) is None
    with pytest.raises(InputError, match="a point must name its kernel, one of wide, deep"):
        space.config({"lanes": "16"})
    alone = SearchSpace.load("tally", SM100A)
    assert alone.config({"columns": "64"}) == WideConfig(columns=64)


def test_solved_stages_are_spelled_as_auto(space: SearchSpace) -> None:
    legal = legalize(WideConfig(columns=32), PROBLEM, SM90A)
    assert isinstance(legal, Legal) and legal.config == WideConfig(columns=32, num_stage=4)
    params = space.spell(legal.config, PROBLEM, SM90A)
    assert params is not None and params["num_stage"] == "auto"


def test_restrict_names_a_kernel_a_knob_of_all_or_a_knob_of_one(space: SearchSpace) -> None:
    assert [*space.restrict({"kernel": ("deep",)}).kernels] == ["deep"]
    both = space.restrict({"order": ("row",), "deep.unroll": ("8",)})
    assert {name: knob.choices for name, knob in both.knobs.items()} == {
        "wide.columns": ("32", "64", "128", "256"),
        "wide.order": ("row",),
        "wide.unroll": ("1", "2", "4"),
        "wide.num_stage": ("auto", "2", "3"),
        "deep.lanes": ("4", "8", "16", "32"),
        "deep.order": ("row",),
        "deep.unroll": ("8",),
        "deep.fold": ("false", "true"),
    }
    one = space.restrict({"order": ("row",), "deep.order": ("block",)})
    assert one.knobs["deep.order"].choices == ("block",)
    for wrong in ({"speed": ("1",)}, {"wide.fold": ("true",)}, {"kernel": ("flat",)}):
        with pytest.raises(InputError, match="has no knob or kernel"):
            space.restrict(wrong)


def test_kernels_are_drawn_evenly_however_many_points_they_have(space: SearchSpace) -> None:
    """``wide`` has one point in 73 here: at 1000 even draws the count is within 5 standard deviations of 500."""
    few = space.restrict(
        {f"wide.{name}": knob.choices[:1] for name, knob in space.kernels["wide"].knobs.items()}
    )
    generator = random.Random(0)
    drawn = [few.random_config(generator) for _ in range(1000)]
    assert 420 < Counter(one.kernel for one in drawn)["wide"] < 580
    assert len({one for one in drawn if one.kernel == "deep"}) == 72
    assert all(
        few.spell(one, PROBLEM, SM90A) for one in drawn if isinstance(legalize(one, PROBLEM, SM90A), Legal)
    )


# -- near a point, and across --


def test_crossings_take_along_what_both_kernels_know(space: SearchSpace) -> None:
    """From deep to where wide begins: its design for such a width, then the default rule's config."""
    assert crossings(space, DeepConfig(lanes=16, order="row", unroll=2), PROBLEM) == [
        WideConfig(columns=128, order="row", unroll=2),
        WideConfig(columns=128, order="column"),
        WideConfig(columns=32, order="row", unroll=2),
        WideConfig(columns=32),
    ]
    narrow = TallyProblem.parse("40,96")  # no design of wide is for it; block and 8 are no choices there
    assert crossings(space, DeepConfig(order="block", unroll=8), narrow) == [WideConfig(columns=32)]
    stages = WideConfig(columns=64, order="column", unroll=4, num_stage=2)
    assert crossings(space, stages, PROBLEM) == [
        DeepConfig(lanes=4, order="column"),
        DeepConfig(lanes=8, order="column", fold=True),
    ]


def test_a_kernel_without_any_start_is_entered_at_its_plainest_point(space: SearchSpace) -> None:
    without = dataclasses.replace(space, defaults=space.defaults[-1:])
    assert crossings(without, WideConfig(order="row", unroll=2), PROBLEM) == [
        DeepConfig(lanes=4, order="row", unroll=2),
        DeepConfig(lanes=4, order="column"),
    ]


def test_steps_change_one_knob_or_the_kernel(space: SearchSpace) -> None:
    base = WideConfig(columns=64, unroll=2)
    found = list(one_knob_changes(space, [base], PROBLEM, random.Random(0)))
    own = [one for one in found if one.kernel == "wide"]
    differing = [sum(one.fields()[name] != text for name, text in base.fields().items()) for one in own]
    assert max(differing) == 1 and len(own) == 4 + 2 + 3 + 3
    assert {str(one) for one in found if one.kernel == "deep"} == {
        str(one) for one in crossings(space, base, PROBLEM)
    }
    first = [one.kernel for one in found[:5]]
    assert first.count("deep") == 1, "the kernel comes in turn with the four knobs"
    alone = SearchSpace.load("tally", SM100A)
    assert {one.kernel for one in one_knob_changes(alone, [base], PROBLEM, random.Random(0))} == {"wide"}


def test_leaps_stay_or_cross(space: SearchSpace) -> None:
    """Five things to change, 2 to 4 of them drawn, 3 on average: the kernel is among them in three of five."""
    generator, base = random.Random(0), WideConfig(columns=64, order="column", unroll=2)
    drawn = [several_knobs_changed(space, base, PROBLEM, generator) for _ in range(1000)]
    assert 520 < Counter(one.kernel for one in drawn)["deep"] < 680
    for one in drawn:
        assert not space.kernels[one.kernel].outside(one)
    alone = SearchSpace.load("tally", SM100A)
    assert {several_knobs_changed(alone, base, PROBLEM, generator).kernel for _ in range(100)} == {"wide"}


def test_leaps_of_a_kernel_with_few_knobs() -> None:
    """``stamp`` has three, and a leap may want four."""
    knobs = {name: Knob(("1", "2"), "") for name in ("value", "behaviour")} | {
        "num_stage": Knob(("auto",), "")
    }
    stamp = KernelSpace(operator="stamp", kernel="stamp", knobs=knobs)
    space = SearchSpace(operator="stamp", kernels={"stamp": stamp}, defaults=())
    generator, base = random.Random(0), StampConfig(value=7, behaviour=7)
    drawn = {several_knobs_changed(space, base, PROBLEM, generator) for _ in range(200)}
    assert StampConfig(value=1, behaviour=2) in drawn and StampConfig(value=7, behaviour=1) in drawn


def test_stage_counts_are_found_anew_where_the_space_lets_them(space: SearchSpace) -> None:
    base, wide = WideConfig(columns=64, num_stage=2), space.kernels["wide"]
    assert changed(wide, base, {"columns": "32"}) == WideConfig(columns=32)
    assert changed(wide, base, {"num_stage": "3"}) == WideConfig(columns=64, num_stage=3)
    fixed = wide.restrict({"num_stage": ("2", "3")})
    assert changed(fixed, base, {"columns": "32"}) == WideConfig(columns=32, num_stage=2)
