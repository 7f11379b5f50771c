"""Who is in the cluster, and who of them may work for this tuner: looked at by one thread, whenever the scheduler says
that somebody came or went, and now and then.

A host of other sources is refused by name. One from which nothing was heard for ``silent_s`` seconds (it hangs, its
network is cut) is taken out of the cluster, so that its tasks go to others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tuner.fleet.engine import FleetLost
from tuner.fleet.host import describe_member
from tuner.fleet.identity import CARD, COMPILE, Description, Identity, card_offer, offers_in

if TYPE_CHECKING:
    from distributed import Client

POLL_S = 2.0  # a list of all members is dear where they are many
AGAIN_S = 0.5  # after a scheduler that did not answer
SILENT_S = 30.0  # a member is heard of every second or two, whatever its tasks do
ASK_S = 20.0  # of one that is asked what it is: importing torch for a card takes seconds
REACH_S = 2.0  # of one that is asked straight whether it is there


@dataclasses.dataclass(kw_only=True)
class Member:
    """``offers``: what it may do for this tuner, and how many at a time. ``heard``: when something was, by
    ``time.monotonic()``; ``seen``: the scheduler's own note of that; ``straight``: this machine reaches it itself."""

    address: str
    name: str
    resources: dict[str, float]
    heard: float
    seen: float = 0.0
    offers: dict[str, int] = dataclasses.field(default_factory=dict)
    description: Description | None = None
    vetted: bool = False
    straight: bool = False


