"""The search space: choices, the default rule on every kind of problem, exact counts against brute force."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.arch import SM90A, SM100A
from kernel_space.config import print_knob
from kernel_space.config_sm100a import KernelConfigSm100a
from kernel_space.errors import InputError
from kernel_space.problem import GemmProblem
from kernel_space.rules import Legal, Rejection, legalize
from kernel_space.rules_sm100a import KNOB_RULES
from tests.brute_force import every_point
from tuner import space_count
from tuner.cli_options import problems_of
from tuner.space import SPACES, SearchSpace

KERNEL = "svdquant_gemm_sm100a"


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace.load(KERNEL)


def small(space: SearchSpace, **choices: str) -> SearchSpace:
    """Only the choices that are named; one of every other knob."""
    named = {name: tuple(text.split()) for name, text in choices.items()}
    others = {name: knob.choices[:1] for name, knob in space.knobs.items() if name not in named}
    return space.restrict({**others, **named})


# -- choices --


def test_choices_are_printed_forms_of_the_configs_own_fields(space: SearchSpace) -> None:
    assert tuple(space.knobs) == KernelConfigSm100a.knob_names()
    for name, knob in space.knobs.items():
        assert [print_knob(KernelConfigSm100a.parse_knob(name, text)) for text in knob.choices] == list(
            knob.choices
        )
        assert len(knob.reason) > 40


def test_raw_size_is_the_number_of_combinations(space: SearchSpace) -> None:
    part = small(space, mma_tiler_mn="128x64 256x64", split_k="1 2 4", use_pdl="false true")
    assert part.raw_size == 2 * 3 * 2
    assert space.raw_size > 10**7


def test_every_choice_is_legal_somewhere(space: SearchSpace) -> None:
    """A choice that no rule ever lets through would be dead weight for the sampler."""
    problem, generator = GemmProblem.parse("4352,15360,3840,128"), random.Random(1)
    part = small(
        space,
        **{name: " ".join(space.knobs[name].choices) for name in ("mma_tiler_mn", "cluster_shape_mn")},
        lora_tile_k="64 all",
        num_ab_stage="auto 3",
    )
    for name, choice in ((name, choice) for name, knob in space.knobs.items() for choice in knob.choices):
        tries = (
            KernelConfigSm100a.from_fields({**part.random_config(generator).fields(), name: choice})
            for _ in range(400)
        )
        assert any(isinstance(legalize(config, problem, SM100A), Legal) for config in tries), (name, choice)


# -- the default rule --

DEFAULT_GRID = list(
    itertools.product(
        (1, 2, 17, 64, 65, 128, 255, 256, 257, 2047, 2048, 4352, 1_000_000),
        (32, 64, 96, 256, 3840, 16384),
        (8, 16, 72, 3072, 8184, 8192, 16384),
        (0, 16, 32, 48, 64, 128, 240, 256),
        ("fp16", "bf16"),
    )
)


def test_default_is_legal_for_every_problem(space: SearchSpace) -> None:
    for m, k, n, r, dtype in DEFAULT_GRID:
        problem = GemmProblem(m=m, k=k, n=n, r=r, lora_dtype=dtype, out_dtype=dtype)
        assert isinstance(legalize(space.default(problem), problem, SM100A), Legal), problem


def test_default_is_a_point_of_the_space(space: SearchSpace) -> None:
    for rule in space.defaults:
        assert all(text in space.knobs[name].choices for name, text in rule.config.fields().items())


@pytest.mark.parametrize(
    ("shape", "tile", "swap_ab"),
    [
        ("1,32,8,0", (128, 64), True),
        ("64,3840,3072,128", (128, 64), True),
        ("65,3840,3072,128", (128, 64), False),
        ("256,3840,3072,128", (128, 64), False),
        ("257,3840,3072,128", (256, 128), False),
        ("4352,3840,15360,128", (256, 256), False),
        ("2047,3840,15360,128", (256, 128), False),
        ("4352,10240,3072,32", (256, 128), False),
    ],
)
def test_first_default_rule_that_holds_decides(
    space: SearchSpace, shape: str, tile: tuple[int, int], swap_ab: bool
) -> None:
    config = space.default(GemmProblem.parse(shape))
    assert (config.mma_tiler_mn, config.swap_ab) == (tile, swap_ab)


def test_designs_are_legal_where_their_bounds_say_and_found_there_only() -> None:
    sm90a = SearchSpace.load(SM90A.kernel)
    assert sm90a.designs
    for design in sm90a.designs:
        low = design.when.get("m_at_least", 1)
        high = design.when.get("m_at_most", 4352)
        for m in (low, high):
            problem = GemmProblem.parse(f"{m},3840,3072,128")
            assert isinstance(legalize(design.config, problem, SM90A), Legal), (design.config, m)
            assert design.config in sm90a.starts(problem)
        if "m_at_most" in design.when:
            assert design.config not in sm90a.starts(GemmProblem.parse(f"{high + 1},3840,3072,128"))


def test_a_design_outside_the_space_is_named(tmp_path: Path) -> None:
    text = (SPACES / f"{KERNEL}.yaml").read_text()
    path = tmp_path / "space.yaml"
    path.write_text(text + "designs:\n  - config: mma_tiler_k=512\n    reason: none\n")
    with pytest.raises(
        InputError, match="a design must be made of the knobs' choices, mma_tiler_k is not one in"
    ):
        SearchSpace.read(path)


# -- spelling --


def test_spell_turns_a_solved_stage_count_back_into_auto(space: SearchSpace) -> None:
    problem = GemmProblem.parse("4352,3840,3072,128")
    legal = legalize(KernelConfigSm100a(), problem, SM100A)
    assert isinstance(legal, Legal) and legal.config.num_ab_stage == 5
    spelled = space.spell(legal.config, problem, SM100A)
    assert spelled is not None and spelled["num_ab_stage"] == "auto"
    assert legalize(space.config(spelled), problem, SM100A).config == legal.config


def test_spell_gives_up_on_what_is_no_choice(space: SearchSpace) -> None:
    problem = GemmProblem.parse("4352,3840,3072,128")
    assert space.spell(KernelConfigSm100a(prefetch_dist=3), problem, SM100A) is None
    assert space.spell(KernelConfigSm100a(num_ab_stage=2), problem, SM100A) is None  # auto would be 5


# -- counting: brute force is the oracle --

SUBSPACE = {
    "mma_tiler_mn": "128x64 256x128 256x256",
    "mma_tiler_k": "128 256",
    "cluster_shape_mn": "1x1 2x1 1x2",
    "num_ab_stage": "auto 4",
    "num_lora_stage": "auto 2",
    "lora_tile_k": "64 all",
    "lora_schedule": "interleave tail",
    "lora_buffer": "dedicated ab_stage",
    "swizzle_size": "1 2",
    "epi_tile_n": "32 128",
    "split_k": "1 4",
    "use_pdl": "false true",
}


@pytest.mark.parametrize(
    "shape", ["4352,3840,3072,128", "4352,3840,3072,64", "64,3840,3072,0", "1,256,8,256"]
)
def test_count_and_enumeration_equal_brute_force(space: SearchSpace, shape: str) -> None:
    part, problem = small(space, **SUBSPACE), GemmProblem.parse(shape)
    spelled, resolved, rejected = every_point(part, problem, SM100A)
    count = part.count(problem, SM100A)
    assert (count.raw, count.spelled, count.legal) == (part.raw_size, spelled, len(resolved))
    assert count.rejected == dict(rejected)
    points = [str(legal.config) for legal in part.legal_points(problem, SM100A)]
    assert len(points) == len(set(points)) and set(points) == resolved


def test_counts_of_the_whole_space_add_up(space: SearchSpace) -> None:
    count = space.count(GemmProblem.parse("4352,3840,3072,0"), SM100A)
    assert count.raw == space.raw_size == count.spelled + sum(count.rejected.values())
    assert set(count.rejected) <= {*KNOB_RULES, "tmem_capacity", "smem_capacity"}
    # Of 4 pair tiles x 9 clusters, 3 (1x1 1x2 1x4) have an odd M: 12 of 72, and no earlier rule rejects anything.
    assert count.rejected["cluster_of_pairs"] == space.raw_size * 12 // 72
    # 128 columns an epilogue subtile do not divide N = 64 or 192: half the tiles, of the legal clusters.
    assert count.rejected["epi_tile"] == space.raw_size // 3 // 2 * 60 // 72


def test_taking_a_few_points_does_not_walk_the_space(space: SearchSpace) -> None:
    asked = Counter()

    def counting(config: KernelConfigSm100a, problem: GemmProblem, arch: Any) -> Legal | Rejection:
        asked["calls"] += 1
        return legalize(config, problem, arch)

    problem = GemmProblem.parse("4352,3840,3072,128")
    assert space.legal_up_to(301, problem, SM100A, counting) == 301
    assert asked["calls"] < 5000
    tiny = small(space, raster_order="m n", use_pdl="false true", mma_tiler_mn="128x128")
    assert tiny.legal_up_to(301, problem, SM100A) == 4


# -- counting with rules worked out by hand --


def by_hand(config: KernelConfigSm100a, *_: Any) -> Legal | Rejection:
    """Legal unless split_k > 2; afterwards swap_ab overwrites raster_order, and prefetch_dist of 4 does not fit."""
    if reason := HAND_RULES["split"](config, None):
        return Rejection("split", reason)
    if config.swap_ab:
        config = config.replace(raster_order="m")
    if config.prefetch_dist == 4:
        return Rejection("capacity", "too far")
    return Legal(config, SimpleNamespace())


HAND_RULES = {"split": lambda config, _: "too many" if config.split_k > 2 else None}
HAND_CHOICES = {
    "split_k": [1, 2, 4],
    "swap_ab": [False, True],
    "raster_order": ["m", "n"],
    "prefetch_dist": [0, 4],
    "swizzle_size": [1, 2, 4],
}


def hand_count(legal: Any, rules: Any = HAND_RULES) -> space_count.Count:
    return space_count.count(HAND_CHOICES, GemmProblem.parse("1,32,8,0"), SM100A, legal, rules)


def test_count_by_hand() -> None:
    """72 points; split 4 takes 24; of 48, prefetch 4 takes 24; of 24, (swap, n) equals (swap, m): 2 splits x 3
    swizzles x (2 rasters without swap + 1 with) = 18 kernels."""
    assert hand_count(by_hand) == space_count.Count(
        raw=72, spelled=24, legal=18, rejected={"split": 24, "capacity": 24}
    )


def test_count_by_hand_where_only_some_points_overwrite_a_knob() -> None:
    """Of 48 legal points half become points of the other half: 2 splits x 2 rasters x 2 distances x 3 swizzles."""

    def folded(config: KernelConfigSm100a, *_: Any) -> Legal | Rejection:
        if reason := HAND_RULES["split"](config, None):
            return Rejection("split", reason)
        if config.swap_ab:
            config = config.replace(swap_ab=False, swizzle_size=1)
        return Legal(config, SimpleNamespace())

    assert hand_count(folded) == space_count.Count(raw=72, spelled=48, legal=24, rejected={"split": 24})


def test_rules_out_of_order_are_noticed() -> None:
    def capacity_first(config: KernelConfigSm100a, *_: Any) -> Legal | Rejection:
        if config.prefetch_dist == 4:
            return Rejection("capacity", "too far")
        return by_hand(config)

    with pytest.raises(AssertionError, match="every knob rule, in order"):
        hand_count(capacity_first)


def test_rule_that_legalize_forgets_is_noticed() -> None:
    rules = {**HAND_RULES, "swizzle": lambda config, _: "wide" if config.swizzle_size == 4 else None}
    with pytest.raises(AssertionError, match="knob rule"):
        hand_count(by_hand, rules)


def test_explore_runs_once_per_distinguishable_combination() -> None:
    leaves = list(
        space_count.explore(
            lambda config: config.swap_ab and config.split_k,
            {"swap_ab": [False, True], "split_k": [1, 2]},
            KernelConfigSm100a,
        )
    )
    assert [(leaf.values, leaf.result) for leaf in leaves] == [
        ({"swap_ab": False}, False),
        ({"swap_ab": True, "split_k": 1}, 1),
        ({"swap_ab": True, "split_k": 2}, 2),
    ]


# -- files --


def test_unknown_kernel_is_one_line() -> None:
    with pytest.raises(
        InputError, match="no search space for the kernel nothing; the kernels are svdquant_gemm_sm100a"
    ):
        SearchSpace.load("nothing")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  mma_tiler_k:", "  mma_tile_k:", "unknown knob 'mma_tile_k'"),
        ("choices: [256, 128]", "choices: [256, 256]", "mma_tiler_k needs choices, each once, got 256 256"),
        ("choices: [256, 128]", "choices: []", "mma_tiler_k needs choices, each once, got none"),
        ("choices: [256, 128]", "choices: [wide]", "mma_tiler_k must be a whole number, got 'wide'"),
        ("m_at_most: 64", "m_below: 64", "got m_below: 64"),
        ("m_at_most: 64", "m_at_most: few", "got m_at_most: few"),
        ("default:", "defaults:", "must hold kernel, knobs and default"),
        ("knobs:", "knobs: [", "is not YAML"),
        (
            "  - config: mma",
            "  - when: {r_at_least: 1}\n    config: mma",
            "last default rule must hold for every problem",
        ),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (SPACES / f"{KERNEL}.yaml").read_text()
    assert old in text
    path = tmp_path / "space.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        SearchSpace.read(path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_problem_list_parses() -> None:
    args = SimpleNamespace(shape=[], shapes=SPACES / "problems.yaml", dtype="fp16")
    problems = problems_of(args)
    assert len(problems) == len(set(problems)) == 10
    assert GemmProblem.parse("4352,3840,3072,128") in problems
