"""The search: the same candidates for the same seed whatever the timing, never one twice, everything when few."""

from __future__ import annotations

import random

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import fake_us, small_space
from tuner.search.search import Candidate, Search
from tuner.search.window import WINDOW
from tuner.space.space import SearchSpace
from tuner.trials.outcome import Origin

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
NEIGHBOUR = KernelConfigSm100a(mma_tiler_mn=(256, 256), mma_tiler_k=128, use_pdl=True)
# 2 tiles x 2 rasters x 4 swizzles x 3 subtiles x 4 distances x 2 = 384 spellings; 192 columns / 128 is illegal.
MIDDLE = {
    "mma_tiler_mn": "128x128 128x192",
    "raster_order": "m n",
    "swizzle_size": "1 2 4 8",
    "epi_tile_n": "32 64 128",
    "prefetch_dist": "0 2 4 8",
    "use_pdl": "false true",
}


def us(candidate: Candidate) -> float | None:
    """Every eighth or so fails."""
    time = fake_us(candidate.resolved)
    return None if time < 11.2 else time


def run(search: Search, generator: random.Random | None = None, in_flight: int = 1) -> list[Candidate]:
    """All candidates; with a generator, up to ``in_flight`` are on their way and come back in any order."""
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


def search(space: SearchSpace | None = None, **options: object) -> Search:
    return Search(space or SearchSpace.load(GemmProblem.operator, SM100A), PROBLEM, SM100A, **options)


def printed(candidates: list[Candidate]) -> list[str]:
    return [str(candidate.config) for candidate in candidates]


def test_same_seed_same_candidates_for_any_number_of_jobs_and_any_order_of_results() -> None:
    alone = printed(run(search(seed=3, trials=60)))
    assert len(alone) == 60
    for in_flight, shuffle in ((2, 1), (4, 2), (32, 3)):
        assert printed(run(search(seed=3, trials=60), random.Random(shuffle), in_flight)) == alone
    assert printed(run(search(seed=4, trials=60))) != alone


def test_values_steer_the_search() -> None:
    """The sampler learns: with the same seed, other times lead elsewhere once they have reached it."""
    one, other = search(seed=3, trials=60), search(seed=3, trials=60)
    first, second = [], []
    while candidate := one.ask():
        first.append(str(candidate.config))
        one.tell(candidate.number, fake_us(candidate.resolved))
    while candidate := other.ask():
        second.append(str(candidate.config))
        other.tell(candidate.number, 30 - fake_us(candidate.resolved))
    assert first[:WINDOW] == second[:WINDOW] and first != second


def test_no_kernel_twice_and_none_illegal() -> None:
    searched = search(seed=0, trials=80)
    candidates = run(searched)
    assert len({candidate.resolved for candidate in candidates}) == len(candidates) == 80
    for candidate in candidates:
        legal = legalize(candidate.config, PROBLEM, SM100A)
        assert isinstance(legal, Legal) and str(legal.config) == candidate.resolved
    assert searched.rejected
    for config, rejection in searched.rejected.items():
        assert legalize(config, PROBLEM, SM100A) == rejection


def test_default_first_then_neighbours_then_samples() -> None:
    illegal = KernelConfigSm100a(mma_tiler_mn=(256, 128), cluster_shape_mn=(1, 1))
    solved = legalize(KernelConfigSm100a(), PROBLEM, SM100A)
    assert isinstance(solved, Legal)  # the default's own resolved form: known before it is tried
    candidates = run(search(trials=6, first=[illegal, solved.config, NEIGHBOUR]))
    space = SearchSpace.load(GemmProblem.operator, SM100A)
    assert candidates[0].config == space.default(PROBLEM) and candidates[1].config == NEIGHBOUR
    assert [c.origin for c in candidates] == [Origin.DEFAULT, Origin.NEIGHBOUR] + [Origin.SAMPLED] * 4
    assert [c.number for c in candidates] == list(range(6))


def test_a_neighbour_whose_stages_do_not_fit_finds_its_own() -> None:
    """The winner at R = 0 has no LoRA ring; at R = 128 its tile and schedule still are where a search begins."""
    plain = GemmProblem.parse("4352,3840,3072,0")
    winner = KernelConfigSm100a(mma_tiler_mn=(256, 192), cluster_shape_mn=(2, 1), prefetch_dist=4)
    solved = legalize(winner, plain, SM100A)
    assert isinstance(solved, Legal) and solved.config.num_lora_stage == 0
    assert isinstance(legalize(solved.config, PROBLEM, SM100A), Rejection) and PROBLEM.r > 0
    candidates = run(search(trials=2, first=[solved.config]))
    assert [candidate.origin for candidate in candidates] == [Origin.DEFAULT, Origin.NEIGHBOUR]
    kept = ("mma_tiler_mn", "cluster_shape_mn", "prefetch_dist")
    assert [candidates[1].legal.config.fields()[knob] for knob in kept] == ["256x192", "2x1", "4"]
    assert candidates[1].legal.config.num_lora_stage > 0


