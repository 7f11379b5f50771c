"""Rounds between leaders while compilers are busy: who is ruled out and who is not, on a card of arithmetic."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.finals.test_finals import PROBLEM, Card, contender, trial
from tuner.card.samples.samples import Samples, State
from tuner.card.worker.bench import FinalsOptions
from tuner.finals.early_rounds import GROUP, MOST_ROUNDS, ROUNDS, Refinement
from tuner.finals.finals import Contender, choose_contenders, choose_leaders
from tuner.trials.final_order import in_the_running
from tuner.trials.outcome import Outcome, Status


def leaders(*names: str) -> list[Contender]:
    return [contender(name, 100.0 + index, index) for index, name in enumerate(names)]


def refine(card: Card, order: Sequence[Contender], seed: int = 0) -> tuple[Refinement, dict[str, str]]:
    """Until all have had enough; who was ruled out, and by whom."""
    refinement, out = Refinement(card, PROBLEM, seed), {}
    while group := refinement.next_group([one for one in order if one.name not in out]):
        assert len(card.asked) < 200, "it does not end"
        for lost in refinement.run(group).lost:
            out[lost.resolved] = lost.evidence["ruled_out_by"]
    return refinement, out


def test_who_is_surely_slower_is_ruled_out_by_the_fastest() -> None:
    """b is truly fastest, though cheap timings say a; c is within what one object differs by; d and e are slower."""
    card = Card({"a": 100.8, "b": 100.0, "c": 100.1, "d": 102.0, "e": 110.0})
    refinement, out = refine(card, leaders("a", "d", "c", "e", "b"))
    assert set(out) == {"a", "d", "e"}
    assert out["a"] == "b", "the cheaply fastest leads only until rounds say otherwise"
    assert refinement.next_group(leaders("b", "c")) == [], "48 rounds were not enough to tell them apart"
    assert {len(names) for names, _ in card.asked} <= set(range(2, GROUP + 1))


def test_the_evidence_says_by_how_much() -> None:
    refinement = Refinement(Card({"a": 100.0, "b": 103.0}), PROBLEM)
    (lost,) = refinement.run(leaders("a", "b")).lost
    assert lost.ok and lost.us == 101.0, "its time stays what the search was told"
    assert lost.evidence["samples"] == 9, "and so does what is behind it"
    assert lost.evidence["ruled_out_ratio"] == pytest.approx(1.03, abs=0.002)
    assert (lost.evidence["ruled_out_rounds"], lost.evidence["ruled_out_p_value"]) == (ROUNDS, 0.00781)


def test_a_level_race_is_left_to_the_final() -> None:
    """Forty searches of six kernels that are equal, with 0.5 % noise: nobody may be ruled out but by bad luck."""

    class Noisy(Card):
        def _samples(self, name: str, options: FinalsOptions) -> Samples:
            noise = random.Random(f"{name} {options.seed}")
            us = tuple(100.0 * (1 + noise.gauss(0, 0.005)) for _ in range(options.rounds))
            return dataclasses.replace(super()._samples(name, options), us=us)

    names = ["a", "b", "c", "d", "e", "f"]
    lost = 0
    for search in range(40):
        card = Noisy(dict.fromkeys(names, 100.0))
        lost += len(refine(card, leaders(*names), seed=1000 * search)[1])
    assert lost <= 2, "of 200"


class Drifting(Card):
    """From visit to visit, and from round to round, everything is up to 20 % slower or faster."""

    def _samples(self, name: str, options: FinalsOptions) -> Samples:
        drift = random.Random(options.seed)
        factors = [drift.uniform(0.8, 1.2) for _ in range(options.rounds)]
        samples = super()._samples(name, options)
        us = tuple(value * factor for value, factor in zip(samples.us, factors, strict=True))
        return dataclasses.replace(samples, us=us)


def test_times_are_compared_within_a_round_only() -> None:
    """1 % is found and equals stay equal although everything moves by 20 %, between visits and within them."""
    names = ["a", *(f"b{index}" for index in range(8)), "slow"]
    card = Drifting({name: 100.0 for name in names} | {"slow": 101.0})
    refinement, out = refine(card, leaders(*names))
    assert out == {"slow": out["slow"]} and refinement.timed == set(names)


def test_everybody_gets_rounds_and_newcomers_come_first() -> None:
    card = Card({name: 100.0 for name in "abcdefghi"})
    refinement = Refinement(card, PROBLEM)
    first = refinement.next_group(leaders(*"abcdefgh"))
    assert [one.name for one in first] == list("abcdef")
    refinement.run(first)
    second = [one.name for one in refinement.next_group(leaders(*"abcdefghi"))]
    assert set(second[1:]) >= set("ghi") and len(second) == GROUP
    for _ in range(40):
        if group := refinement.next_group(leaders(*"abcdefghi")):
            refinement.run(group)
    assert refinement.next_group(leaders(*"abcdefghi")) == []
    assert refinement.rounds <= 40 * MOST_ROUNDS
    assert refinement.next_group([]) == [] == refinement.next_group(leaders("a"))


def test_throttled_rounds_do_not_count() -> None:
    def state(name: str, index: int) -> State:
        return State(reasons=("hw_thermal_slowdown",) if name == "b" and index == 3 else ())

    refinement = Refinement(Card({"a": 100.0, "b": 110.0}, state=state), PROBLEM)
    assert refinement.run(leaders("a", "b")).lost == (), f"{ROUNDS - 1} rounds are too few for the level"
    (lost,) = refinement.run(leaders("a", "b")).lost
    assert lost.evidence["ruled_out_rounds"] == 2 * (ROUNDS - 1)


def test_who_breaks_is_found_out_and_the_rest_go_on() -> None:
    card = Card({"a": 100.0, "b": 110.0, "c": 120.0}, bad={"b": Status.DEADLOCK})
    found = Refinement(card, PROBLEM).run(leaders("a", "b", "c"))
    (failed,) = found.failed
    assert (failed.resolved, failed.status) == ("b", Status.DEADLOCK)
    assert failed.reason == "in early rounds: b broke"
    assert [one.resolved for one in found.lost] == ["c"]


def test_nobody_is_ruled_out_by_who_breaks() -> None:
    card = Card({"a": 100.0, "b": 110.0}, bad={"a": Status.RACE})
    found = Refinement(card, PROBLEM).run(leaders("a", "b"))
    assert found.lost == () and [one.resolved for one in found.failed] == ["a"]


def test_the_final_is_without_those_ruled_out_but_with_the_default() -> None:
    def ruled_out(name: str, us: float, by: str) -> Any:
        return dataclasses.replace(trial(name, us), evidence={"ruled_out_by": by})

    names = lambda trials: [one.resolved for one in trials]  # noqa: E731
    trials = [trial("a", 100.0), ruled_out("b", 99.0, "a"), ruled_out("c", 101.0, "gone"), trial("d", 126.0)]
    assert names(in_the_running(trials, among=trials)) == ["a", "c", "d"], "who ruled c out is no more"
    wrong = dataclasses.replace(trials[0], status=Status.RACE)
    assert names(in_the_running(trials[1:], among=[wrong, *trials[1:]])) == ["b", "c", "d"]
    assert names(choose_leaders(trials)) == ["a", "c"], "d is more than 25 % behind"
    others = [trial(f"t{index}", 102.0 + index) for index in range(5)]
    assert names(choose_contenders([*others, *trials], "b")) == ["a", "c", "t0", "t1", "t2", "t3", "t4", "b"]
    assert choose_leaders([]) == []


def test_a_final_has_a_few_to_compare_with_even_if_rounds_left_one() -> None:
    """Else the row's runner-up would be the default, however far behind it is."""
    out = [
        dataclasses.replace(trial(f"t{index}", 100.0 + index), evidence={"ruled_out_by": "best"})
        for index in range(6)
    ]
    chosen = choose_contenders([*out, trial("best", 101.5), trial("default", 300.0)], "default")
    assert [one.resolved for one in chosen] == ["best", "t0", "t1", "t2", "default"]