class Members:
    """``left``: called with the address of each that goes. ``lost``: called once, when the scheduler does not answer
    any more. Both by the thread that looks."""

    def __init__(
        self,
        client: Client,
        identity: Identity,
        *,
        say: Callable[[str], None],
        left: Callable[[str], None],
        lost: Callable[[FleetLost], None],
        silent_s: float = SILENT_S,
    ) -> None:
        self._client, self.identity, self._silent_s = client, identity, silent_s
        self._say, self._left, self._lost = say, left, lost
        self._known: dict[str, Member] = {}
        self._refused: set[str] = set()
        self._listed = False  # once by the scheduler
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._news = threading.Event()
        client.subscribe_topic("all", self._hear)
        self._thread = threading.Thread(target=self._watch, daemon=True, name="fleet members")
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._news.set()
        self._thread.join()
        with contextlib.suppress(Exception):  # the scheduler is gone
            self._client.unsubscribe_topic("all")

    def addresses(self) -> set[str]:
        with self._changed:
            return set(self._known)

    def everybody(self) -> list[Member]:
        """Who is there, whatever it does."""
        with self._changed:
            return list(self._known.values())

    def offering(self, offer: str) -> list[Member]:
        """Who does ``offer`` for this tuner."""
        with self._changed:
            return [member for member in self._known.values() if offer in member.offers]

    def slots(self, offer: str) -> int:
        return sum(member.offers[offer] for member in self.offering(offer))

    def card_classes(self) -> list[str]:
        """Of which the cluster has cards for this tuner, by name."""
        with self._changed:
            offers = {offer for member in self._known.values() for offer in member.offers}
        return sorted(offer.removeprefix(CARD) for offer in offers if offer.startswith(CARD))

    def hosts(self) -> list[str]:
        """Names of those that do something for this tuner."""
        with self._changed:
            members = [member for member in self._known.values() if member.offers]
        return sorted({one.description.host for one in members if one.description})

    def settled(self) -> bool:
        """Has everybody who is there said what it is? Before the first list nobody knows who is there."""
        with self._changed:
            return self._listed and all(
                one.vetted for one in self._known.values() if offers_in(one.resources)
            )

    def wait_for(self, ready: Callable[[], bool], limit_s: float) -> bool:
        """Whether ``ready`` came true within the limit."""
        deadline = time.monotonic() + limit_s
        while not ready():
            if time.monotonic() > deadline or self._stop.is_set():
                return False
            with self._changed:
                self._changed.wait(AGAIN_S)
        return True

    def refusals(self) -> str:
        """One line of who was refused, or nothing."""
        return "; ".join(sorted(self._refused))

    # -- the thread

    def _watch(self) -> None:
        failures = 0
        while not self._stop.is_set():
            self._news.clear()
            try:
                there = self._ask_scheduler()
            except (OSError, TimeoutError, RuntimeError):
                failures += 1
                if failures > 1:
                    self._give_up()
                    return
                self._stop.wait(AGAIN_S)
                continue
            failures = 0
            self._compare(there)
            with self._changed:
                self._listed = True
                self._changed.notify_all()
            self._news.wait(min(POLL_S, self._silent_s / 4))

    def _hear(self, event: Any) -> None:
        """What the scheduler tells of, in the client's thread."""
        _, what = event
        if isinstance(what, dict) and what.get("action") in ("add-worker", "remove-worker"):
            self._news.set()

    def _ask_scheduler(self) -> dict[str, dict[str, Any]]:
        scheduler = self._client.scheduler
        if scheduler is None:
            raise OSError("the client is closed")
        answer = self._client.sync(scheduler.identity, n_workers=-1, callback_timeout=10)
        workers: dict[str, dict[str, Any]] = answer["workers"]
        return workers

    def _give_up(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self._lost(FleetLost(lost_line(self._client)))

    def _compare(self, there: dict[str, dict[str, Any]]) -> None:
        now = time.monotonic()
        for address, record in there.items():
            if address not in self._known:
                self._join(address, record, now)
            member = self._known[address]
            if record["last_seen"] != member.seen:
                member.seen, member.heard = record["last_seen"], now
            elif now - member.heard > self._silent_s:
                self._take_out(member)
        for address in [address for address in self._known if address not in there]:
            self._leave(address)

    def _join(self, address: str, record: dict[str, Any], now: float) -> None:
        member = Member(
            address=address, name=str(record["name"]), resources=dict(record["resources"]), heard=now
        )
        with self._changed:
            self._known[address] = member
        if offers_in(member.resources):  # asked by a thread of its own: it may hang
            threading.Thread(target=self._vet, args=(member,), daemon=True).start()

    def _vet(self, member: Member) -> None:
        try:
            self._ask_what_it_is(member)
        finally:
            with self._changed:
                member.vetted = True
                self._changed.notify_all()

    def _ask_what_it_is(self, member: Member) -> None:
        try:
            found = self._run_on(member, describe_member)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._refuse(member.name, f"it cannot say what it is ({reason:.120})")
            return
        offers = {}
        for offer in offers_in(member.resources):
            if reason := self.identity.refusal(found.identity, offer) or _other_card(found, offer):
                self._refuse(f"{found.host} ({member.name})", f"{reason}: it gets nothing to {_verb(offer)}")
            else:
                offers[offer] = int(member.resources[offer])
        if offers and not found.identity.tags.keys() <= member.resources.keys():
            self._tag(member, found.identity)
        straight = bool(offers) and self._reaches(member)
        with self._changed:
            member.description, member.offers, member.straight = found, offers, straight
            mine = [one for one in self._known.values() if one.offers]
            # One that is out of reach would hold up answers of others that are fetched with its own.
            self._client.direct_to_workers = all(one.straight for one in mine)

    def _reaches(self, member: Member) -> bool:
        async def ask() -> None:
            await self._client.rpc(member.address).identity()

        try:
            self._client.sync(ask, callback_timeout=REACH_S)
        except (OSError, TimeoutError):
            return False
        return True

    def _tag(self, member: Member, identity: Identity) -> None:
        """Of a plain ``dask worker``, which does not know that it is of a fleet; then what waited for one may go on."""
        from distributed.protocol.pickle import cloudpickle

        from tuner.fleet import on_scheduler

        self._run_on(member, set_tags, tags=identity.tags)
        cloudpickle.register_pickle_by_value(on_scheduler)  # a scheduler needs dask, not this project
        self._client.run_on_scheduler(on_scheduler.try_again)

    def _run_on(self, member: Member, function: Callable[..., Any], **arguments: Any) -> Any:
        answers = self._client.sync(
            self._client._run, function, workers=[member.address], callback_timeout=ASK_S, **arguments
        )
        return answers[member.address]

    def _refuse(self, name: str, reason: str) -> None:
        line = f"{name} is refused: {reason}"
        if line not in self._refused:
            self._refused.add(line)
            self._say(line)

    def _take_out(self, member: Member) -> None:
        self._say(f"{member.name} was silent for {self._silent_s:g} s: its tasks go to others")
        scheduler: Any = self._client.scheduler
        with contextlib.suppress(OSError, TimeoutError):
            self._client.sync(
                scheduler.unregister,
                address=member.address,
                stimulus_id=f"silent-{time.time()}",
                callback_timeout=10,
            )

    def _leave(self, address: str) -> None:
        with self._changed:
            member = self._known.pop(address)
            self._changed.notify_all()
        if not member.offers:
            return
        self._say(f"{member.name} has left")
        self._left(address)
        if COMPILE in member.offers and not self.offering(COMPILE):
            self._say("no host compiles any more: waiting for one")


async def set_tags(dask_worker: Any, tags: dict[str, float]) -> None:
    """Called by the engine on a member."""
    await dask_worker.set_resources(**tags)


def lost_line(client: Client) -> str:
    address = client.scheduler.address if client.scheduler is not None else "that address"
    return (
        f"the scheduler at {address} does not answer any more; everything found so far is in the journal: start it and "
        "its hosts again, then run the same command again"
    )


def _other_card(found: Description, offer: str) -> str:
    """Why the card is not of the class that is offered; nothing where it is, or where no card is meant."""
    if not offer.startswith(CARD):
        return ""
    if found.card is None:
        return "it owns no card"
    from tuner.devices.classes import class_of

    own = class_of(found.card)
    name = own.name if own else "of no known class"
    return "" if card_offer(name) == offer else f"its card is {name}"


def _verb(offer: str) -> str:
    return f"judge on {offer}" if offer.startswith(CARD) else offer
