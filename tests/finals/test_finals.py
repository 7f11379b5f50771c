"""Finals against a device of arithmetic: who is halved away, who wins, what is written down, who is to blame."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.card.samples.samples import Samples, State
from tuner.card.worker.bench import FinalsOptions
from tuner.finals import finals
from tuner.finals.finals import Contender, FinalError, choose_contenders, run_final
from tuner.trials.answer import answered
from tuner.trials.final_order import contenders_of, finalists_first, latest_final, searched_us
from tuner.trials.outcome import Kind, Outcome, Status, Trial
from tuner.trials.relative import Relative

PROBLEM = GemmProblem.parse("256,3840,3072,128")


def trial(name: str, us: float, number: int = 0) -> Trial:
    return Trial(
        number=number,
        op=PROBLEM.operator,
        problem=str(PROBLEM),
        options={"lora_dtype": "fp16", "out_dtype": "fp16"},
        device="h200",
        arch="sm_90a",
        config=name,
        resolved=name,
        status=Status.OK,
        kind=Kind.MEASURED,
        us=us,
        low_us=us,
        high_us=us,
        evidence={"gpu_ms": 12.0, "samples": 9},
    )


def contender(name: str, us: float, number: int = 0, *, smem: int = 1000, default: bool = False) -> Contender:
    legal = SimpleNamespace(config=name, budget=SimpleNamespace(smem_bytes=smem))
    return Contender(
        trial=trial(name, us, number), compiled=SimpleNamespace(name=name), legal=legal, default=default
    )


@dataclasses.dataclass
class Card:
    """``true`` microseconds per name, 0.1 % noise. Names in ``bad`` fail whenever they take part."""

    true: dict[str, float]
    bad: dict[str, Status] = dataclasses.field(default_factory=dict)
    moody: bool = False
    state: Any = None
    asked: list[tuple[list[str], FinalsOptions]] = dataclasses.field(default_factory=list)

    def interleave(
        self, contenders: Sequence[Any], problem: GemmProblem, options: FinalsOptions
    ) -> Future[list[Samples] | Outcome]:
        return answered(lambda: self.rounds([compiled.name for compiled, _ in contenders], options))

    def rounds(self, names: list[str], options: FinalsOptions) -> list[Samples] | Outcome:
        self.asked.append((names, options))
        if self.moody and len(names) > 1:
            return Outcome(status=Status.FAILED, reason="not together")
        for name in names:
            if name in self.bad:
                return Outcome(status=self.bad[name], reason=f"{name} broke")
        return [self._samples(name, options) for name in names]

    def _samples(self, name: str, options: FinalsOptions) -> Samples:
        noise = random.Random(f"{name} {options.seed}")
        us = tuple(self.true[name] * (1 + noise.gauss(0, 0.001)) for _ in range(options.rounds))
        states = tuple(
            self.state(name, index) if self.state else State(sm_mhz=1700) for index in range(len(us))
        )
        return Samples(
            protocol="p", us=us, states=states, launches=10, sets=5, warm_up_ms=1.0, settled=None, gpu_ms=2.0
        )


def crowd(count: int) -> tuple[list[Contender], dict[str, float]]:
    """c00 is truly fastest, c01 next ...; the cheap timings have them in another order; c09 is the default."""
    true = {f"c{index:02}": 100.0 + index for index in range(count)}
    cheap = {name: us + (3 if index % 2 else -3) for index, (name, us) in enumerate(true.items())}
    return [
        contender(name, cheap[name], number, default=name == "c09") for number, name in enumerate(true)
    ], true


def test_the_truly_fastest_wins_after_halving() -> None:
    contenders, true = crowd(13)
    card = Card(true)
    found = run_final(card, contenders, PROBLEM, "final 1", seed=5)
    assert found.verdict is not None and found.verdict.winner == "c00"
    groups = [names for names, _ in card.asked]
    assert [len(names) for names in groups] == [13, 7, 5], "halved to 6 and 4, the default besides"
    assert all("c09" in names for names in groups)
    assert all(options.settle_ms > 0 for _, options in card.asked), (
        "the card rested while graphs were captured"
    )
    assert len({options.seed for _, options in card.asked}) == 3
    places = [one.resolved for one in found.trials]
    assert places[:5] == ["c00", "c01", "c02", "c03", "c09"], "finalists first"
    assert places[5:] == ["c04", "c05", "c06", "c07", "c08", "c10", "c11", "c12"], (
        "then by the rung they reached"
    )
    assert [one.evidence["final_place"] for one in found.trials] == list(range(1, 14))


def test_trials_hold_both_times() -> None:
    contenders, true = crowd(13)
    winner = run_final(Card(true), contenders, PROBLEM, "final 1").trials[0]
    assert winner.us == pytest.approx(100.0, rel=0.001) and winner.low_us <= winner.us <= winner.high_us
    assert winner.evidence["quick_us"] == 97.0 == searched_us(winner)
    assert (winner.evidence["quick_gpu_ms"], winner.evidence["quick_samples"]) == (12.0, 9)
    assert winner.evidence["versus"] == "runner-up" and winner.evidence["rounds"] == 24
    assert winner.evidence["ratio"] == pytest.approx(1.01, abs=0.001) and winner.evidence["p_value"] < 1e-4
    again = run_final(
        Card(true), [dataclasses.replace(contenders[0], trial=winner), *contenders[1:]], PROBLEM, "final 2"
    )
    assert again.trials[0].evidence["quick_us"] == 97.0 and again.trials[0].evidence["quick_samples"] == 9


def test_the_default_wins_a_tie_and_its_place_outranks_its_time() -> None:
    contenders = [contender("a", 99.0), contender("d", 101.0, default=True)]
    found = run_final(Card({"a": 100.0, "d": 100.02}), contenders, PROBLEM, "final 1")
    assert [one.resolved for one in found.trials] == ["d", "a"]
    order = sorted(found.trials, key=lambda one: one.us)
    assert [one.resolved for one in finalists_first(order)] == ["d", "a"]


def test_rounds_go_on_while_they_could_decide() -> None:
    """1 % noise hides 0.7 %: three batches; a gap of 5 %: one."""

    class Noisy(Card):
        def _samples(self, name: str, options: FinalsOptions) -> Samples:
            noise = random.Random(f"{name} {options.seed}")
            us = tuple(self.true[name] * (1 + noise.gauss(0, 0.03)) for _ in range(options.rounds))
            return dataclasses.replace(super()._samples(name, options), us=us)

    contenders = [contender("a", 99.0), contender("b", 101.0)]
    card = Noisy({"a": 100.0, "b": 100.7})
    found = run_final(card, contenders, PROBLEM, "final 1")
    assert len(card.asked) == finals.FINAL_BATCHES
    assert (
        len(found.samples["a"].us) == 24 * finals.FINAL_BATCHES and found.trials[0].evidence["samples"] == 72
    )
    card = Card({"a": 100.0, "b": 105.0})
    run_final(card, contenders, PROBLEM, "final 1")
    assert len(card.asked) == 1 and card.asked[0][1].settle_ms > 0


@pytest.mark.parametrize("when", [1, 13])
def test_a_contender_that_breaks_is_found_and_the_rest_go_on(when: int) -> None:
    contenders, true = crowd(when + 1)
    card = Card(true, bad={"c01": Status.ILLEGAL_ACCESS})
    found = run_final(card, contenders, PROBLEM, "final 1")
    (failed,) = found.failed
    assert (failed.resolved, failed.status) == ("c01", Status.ILLEGAL_ACCESS) and "c01 broke" in failed.reason
    assert found.verdict is not None and found.verdict.winner == "c00"
    assert "c01" not in {one.resolved for one in found.trials}


def test_when_all_break_there_is_no_verdict() -> None:
    found = run_final(Card({}, bad={"a": Status.DEADLOCK}), [contender("a", 1.0)], PROBLEM, "final 1")
    assert found.verdict is None and found.trials == () and len(found.failed) == 1
    assert run_final(Card({}), [], PROBLEM, "final 1").verdict is None


def test_a_device_that_cannot_time_them_together_is_an_error() -> None:
    contenders, true = crowd(2)
    with pytest.raises(FinalError, match="not together"):
        run_final(Card(true, moody=True), contenders, PROBLEM, "final 1")


def test_throttled_rounds_do_not_decide() -> None:
    """In the first ten rounds b's samples are marked and b looks fast; the others tell the truth."""

    class Hot(Card):
        def _samples(self, name: str, options: FinalsOptions) -> Samples:
            samples = super()._samples(name, options)
            us = tuple(
                value * (0.5 if name == "b" and index < 10 else 1.0) for index, value in enumerate(samples.us)
            )
            return dataclasses.replace(samples, us=us)

    def state(name: str, index: int) -> State:
        return State(reasons=("hw_thermal_slowdown",) if name == "b" and index < 10 else ())

    card = Hot({"a": 100.0, "b": 104.0}, state=state)
    found = run_final(card, [contender("a", 99.0), contender("b", 98.0)], PROBLEM, "final 1")
    assert found.trials[0].resolved == "a" and found.trials[0].evidence["rounds"] == 14


