"""The tuner's side of a cluster: a task becomes a future, whatever becomes of the host that had it.

The engine gives the tasks of a host that dies to others. What is meant for one member (a card) ends with ``HostLost``
instead, and who asked decides. When the scheduler dies everything on its way ends with ``FleetLost``.

Tasks that come together are sent together, and answers fetched together: a message costs the scheduler more than a
task. Answers come straight from the hosts where this machine reaches them all; requests to a card always go there
straight then, and through the scheduler's hands otherwise.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import itertools
import queue
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from tuner.fleet.engine import Access, FleetLost, connect
from tuner.fleet.identity import Identity
from tuner.fleet.members import SILENT_S, Member, Members, lost_line

if TYPE_CHECKING:
    import distributed

FINISHERS = 4  # threads that fetch results and do what comes next
AT_ONCE = 64  # tasks that are sent together, answers that are fetched together
ROUNDS = 2  # of a task, each of as many hosts as the engine lets die with one (four)


class HostLost(Exception):
    """The member that a task was meant for has left, or every host that had the task; one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Seat:
    """An object that a member keeps for this tuner, as long as ``future`` lives."""

    member: Member
    actor: Any
    future: distributed.Future


@dataclasses.dataclass(kw_only=True, eq=False)
class _Task:
    """``name`` and ``call`` are of the engine's task; empty of a request to a ``Seat``. ``at``: the address of the only
    member that may have it."""

    name: str = ""
    call: bytes = b""
    offer: str = ""
    at: str | None = None
    actor: bool = False
    priority: int = 0
    finish: Callable[[Any], Any] = lambda answer: answer
    lost: Callable[[str], Any] | None = None
    whole: concurrent.futures.Future[Any] = dataclasses.field(default_factory=concurrent.futures.Future)
    future: distributed.Future | None = None
    rounds: int = 0

    @property
    def together(self) -> tuple[Any, ...]:
        """Tasks of which this is equal are sent in one message."""
        return self.offer, self.at, self.actor


