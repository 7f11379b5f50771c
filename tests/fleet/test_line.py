"""The line at a card: who is blamed for a card that is lost, and what becomes of the others. The cluster is made up."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.card.card_worker import CandidateFault
from tuner.card.worker.candidate import Case, Loadable
from tuner.devices.classes import Card
from tuner.fleet.cards import LINE, FleetCard
from tuner.fleet.fleet import Fleet, HostLost
from tuner.fleet.host import Fault, Host, OwnCard, Seated, _installed
from tuner.trials.outcome import Status

CASE = Case(problem=GemmProblem.parse("16,512,256,0"))
HEALTH = SimpleNamespace(name="H200", driver="580", cuda="13.0", policy="", sm_count=132)


class FakeFleet:
    """Cards ``GPU-0``, ``GPU-1`` ... What each is asked waits in ``asked`` until a test answers it."""

    def __init__(self, cards: int) -> None:
        self.asked: dict[str, list[tuple[str, Future[Any]]]] = {
            f"GPU-{number}": [] for number in range(cards)
        }
        self.held: set[str] = set()
        self.while_taking: Callable[[], None] = lambda: None
        self.members = SimpleNamespace(offering=lambda offer: [self._member(uuid) for uuid in self.asked])

    def _member(self, uuid: str) -> Any:
        card = SimpleNamespace(uuid=uuid)
        return SimpleNamespace(address=uuid, description=SimpleNamespace(card=card, host=f"host of {uuid}"))

    @contextlib.contextmanager
    def exclusive(self, name: str) -> Iterator[Callable[[], bool]]:
        self.held.add(name)
        self.while_taking()
        yield lambda: True
        self.held.remove(name)

    def check(self) -> None:
        pass

    def seat(self, make: Any, uuid: str, *, offer: str, at: Any) -> str:
        return uuid

    def ask(self, seat: str, _: str, method: str, objects: Any, arguments: dict[str, Any]) -> Future[Any]:
        answer: Future[Any] = Future()
        if method == "health":
            answer.set_result(HEALTH)
        else:
            self.asked[seat].append((arguments["candidate"].config, answer))
        return answer

    def line(self, uuid: str, count: int) -> list[tuple[str, Future[Any]]]:
        """What waits at a card, once it is so many."""
        end = time.monotonic() + 20
        while True:
            waiting = [one for one in list(self.asked[uuid]) if not one[1].done()]
            if len(waiting) >= count:
                return waiting
            assert time.monotonic() < end, (uuid, self.asked)
            time.sleep(0.001)


def judged(card: FleetCard, folder: Path, config: str) -> Future[Any]:
    path = folder / f"{config}.o"
    path.write_bytes(b"")
    one = Loadable(object_path=str(path), object_sha256="", prefix="k", arguments=(), config=config)
    return card.answered(lambda: card.check(one, [CASE], repeats=1, seed=1))


def lose(line: list[tuple[str, Future[Any]]]) -> None:
    """As the fleet ends what a host had: in any order."""
    for _, answer in reversed(line):
        answer.set_exception(HostLost("its host has left"))


@pytest.fixture
def said() -> list[str]:
    return []


def asked_in_order(fleet: FakeFleet, card: FleetCard, folder: Path) -> list[Future[Any]]:
    found = []
    for number, config in enumerate("abc", start=1):
        found.append(judged(card, folder, config))
        assert fleet.line("GPU-0", number)[-1][0] == config
    assert len(found) == LINE
    return found


def test_the_first_in_line_is_blamed(tmp_path: Path, said: list[str]) -> None:
    """a runs when the first card is lost. On the second one whoever runs first when that is lost, too, has a verdict
    only if it is a again; the others are answered by the third."""
    fleet = FakeFleet(3)
    card = FleetCard(fleet, "h200", say=said.append)  # type: ignore[arg-type]
    answers = dict(zip("abc", asked_in_order(fleet, card, tmp_path), strict=True))
    lose(fleet.line("GPU-0", 3))
    second = fleet.line("GPU-1", 3)
    assert sorted(config for config, _ in second) == ["a", "b", "c"]
    first = second[0][0]
    lose(second)
    third = fleet.line("GPU-2", 2 if first == "a" else 3)
    for config, answer in third:
        answer.set_result(f"report of {config}")
    for config, future in answers.items():
        if config == first == "a":
            with pytest.raises(CandidateFault) as caught:
                future.result(timeout=20)
            assert caught.value.status is Status.WORKER_LOST
        else:
            assert future.result(timeout=20) == f"report of {config}"
    assert len([line for line in said if "was lost" in line]) == 2  # once a card, whoever waited there
    card.close()


def test_one_that_loses_two_cards_is_given_up_whoever_waits(tmp_path: Path, said: list[str]) -> None:
    """a alone is at the second card when that is lost: it is judged no more, and b and c by the third."""
    fleet = FakeFleet(3)
    card = FleetCard(fleet, "h200", say=said.append)  # type: ignore[arg-type]
    a = judged(card, tmp_path, "a")
    lose(fleet.line("GPU-0", 1))
    fleet.line("GPU-1", 1)
    others = [judged(card, tmp_path, config) for config in "bc"]
    lose(fleet.line("GPU-1", 3))
    with pytest.raises(CandidateFault) as caught:
        a.result(timeout=20)
    assert caught.value.status is Status.WORKER_LOST
    for config, answer in fleet.line("GPU-2", 2):
        answer.set_result(config)
    assert [one.result(timeout=20) for one in others] == ["b", "c"]
    card.close()


def test_who_has_a_verdict_is_not_blamed(tmp_path: Path, said: list[str]) -> None:
    """The host answers a, and says of b that its card is gone: b ran."""
    fleet = FakeFleet(2)
    card = FleetCard(fleet, "h200", say=said.append)  # type: ignore[arg-type]
    a, b, c = asked_in_order(fleet, card, tmp_path)
    waiting = fleet.line("GPU-0", 3)
    waiting[0][1].set_result(Fault(reason="illegal address", status=Status.ILLEGAL_ACCESS))
    with pytest.raises(CandidateFault, match="illegal address"):
        a.result(timeout=20)
    for _, answer in waiting[1:]:
        answer.set_result(Fault(reason="three workers failed their self test", lost=True))
    for config, answer in fleet.line("GPU-1", 2):
        answer.set_result(config)
    assert (b.result(timeout=20), c.result(timeout=20)) == ("b", "c")
    card.close()


def test_a_card_that_is_given_back_answers_nobody(tmp_path: Path, said: list[str]) -> None:
    fleet = FakeFleet(1)
    card = FleetCard(fleet, "h200", say=said.append)  # type: ignore[arg-type]
    answers = asked_in_order(fleet, card, tmp_path)
    late = judged(card, tmp_path, "d")  # all threads wait: it is not even asked
    card.close()
    for answer in (*answers, late):
        with pytest.raises(concurrent.futures.CancelledError):
            answer.result(timeout=20)
    assert not card.uuid


def test_a_card_that_is_given_back_while_it_is_taken_is_free(tmp_path: Path, said: list[str]) -> None:
    fleet = FakeFleet(1)
    card = FleetCard(fleet, "h200", say=said.append)  # type: ignore[arg-type]
    fleet.while_taking = card.close
    with pytest.raises(concurrent.futures.CancelledError):
        judged(card, tmp_path, "a").result(timeout=20)
    assert not card.uuid and not fleet.held and not fleet.asked["GPU-0"]


class SlowCard:
    """Answers with the bytes of the object, once it may."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.may = threading.Event()

    def check(self, candidate: Loadable, **_: Any) -> bytes:
        self.begun.append(candidate.config)
        assert self.may.wait(20)
        return Path(candidate.object_path).read_bytes()

    def close(self) -> None:
        pass