def test_contenders_are_the_leaders_and_the_default() -> None:
    trials = [trial(f"t{index:02}", 100.0 + index, index) for index in range(20)] + [trial("slow", 300.0, 99)]
    chosen = [one.resolved for one in choose_contenders(trials, "slow")]
    assert chosen == [f"t{index:02}" for index in range(12)] + ["slow"]
    spread = [trial("a", 100.0), trial("b", 124.0), trial("c", 126.0)]
    assert [one.resolved for one in choose_contenders(spread, "a")] == ["a", "b"]
    assert choose_contenders([], "a") == []


def test_contenders_are_chosen_by_what_the_search_saw() -> None:
    """A trial of an earlier final holds its time; beside cheap timings its cheap timing counts."""
    old = dataclasses.replace(trial("old", 150.0), evidence={"quick_us": 90.0})
    assert [one.resolved for one in choose_contenders([trial("new", 100.0), old], None)] == ["old", "new"]


def test_only_the_latest_final_orders() -> None:
    def placed(name: str, us: float, final: str, place: int) -> Trial:
        return dataclasses.replace(trial(name, us), evidence={"final": final, "final_place": place})

    order = [
        trial("x", 90.0),
        placed("b", 100.0, "2026-02", 2),
        placed("a", 101.0, "2026-02", 1),
        placed("o", 95.0, "2026-01", 1),
    ]
    assert [one.resolved for one in finalists_first(order)] == ["a", "b", "x", "o"]
    assert latest_final(order) == "2026-02" and contenders_of(order, "2026-02") == {"a", "b"}
    lost = [
        dataclasses.replace(one, status=Status.DEADLOCK) if one.resolved in "ab" else one for one in order
    ]
    assert latest_final(lost) == "2026-01"
    assert latest_final([]) == "" and finalists_first([]) == [] and contenders_of(order, "") == set()


