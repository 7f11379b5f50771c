"""A tune on a device that measures: the final decides, also after a timeout; resumed, it is not held again."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kernel_space.core.rules import Legal
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.fakes import CARD, Answer, FakeDevice, FakePool, fake_us, small_space
from tests.tune.test_driver import PROBLEM, SPACE, run
from tuner.card.samples.samples import Samples, State
from tuner.card.worker.bench import FinalsOptions
from tuner.devices.abilities import Abilities
from tuner.search.usage import MOST_SPARE_CHECKS, Usage
from tuner.stages.record import current
from tuner.tables.dispatch import DispatchTable
from tuner.tables.merge import choose
from tuner.trials.answer import answered
from tuner.trials.candidate import Candidate
from tuner.trials.outcome import Kind, Outcome, Status, Timing


@dataclasses.dataclass(kw_only=True)
class MeasuringDevice(FakeDevice):
    """Cheap timings are wrong by up to 8 %, so that the cheap winner is seldom the true one; finals by 0.1 %."""

    name: str = "b200"  # its kernels are of sm_100a
    kind: Kind = Kind.MEASURED
    abilities: Abilities = CARD
    finals: list[list[str]] = dataclasses.field(default_factory=list)
    broken: str = ""
    visit: int = 0

    def found(self, legal: Legal) -> Outcome:
        self.timed.append(str(legal.config))
        us = fake_us(str(legal.config)) * (1 + 0.08 * random.Random("a" + str(legal.config)).random())
        return Outcome(
            status=Status.OK,
            timing=Timing(kind=self.kind, us=us, low_us=us, high_us=us, evidence={"samples": 7}),
        )

    def interleave(
        self, contenders: Sequence[tuple[Any, Legal]], problem: GemmProblem, options: FinalsOptions
    ) -> concurrent.futures.Future[list[Samples] | Outcome]:
        return answered(lambda: self.rounds([str(legal.config) for _, legal in contenders], options))

    def rounds(self, names: list[str], options: FinalsOptions) -> list[Samples] | Outcome:
        self.finals.append(names)
        if self.broken in names:
            return Outcome(status=Status.DEADLOCK, reason="does not end")
        return [self._samples(name, options) for name in names]

    def _samples(self, name: str, options: FinalsOptions) -> Samples:
        noise = random.Random(f"{name} {options.seed} {self.visit}")
        us = tuple(fake_us(name) * (1 + noise.gauss(0, 0.001)) for _ in range(options.rounds))
        return Samples(
            protocol="p",
            us=us,
            states=(State(sm_mhz=1700),) * len(us),
            launches=10,
            sets=5,
            warm_up_ms=1.0,
            settled=None,
            gpu_ms=2.0,
        )


def kernels() -> list[str]:
    from kernel_space.core.arch import SM100A

    return sorted(
        (str(legal.config) for legal in small_space(**SPACE).legal_points(PROBLEM, SM100A)), key=fake_us
    )


def test_the_final_finds_what_cheap_timings_missed(tmp_path: Path) -> None:
    device = MeasuringDevice()
    result = run(tmp_path, device=device, space=small_space(**SPACE))
    best = kernels()[0]
    cheap = min(result.trials, key=lambda trial: trial.evidence.get("quick_us", trial.us))
    assert cheap.resolved != best, "else this test shows nothing"
    assert result.winner is not None and result.winner.resolved == best
    assert result.winner.evidence["quick_us"] > result.winner.us
    assert result.default is not None and all(result.default.resolved in names for names in device.finals)
    row = DispatchTable.load(tmp_path / "b200").lookup(PROBLEM).row
    assert row is not None and row.config == best and row.kind is Kind.MEASURED
    assert row.evidence["versus"] == "runner-up" and row.evidence["p_value"] < 0.05
    assert row.evidence["sm_mhz"] == 1700 and row.evidence["timing_protocol"] == "p"
    assert row.runner_up is not None and row.runner_up.config == result.runner_up.resolved
    rounds = json.loads((result.report.html.parent / "final.json").read_text())["finalists"]
    assert [one["config"] for one in rounds[:2]] == [best, result.runner_up.resolved]
    assert all(len(one["us"]) == len(one["states"]) >= 24 for one in rounds)


@dataclasses.dataclass(kw_only=True)
class CardOf(MeasuringDevice):
    """One of two cards of a kind: all its times are ``factor`` of the other's."""

    card: str
    factor: float

    def _samples(self, name: str, options: FinalsOptions) -> Samples:
        found = super()._samples(name, options)
        us = tuple(one * self.factor for one in found.us)
        return dataclasses.replace(found, us=us, card=self.card, driver="580")


