"""What the engine calls on a host. Every task is handed to the killable processes that a tune on one machine uses:
the process that the engine runs in never loads a candidate.

A process is one host, however many members of the cluster it is: what it owns lies in ``Host.here()``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import functools
import hashlib
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.fleet.identity import Description, Identity, host_name
from tuner.trials.outcome import Status

if TYPE_CHECKING:
    from kernel_space.core.arch import Arch
    from kernel_space.core.config import KernelConfig
    from kernel_space.core.problem import ProblemClass
    from tuner.card.judging import Judging
    from tuner.compile.worker import CompileResult
    from tuner.devices.classes import Card
    from tuner.fleet.packed import Packed

MOST_OBJECTS = 256  # files of a card's host that are kept; a final asks for ten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Built:
    """What came of a compilation on ``host``: ``CompileResult`` without a path of that machine."""

    host: str
    status: Status
    reason: str
    seconds: float
    packed: Packed | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fault:
    """A candidate's, as ``CandidateFault`` has it; ``lost``: the card's instead, which is given up there."""

    reason: str
    status: Status = Status.FAILED
    lost: bool = False


@dataclasses.dataclass(kw_only=True)
class OwnCard:
    """A card of this host. ``judge`` is asked by ``thread``, its own: a worker process ends with the thread that
    started it. What a request brings is put into files by another, ``files``, while the card is at the one before."""

    card: Card
    driver: str
    judge: Judging
    thread: concurrent.futures.ThreadPoolExecutor = dataclasses.field(
        default_factory=lambda: concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="card")
    )
    files: concurrent.futures.ThreadPoolExecutor = dataclasses.field(
        default_factory=lambda: concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="files")
    )


class Host:
    """``jobs``: processes of each kind at a time. ``cards``: by the name of the member of the cluster that owns each.
    ``compilers`` and ``simulators`` make the pools when the first task comes; tests have their own."""

    def __init__(
        self,
        jobs: int,
        cards: Mapping[str, OwnCard] | None = None,
        *,
        compilers: Callable[[int, float], Any] | None = None,
        simulators: Callable[[int], Any] | None = None,
        identity: Identity | None = None,
        name: str = "",
    ) -> None:
        self.name = name or host_name()
        self.jobs, self.cards = jobs, dict(cards or {})
        self._compilers, self._simulators = compilers or _compilers, simulators or _simulators
        self._identity = identity
        self._lock = threading.Lock()
        self._pools: dict[object, Any] = {}
        self._scratch = tempfile.TemporaryDirectory(prefix="svdquant-autotuner-host-")

    @classmethod
    def here(cls, dask_worker: Any = None) -> Host:
        """This process's: the one that was installed, or that of ``dask_worker``, which somebody else started."""
        with _lock:
            if not _installed:
                assert dask_worker is not None, "a host is described before it gets a task"
                _installed.append(_plain_host(dask_worker))
            return _installed[-1]

    def install(self) -> None:
        with _lock:
            _installed.append(self)

    @functools.cached_property
    def identity(self) -> Identity:
        return self._identity or Identity.here()

    def describe(self, member: str) -> Description:
        own = self.cards.get(member)
        return Description(
            host=self.name,
            identity=self.identity,
            card=own.card if own else None,
            driver=own.driver if own else "",
        )

    def compilers(self, timeout_s: float) -> Any:
        return self._pool(timeout_s, lambda: self._compilers(self.jobs, timeout_s))

    def simulators(self) -> Any:
        return self._pool("simulate", lambda: self._simulators(self.jobs))

    def object_file(self, data: bytes) -> Path:
        """A file with ``data``; the oldest go."""
        with self._lock:
            folder = Path(self._scratch.name)
            path = folder / f"{hashlib.sha256(data).hexdigest()}.o"
            if not path.exists():
                hidden = path.with_suffix(".new")
                hidden.write_bytes(data)
                hidden.rename(path)
            path.touch()
            files = sorted(folder.glob("*.o"), key=lambda file: file.stat().st_mtime_ns)
            for old in files[:-MOST_OBJECTS]:
                old.unlink()
            return path

    def own_card(self, uuid: str) -> OwnCard:
        return next(own for own in self.cards.values() if own.card.uuid == uuid)

    def close(self) -> None:
        """End the processes; they end with this one in any case."""
        for pool in self._pools.values():
            if hasattr(pool, "close"):
                pool.close()
        for own in self.cards.values():
            own.thread.submit(own.judge.close)
            own.thread.shutdown()
            own.files.shutdown()
        self._scratch.cleanup()

    def _pool(self, key: object, make: Callable[[], Any]) -> Any:
        with self._lock:
            if key not in self._pools:
                self._pools[key] = make()
            return self._pools[key]


