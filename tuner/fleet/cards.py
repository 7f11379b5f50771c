"""A card of the cluster, as a device asks the worker of a card of its own.

The first request takes a card of the class that nobody has, and keeps it until ``close``: a tune's checks, times and
finals are one card's. Up to ``LINE`` requests wait at the card, so that it has the next one when it has answered: the
way there and back, and what the tuner does in between, would be time in which it idles.

When the card's host is lost, or its self test fails, another card of the class goes on, if its driver, clocks and
protocol are the same. The first in line is what ran; one whose card was lost twice while it was that is not tried a
third time. The others are asked again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tuner.fleet.fleet import Fleet, HostLost, Seat
from tuner.fleet.host import Fault, Seated
from tuner.fleet.identity import card_offer
from tuner.trials.outcome import Status

if TYPE_CHECKING:
    from tuner.card.samples.samples import Samples
    from tuner.card.worker.bench import Fidelity, FinalsOptions
    from tuner.card.worker.candidate import Case, Loadable
    from tuner.card.worker.check import CaseReport
    from tuner.card.worker.self_test import Health
    from tuner.fleet.members import Member

Answer = TypeVar("Answer")

LINE = 3  # requests at a card: one runs, one waits, the answer of one is on its way
TRIES = 2  # cards that one request may lose
WAIT_S = 600.0  # a host may be started again
POLL_S = 0.2
SAY_AFTER_S = 3.0


@dataclasses.dataclass(kw_only=True, eq=False)
class _Lease:
    """A card that is ours until ``held`` is closed. ``line``: what it was asked and has not been heard of, in order;
    ``suspect``: of these, what ran when it was lost."""

    member: Member
    uuid: str
    host: str
    seat: Seat
    held: contextlib.ExitStack
    line: list[Future[Any]] = dataclasses.field(default_factory=list)
    suspect: Future[Any] | None = None


class FleetCard:
    """``Judging`` by a card of class ``name``. ``say`` takes lines for the user; ``wait_s``: seconds for another card
    when all that were there are lost. Any thread may ask; ``answered`` has ``LINE`` of them."""

    def __init__(
        self, fleet: Fleet, name: str, *, say: Callable[[str], None], wait_s: float = WAIT_S
    ) -> None:
        self._fleet, self._class, self._say, self._wait_s = fleet, name, say, wait_s
        self._lease: _Lease | None = None
        self._health: Health | None = None
        self._closed = False
        self._taking = threading.Lock()  # a card, or the next place in its line
        self._threads = ThreadPoolExecutor(LINE, thread_name_prefix="card")
        # Why members were lost or are not like the first, by address: one may come back.
        self._bad: dict[str, str] = {}

    @property
    def uuid(self) -> str:
        """Empty before a card was taken."""
        lease = self._lease
        return lease.uuid if lease else ""

    def answered(self, call: Callable[[], Answer]) -> Future[Answer]:
        """What ``call`` gives or raises, which asks this card: before long, by a thread of this."""
        return self._threads.submit(call)

    def begin(self) -> bool:
        """A card is taken by the first request, which may have to wait for one."""
        return self._lease is not None

    @property
    def health(self) -> Health:
        if self._health is None:
            with self._taking:
                self._taken()
        assert self._health is not None
        return self._health

    def check(
        self, candidate: Loadable, cases: Sequence[Case], *, repeats: int, seed: int
    ) -> list[CaseReport]:
        arguments = {"candidate": candidate, "cases": list(cases), "repeats": repeats, "seed": seed}
        _, reports = self._ask("check", [candidate], arguments)
        found: list[CaseReport] = reports
        return found

    def time(self, candidate: Loadable, case: Case, fidelity: Fidelity) -> Samples:
        host, samples = self._ask(
            "time", [candidate], {"candidate": candidate, "case": case, "fidelity": fidelity}
        )
        return _of_host(samples, host)

    def finals(self, entries: Sequence[tuple[Loadable, Case]], options: FinalsOptions) -> list[Samples]:
        arguments = {"entries": list(entries), "options": options}
        host, found = self._ask("finals", [candidate for candidate, _ in entries], arguments)
        return [_of_host(samples, host) for samples in found]

    def close(self) -> None:
        """Let others have the card. What it was asked is given up, and it is not asked again."""
        self._closed = True
        lease, self._lease = self._lease, None
        if lease is not None:
            for future in list(lease.line):
                future.cancel()
            lease.held.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # -- asking

    def _ask(self, method: str, candidates: Sequence[Loadable], arguments: dict[str, Any]) -> tuple[str, Any]:
        """The host that answered, and what."""
        from tuner.card.card_worker import CandidateFault

        objects = {one.object_path: Path(one.object_path).read_bytes() for one in candidates}
        reason, losses = "", 0
        while losses < TRIES:
            with self._taking:
                lease = self._taken()
                future = self._fleet.ask(lease.seat, "judge", method, objects, arguments)
                lease.line.append(future)
            try:
                answer = self._answer(lease, future)
            except _Lost as lost:
                reason, losses = str(lost), losses + (lease.suspect is future)
                continue
            if isinstance(answer, Fault):
                raise CandidateFault(answer.status, answer.reason)
            return lease.host, answer
        raise CandidateFault(Status.WORKER_LOST, f"{TRIES} cards were lost while it ran: {reason}")

    def _answer(self, lease: _Lease, future: Future[Any]) -> Any:
        """Raises ``_Lost`` when the card is. Whoever is interrupted leaves the line."""
        try:
            answer = future.result()
        except HostLost as error:
            self._give_up(lease, str(error))
            raise _Lost(str(error)) from None
        except BaseException:
            future.cancel()
            lease.line.remove(future)
            raise
        if isinstance(answer, Fault) and answer.lost:
            self._give_up(lease, answer.reason)
            raise _Lost(answer.reason)
        lease.line.remove(future)
        return answer

    def _give_up(self, lease: _Lease, reason: str) -> None:
        """Called for each that was in line; the first in it that has no verdict is what ran."""
        with self._taking:
            if lease.suspect is not None:
                return
            lease.suspect = next(one for one in list(lease.line) if not _has_verdict(one))
            if self._lease is lease:
                self._lease = None
            self._bad[lease.member.address] = reason
        self._say(f"the card {lease.uuid} of {lease.host} was lost: {reason}")
        lease.held.close()

    # -- taking a card

    def _taken(self) -> _Lease:
        """Raises ``CardLost`` when those that were there are lost, and no other comes in time."""
        from tuner.card.card_worker import CardLost

        start, told = time.monotonic(), False
        while (lease := self._lease) is None:
            self._fleet.check()
            if self._closed:
                raise CancelledError
            if any(self._take(member) for member in self._there()):
                continue
            waited = time.monotonic() - start
            if self._bad and not self._there() and waited > self._wait_s:
                raise CardLost(
                    f"another card of class {self._class} must be free and like the first, none was in {waited:.0f} s "
                    f"({'; '.join(self._bad.values())}); all verdicts so far are in the journal: run the command again"
                )
            if not told and waited > SAY_AFTER_S:
                told = True
                self._say(f"waiting for a card of class {self._class}: {self._why_not()}")
            time.sleep(POLL_S)
        if self._closed:  # while it was being taken
            self.close()
            raise CancelledError
        return lease

    def _there(self) -> list[Member]:
        members = self._fleet.members.offering(card_offer(self._class))
        return [one for one in members if one.address not in self._bad]

    def _why_not(self) -> str:
        return "others have all of them" if self._there() else "no host has one"

    def _take(self, member: Member) -> bool:
        """Whether the member's card is ours now, and in order."""
        assert member.description is not None and member.description.card is not None
        uuid, host = member.description.card.uuid, member.description.host
        with contextlib.ExitStack() as stack:
            take = stack.enter_context(self._fleet.exclusive(f"svdquant-autotuner-card-{uuid}"))
            if not take():
                return False
            try:
                seat = self._fleet.seat(Seated, uuid, offer=card_offer(self._class), at=member)
                reason = self._why_unfit(seat)
            except HostLost as error:
                reason = str(error)
            if not reason:
                self._lease = _Lease(member=member, uuid=uuid, host=host, seat=seat, held=stack.pop_all())
                return True
        self._bad[member.address] = reason
        self._say(f"the card {uuid} of {host} is left out: {reason}")
        return False

    def _why_unfit(self, seat: Seat) -> str:
        """Nothing for a card that passes its self test and is like the first one. Raises ``HostLost``."""
        found = self._fleet.ask(seat, "judge", "health", {}, {}).result()
        if isinstance(found, Fault):
            return found.reason
        if self._health is None:
            self._health = found
        wanted, got = (
            (one.name, one.driver, one.cuda, one.policy, one.sm_count) for one in (self._health, found)
        )
        return "" if wanted == got else f"it is {got}, the card that began was {wanted}"


class _Lost(Exception):
    """The card that had a request; one line."""


def _has_verdict(future: Future[Any]) -> bool:
    if not future.done() or future.cancelled() or future.exception() is not None:
        return False
    answer = future.result()
    return not (isinstance(answer, Fault) and answer.lost)


def _of_host(samples: Samples, host: str) -> Samples:
    return dataclasses.replace(samples, host=host)
