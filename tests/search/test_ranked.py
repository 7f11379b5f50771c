"""Points that an estimate finds best, against sorting all legal points of a small space."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from kernel_space.composite.config import CompositeConfig
from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.classes import DEVICE_CLASSES
from tuner.search.offline_search import choose_candidates
from tuner.search.ranked import ALIKE, SHARED, SLOWER, others_of, ranked, sizes_of, spread, with_fast_links
from tuner.search.search import Search
from tuner.space.bounded import BoundedConfig
from tuner.space.space import SearchSpace
from tuner.tables.estimates import Estimates

PROBLEM = GemmProblem.parse("128,7168,4096,0")
SMALL = SearchSpace.load("svdquant_gemm", SM100A).restrict(
    {
        "mma_tiler_mn": ("256x128", "128x128", "256x64"),
        "mma_tiler_k": ("256",),
        "cluster_shape_mn": ("2x1", "1x1", "4x1"),
        "num_ab_stage": ("4", "5"),
        "num_lora_stage": ("auto",),
        "num_acc_stage": ("1",),
        "num_c_stage": ("2",),
        "lora_schedule": ("tail",),
        "lora_buffer": ("dedicated",),
        "lora_tile_k": ("64",),
        "raster_order": ("m", "n"),
        "swizzle_size": ("1", "2"),
        "epi_tile_n": ("32",),
        "split_k": ("1", "2", "4"),
        "swap_ab": ("false", "true"),
        "prefetch_dist": ("0",),
        "use_pdl": ("false", "true"),
    }
)


def accept(config: KernelConfig, problem: Problem, arch: object) -> Legal | Rejection:
    """Legality that needs no DSL: what the knob rules say."""
    from kernel_space.core.rules import knob_rejection

    rejection = knob_rejection(config, problem, SM100A)
    return rejection or Legal(config, None)  # type: ignore[arg-type] # nobody looks at the budget


def us(config: KernelConfig) -> float:
    """Least for splits and wide tiles, each knob by itself: so changes of one knob find the least of all."""
    fields = config.fields()
    tile = {"256x64": 0.0, "256x128": 3.0, "128x128": 5.0}.get(str(fields["mma_tiler_mn"]), 7.0)
    return (
        10
        + tile
        + {"1": 2, "2": 1, "4": 0}[str(fields["split_k"])]
        + 0.5 * (str(fields["use_pdl"]) == "false")
    )


def test_the_best_of_all_legal_points_is_first() -> None:
    every = [one.config for one in SMALL.legal_points(PROBLEM, SM100A, accept) if isinstance(one, Legal)]
    found = ranked(SMALL, PROBLEM, SM100A, us, limit=8, draws=40, rules=accept)
    assert us(found[0]) == min(us(one) for one in every) and len(set(found)) == 8
    again = ranked(SMALL, PROBLEM, SM100A, us, limit=8, draws=40, rules=accept)
    assert again == found


def test_what_is_taken_is_spread() -> None:
    """10.0 and 10.1 us of one tile and cluster that differ in d of 14 other knobs, 10.7 us of a tile and a cluster of
    its own that differs in e: after the first they count 10.1 (1.06 + 0.002 (14 - d)), 10.7 (1 + 0.002 (14 - e)).
    """
    every = [one.config for one in SMALL.legal_points(PROBLEM, SM100A, accept)]
    mine = [one for one in every if sizes_of(one) == sizes_of(every[0])][:2]
    other = next(one for one in every if not sizes_of(one) & sizes_of(every[0]))
    alike = [len(others_of(every[0]) & others_of(one)) for one in (mine[1], other)]
    near, far = 10.1 * (1.06 + 0.002 * alike[0]), 1 + 0.002 * alike[1]
    assert (SHARED, ALIKE) == (0.03, 0.002) and len(sizes_of(other)) == 2
    before, after = ({mine[0]: 10.0, mine[1]: 10.1, other: near / far + shift} for shift in (-0.01, 0.01))
    assert spread(before, 3) == [mine[0], other, mine[1]]
    assert spread(after, 3) == [mine[0], mine[1], other] and spread(after, 2) == mine


def test_a_start_of_a_chain_takes_a_link_of_the_default_rule_from_where_it_is_faster() -> None:
    """The GEMM of the default rule is estimated at 25, 28 and 30 us, of others the best of its kernel at 26. 1.1 times
    that is more than 28. What is no default stays, and so does the quantizer, of which nothing is estimated.
    """
    problem = operator("svdquant_linear").problem.parse("4352,3840,3072,128")
    space = SearchSpace.load("svdquant_linear", SM100A)
    default = space.default(problem)
    assert isinstance(default, CompositeConfig)
    tiles = {(256, 64): 25.0, (128, 64): 28.0, (256, 128): 30.0, (256, 192): 26.0, (256, 256): 27.0}

    def estimate(config: KernelConfig) -> float:
        assert isinstance(config, CompositeConfig)
        return tiles[config.of("gemm").mma_tiler_mn]

    def with_tile(tile: tuple[int, int], **knobs: Any) -> KernelConfig:
        return default.replace(gemm_mma_tiler_mn=tile, **knobs)

    starts = [with_tile(tile, quantize_tile_m=128) for tile in ((256, 64), (128, 64), (256, 128))]
    rule = [BoundedConfig({}, one.replace(quantize_tile_m=96), "") for one in starts]
    chains = dataclasses.replace(space, defaults=tuple(rule))
    design = with_tile((256, 128), gemm_swizzle_size=8)
    others = [
        with_tile((256, 256), quantize_tile_m=64),
        with_tile((256, 192), quantize_tile_m=64, gemm_swizzle_size=2),
    ]

    def found(others: list[KernelConfig]) -> list[KernelConfig]:
        return list(
            with_fast_links([*starts, design], chains, problem, SM100A, estimate, others=others, rules=accept)
        )

    faster = with_tile((256, 192), quantize_tile_m=128, gemm_swizzle_size=2)
    assert SLOWER == 1.1 and found(others) == [starts[0], starts[1], faster, design]
    assert found([]) == [*starts, design]


@pytest.mark.parametrize(("slow_us", "tile"), [(30.0, "256x192"), (21.0, "256x128")])
def test_a_search_tries_designs_beside_the_best_that_was_estimated(slow_us: float, tile: str) -> None:
    """The default GEMM has tiles of 256x128; 256x192 is estimated at 20 us."""
    problem = operator("svdquant_linear").problem.parse("4352,3840,3072,128")
    space = SearchSpace.load("svdquant_linear", SM100A).restrict({"kernel": ("lora_tcgen05+sm100a",)})

    def estimate(config: KernelConfig) -> float:
        return 20.0 if str(config.fields()["gemm_mma_tiler_mn"]) == "256x192" else slow_us

    default = space.default(problem)
    fast = default.replace(gemm_mma_tiler_mn=(256, 192))
    search = Search(space, problem, SM100A, trials=5, estimate=estimate, first=[fast], rules=accept)
    asked = [one.config.fields() for one in iter(search.ask, None)]
    names = ("quantize_tile_m", "quantize_split_k", "gemm_mma_tiler_mn")
    found = [tuple(str(one[name]) for name in names) for one in asked]
    designs = [("64", "2", tile), ("96", "3", tile), ("128", "4", tile)]  # lora_tcgen05.yaml, of this M
    assert found == [("96", "3", "256x128"), ("96", "3", "256x192"), *designs]


def test_a_space_without_estimates_gives_nothing() -> None:
    asked = itertools.count()

    def nothing(config: KernelConfig) -> None:
        next(asked)

    assert ranked(SMALL, PROBLEM, SM100A, nothing, limit=8, rules=accept) == []
    assert next(asked) < 10  # and does not look around for long


@pytest.mark.slow
def test_the_shipped_estimates_find_what_takes_three_quarters_of_the_default_rule() -> None:
    """256,3072,9216,128, which has no row: 24 measured candidates held one of 28.6 us, the nearest row's took 40.8."""
    problem = GemmProblem.parse("256,3072,9216,128")
    from kernel_space.core.plain_files import below
    from kernel_space.places import shipped

    estimates = Estimates.over([below(shipped("results"), "h200")], DEVICE_CLASSES["h200"])

    def estimate(config: KernelConfig) -> float | None:
        found = estimates.of(config, problem)
        return None if found is None else found.us

    space = SearchSpace.load("svdquant_gemm", SM90A)
    found = ranked(space, problem, SM90A, estimate, limit=12, draws=100)
    default = legalize(space.default(problem), problem, SM90A)
    assert isinstance(default, Legal)
    best, usual = estimate(found[0]), estimate(default.config)
    assert best is not None and usual is not None and best < 0.75 * usual
    assert {str(one.fields()["stream_k"]) for one in found if "stream_k" in one.fields()} >= {"true"}
    chosen = choose_candidates(space, problem, SM90A, trials=24, ranked=found)
    assert {str(one) for one in found} <= {one.resolved for one in chosen} and len(chosen) == 24


def test_no_look_comes_after_the_time_is_up() -> None:
    left = itertools.count(3, -1)
    looked: list[KernelConfig] = []

    def check_time() -> None:
        if next(left) == 0:
            raise TimeoutError

    def rules(config: Any, problem: Any, arch: Any) -> Legal | Rejection:
        looked.append(config)
        return accept(config, problem, arch)

    with pytest.raises(TimeoutError):
        ranked(SMALL, PROBLEM, SM100A, us, limit=8, draws=40, rules=rules, check_time=check_time)
    assert len(looked) == 3