def test_every_contender_knows_its_ratio_to_the_default_of_the_same_rounds() -> None:
    """On a card that wanders by 20 % from round to round, for all alike: the default is truly 109 us, c<i> 100 + i."""
    contenders, true = crowd(13)

    class Wandering(Card):
        def _samples(self, name: str, options: FinalsOptions) -> Samples:
            found = super()._samples(name, options)
            clock = random.Random(options.seed)
            return dataclasses.replace(found, us=tuple(us * clock.uniform(1.0, 1.2) for us in found.us))

    placed = run_final(Wandering(true), contenders, PROBLEM, "final 1").trials
    assert len(placed) == 13
    for one in placed:
        found = Relative.from_evidence(one.evidence)
        assert found is not None and found.default == "c09"
        assert found.ratio == pytest.approx(true[one.resolved] / 109, abs=0.002), one.resolved
        assert found.low <= found.ratio <= found.high < found.low + 0.01
        assert one.evidence == json.loads(json.dumps(one.evidence))
    default = next(one for one in placed if one.resolved == "c09")
    assert Relative.from_evidence(default.evidence) == Relative.of_default("c09")


def test_without_the_default_there_is_no_ratio_to_it() -> None:
    contenders = [contender("a", 10), contender("b", 12, 1)]
    placed = run_final(Card({"a": 10.0, "b": 12.0}), contenders, PROBLEM, "final 1").trials
    assert [Relative.from_evidence(one.evidence) for one in placed] == [None, None]