def test_another_cards_default_does_not_replace_a_winner_by_being_on_a_faster_card(tmp_path: Path) -> None:
    """The first card tunes; the second is 5 % faster and has the default alone."""
    space = small_space(**SPACE)
    first = run(tmp_path / "1", device=CardOf(card="one", factor=1.0), space=space)
    default = next(one for one in first.trials if one.resolved == first.default.resolved)
    true = fake_us(default.resolved) / fake_us(first.winner.resolved)
    factor = 0.95 / true  # so that its default takes 0.95 of the winner's time on the first card
    second = run(tmp_path / "2", device=CardOf(card="two", factor=factor), space=space, trials=1)
    tables = [DispatchTable.load(tmp_path / name / "b200") for name in ("1", "2")]
    (mine,), (theirs,) = (tuple(table.rows.values()) for table in tables)
    assert theirs.config == default.resolved != mine.config and second.default is not None
    assert theirs.time_us == pytest.approx(0.95 * mine.time_us, rel=0.01)
    assert mine.evidence["default_ratio"] == pytest.approx(1 / true, abs=0.002)
    assert (mine.evidence["default_config"], theirs.evidence["default_ratio"]) == (default.resolved, 1.0)
    now = current(CardOf(card="two", factor=factor))
    assert choose(mine, theirs, now).row is mine
    assert choose(theirs, mine, now).row is mine, "whichever was there first"


def test_a_resumed_tune_holds_no_second_final(tmp_path: Path) -> None:
    first = run(tmp_path, device=MeasuringDevice(), space=small_space(**SPACE))
    device = MeasuringDevice()
    second = run(tmp_path, device=device, space=small_space(**SPACE))
    assert device.finals == [] == device.timed
    assert second.winner == first.winner and second.runner_up == first.runner_up


def test_new_trials_bring_a_new_final(tmp_path: Path) -> None:
    run(tmp_path, device=MeasuringDevice(), trials=20)
    device = MeasuringDevice()
    result = run(tmp_path, device=device, trials=40)
    assert device.finals and result.known == 20, (
        "the search took the same course although times were replaced"
    )
    assert result.winner is not None and result.winner.us == min(
        trial.us for trial in result.trials if trial.evidence.get("final") == result.winner.evidence["final"]
    )


def test_two_tunes_agree(tmp_path: Path) -> None:
    results = [
        run(tmp_path / str(visit), device=MeasuringDevice(visit=visit), space=small_space(**SPACE))
        for visit in (1, 2)
    ]
    one, two = (result.winner for result in results)
    assert one is not None and two is not None
    assert one.resolved == two.resolved or abs(one.us / two.us - 1) < 0.02


def test_a_leader_that_hangs_in_the_final_is_out(tmp_path: Path) -> None:
    best, second = kernels()[:2]
    device = MeasuringDevice(broken=best)
    result = run(tmp_path, device=device, space=small_space(**SPACE))
    assert result.winner is not None and result.winner.resolved == second
    hung = next(trial for trial in result.trials if trial.resolved == best)
    assert hung.status is Status.DEADLOCK and "does not end" in hung.reason
    row = DispatchTable.load(tmp_path / "b200").lookup(PROBLEM).row
    assert row is not None and row.config == second