_installed: list[Host] = []
_lock = threading.Lock()


# -- called by the engine


def describe_member(dask_worker: Any) -> Description:
    """Of the member of the cluster that is asked."""
    return Host.here(dask_worker).describe(str(dask_worker.name))


def compile_there(config: KernelConfig, problem_class: ProblemClass, arch: Arch, timeout_s: float) -> Built:
    from tuner.fleet.packed import Packed

    host = Host.here()
    result: CompileResult = host.compilers(timeout_s).submit(config, problem_class, arch).result()
    packed = None if result.compiled is None else Packed.of(result.compiled)
    return Built(
        host=host.name, status=result.status, reason=result.reason, seconds=result.seconds, packed=packed
    )


def simulate_there(task: Any, packed: Packed) -> tuple[str, Any]:
    """``task`` of the machine on the kernel that ``packed`` has; the host, and what ``CheckPool`` answers."""
    host = Host.here()
    compiled = dataclasses.replace(task.compiled, directory=packed.unpack(_received()), foreign=False)
    return host.name, host.simulators().submit(dataclasses.replace(task, compiled=compiled)).result()


class Seated:
    """The card ``uuid`` of this host for one tuner: kept by the engine, which hands it requests as they come. They are
    answered in that order: each of the two threads of the card takes them so."""

    def __init__(self, uuid: str) -> None:
        self._uuid = uuid

    async def judge(self, method: str, objects: Mapping[str, bytes], arguments: dict[str, Any]) -> Any:
        """``method`` of the card's worker; ``objects`` by the paths that the tuner's candidates have. A ``Fault``
        instead of what it raises for a candidate."""
        host = Host.here()
        own = host.own_card(self._uuid)
        loop = asyncio.get_running_loop()
        there = await loop.run_in_executor(own.files, _here, host, arguments, objects)
        return await loop.run_in_executor(own.thread, _judge, own.judge, method, there)


def _judge(judge: Judging, method: str, arguments: dict[str, Any]) -> Any:
    from tuner.card.card_worker import CandidateFault, CardLost

    try:
        return judge.health if method == "health" else getattr(judge, method)(**arguments)
    except CandidateFault as fault:
        return Fault(reason=str(fault), status=fault.status)
    except CardLost as lost:
        return Fault(reason=str(lost), lost=True)


def _here(host: Host, arguments: dict[str, Any], objects: Mapping[str, bytes]) -> dict[str, Any]:
    """``arguments`` with the candidates where their objects lie here."""
    paths = {there: str(host.object_file(data)) for there, data in objects.items()}

    def here(candidate: Any) -> Any:
        return dataclasses.replace(candidate, object_path=paths[candidate.object_path])

    moved = dict(arguments)
    if "candidate" in moved:
        moved["candidate"] = here(moved["candidate"])
    if "entries" in moved:
        moved["entries"] = [(here(candidate), case) for candidate, case in moved["entries"]]
    return moved


# -- what a host is made of


def _compilers(jobs: int, timeout_s: float) -> Any:
    from tuner.compile.pool import CompilePool

    return CompilePool(jobs, timeout_s)


def _simulators(jobs: int) -> Any:
    from tuner.simulated.check_worker import CheckPool
    from tuner.simulated.machine_check import run_task

    return CheckPool(jobs, f"{run_task.__module__}:{run_task.__name__}")


def _received() -> Path:
    """Where kernels lie that others compiled: apart from what this machine built itself."""
    from kernel_space.build.cache import default_cache_dir

    return default_cache_dir().parent / "received"


def own_cards(indices: list[int]) -> list[OwnCard]:
    """The cards ``cuda:<index>`` of this machine. Raises ``InputError`` for one that is not there."""
    from tuner.card.card_worker import CardWorker
    from tuner.card.worker.telemetry import Telemetry
    from tuner.devices.select import select_card

    cards = [select_card(index) for index in indices]
    return [
        OwnCard(
            card=card,
            driver=Telemetry(card.uuid).driver if card.uuid else "",
            judge=CardWorker(card.index, card.uuid or f"index-{card.index}", say=_say),
        )
        for card in cards
    ]


def _say(line: str) -> None:
    import sys

    print(line, file=sys.stderr, flush=True)


def _plain_host(worker: Any) -> Host:
    """A plain ``dask worker`` with the right resources: so many processes as they say, the first card that it sees."""
    from tuner.fleet.identity import COMPILE, SIMULATE, offers_in

    resources = worker.state.total_resources
    offers = offers_in(resources)
    jobs = int(max([1, *(resources[name] for name in offers if name in (COMPILE, SIMULATE))]))
    on_card = any(name not in (COMPILE, SIMULATE) for name in offers)
    return Host(jobs, {str(worker.name): own_cards([0])[0]} if on_card else {})