def test_waits_when_results_lag_a_window_behind() -> None:
    searched = search(trials=40)
    asked = [searched.ask() for _ in range(WINDOW)]
    assert None not in asked and searched.ask() is None and not searched.done
    searched.tell(5, 12.0)
    assert searched.ask() is None, "the sampler hears values in order: 0 is still missing"
    searched.tell(0, 12.0)
    candidate = searched.ask()
    assert candidate is not None and candidate.number == WINDOW


def test_a_candidate_is_told_once() -> None:
    searched = search(trials=5)
    searched.ask()
    searched.tell(0, 12.0)
    with pytest.raises(ValueError, match="told before"):
        searched.tell(0, 12.0)


def test_exhaustive_search_finds_the_optimum() -> None:
    space = small_space(**{**MIDDLE, "swizzle_size": "1 2"})
    legal = {
        str(result.config)
        for result in (legalize(config, PROBLEM, SM100A) for config in every_config(space))
        if isinstance(result, Legal)
    }
    assert 100 < len(legal) <= 300
    searched = search(space)
    candidates = run(searched, random.Random(0), 4)
    everything = {candidate.resolved for candidate in candidates}
    assert searched.exhaustive and searched.done
    # The default of the whole space is no point of the small one; it is tried all the same.
    assert everything - legal == {candidates[0].resolved} and legal <= everything
    best = min(candidates[1:], key=lambda candidate: fake_us(candidate.resolved))
    assert best.resolved == min(legal, key=fake_us)


@pytest.mark.slow
def test_space_with_few_points_more_than_the_limit_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.search.search.EXHAUSTIVE_LIMIT", 30)
    space = small_space(**{**MIDDLE, "swizzle_size": "1", "prefetch_dist": "0 2"})
    legal = {
        str(result.config)
        for result in (legalize(config, PROBLEM, SM100A) for config in every_config(space))
        if isinstance(result, Legal)
    }
    assert len(legal) == 40  # (3 + 2) subtiles x 2 rasters x 2 distances x 2
    searched = search(space)
    candidates = run(searched)
    assert searched.planned == 40 and not searched.exhaustive and searched.done
    assert {
        candidate.resolved for candidate in candidates[1:]
    } == legal  # after the default of the whole space


def test_trials_limit_a_small_space_when_they_are_given() -> None:
    searched = search(small_space(**{**MIDDLE, "swizzle_size": "1 2"}), trials=20)
    assert not searched.exhaustive and len(run(searched)) == 20


def test_space_without_a_legal_point_gives_the_default_only() -> None:
    def nothing(config: KernelConfigSm100a, *_: object) -> Legal | Rejection:
        return Rejection("closed", "nothing is legal today")

    searched = search(small_space(**MIDDLE), rules=nothing)
    assert run(searched) == [] and searched.done
    assert [rejection.rule for rejection in searched.rejected.values()] == ["closed"]


def every_config(space: SearchSpace) -> list[KernelConfigSm100a]:
    configs = [{}]
    for name, knob in space.knobs.items():
        configs = [{**config, name: choice} for config in configs for choice in knob.choices]
    return [space.config(config) for config in configs]


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_steps_from_the_best_reach_a_point_several_knobs_away(seed: int) -> None:
    """Time grows with every knob that is not as in the target, several from the default; sampling alone misses it."""
    default = SearchSpace.load(GemmProblem.operator, SM100A).default(PROBLEM)
    target = default.replace(
        mma_tiler_mn=(256, 192), raster_order="n", swizzle_size=4, epi_tile_n=64, use_pdl=True
    )
    wanted = target.fields()

    def distance(candidate: Candidate) -> float:
        fields = candidate.legal.config.fields()
        return 10.0 + sum(
            fields[name] != text for name, text in wanted.items() if not name.startswith("num_")
        )

    searched = search(seed=seed, trials=200)
    found = []
    while candidate := searched.ask():
        found.append(distance(candidate))
        searched.tell(candidate.number, found[-1])
    assert found[0] == 15.0 and min(found) == 10.0