class Slow(MeasuringDevice):
    def found(self, legal: Legal) -> Outcome:
        time.sleep(0.05)
        return super().found(legal)


def test_a_tune_that_runs_out_of_time_still_holds_its_final(tmp_path: Path) -> None:
    device = Slow()
    result = run(tmp_path, device=device, space=small_space(**SPACE), timeout_s=0.6)
    assert result.stopped == "timeout" and 0 < result.fresh < 48
    assert device.finals and result.winner is not None and "final" in result.winner.evidence


class Given:
    """A list instead of a search."""

    rejected: dict[Any, Any] = {}

    def __init__(self, candidates: list[Candidate]) -> None:
        self.waiting, self.planned, self.told = list(candidates), len(candidates), []

    def ask(self) -> Candidate | None:
        return self.waiting.pop(0) if self.waiting else None

    def tell(self, number: int, us: float | None) -> None:
        self.told.append(number)


def test_candidates_may_be_given(tmp_path: Path) -> None:
    from tests.tune.test_driver import tune
    from tuner.search.offline_search import choose_candidates
    from tuner.tune.driver import TuneOptions

    device, space = MeasuringDevice(), small_space(**SPACE)
    given = Given(choose_candidates(space, PROBLEM, device.arch, trials=9))
    options = TuneOptions(out=tmp_path, jobs=2, count_space=False)
    result = tune(PROBLEM, device, options, pool=FakePool(), space=space, search=given)
    assert result.fresh == result.planned == 9 and sorted(given.told) == list(range(9))
    assert result.default is not None and result.winner is not None


class SlowPool(FakePool):
    """A compiler that takes long, one candidate after another: until ``device`` has had ``TURNS`` at its leaders,
    however fast this machine is; 30 ms without a device."""

    TURNS = 4
    MOST_S = 0.3  # for a device that has nothing more to do; a turn takes it a few milliseconds

    def __init__(self, device: MeasuringDevice | None = None) -> None:
        super().__init__()
        self.device = device
        self.workers = concurrent.futures.ThreadPoolExecutor(1)

    def submit(self, *args: Any) -> concurrent.futures.Future[Any]:
        def work() -> Any:
            self._take_long()
            return super(SlowPool, self).submit(*args).result()

        return self.workers.submit(work)

    def _take_long(self) -> None:
        if self.device is None:
            time.sleep(0.03)
            return
        goal, end = self._turns(self.device) + self.TURNS, time.monotonic() + self.MOST_S
        while self.device.timed and self._turns(self.device) < goal and time.monotonic() < end:
            time.sleep(0.001)

    @staticmethod
    def _turns(device: MeasuringDevice) -> int:
        """Rounds, and checks of who had one."""
        return len(device.finals) + sum(count - 1 for count in Counter(device.validated).values())


def test_waits_for_the_compiler_are_used_to_check_leaders_again(tmp_path: Path) -> None:
    device = MeasuringDevice()
    result = run(tmp_path, device=device, space=small_space(**SPACE), pool=SlowPool(device), trials=20)
    checked = Counter(device.validated)
    assert result.fresh == 20 and len(checked) == 20
    assert sum(checked.values()) > 40, "the device had nothing else to do"
    assert max(checked.values()) <= 1 + MOST_SPARE_CHECKS
    assert result.winner is not None and checked[result.winner.resolved] > 1
    assert "leaders" in next(
        line for line in result.report.markdown.read_text().splitlines() if "| card |" in line
    )


class SoundInRounds(MeasuringDevice):
    """The broken kernel does no harm in rounds."""

    def rounds(self, *args: Any) -> list[Samples] | Outcome:
        broken, self.broken = self.broken, ""
        try:
            return super().rounds(*args)
        finally:
            self.broken = broken


class Racing(SoundInRounds):
    """The best kernel passes its first check and fails the second."""

    def checked(self, legal: Legal) -> Outcome:
        outcome = super().checked(legal)
        if str(legal.config) == self.broken and self.validated.count(self.broken) == 2:
            return Outcome(status=Status.RACE, reason="launch 5 differs from the first")
        return outcome


