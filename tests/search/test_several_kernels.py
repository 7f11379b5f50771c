"""A search across kernels: the same for any number of jobs, and crossing when another kernel is better."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest
from tally.deep.spec import DeepConfig
from tally.operator import TallyProblem
from tally.wide.spec import WideConfig

from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import fake_us
from tests.published import B200
from tests.space.brute_force import every_point
from tuner.search import prefilter as prefilters
from tuner.search.offline_search import choose_candidates
from tuner.search.prefilter import PREFILTER, Prefilter
from tuner.search.sampler import Sampler
from tuner.search.search import Candidate, Search
from tuner.space.space import SearchSpace
from tuner.trials.outcome import Origin

PROBLEM = TallyProblem.parse("40,256")
SPACE = SearchSpace.load("tally", SM90A)


def run(
    search: Search,
    us: Callable[[Candidate], float | None] = lambda one: fake_us(one.resolved),
    generator: random.Random | None = None,
    in_flight: int = 1,
) -> list[Candidate]:
    asked: list[Candidate] = []
    waiting: list[Candidate] = []
    while True:
        while len(waiting) < in_flight and (candidate := search.ask()):
            asked.append(candidate)
            waiting.append(candidate)
        if not waiting:
            return asked
        back = waiting.pop(generator.randrange(len(waiting)) if generator else 0)
        search.tell(back.number, us(back))


def test_few_points_of_all_kernels_are_all_tried() -> None:
    search = Search(SPACE, PROBLEM, SM90A)
    found = run(search)
    assert search.exhaustive and search.planned == 59
    assert {one.resolved for one in found} == every_point(SPACE, PROBLEM, SM90A).resolved
    assert found[0].config == WideConfig() and found[0].origin is Origin.DEFAULT


def test_same_seed_same_candidates_for_any_number_of_jobs_and_any_order_of_results() -> None:
    alone = [one.config for one in run(Search(SPACE, PROBLEM, SM90A, seed=3, trials=45))]
    assert len(alone) == 45 == len(set(alone)) and {one.kernel for one in alone} == {"wide", "deep"}
    for in_flight, shuffle in ((2, 1), (16, 2)):
        search = Search(SPACE, PROBLEM, SM90A, seed=3, trials=45)
        again = run(search, generator=random.Random(shuffle), in_flight=in_flight)
        assert [one.config for one in again] == alone
    other = run(Search(SPACE, PROBLEM, SM90A, seed=4, trials=45))
    assert [one.config for one in other] != alone


@pytest.mark.parametrize(
    ("target", "seed"),
    [
        (
            "kernel=sm90a_expand tile_mnk=64x200x128 consumer_warpgroups=1 wgmma_k=32 raster_order=n swizzle_size=4 "
            "split_k=3 use_pdl=true",
            0,
        ),
        pytest.param(
            "kernel=sm90a_small_m tile_mnk=128x64x128 register_operand=wgt split_k=8 ctas_per_sm=2 use_pdl=true",
            1,
            marks=pytest.mark.slow,
        ),
    ],
    ids=["expand", "small_m"],
)
def test_the_best_is_found_in_another_kernel_than_the_default(target: str, seed: int) -> None:
    """Time grows with each knob that is not as in the target, and other kernels take 20 us whatever their knobs."""
    problem = GemmProblem.parse("256,3840,3072,128")
    space = SearchSpace.load(GemmProblem.operator, SM90A)
    wanted = parse_config(GemmProblem.operator, SM90A, target)

    def us(candidate: Candidate) -> float:
        if candidate.config.kernel != wanted.kernel:
            return 20.0
        fields = candidate.legal.config.fields()
        return 10.0 + sum(
            fields[name] != text for name, text in wanted.fields().items() if not name.startswith("num_")
        )

    found = run(Search(space, problem, SM90A, seed=seed, trials=200), us)
    assert found[0].config.kernel == "sm90a_ring" and min(map(us, found)) == 10.0


def test_a_kernel_that_cannot_serve_the_problem_costs_no_trial() -> None:
    problem = TallyProblem.parse("1000,256")
    found = run(Search(SPACE, problem, SM90A, trials=12))
    assert len(found) == 12 and {one.config.kernel for one in found} == {"wide"}
    assert {one.config.kernel for one in choose_candidates(SPACE, problem, SM90A, trials=12)} == {"wide"}


def test_candidates_for_another_machine_are_of_all_kernels() -> None:
    found = choose_candidates(SPACE, PROBLEM, SM90A, trials=40)
    assert len({one.resolved for one in found}) == 40
    assert {"wide", "deep"} == {one.config.kernel for one in found}


def test_the_first_candidates_on_sm_90a_are_designs_of_all_its_kernels() -> None:
    """By the bounds in the files: 4 designs of sm90a_expand and 6 of sm90a_small_m are for M = 128."""
    space = SearchSpace.load(GemmProblem.operator, SM90A)
    problem = GemmProblem.parse("128,3840,3072,128")
    search = Search(space, problem, SM90A, trials=11)
    kernels = Counter(one.config.kernel for one in run(search))
    designs = Counter(
        design.config.kernel
        for one in space.kernels.values()
        for design in one.designs
        if design.when.get("m_at_least", 0) <= 128 <= design.when.get("m_at_most", 128)
    )
    assert designs["sm90a_expand"] >= 3 and designs["sm90a_small_m"] >= 4
    assert all(kernels[name] >= min(count, 4) for name, count in designs.items())


# -- the sampler --


def test_the_sampler_learns_which_kernel_and_which_knobs() -> None:
    """100 drawn points, deep and ``lanes=32`` faster: most of 40 proposals are that, one in eight of untaught ones."""
    taught, untaught, generator = Sampler(SPACE, 0), Sampler(SPACE, 0), random.Random(0)
    for _ in range(100):
        config = SPACE.random_config(generator)
        us = 20.0 - 5 * (config.kernel == "deep") - 4 * (config.fields().get("lanes") == "32")
        taught.tell(taught.learn({"kernel": config.kernel, **config.fields()}), us)

    def good(sampler: Sampler) -> int:
        found = 0
        for _ in range(40):
            proposal = sampler.propose()
            params = proposal.params
            found += params["kernel"] == "deep" and params["lanes"] == "32"
            sampler.tell(proposal, 20.0 if sampler is untaught else 11.0 + 4 * (params.get("lanes") != "32"))
        return found

    assert good(taught) >= 24 and good(untaught) <= 12


def test_the_sampler_leaves_a_kernel_whose_points_are_refused() -> None:
    sampler, kernels = Sampler(SPACE, 0), []
    for _ in range(60):  # drawn evenly, 15 of the last 30 would be wide
        proposal = sampler.propose()
        kernels.append(proposal.params["kernel"])
        if kernels[-1] == "wide":
            sampler.refuse(proposal, "legal")
        else:
            sampler.tell(proposal, 10.0)
    assert "wide" in kernels[:15] and kernels[30:].count("wide") <= 8


# -- the prefilter --


def legal(config: object, problem: object, arch: object) -> Legal:
    found = legalize(config, problem, arch)  # type: ignore[arg-type]
    assert isinstance(found, Legal), found
    return found


def test_a_kernel_without_a_model_is_never_filtered() -> None:
    tally = Prefilter(PROBLEM, B200())  # type: ignore[arg-type]
    for config in (WideConfig(columns=64), DeepConfig(lanes=32), WideConfig()):
        assert tally.rejection(legal(config, PROBLEM, SM90A), wanted=False) is None
    gemm = GemmProblem.parse("4352,3840,3072,128")
    slow = KernelConfigSm100a(mma_tiler_mn=(128, 64), cluster_shape_mn=(1, 1), num_ab_stage=3)
    fast = KernelConfigSm100a(mma_tiler_mn=(256, 256), num_acc_stage=2)
    filtering = Prefilter(gemm, B200())
    assert filtering.rejection(legal(fast, gemm, SM100A), wanted=False) is None
    rejection = filtering.rejection(legal(slow, gemm, SM100A), wanted=False)
    assert rejection is not None and rejection.rule == PREFILTER


def test_models_of_two_kernels_do_not_judge_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that puts its kernel at a tenth of the other's time drops none of the other."""
    monkeypatch.setattr(
        prefilters,
        "modelled_us",
        lambda config, *_: float(config.columns) / 32 if config.kernel == "wide" else 10.0 * config.lanes,
    )
    prefilter = Prefilter(PROBLEM, B200())  # type: ignore[arg-type]

    def dropped(config: WideConfig | DeepConfig) -> bool:
        return prefilter.rejection(legal(config, PROBLEM, SM90A), wanted=False) is not None

    assert [dropped(WideConfig(columns=columns)) for columns in (32, 64, 128)] == [False, True, True]
    assert [dropped(DeepConfig(lanes=lanes)) for lanes in (8, 16, 32)] == [False, True, True]
