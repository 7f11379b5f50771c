"""Counting a space: brute force on sub-spaces is the oracle, and rules worked out by hand."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.core.kernel import Kernel
from kernel_space.core.registry import kernel
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.rules import KNOB_RULES
from tests.space.brute_force import every_point, small
from tuner.space import count as space_count
from tuner.space.explore import explore, explore_region
from tuner.space.regions import ALL, Regions
from tuner.space.space import SearchSpace


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return SearchSpace.load(GemmProblem.operator, SM100A)


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
    "shape",
    [
        "4352,3840,3072,128",
        pytest.param("4352,3840,3072,64", marks=pytest.mark.slow),
        "64,3840,3072,0",
        pytest.param("1,256,8,256", marks=pytest.mark.slow),
    ],
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

HAND_CHOICES = {
    "split_k": [1, 2, 4],
    "swap_ab": [False, True],
    "raster_order": ["m", "n"],
    "prefetch_dist": [0, 4],
    "swizzle_size": [1, 2, 4],
}


def too_many(config: KernelConfigSm100a, _: Any) -> str | None:
    return "too many" if config.split_k > 2 else None


def raster_without_effect(config: KernelConfigSm100a, _: Any) -> KernelConfigSm100a:
    return config.replace(raster_order="m") if config.swap_ab else config


def by_hand(
    canonical: Callable[..., Any] = raster_without_effect, far: int = 4, **rules: Callable[..., Any]
) -> Kernel:
    """Legal unless split_k > 2; afterwards ``canonical``, and prefetch_dist of ``far`` does not fit."""
    return dataclasses.replace(
        kernel(GemmProblem.operator, "sm100a"),
        knob_rules={"split": too_many, **rules},
        canonical=canonical,
        solve_stages=lambda config, *_: config,
        budget=lambda config, *_: SimpleNamespace(over=lambda _: config.prefetch_dist - far + 1),
        capacities=("smem",),
        layouts=lambda *_: None,
    )


def hand_legalize(spec: Kernel) -> Callable[..., Legal | Rejection]:
    """What ``rules.legalize`` is for a registered kernel."""

    def legalize(config: Any, problem: GemmProblem, arch: Any) -> Legal | Rejection:
        for name, rule in spec.knob_rules.items():
            if reason := rule(config, problem):
                return Rejection(name, reason)
        config = spec.canonical(config, problem)
        over = spec.budget(config).over("smem") > 0
        return Rejection("smem_capacity", "too far") if over else Legal(config, SimpleNamespace())

    return legalize


def hand_count(spec: Kernel, legalize: Any = None) -> space_count.Count:
    problem = GemmProblem.parse("1,32,8,0")
    return space_count.count(HAND_CHOICES, problem, SM100A, legalize or hand_legalize(spec), spec)


def hand_brute_force(spec: Kernel) -> space_count.Count:
    rejected, kernels, spelled = Counter(), set(), 0
    for values in itertools.product(*HAND_CHOICES.values()):
        config = KernelConfigSm100a(**dict(zip(HAND_CHOICES, values, strict=True)))
        result = hand_legalize(spec)(config, GemmProblem.parse("1,32,8,0"), SM100A)
        if isinstance(result, Rejection):
            rejected[result.rule] += 1
        else:
            spelled += 1
            kernels.add(str(result.config))
    return space_count.Count(raw=72, spelled=spelled, legal=len(kernels), rejected=dict(rejected))


def test_count_by_hand() -> None:
    """72 points; split 4 takes 24; of 48, prefetch 4 takes 24; of 24, (swap, n) equals (swap, m): 2 splits x 3
    swizzles x (2 rasters without swap + 1 with) = 18 kernels."""
    assert hand_count(by_hand()) == space_count.Count(
        raw=72, spelled=24, legal=18, rejected={"split": 24, "smem_capacity": 24}
    )


def test_count_by_hand_where_only_some_points_overwrite_a_knob() -> None:
    """Of 48 legal points half become points of the other half: 2 splits x 2 rasters x 2 distances x 3 swizzles."""

    def folded(config: KernelConfigSm100a, _: Any) -> KernelConfigSm100a:
        return config.replace(swap_ab=False, swizzle_size=1) if config.swap_ab else config

    assert hand_count(by_hand(folded, far=5)) == space_count.Count(
        raw=72, spelled=48, legal=24, rejected={"split": 24}
    )


def to_no_choice(config: Any, _: Any) -> Any:
    """Overwrites a knob with what is no choice, for values that a comparison leaves together."""
    return config.replace(split_k=7) if config.swizzle_size > 1 else config


def to_a_knob_that_is_open(config: Any, _: Any) -> Any:
    return config.replace(swizzle_size=config.split_k) if config.raster_order == "n" else config


def by_looking_up(config: Any, _: Any) -> Any:
    """Needs values: hash, arithmetic, text, type."""
    table = {1: 0, 2: 1, 4: 1}
    odd = table[config.swizzle_size] + 1 - config.split_k % 2
    return config.replace(prefetch_dist=odd) if str(config.raster_order) == "n" else config


def by_truth_and_kind(config: Any, _: Any) -> Any:
    if not config.swap_ab and isinstance(config.split_k, int):
        return config.replace(swap_ab=True, raster_order="m")
    return config.replace(swap_ab=config.split_k == config.swizzle_size)


def by_comparing_knobs(config: Any, _: Any) -> Any:
    """One with another: with ``forbidden_pair``, what is left of one depends on the other."""
    return config.replace(raster_order="m") if config.split_k > config.swizzle_size else config


def forbidden_pair(config: Any, _: Any) -> str | None:
    return f"{config.split_k}" if config.split_k == 2 and config.swizzle_size != 2 else None


@pytest.mark.parametrize("rules", [{}, {"pair": forbidden_pair}], ids=["one rule", "two rules"])
@pytest.mark.parametrize(
    "canonical", [to_no_choice, to_a_knob_that_is_open, by_looking_up, by_truth_and_kind, by_comparing_knobs]
)
@pytest.mark.parametrize("far", [4, 5])
def test_count_equals_brute_force_however_knobs_are_looked_at(
    canonical: Callable[..., Any], rules: dict[str, Any], far: int
) -> None:
    spec = by_hand(canonical, far, **rules)
    assert hand_count(spec) == hand_brute_force(spec)


def test_rules_out_of_order_are_noticed() -> None:
    def capacity_first(config: KernelConfigSm100a, *problem: Any) -> Legal | Rejection:
        if config.prefetch_dist == 4:
            return Rejection("smem_capacity", "too far")
        return hand_legalize(by_hand())(config, *problem)

    with pytest.raises(AssertionError, match="every knob rule, in order"):
        hand_count(by_hand(), capacity_first)


def test_rule_that_legalize_forgets_is_noticed() -> None:
    spec = by_hand(swizzle=lambda config, _: "wide" if config.swizzle_size == 4 else None)
    with pytest.raises(AssertionError, match="every knob rule"):
        hand_count(spec, hand_legalize(by_hand()))


def test_knob_that_is_compared_by_identity_is_noticed() -> None:
    """``is`` cannot be observed: what it finds on a knob without a value differs from what ``legalize`` finds."""
    spec = by_hand(
        swizzle=lambda config, _: "one" if config.swizzle_size is HAND_CHOICES["swizzle_size"][0] else None
    )
    with pytest.raises(AssertionError, match="every knob rule"):
        hand_count(spec)


def test_explore_runs_once_per_combination_that_is_read() -> None:
    leaves = list(
        explore(
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


def test_explore_region_runs_once_per_answer() -> None:
    """Of 12 combinations of 3 knobs: without swap nothing else is asked; with it split_k is 1, or more."""
    choices = {"swap_ab": [False, True], "split_k": [1, 2, 4], "raster_order": ["m", "n"]}
    regions = Regions(choices, list(choices))
    parts = list(
        explore_region(lambda config: config.swap_ab and config.split_k > 1, regions, ALL, KernelConfigSm100a)
    )
    assert [(part.box, bool(part.result), regions.points(part.region, part.values)) for part in parts] == [
        ({"swap_ab": [False]}, False, 6),
        ({"swap_ab": [True], "split_k": [1]}, False, 2),
        ({"swap_ab": [True], "split_k": [2, 4]}, True, 4),
    ]