def test_a_race_that_shows_in_a_later_check_costs_the_candidate(tmp_path: Path) -> None:
    best, second = kernels()[:2]
    device = Racing(broken=best)
    result = run(tmp_path, device=device, space=small_space(**SPACE), pool=SlowPool(device))
    racing = next(trial for trial in result.trials if trial.resolved == best)
    assert racing.status is Status.RACE and "differs" in racing.reason
    assert result.winner is not None and result.winner.resolved == second


def test_waits_for_the_compiler_are_used_for_rounds_between_leaders(tmp_path: Path) -> None:
    """Who is slower by them is not in the final, which needs fewer rounds than without; the winner is the same."""
    device, quick = MeasuringDevice(), MeasuringDevice()
    result = run(tmp_path / "slow", device=device, space=small_space(**SPACE), pool=SlowPool(device))
    without = run(tmp_path / "fast", device=quick, space=small_space(**SPACE))
    assert result.winner is not None and without.winner is not None
    assert result.winner.resolved == without.winner.resolved == kernels()[0]
    out = [trial for trial in result.trials if "ruled_out_by" in trial.evidence]
    assert len(out) > 10 and not [trial for trial in without.trials if "ruled_out_by" in trial.evidence]
    for trial in out:
        assert fake_us(trial.resolved) > fake_us(str(trial.evidence["ruled_out_by"])), "the truth"
    placed = {trial.resolved for trial in result.trials if "final" in trial.evidence}
    assert 4 <= len(placed) < 12 and result.default is not None and result.default.resolved in placed
    assert len(placed & {trial.resolved for trial in out}) <= 4, (
        "no more than a final must have, and the default"
    )
    assert result.runner_up is not None and result.runner_up.resolved == kernels()[1], (
        "also if it was ruled out"
    )
    assert len(device.finals[-1]) <= len(quick.finals[-1])
    counted = re.search(r"rounds between leaders meanwhile \((\d+) ruled out\)", result.facts["card"])
    assert counted and int(counted[1]) - len(out) in (0, 1), (
        "the default has the evidence of the final instead"
    )


def test_a_resumed_tune_believes_early_rounds(tmp_path: Path) -> None:
    device = MeasuringDevice()
    first = run(tmp_path, device=device, space=small_space(**SPACE), pool=SlowPool(device))
    device = MeasuringDevice()
    second = run(tmp_path, device=device, space=small_space(**SPACE))
    assert device.finals == [] == device.timed
    assert second.winner == first.winner


