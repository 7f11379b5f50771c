"""The space of a chain against brute force, and where its search begins."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from kernel_space.core import registry
from kernel_space.core.arch import SM90A, SM100A, Arch
from kernel_space.core.problem import Problem
from kernel_space.core.rules import Legal, legalize
from tests.space.brute_force import every_point, small
from tests.tables.test_dispatch import CURRENT, row
from tuner.space.space import SearchSpace, has_space
from tuner.tables.dispatch import DispatchTable, record
from tuner.tables.row import DispatchKey, Row
from tuner.trials.outcome import Kind
from tuner.tune.near_rows import joined_rows


def problem(name: str, text: str) -> Problem:
    return registry.operator(name).problem.parse(text)


def row_of(text: str, knobs: str) -> Row:
    config = registry.parse_config("rowstats", SM100A, knobs)
    return row(Kind.SIMULATED, key=DispatchKey("sm_100a", problem("rowstats", text)), config=str(config))


def assert_counts(space: SearchSpace, whole: Problem, arch: Arch) -> None:
    found = every_point(space, whole, arch)
    count = space.count(whole, arch)
    assert (count.raw, count.spelled) == (space.raw_size, found.spelled)
    assert count.legal == len(found.resolved)
    assert Counter(count.rejected) == found.rejected
    listed = [str(legal.config) for legal in space.legal_points(whole, arch)]
    assert len(listed) == len(set(listed)) and set(listed) == found.resolved


@pytest.mark.parametrize("text", ["37,68", "37,66", pytest.param("8,64", marks=pytest.mark.slow)])
def test_counts_are_those_of_brute_force(text: str) -> None:
    assert_counts(SearchSpace.load("twice", SM100A), problem("twice", text), SM100A)


@pytest.mark.parametrize(
    "arch, text, choices",
    [
        (
            SM100A,
            "300,3840,3072,0",
            {
                "quantize_vector_width": "16 8",
                "quantize_row_loads": "1 8",
                "gemm_mma_tiler_mn": "128x128 256x192",
                "gemm_cluster_shape_mn": "1x1 2x1",
                "gemm_num_ab_stage": "auto 4 12",
                "gemm_split_k": "1 2",
            },
        ),
        (
            SM90A,
            "65,3840,3072,0",
            {"quantize_tile_mk": "32x256 8x256", "quantize_threads_per_row": "16 4", "gemm_split_k": "1 2 4"},
        ),
    ],
    ids=["sm_100a", "sm_90a"],
)
def test_rules_stages_and_capacities_count_across_links(
    arch: Arch, text: str, choices: dict[str, str]
) -> None:
    assert_counts(
        small(SearchSpace.load("svdquant_linear", arch), **choices), problem("svdquant_linear", text), arch
    )


@pytest.mark.parametrize("arch", [SM90A, SM100A], ids=lambda arch: arch.name)
@pytest.mark.parametrize("m", [1, 64, 65, 128, 300, 512, 1024, 4352])
def test_the_default_is_that_of_every_link(arch: Arch, m: int) -> None:
    """Alone each link would launch the same."""
    whole = problem("svdquant_linear", f"{m},3840,3072,0")
    found = SearchSpace.load("svdquant_linear", arch).default(whole)
    legal = legalize(found, whole, arch)
    assert isinstance(legal, Legal), legal
    composed = registry.operator("svdquant_linear").composed
    assert composed is not None
    for link in composed.links:
        alone = SearchSpace.load(link.operator, arch).default(link.problem(whole))
        assert str(found.of(link.name)) == str(alone)


def test_designs_of_a_link_are_tried_with_the_others_defaults() -> None:
    whole = problem("svdquant_linear", "64,3840,3072,0")
    gemm = problem("svdquant_gemm", "64,3840,3072,0")
    alone = SearchSpace.load("svdquant_gemm", SM90A)
    designs = {
        str(one.config) for space in alone.kernels.values() for one in space.designs if one.holds(gemm)
    }
    assert designs
    starts = SearchSpace.load("svdquant_linear", SM90A).starts(whole)
    assert designs <= {str(config.of("gemm")) for config in starts}


def test_an_architecture_without_a_link_has_no_space() -> None:
    assert has_space("svdquant_linear", SM100A) and has_space("twice", SM100A)
    assert not has_space("pair", SM100A)


def test_a_search_begins_with_the_winners_of_the_links(tmp_path: Path) -> None:
    """Those of the links' own problems, then with the next nearest rows; rows of other chains are not asked."""
    whole = problem("twice", "37,68")
    rows = [
        row_of("37,68", "rows=8 vec=4"),
        row_of("40,68", "rows=1 vec=2"),
        row_of("4000,68", "rows=4 vec=2"),
    ]
    record(tmp_path / "dispatch.json", rows, CURRENT)
    table = DispatchTable.load(tmp_path, arch=SM100A)
    found = [registry.parse_config("twice", SM100A, text) for text in joined_rows(table, whole)]
    assert [(one.first_rows, one.second_rows) for one in found] == [(8, 8), (8, 1), (1, 8), (1, 1)]
    assert joined_rows(table, problem("rowstats", "37,68")) == []