def test_the_best_of_those_ruled_out_may_be_the_runner_up() -> None:
    """Rounds said by how much it is behind; slower ones that had no rounds must not stand in its place."""
    out = [
        dataclasses.replace(trial(f"t{index}", 101.0 + index), evidence={"ruled_out_by": "best"})
        for index in range(3)
    ]
    slower = [trial(f"s{index}", 110.0 + index) for index in range(5)]
    chosen = choose_contenders([*out, *slower, trial("best", 100.0)], None)
    assert [one.resolved for one in chosen] == ["best", "s0", "s1", "s2", "s3", "s4", "t0"]


def test_early_rounds_are_short_and_of_the_real_problem() -> None:
    asked: list[tuple[GemmProblem, FinalsOptions]] = []

    class Watched(Card):
        def interleave(
            self, contenders: Sequence[Any], problem: GemmProblem, options: FinalsOptions
        ) -> Future[list[Samples] | Outcome]:
            asked.append((problem, options))
            return super().interleave(contenders, problem, options)

    Refinement(Watched({"a": 1.0, "b": 1.0}), PROBLEM).run(leaders("a", "b"))
    ((problem, options),) = asked
    assert problem == PROBLEM and options.rounds == ROUNDS and options.settle_ms == 0
    assert options.warm_up_ms + GROUP * ROUNDS * options.replay_ms < 200, "a candidate may be waiting"
