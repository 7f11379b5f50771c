"""The process that offers a host to a cluster: a member of the engine for its compilers, and one for each card.

``serve`` goes on when the scheduler is gone, and joins again when there is one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tuner.fleet.engine import LOOPBACK, Access, require_engine, security_of
from tuner.fleet.identity import COMPILE, SIMULATE, card_offer

if TYPE_CHECKING:
    from distributed import Worker

    from tuner.fleet.host import Host, OwnCard

CONNECT_S = 10.0
PAUSE_S = 2.0


def serve(
    access: Access,
    host: Host,
    *,
    listen: str = LOOPBACK,
    say: Callable[[str], None],
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Offer ``host`` to the scheduler of ``access`` until SIGINT or SIGTERM; ``listen``: this machine's address that
    the scheduler reaches. ``ready``: called when it has joined for the first time."""
    require_engine()
    host.install()
    asyncio.run(_Service(access, host, listen, say, ready).run())


def member_names(name: str, cards: list[int]) -> dict[int, str]:
    """Of the members that own the cards of a host, by the cards' indices."""
    return {index: f"{name}-{os.getpid()}/cuda:{index}" for index in cards}


class _Service:
    def __init__(
        self, access: Access, host: Host, listen: str, say: Callable[[str], None], ready: Callable[[], None]
    ) -> None:
        self._access, self._host, self._listen = access, host, listen
        self._say, self._ready = say, ready
        self._stop = asyncio.Event()
        self._told = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop.set)
        with tempfile.TemporaryDirectory(prefix="svdquant-autotuner-dask-") as scratch:
            while not self._stop.is_set():
                with contextlib.suppress(TimeoutError):
                    await self._join(scratch)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), PAUSE_S)

    async def _join(self, scratch: str) -> None:
        """Be a part of the cluster as long as there is one."""
        async with contextlib.AsyncExitStack() as stack:
            members = []
            try:
                for options in self._members():
                    members.append(await self._enter(stack, scratch, options))
            except (OSError, RuntimeError, TimeoutError) as error:
                self._tell_once(error)
                return
            self._told = False
            self._say(self.joined_line())
            self._ready()
            stop = asyncio.create_task(self._stop.wait())
            ends = [asyncio.create_task(member.finished()) for member in members]
            await asyncio.wait([stop, *ends], return_when=asyncio.FIRST_COMPLETED)
            if not self._stop.is_set():
                self._say(f"the scheduler at {self._access.address} is gone: waiting for it")
            for task in (stop, *ends):
                task.cancel()

    async def _enter(self, stack: contextlib.AsyncExitStack, scratch: str, options: dict[str, Any]) -> Worker:
        from distributed import Worker

        _silence()
        worker = Worker(
            self._access.address,
            host=self._listen,
            local_directory=scratch,
            memory_limit=0,
            dashboard_address=f"{self._listen}:0",
            dashboard=False,
            death_timeout=CONNECT_S,
            security=security_of(self._access.tls),
            **options,
        )
        started: Worker = await stack.enter_async_context(worker)
        return started

    def _members(self) -> Iterator[dict[str, Any]]:
        """What each member is called, does, and how many tasks it has at a time."""
        host = self._host
        tags = host.identity.tags
        if host.jobs:
            offers = {SIMULATE: float(host.jobs)}
            if host.identity.compiler:
                offers |= {COMPILE: float(host.jobs)}
            name = f"{host.name}-{os.getpid()}"
            yield {"name": name, "nthreads": len(offers) * host.jobs, "resources": {**offers, **tags}}
        for name, own in host.cards.items():
            yield {"name": name, "nthreads": 1, "resources": {_offer_of(own): 1.0, **tags}}

    def joined_line(self) -> str:
        """What the host is, in one line."""
        host = self._host
        compiler = ", ".join(host.identity.compiler) or "no compiler"
        cards = ", ".join(str(own.card) for own in host.cards.values()) or "no card"
        return (
            f"{host.name} has joined {self._access.address}: {host.jobs} jobs, {compiler}, "
            f"sources {host.identity.sources[:12]}, {cards}"
        )

    def _tell_once(self, error: BaseException) -> None:
        if not self._told:
            self._told = True
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self._say(f"cannot join {self._access.address} yet ({reason:.160}): trying again")


def _offer_of(own: OwnCard) -> str:
    from tuner.devices.classes import class_of

    found = class_of(own.card)
    assert found is not None, "the card was looked at before"
    return card_offer(found.name)


def _silence() -> None:
    """The engine's own lines: ours say the same in fewer."""
    for name in ("distributed", "distributed.worker", "distributed.core", "tornado"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