class _Call:
    """Whoever loads its pickle makes the call. So the scheduler, which loads what it is sent, needs dask alone and is
    sent bytes."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._made = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made


def _call(function: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, Any]:
    """Of a ``_Task``."""
    from distributed.protocol import pickle

    return {"name": function.__name__, "call": pickle.dumps(_Call(function, arguments))}


class Fleet:
    """Connected to the scheduler of ``access``. ``say`` takes lines for the user, from any thread. ``silent_s``: after
    which a host that is not heard of counts as dead. ``close`` it; what is on its way is given up then.

    Raises ``InputError`` without dask, and when no scheduler answers.
    """

    def __init__(
        self,
        access: Access,
        *,
        say: Callable[[str], None],
        silent_s: float = SILENT_S,
        identity: Identity | None = None,
    ) -> None:
        self.identity = identity or Identity.here()
        self._client = connect(access)
        self._say = say
        self._lock = threading.Lock()
        self._tasks: set[_Task] = set()
        self._lost: FleetLost | None = None
        self._numbers, self._name = itertools.count(), secrets.token_hex(8)
        self._there: queue.SimpleQueue[tuple[_Task, distributed.Future]] = queue.SimpleQueue()
        self._finishers = concurrent.futures.ThreadPoolExecutor(FINISHERS, thread_name_prefix="fleet")
        self._to_send: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._send_all, daemon=True, name="fleet sender")
        self._sender.start()
        self.members = Members(
            self._client, self.identity, say=say, left=self._left, lost=self._lose, silent_s=silent_s
        )

    def submit(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        offer: str,
        at: Member | None = None,
        finish: Callable[[Any], Any] = lambda answer: answer,
        lost: Callable[[str], Any] | None = None,
    ) -> concurrent.futures.Future[Any]:
        """``function(*arguments)`` on a host that does ``offer``, or on the member ``at``; then ``finish`` here.

        Raises nothing: the future does, what the function raised, ``HostLost`` or ``FleetLost``. ``lost`` makes an
        answer of the reason of a ``HostLost`` instead. Any thread may call it.
        """
        with self._lock:
            # The n-th waiting task of each tuner competes with the n-th of the others, whoever has more.
            priority = -len(self._tasks)
        task = _Task(
            **_call(function, arguments),
            offer=offer,
            at=at.address if at else None,
            priority=priority,
            finish=finish,
            lost=lost,
        )
        task.whole.add_done_callback(lambda done: self._forget(task))
        self._begin(task)
        return task.whole

    def seat(self, make: Callable[..., Any], *arguments: Any, offer: str, at: Member) -> Seat:
        """``make(*arguments)`` kept by the member, who does ``offer``. Raises ``HostLost``, ``FleetLost``."""
        task = _Task(**_call(make, arguments), offer=offer, at=at.address, actor=True)
        self._begin(task)
        actor = task.whole.result()
        assert task.future is not None
        return Seat(member=at, actor=actor, future=task.future)

    def ask(self, seat: Seat, method: str, *arguments: Any) -> concurrent.futures.Future[Any]:
        """What the object's ``method`` answers. Requests of one thread are answered one after another, in their order.
        The future raises what ``submit``'s does."""
        task = _Task(at=seat.member.address)
        self._enlist(task)
        if not task.whole.done():
            try:
                with self._client.as_current():
                    answer = getattr(seat.actor, method)(*arguments)
            except RuntimeError as error:  # the engine has heard already that the host is gone
                self._lose_hosts(task, f"its host {task.at} does not answer ({error})")
                return task.whole
            loop: Any = self._client.loop
            loop.add_callback(self._hear, task, answer)
        return task.whole

    @contextlib.contextmanager
    def exclusive(self, name: str) -> Iterator[Callable[[], bool]]:
        """A lock of the whole cluster, ``take`` says whether it is ours now; it goes with this process, within the
        half minute that the engine waits for a word from its owner."""
        from distributed import Semaphore

        lock = Semaphore(
            max_leases=1, name=name, scheduler_rpc=self._client.scheduler, loop=self._client.loop
        )
        taken = False

        def take() -> bool:
            nonlocal taken
            taken = taken or bool(lock.acquire(timeout=0.01))
            return taken

        try:
            yield take
        finally:
            if taken:
                with contextlib.suppress(OSError, RuntimeError, ValueError):
                    lock.release()

    def check(self) -> None:
        """Raises ``FleetLost`` once the scheduler is gone."""
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        self._to_send.put(None)
        self.members.close()
        self._end_all(FleetLost("the connection to the cluster was closed"))
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            self._client.close(timeout=2)
        self._finishers.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- a task's way

    def _begin(self, task: _Task) -> None:
        self._enlist(task)
        if not task.whole.done():
            task.rounds += 1
            self._to_send.put(task)

    def _enlist(self, task: _Task) -> None:
        with self._lock:
            self._tasks.add(task)
        if self._lost is not None:
            self._settle(task, error=self._lost)

    def _send_all(self) -> None:
        """Whatever waits to be sent when the message before is on its way, in one message for each kind."""
        while (first := self._to_send.get()) is not None:
            found = [first]
            with contextlib.suppress(queue.Empty):
                while len(found) < AT_ONCE and (another := self._to_send.get_nowait()) is not None:
                    found.append(another)
            kinds: dict[tuple[Any, ...], list[_Task]] = collections.defaultdict(list)
            for task in found:
                if not task.whole.done():
                    kinds[task.together].append(task)
            for tasks in kinds.values():
                self._send(tasks)

    def _send(self, tasks: list[_Task]) -> None:
        from distributed.protocol import pickle

        first = tasks[0]
        keys = [self._new_key(task) for task in tasks]
        # The scheduler asks for that of each key: a builtin, as it need not have this project's code.
        priority: Any = {key: task.priority for key, task in zip(keys, tasks, strict=True)}.__getitem__
        try:
            futures = self._client.map(
                pickle.loads,
                [task.call for task in tasks],
                key=keys,
                resources=self.identity.needs(first.offer),
                workers=[first.at] if first.at else None,
                priority=priority,
                actor=first.actor,
                pure=False,
            )
        except Exception as error:  # the client closes when the scheduler is gone
            lost = FleetLost(lost_line(self._client))
            lost.__cause__ = error
            for task in tasks:
                self._settle(task, error=lost)
            return
        for task, future in zip(tasks, futures, strict=True):
            self._listen_to(task, future)

    def _listen_to(self, task: _Task, future: distributed.Future) -> None:
        task.future = future
        if task.whole.done():  # taken back while it was sent
            self._forget(task)
        future.add_done_callback(lambda done: self._fetch(task, done))

    def _new_key(self, task: _Task) -> str:
        return f"{task.name}-{self._name}-{next(self._numbers)}"

    async def _hear(self, task: _Task, answer: Any) -> None:
        """Of a ``Seat``, in the client's thread."""
        try:
            self._settle(task, await answer)
        except (OSError, KeyError) as error:  # the host, or what it kept
            self._lose_hosts(task, f"its host {task.at} does not answer ({error or type(error).__name__})")
        except BaseException as error:
            self._settle(task, error=error)

    def _fetch(self, task: _Task, future: distributed.Future) -> None:
        """Answers that are there are fetched many at a time, which costs the scheduler a third. That of one member is
        fetched alone: with a card's host its answer may be gone, too."""
        with contextlib.suppress(RuntimeError):  # the fleet was closed
            if task.at is None and future.status == "finished":
                self._there.put((task, future))
                self._finishers.submit(self._finish_all)
            else:
                self._finishers.submit(self._finish, task, future)

    def _finish_all(self) -> None:
        found: list[tuple[_Task, distributed.Future]] = []
        with contextlib.suppress(queue.Empty):
            while len(found) < AT_ONCE:
                found.append(self._there.get_nowait())
        if not found:
            return
        try:
            answers = self._client.gather([future for _, future in found])
        except BaseException:  # of one of them: each says so itself
            for task, future in found:
                self._finish(task, future)
            return
        for (task, _), answer in zip(found, answers, strict=True):
            try:
                self._settle(task, task.finish(answer))
            except BaseException as error:
                self._settle(task, error=error)

    def _finish(self, task: _Task, future: distributed.Future) -> None:
        from distributed.client import FutureCancelledError
        from distributed.scheduler import KilledWorker

        if task.whole.done():
            return
        try:
            answer = task.finish(future.result())
        except KilledWorker:
            self._again(task)
        except FutureCancelledError:
            if task.at is not None and task.at not in self.members.addresses():
                self._lose_hosts(task, f"its host {task.at} has left the cluster")
                return
            self._lose(self._lost or FleetLost(lost_line(self._client)))
        except BaseException as error:
            self._settle(task, error=error)
        else:
            self._settle(task, answer)

    def _again(self, task: _Task) -> None:
        """After so many hosts the engine gives a task up; they may have been killed for reasons of their own."""
        if task.at is None and task.rounds < ROUNDS:
            self._begin(task)
        else:
            self._lose_hosts(task, "every host that had it died")

    def _lose_hosts(self, task: _Task, reason: str) -> None:
        if task.lost is not None:
            self._settle(task, task.lost(reason))
        else:
            self._settle(task, error=HostLost(reason))

    def _settle(self, task: _Task, answer: Any = None, *, error: BaseException | None = None) -> None:
        """The first word counts: a host that was given up may answer late."""
        with self._lock:
            if task not in self._tasks:
                return
            self._tasks.discard(task)
        if not task.whole.set_running_or_notify_cancel():
            return
        if error is None:
            task.whole.set_result(answer)
        else:
            task.whole.set_exception(error)

    def _forget(self, task: _Task) -> None:
        with self._lock:
            self._tasks.discard(task)
        future, task.future = task.future, None
        if future is not None and task.whole.cancelled():
            with contextlib.suppress(Exception):
                future.cancel()

    def _left(self, address: str) -> None:
        with self._lock:
            meant = [task for task in self._tasks if task.at == address]
        for task in meant:
            if task.future is not None:  # its answer may be gone with the host: nobody waits for it
                with contextlib.suppress(Exception):
                    task.future.cancel()
            self._lose_hosts(task, f"its host {address} has left the cluster")

    def _lose(self, error: FleetLost) -> None:
        self._lost = error
        self._end_all(error)

    def _end_all(self, error: FleetLost) -> None:
        with self._lock:
            self._lost = self._lost or error
            tasks = list(self._tasks)
        for task in tasks:
            self._settle(task, error=error)