def test_objects_of_the_next_request_are_there_while_the_card_is_at_one() -> None:
    """In a host. Answers come in the order of the requests."""
    judge = SlowCard()
    card = Card(index=0, name="H200", compute_capability=(9, 0), sm_count=132, uuid="GPU-slow")
    host = Host(1, {"slow": OwnCard(card=card, driver="580", judge=judge)})  # type: ignore[arg-type]  # checks alone
    host.install()

    async def ask(config: str) -> Any:
        one = Loadable(object_path="there", object_sha256="", prefix="k", arguments=(), config=config)
        return await Seated("GPU-slow").judge("check", {"there": config.encode()}, {"candidate": one})

    async def three() -> list[bytes]:
        asked = [asyncio.ensure_future(ask(config)) for config in ("first", "second", "third")]
        end = time.monotonic() + 20
        while len(list(Path(host._scratch.name).glob("*.o"))) < 3 or not judge.begun:
            assert time.monotonic() < end
            await asyncio.sleep(0.001)
        assert judge.begun == ["first"]
        judge.may.set()
        return [await one for one in asked]

    try:
        assert asyncio.run(three()) == [b"first", b"second", b"third"]
        assert judge.begun == ["first", "second", "third"]
    finally:
        judge.may.set()
        _installed.remove(host)
        host.close()


def test_a_card_whose_host_the_engine_knows_to_be_gone() -> None:
    """Its actor refuses to be asked: as if the answer did not come."""
    fleet = Fleet.__new__(Fleet)
    fleet._lock, fleet._tasks, fleet._lost = threading.Lock(), set(), None
    fleet._client = SimpleNamespace(as_current=contextlib.nullcontext)  # type: ignore[assignment]

    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError("Worker holding Actor was lost.")

    seat = SimpleNamespace(member=SimpleNamespace(address="tcp://gone"), actor=Gone())
    with pytest.raises(HostLost, match="tcp://gone does not answer"):
        fleet.ask(seat, "judge", "check").result(timeout=5)  # type: ignore[arg-type]
