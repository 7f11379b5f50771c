"""The prefilter: what it drops and never drops, what a search does with it, and what it costs in found time.

``data/prefilter_sample.csv``: legal configs of three problems with the time that the PTX machine gave them, by
``benchmarks/prefilter_loss.py``; times that the filter has no part in are the oracle for what it would lose.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.core.registry import kernel as kernel_of_chain
from kernel_space.core.registry import operator, parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.model_time import model_us
from tests.fakes import FakeDevice, small_space
from tests.published import B200
from tuner.search.prefilter import FACTOR, PREFILTER, Prefilter, prefilter_fact
from tuner.search.progress import State
from tuner.search.search import Candidate, Search
from tuner.search.trial_of import illegal_trial
from tuner.trials.outcome import Origin, Status

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
LAYER = operator("svdquant_linear").problem.parse("4352,3840,3072,128")
GOOD = "mma_tiler_mn=256x256 num_acc_stage=2"
BAD = "mma_tiler_mn=128x64 cluster_shape_mn=1x1 num_ab_stage=3"  # an eighth of the tile, no pair, few loads ahead
# 4 tiles x 2 clusters x 2 rasters x 4 swizzles x 3 subtiles x 4 distances x 2 rings = 1536 spellings
MIDDLE = small_space(
    mma_tiler_mn="128x64 128x128 256x128 256x256", cluster_shape_mn="1x1 2x1", raster_order="m n",
    swizzle_size="1 2 4 8", epi_tile_n="32 64 128", prefetch_dist="0 2 4 8", num_ab_stage="auto 3",
)  # fmt: skip


def legal(text: str, problem: GemmProblem = PROBLEM) -> Legal:
    found = legalize(KernelConfigSm100a.parse(text), problem, SM100A)
    assert isinstance(found, Legal), found
    return found


def test_only_what_is_slower_by_the_factor_is_dropped() -> None:
    prefilter = Prefilter(PROBLEM, B200())
    assert prefilter.rejection(legal(GOOD), wanted=False) is None
    rejection = prefilter.rejection(legal(BAD), wanted=False)
    assert (
        rejection is not None and rejection.rule == PREFILTER and f"{FACTOR:g} x the best" in rejection.reason
    )
    assert Prefilter(PROBLEM, B200(), 100.0).rejection(legal(BAD), wanted=False) is None


def test_first_proposal_and_what_is_wanted_are_never_dropped() -> None:
    prefilter = Prefilter(PROBLEM, B200())
    assert prefilter.rejection(legal(BAD), wanted=False) is None
    assert prefilter.rejection(legal(GOOD), wanted=False) is None
    assert prefilter.rejection(legal(BAD), wanted=True) is None
    assert prefilter.rejection(legal(BAD), wanted=False) is not None


def layer(gemm: str, quantizer: str = "") -> Legal:
    """A chain put together by hand of a GEMM and a quantizer that has no formula."""
    links = {"quantize": f"kernel=lora_tcgen05 {quantizer}", "gemm": f"kernel=sm100a {gemm}"}
    operators = {"quantize": "nvfp4_quantize", "gemm": "svdquant_gemm"}
    parts = {name: parse_config(operators[name], SM100A, text) for name, text in links.items()}
    chain = kernel_of_chain("svdquant_linear", "lora_tcgen05+sm100a").config_class.join(parts)
    found = legalize(chain, LAYER, SM100A)
    assert isinstance(found, Legal), found
    return found


def test_of_a_chain_each_link_that_has_a_formula_is_judged_by_itself() -> None:
    """As the GEMM is alone: what would be dropped there is, whatever the quantizer; the quantizer is never."""
    alone, prefilter = Prefilter(PROBLEM, B200()), Prefilter(LAYER, B200())
    for gemm, quantizer in ((GOOD, ""), (GOOD, "quant_warps=8 split_k=1"), (BAD, ""), (BAD, "split_k=1")):
        expected = alone.rejection(legal(gemm), wanted=False)
        found = prefilter.rejection(layer(gemm, quantizer), wanted=False)
        assert (found is None) == (expected is None) == (gemm == GOOD)
        if found and expected:
            assert found.reason == f"its gemm is {expected.reason}"
    assert prefilter.rejection(layer(BAD), wanted=True) is None


def run(search: Search) -> list[Candidate]:
    asked = []
    while candidate := search.ask():
        asked.append(candidate)
        search.tell(candidate.number, model_us(candidate.legal.config, PROBLEM, B200()))
    return asked


def searched(
    prefilter: Prefilter | None, trials: int = 40, **options: object
) -> tuple[Search, list[Candidate]]:
    search = Search(MIDDLE, PROBLEM, SM100A, seed=5, trials=trials, prefilter=prefilter, **options)  # type: ignore[arg-type]
    return search, run(search)


def test_search_compiles_none_of_them_and_still_makes_its_trials() -> None:
    """Every candidate but the wanted ones is within the factor of the best modelled before it."""
    search, asked = searched(Prefilter(PROBLEM, B200()))
    assert len(asked) == 40 == search.planned and search.filtered > 0
    oracle = Prefilter(PROBLEM, B200())
    for candidate in asked:
        found = oracle.rejection(candidate.legal, wanted=candidate.origin is Origin.DEFAULT)
        assert found is None, candidate.resolved
    assert asked[0].origin is Origin.DEFAULT
    again, same = searched(Prefilter(PROBLEM, B200()))
    assert [one.resolved for one in same] == [
        one.resolved for one in asked
    ] and again.filtered == search.filtered


def test_neighbours_and_published_configs_are_tried_whatever_the_model_says() -> None:
    bad = KernelConfigSm100a.parse(BAD)
    _, asked = searched(Prefilter(PROBLEM, B200()), trials=5, first=[bad])
    assert (asked[1].origin, asked[1].config) == (Origin.NEIGHBOUR, bad)
    _, asked = searched(Prefilter(PROBLEM, B200()), trials=5, published=bad)
    assert (asked[1].origin, asked[1].config) == (Origin.PUBLISHED, bad)


def test_exhaustive_search_ends_without_them() -> None:
    """256x256 and 128x64 with one load ahead, in two rasters each: four kernels, of which two are hopeless."""
    space = small_space(
        mma_tiler_mn="256x256 128x64", cluster_shape_mn="2x1", num_ab_stage="3", raster_order="m n"
    )
    whole = Search(space, PROBLEM, SM100A)
    everything = {one.resolved for one in run(whole) if one.origin is not Origin.DEFAULT}
    prefilter = Prefilter(PROBLEM, B200(), 1.3)
    search = Search(space, PROBLEM, SM100A, prefilter=prefilter)
    assert search.exhaustive
    tried = {one.resolved for one in run(search) if one.origin is not Origin.DEFAULT}
    assert 0 < search.filtered < len(everything)
    assert search.planned == len(tried) == len(everything) - search.filtered and tried < everything


def test_dropped_points_are_counted_and_are_no_failures() -> None:
    search, _ = searched(Prefilter(PROBLEM, B200()))
    config, rejection = next(item for item in search.rejected.items() if item[1].rule == PREFILTER)
    trial = illegal_trial(config, rejection, PROBLEM, FakeDevice())
    assert trial.status is Status.FILTERED and trial.reason.startswith("prefilter: modelled at ")
    assert prefilter_fact(search.rejected)["prefilter"].startswith(
        f"{search.filtered} legal proposals not compiled"
    )
    assert prefilter_fact({}) == {}
    state = State(done=5, total=60, filtered=search.filtered)
    assert f", {search.filtered} filtered, " in state.line(1.0) and "failed" not in state.line(1.0)


def sample(problem: GemmProblem) -> list[tuple[Legal, float]]:
    """(kernel, simulated microseconds) of every row about ``problem``, the default rule's config first."""
    with (Path(__file__).parents[1] / "data" / "prefilter_sample.csv").open(newline="") as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        return [
            (legal(row["config"], problem), float(row["simulated_us"]))
            for row in rows
            if row["problem"] == str(problem)
        ]


@pytest.mark.parametrize(
    ("shape", "least_dropped"),
    [("4352,3840,3072,128", 0.4), ("128,7168,4096,0", 0.2), ("17,3840,3072,64", 0.1)],
)
def test_nothing_near_the_best_is_lost(shape: str, least_dropped: float) -> None:
    """Simulated times, in which the filter had no part, say what it may drop: nothing within 2 % of the best."""
    problem = GemmProblem.parse(shape)
    rows = sample(problem)
    prefilter = Prefilter(problem, B200())
    prefilter.rejection(rows[0][0], wanted=True)
    for kernel, _ in rows:  # every row has been proposed once: the strictest the filter can be
        prefilter.rejection(kernel, wanted=False)
    best = min(us for _, us in rows)
    dropped = [us for kernel, us in rows if prefilter.rejection(kernel, wanted=False) is not None]
    assert len(rows) > 40 and min(dropped) > 1.02 * best
    assert len(dropped) >= least_dropped * len(rows)