@dataclasses.dataclass(kw_only=True)
class WrongAtLast(SoundInRounds):
    """The best kernel is found wrong when it has won."""

    abilities: Abilities = dataclasses.replace(CARD, checks_winner=True)

    def check_full(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        wrong = str(legal.config) == self.broken
        outcome = Outcome(
            status=Status.WRONG_RESULT if wrong else Status.OK, reason="y[0,0]" if wrong else ""
        )
        return answered(lambda: outcome)


def test_who_was_ruled_out_by_a_wrong_kernel_gets_a_final_after_all(tmp_path: Path) -> None:
    best, second = kernels()[:2]
    device = WrongAtLast(broken=best)
    result = run(tmp_path, device=device, space=small_space(**SPACE), pool=SlowPool(device))
    assert result.winner is not None and result.winner.resolved == second
    wrong = next(trial for trial in result.trials if trial.resolved == best)
    assert wrong.status is Status.WRONG_RESULT and result.winner.evidence["final_place"] == 1


class Watching(FakePool):
    """Notes the order of what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[str] = []

    def submit(self, config: Any, *args: Any) -> concurrent.futures.Future[Any]:
        self.order.append(str(config))
        return super().submit(config, *args)


@dataclasses.dataclass(kw_only=True)
class SlowToStart(MeasuringDevice):
    """Notes what the compilers have when the card is ready."""

    pool: Watching
    begun_with: int | None = None
    ready_with: list[str] = dataclasses.field(default_factory=list)

    def begin(self) -> bool:
        self.begun_with = len(self.pool.order)
        return False

    def __getattribute__(self, name: str) -> Any:
        if name == "judge" and not self.ready_with:
            self.ready_with = list(self.pool.order) or ["nothing"]
        return super().__getattribute__(name)


def test_the_first_candidates_are_compiled_while_the_card_gets_ready(tmp_path: Path) -> None:
    pool = Watching()
    device = SlowToStart(pool=pool)
    result = run(tmp_path, device=device, space=small_space(**SPACE), pool=pool, jobs=4)
    assert device.begun_with == 0, "the card begins first, it takes longest"
    assert result.default is not None and device.ready_with[0] == result.default.resolved
    assert len(device.ready_with) == 8, "one for each of 4 compilers to work on and one to wait"
    assert set(pool.submitted.values()) == {1}, "and are not compiled twice"
    tried = {trial.resolved for trial in result.trials}
    assert set(device.ready_with) <= tried, "nothing was compiled for nothing"


class Listening(Watching):
    """Notes which thread asks it."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[threading.Thread] = []

    def submit(self, *args: Any) -> concurrent.futures.Future[Any]:
        self.threads.append(threading.current_thread())
        return super().submit(*args)


def test_the_next_candidates_are_chosen_while_the_card_works(tmp_path: Path) -> None:
    """Compilers answer at once, so there always is a candidate: the thread that asks the card chooses nothing."""
    pool = Listening()
    result = run(tmp_path, device=MeasuringDevice(), space=small_space(**SPACE), pool=pool, jobs=16)
    assert result.fresh == 48 == len(pool.order)
    here = threading.current_thread()
    assert [thread is here for thread in pool.threads] == [True] * 32 + [False] * 16


@pytest.mark.slow
def test_what_is_asked_depends_on_nobodys_speed(tmp_path: Path) -> None:
    def asked(jobs: int, pool: FakePool) -> list[tuple[int, str]]:
        result = run(tmp_path / str(jobs), device=MeasuringDevice(), pool=pool, jobs=jobs, trials=40)
        return sorted((trial.number, trial.resolved) for trial in result.trials if trial.number >= 0)

    assert asked(1, FakePool()) == asked(5, SlowPool())


def test_usage_counts_work_and_waiting() -> None:
    usage = Usage()
    start = time.monotonic()
    with usage.idle_between():
        time.sleep(0.02)
        with usage.busy():
            time.sleep(0.06)
        with usage.spare("a"):
            time.sleep(0.03)
        with usage.refining():
            time.sleep(0.03)
        time.sleep(0.02)
    whole = time.monotonic() - start
    parts = (usage.busy_s, usage.rounds_s, usage.spare_s, usage.idle_s)
    assert all(part >= least for part, least in zip(parts, (0.06, 0.03, 0.03, 0.04), strict=True))
    assert sum(parts) == pytest.approx(whole, abs=0.005)
    with usage.idle_between(time.monotonic() - 5.0):
        pass
    assert usage.idle_s == pytest.approx(parts[3] + 5.0, abs=0.005)
    assert str(Usage(busy_s=9.0, idle_s=1.0)) == "9.0 s at work, 1.0 s waiting for candidates (10.0%)"
    assert str(Usage(busy_s=3.0, spare_s=6.0, idle_s=1.0, spare_checks={"a": 4, "b": 3})) == (
        "3.0 s at work, 6.0 s checking 2 leaders 7 times more meanwhile, 1.0 s waiting for candidates (10.0%)"
    )
    assert str(Usage(busy_s=3.0, rounds_s=5.0, idle_s=2.0, rounds=64, ruled_out=7)) == (
        "3.0 s at work, 5.0 s in 64 rounds between leaders meanwhile (7 ruled out), "
        "2.0 s waiting for candidates (20.0%)"
    )
    assert str(Usage()) == "0.0 s at work, 0.0 s waiting for candidates (0.0%)"
