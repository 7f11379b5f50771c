"""Tunes on devices that answer later, in any order, from threads of their own, or not at all."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.fakes import CARD, Answer, FakeDevice, FakePool, fake_us, small_space
from tests.tune.test_driver import PROBLEM, SPACE, run, sequence
from tests.tune.test_driver_finals import MeasuringDevice, SlowPool, kernels
from tuner.devices.abilities import Abilities
from tuner.tables.dispatch import DispatchTable
from tuner.trials.answer import answered
from tuner.trials.outcome import Outcome, Status


@dataclasses.dataclass(kw_only=True)
class Remote(FakeDevice):
    """Eight hosts. The answer to the first request for a time comes when ``late`` others have come."""

    abilities: Abilities = Abilities(at_once=True)
    hosts: ThreadPoolExecutor = dataclasses.field(default_factory=lambda: ThreadPoolExecutor(8))
    late: int = 0
    lock: Any = dataclasses.field(default_factory=threading.Lock)

    def time(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        held, self.late = self.late, 0
        return self.hosts.submit(self._hold, legal, held)

    def check(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        return self.hosts.submit(self.checked, legal)

    def _hold(self, legal: Legal, others: int) -> Outcome:
        end = time.monotonic() + 60
        while len(self.timed) < others:
            assert time.monotonic() < end, "the others are asked meanwhile"
            time.sleep(0.001)
        return self.found(legal)


def test_answers_of_several_hosts_in_any_order_give_the_same_trials(tmp_path: Path) -> None:
    here, there = FakeDevice(), Remote(late=14)  # more than the 12 in flight, less than a search asks ahead
    space = small_space(**SPACE, swizzle_size="1 2 4 8", prefetch_dist="0 1 2")
    one = run(tmp_path / "here", device=here, space=space, trials=22, jobs=1)
    other = run(tmp_path / "there", device=there, space=space, trials=22, jobs=6)
    assert sequence(one) == sequence(other) and one.winner is not None and other.winner is not None
    assert one.winner.resolved == other.winner.resolved
    assert (
        [trial.number for trial in other.trials].index(0)
        >= 2
        > [trial.number for trial in one.trials].index(0)
    )
    assert sorted(there.timed) == sorted(here.timed) and set(Counter(there.timed).values()) == {1}
    assert set(there.validated) == set(here.validated) and len(there.validated) == 10


def test_hosts_that_check_each_candidate_before_they_time_it(tmp_path: Path) -> None:
    space = small_space(**SPACE)
    device = Remote(abilities=Abilities(at_once=True, checks_every_candidate=True))
    result = run(tmp_path, device=device, space=space, pool=SlowPool(), jobs=4)
    assert result.fresh == 48 and all(trial.validation == "passed" for trial in result.trials)
    assert result.winner is not None and result.winner.resolved == kernels()[0]
    assert len(device.validated) == 48 == len(device.timed), "none twice"


@dataclasses.dataclass(kw_only=True)
class FarCard(FakeDevice):
    """One thing after another, on another host: what was asked waits there. The first two checks are answered when
    three candidates are there, of which no fourth may be."""

    abilities: Abilities = Abilities(checks_every_candidate=True, line=3)
    threads: ThreadPoolExecutor = dataclasses.field(default_factory=lambda: ThreadPoolExecutor(3))
    there: Counter[str] = dataclasses.field(default_factory=Counter)
    most: int = 0

    def check(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        self.there[str(legal.config)] += 1
        self.most = max(self.most, self.there.total())
        return self.threads.submit(self._check, legal)

    def time(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        return self.threads.submit(self._time, legal)

    def _check(self, legal: Legal) -> Outcome:
        end = time.monotonic() + 60
        while self.most < 3:
            assert time.monotonic() < end, "the next ones come before the first is answered"
            time.sleep(0.001)
        found = self.checked(legal)
        if found.status is not Status.OK:
            self.there[str(legal.config)] -= 1
        return found

    def _time(self, legal: Legal) -> Outcome:
        self.there[str(legal.config)] -= 1
        return self.found(legal)


def test_a_far_card_has_the_next_candidates_waiting(tmp_path: Path) -> None:
    """Three and no more; what is found is what a card here finds, and nothing is announced of what runs elsewhere."""
    space, wrong = small_space(**SPACE), {kernels()[0]: Status.WRONG_RESULT}
    far = FarCard(verdicts=wrong)
    near = FakeDevice(verdicts=wrong, abilities=Abilities(checks_every_candidate=True))
    one = run(tmp_path / "near", device=near, space=space, jobs=6)
    other = run(tmp_path / "far", device=far, space=space, jobs=6)
    assert far.most == 3
    assert sequence(one) == sequence(other) and len(other.trials) == 48
    assert other.winner is not None and other.winner.resolved == kernels()[1]
    assert set(Counter(far.timed).values()) == {1} and len(far.timed) == 47
    assert b'"attempt"' in one.journal.read_bytes() and b'"attempt"' not in other.journal.read_bytes()


class Silent(Remote):
    """Never answers."""

    def time(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        return Future()


def test_a_host_that_does_not_answer_does_not_hold_up_the_timeout(tmp_path: Path) -> None:
    start = time.monotonic()
    result = run(tmp_path, device=Silent(), timeout_s=1.0)
    assert result.stopped == "timeout" and result.trials == () and result.winner is None
    assert time.monotonic() - start < 30


@dataclasses.dataclass(kw_only=True)
class Failing(Remote):
    """Is gone after so many answers."""

    answers: int
    error: Exception

    def found(self, legal: Legal) -> Outcome:
        with self.lock:
            self.answers -= 1
            if self.answers < 0:
                raise self.error
        return super().found(legal)


@pytest.mark.parametrize(
    "error",
    [InputError("the host is gone"), pytest.param(ZeroDivisionError("a bug"), marks=pytest.mark.slow)],
)
def test_what_a_host_raises_ends_the_tune_with_a_row_of_what_was_found(
    tmp_path: Path, error: Exception
) -> None:
    with pytest.raises(type(error), match=str(error)):
        run(tmp_path, device=Failing(answers=12, error=error), pool=FakePool(), jobs=1)
    row = DispatchTable.load(tmp_path / "b200").lookup(PROBLEM).row
    assert row is not None and row.time_us == pytest.approx(fake_us(row.config), rel=1e-4)
    again = run(tmp_path, device=FakeDevice(), trials=45)
    assert again.known >= 6, "the journal is whole"


@dataclasses.dataclass(kw_only=True)
class Alone(MeasuringDevice):
    """A card that breaks when it is asked two things at a time; it looks into the journal before it runs anything."""

    abilities: Abilities = dataclasses.replace(CARD, checks_winner=True)
    out: Path
    asked: Counter[str] = dataclasses.field(default_factory=Counter)
    taken: Any = dataclasses.field(default_factory=threading.Lock)
    announced: dict[str, bool] = dataclasses.field(default_factory=dict)

    def checked(self, legal: Legal) -> Outcome:
        resolved = str(legal.config)
        if resolved not in self.announced:
            (journal,) = self.out.glob(".studies/**/*.jsonl")
            last = json.loads(journal.read_bytes().splitlines()[-1])
            self.announced[resolved] = last.get("attempt") == resolved
        return self._one("check", super().checked, legal)

    def found(self, legal: Legal) -> Outcome:
        return self._one("time", super().found, legal)

    def rounds(self, *args: Any) -> Any:
        return self._one("rounds", super().rounds, *args)

    def check_full(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        return answered(lambda: self._one("full", lambda: Outcome(status=Status.OK, reason="passed in full")))

    def _one(self, what: str, call: Any, *args: Any) -> Any:
        assert self.taken.acquire(blocking=False), f"asked for {what} while it was at something else"
        try:
            time.sleep(0.002)
            self.asked[what] += 1
            return call(*args)
        finally:
            self.taken.release()


class Holding(FakePool):
    """Compiles one after another; the twentieth is ready when the card has used the wait for rounds and a check."""

    def __init__(self) -> None:
        super().__init__()
        self.device: Alone | None = None
        self.workers = ThreadPoolExecutor(1)

    def submit(self, *args: Any) -> Future[Any]:
        return self.workers.submit(self._compile, *args)

    def _compile(self, *args: Any) -> Any:
        assert self.device is not None
        asked, end = self.device.asked, time.monotonic() + 60
        while sum(self.submitted.values()) == 19 and not (
            asked["rounds"] > 1 and asked["check"] > asked["time"]
        ):
            assert time.monotonic() < end, f"the card was asked for {asked}"
            time.sleep(0.001)
        return super().submit(*args).result()


def test_a_card_does_one_thing_after_another_and_what_runs_there_is_announced(tmp_path: Path) -> None:
    pool = Holding()
    device = pool.device = Alone(out=tmp_path)
    result = run(tmp_path, device=device, space=small_space(**SPACE), pool=pool, jobs=4)
    assert result.fresh == 48 == device.asked["time"] and result.winner is not None
    assert device.asked["check"] > 48 and device.asked["rounds"] > 1 and device.asked["full"] == 1
    assert len(device.announced) == 48 and all(device.announced.values())
