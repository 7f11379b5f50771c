"""What dask.distributed costs a tune: CPU per task, tasks a second, and how busy simulated cards are.

``python -m benchmarks.bench_fleet [overhead] [rate] [local] [busy]``; all of it takes two minutes on idle cores. Times
by the clock mean something on idle cores only; CPU per task is nearly the same under load.

``overhead``  what a task costs the tuner, with 250 kB coming back
``rate``      1000 waiting tasks through the scheduler, on two hosts
``local``     the same work of 50 ms per task on 1, 2, 4 hosts
``busy``      64 compile hosts and 8 cards that sleep as long as docs/inside_a_tune.md measured; the share of the time
              from the first to the last request of each card in which it had one. Cards are asked as a tune asks them
              (``FleetCard``), hosts are members of three processes. ``--slower X`` sleeps X times as long, for a
              machine that other work keeps busy: what the engine costs is then a smaller share
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kernel_space.build import key
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.card.worker.bench import QUICK
from tuner.card.worker.candidate import Case, Loadable
from tuner.card.worker.self_test import Health
from tuner.devices.classes import Card
from tuner.fleet.cards import LINE, FleetCard
from tuner.fleet.engine import Access
from tuner.fleet.fleet import Fleet
from tuner.fleet.host import Host, OwnCard
from tuner.fleet.identity import COMPILE, Identity, card_offer
from tuner.fleet.local import local_cluster
from tuner.search.window import CARD_WINDOW

OBJECT_BYTES = 250_000  # PTX, cubin and object of one
COMPILE_S = 1.88  # of a candidate on a host with 16 cores and as many compilers (docs/evidence/cards.md)
CHECK_S, TIME_S = 0.05, 0.02  # of a large problem on an H200 (docs/inside_a_tune.md)
HOSTS, CORES, CARDS, PER_CARD = 64, 16, 8, 200
JOIN_S = 60.0
OFFER = card_offer("h200")
PROBLEM = GemmProblem.parse("4352,3840,3072,128")


def an_object(number: int, seconds: float) -> bytes:
    """What a compilation looks like to the engine."""
    time.sleep(seconds)
    return number.to_bytes(OBJECT_BYTES, "little")


def nothing(number: int) -> int:
    return number


class Cpu:
    """CPU seconds of this process and of those that it started, by what their command line has."""

    KINDS = {"scheduler_main": "scheduler", "tuner_main": "tuner", "host": "hosts", "card": "cards"}

    def __init__(self) -> None:
        self._before, self._start = self._now(), time.perf_counter()

    def spent(self) -> dict[str, float]:
        """Since this was made."""
        return {kind: seconds - self._before.get(kind, 0.0) for kind, seconds in self._now().items()}

    def per(self, tasks: int, idle: dict[str, float] | None = None) -> str:
        """Milliseconds for each of ``tasks``; ``idle``: CPU seconds a second that would have been spent anyway."""
        took = time.perf_counter() - self._start
        each = {
            kind: 1e3 * (seconds - (idle or {}).get(kind, 0.0) * took) / tasks
            for kind, seconds in self.spent().items()
        }
        parts = ", ".join(f"{kind} {ms:.2f}" for kind, ms in each.items())
        rest = " besides rest" if idle else ""
        return f"CPU {sum(each.values()):.2f} ms each{rest} ({parts})"

    def _now(self) -> dict[str, float]:
        found = collections.defaultdict(float, tuner=time.process_time())
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == os.getpid():
                    command = (entry / "cmdline").read_text()
                    kind = next(name for word, name in self.KINDS.items() if word in command)
                    found[kind] += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        return dict(found)


@contextlib.contextmanager
def fleet_of(hosts: int, jobs: int = 1) -> Iterator[Fleet]:
    with local_cluster(hosts, jobs=jobs) as access, fleet_at(access) as fleet:
        wait_for(lambda: fleet.members.slots(COMPILE) == hosts * jobs)
        yield fleet


def fleet_at(access: Access) -> Fleet:
    return Fleet(access, say=lambda line: None)


def wait_for(ready: Callable[[], bool]) -> None:
    """Raises ``TimeoutError`` when members that are awaited do not come: without the compiler no host offers one."""
    end = time.monotonic() + JOIN_S
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(
                f"hosts must offer what is measured within {JOIN_S:g} s; is the compiler installed?"
            )
        time.sleep(0.05)


def at_rest(seconds: float = 3.0) -> dict[str, float]:
    """Cores that a cluster takes when it has nothing to do, by kind of process."""
    cpu = Cpu()
    time.sleep(seconds)
    return {kind: spent / seconds for kind, spent in cpu.spent().items()}


def overhead(tasks: int = 200) -> None:
    """One after another, as a tune asks when its compilers are busy: nothing is sent together."""
    with fleet_of(2) as fleet:
        idle = at_rest()
        cpu, start = Cpu(), time.perf_counter()
        for number in range(tasks):
            assert len(fleet.submit(an_object, number, 0.0, offer=COMPILE).result()) == OBJECT_BYTES
        wall = time.perf_counter() - start
        print(f"overhead: {cpu.per(tasks, idle)}; there and back in {1e3 * wall / tasks:.1f} ms by the clock")


def rate(tasks: int = 1000) -> None:
    with fleet_of(2, jobs=2) as fleet:
        cpu, start = Cpu(), time.perf_counter()
        futures = [fleet.submit(nothing, number, offer=COMPILE) for number in range(tasks)]
        assert [future.result() for future in futures] == list(range(tasks))
        print(f"rate: {tasks / (time.perf_counter() - start):.0f} waiting tasks a second; {cpu.per(tasks)}")


def local(tasks: int = 200) -> None:
    for hosts in (1, 2, 4):
        with fleet_of(hosts) as fleet:
            start = time.perf_counter()
            for future in [fleet.submit(an_object, number, 0.05, offer=COMPILE) for number in range(tasks)]:
                future.result()
            took = time.perf_counter() - start
        print(f"local: {hosts} hosts: {tasks / took:.1f} tasks of 50 ms a second, {20 * hosts} at most")


# -- 64 hosts and 8 cards as members of three processes: they do nothing but sleep


@dataclasses.dataclass(frozen=True)
class Span:
    """When a card began and ended with something, by the clock of its host."""

    start: float
    end: float
    host: str = ""


class SleepingCard:
    """``Judging`` that takes as long as one."""

    def __init__(self, slower: float) -> None:
        self._slower = slower

    @property
    def health(self) -> Health:
        return Health(
            uuid="",
            name="NVIDIA H200",
            sm_count=132,
            compute_capability=(9, 0),
            l2_bytes=60 << 20,
            driver="580.1",
            cuda="13.0",
            policy="made up",
            total_bytes=140 << 30,
            free_bytes=139 << 30,
        )

    def check(self, **_: Any) -> Any:
        return self._sleep(CHECK_S)

    def time(self, **_: Any) -> Any:
        return self._sleep(TIME_S)

    def close(self) -> None:
        pass

    def _sleep(self, seconds: float) -> Span:
        start = time.time()
        time.sleep(seconds * self._slower)
        return Span(start, time.time())


def pretend_compiler() -> None:
    """This process has a compiler by name: no host here compiles anything, and a machine with cores may have none."""
    made_up: Any = SimpleNamespace(packages=("made up",))
    key.toolchain = lambda: made_up


def members_main(address: str, members: list[dict[str, Any]], slower: float, parent: int) -> None:
    """Members of the cluster in one process; says when they have joined."""
    import asyncio

    from tuner.fleet.engine import require_engine
    from tuner.processes import die_with

    die_with(parent)
    pretend_compiler()
    require_engine()
    cards = [one["name"] for one in members if OFFER in one["resources"]]
    Host(CORES, {name: sleeping_card(name, slower) for name in cards}).install()

    async def run() -> None:
        from distributed import Worker

        started = [
            Worker(address, host="127.0.0.1", memory_limit=0, dashboard=False, **one) for one in members
        ]
        await asyncio.gather(*started)
        print("ready", flush=True)
        await asyncio.gather(*(one.finished() for one in started))

    asyncio.run(run())


def sleeping_card(name: str, slower: float) -> OwnCard:
    card = Card(index=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, uuid=f"GPU-{name}")
    return OwnCard(card=card, driver="580.1", judge=SleepingCard(slower))  # type: ignore[arg-type]  # no finals here


@contextlib.contextmanager
def simulated_hosts(address: str, slower: float) -> Iterator[None]:
    tags = Identity.here().tags
    compilers = [
        {"name": f"host{i}", "nthreads": CORES, "resources": {COMPILE: float(CORES), **tags}}
        for i in range(HOSTS)
    ]
    cards = [{"name": f"card{i}", "nthreads": 1, "resources": {OFFER: 1.0, **tags}} for i in range(CARDS)]
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"from benchmarks.bench_fleet import members_main; members_main(*{arguments})",
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        for group in (compilers[: HOSTS // 2], compilers[HOSTS // 2 :], cards)
        for arguments in [(address, group, slower, os.getpid())]
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline()
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def busy(slower: float = 1.0, per_card: int = PER_CARD) -> None:
    """Each card has a problem and a tuner process, as in a sweep; ``CARD_WINDOW`` candidates are compiled ahead."""
    pretend_compiler()
    with contextlib.ExitStack() as stack:
        access = stack.enter_context(local_cluster(0))
        stack.enter_context(simulated_hosts(access.address, slower))
        fleet = stack.enter_context(fleet_at(access))
        wait_for(
            lambda: fleet.members.slots(COMPILE) == HOSTS * CORES and fleet.members.slots(OFFER) == CARDS
        )
        tuners = [stack.enter_context(a_tuner(access.address, slower, per_card)) for _ in range(CARDS)]
        for tuner in tuners:
            assert tuner.stdout is not None and tuner.stdout.readline()
        idle = at_rest()
        cpu, start = Cpu(), time.perf_counter()
        for tuner in tuners:
            assert tuner.stdin is not None
            print("go", file=tuner.stdin, flush=True)
        found = [
            [Span(*one) for one in json.loads(tuner.stdout.readline())] for tuner in tuners if tuner.stdout
        ]
        took = time.perf_counter() - start
        shares = [sum(one.end - one.start for one in each) / (each[-1].end - each[0].start) for each in found]
        count = CARDS * per_card
        print(
            f"busy: {HOSTS} compile hosts, {CARDS} cards{f', all {slower:g} times as slow' if slower != 1 else ''}: "
            f"{count} candidates in {took:.1f} s, {count / took:.0f} a second; cards busy "
            f"{100 * min(shares):.1f} to {100 * max(shares):.1f} %; {cpu.per(count, idle)}; "
            f"at rest {sum(idle.values()):.2f} cores"
        )


@contextlib.contextmanager
def a_tuner(address: str, slower: float, per_card: int) -> Iterator[subprocess.Popen[str]]:
    arguments = (address, slower, per_card, os.getpid())
    code = f"from benchmarks.bench_fleet import tuner_main; tuner_main(*{arguments})"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def tuner_main(address: str, slower: float, per_card: int, parent: int) -> None:
    """Says when it has a card; told to go on, judges candidates, and says when the card was at one."""
    from tuner.processes import die_with

    die_with(parent)
    pretend_compiler()
    with (
        fleet_at(Access(address=address)) as fleet,
        tempfile.TemporaryDirectory() as folder,
        contextlib.closing(FleetCard(fleet, "h200", say=lambda line: None)) as card,
    ):
        assert card.health
        print("ready", flush=True)
        sys.stdin.readline()
        spans: list[Span] = []
        problem(fleet, card, Path(folder), slower, per_card, spans)
        print(json.dumps([(one.start, one.end) for one in spans]), flush=True)
        sys.stdin.readline()  # until killed: its CPU time is still to be read


def problem(
    fleet: Fleet, card: FleetCard, folder: Path, slower: float, count: int, spans: list[Span]
) -> None:
    """As ``stages/stream.py`` does it: up to ``CARD_WINDOW`` on their way, of which up to ``LINE`` are at the card."""
    compiling: collections.deque[concurrent.futures.Future[bytes]] = collections.deque()
    line: collections.deque[concurrent.futures.Future[list[Span]]] = collections.deque()
    numbers = iter(range(count))
    for _ in range(count):
        for number in numbers:
            compiling.append(fleet.submit(an_object, number, COMPILE_S * slower, offer=COMPILE))
            if len(compiling) + len(line) >= CARD_WINDOW:
                break
        data = compiling.popleft().result()
        if len(line) == LINE:
            spans += line.popleft().result()
        line.append(card.answered(functools.partial(judged, card, folder, data)))
    for last in line:
        spans += last.result()
    spans.sort(key=lambda span: span.start)


def judged(card: FleetCard, folder: Path, data: bytes) -> list[Span]:
    """Checked and timed, each a request. The object is a file here, as one of the build cache is."""
    digest = hashlib.sha256(data).hexdigest()
    path = folder / f"{threading.get_ident()}.o"
    path.write_bytes(data)
    candidate = Loadable(object_path=str(path), object_sha256=digest, prefix="k", arguments=(), config="")
    case = Case(problem=PROBLEM)
    checked: Any = card.check(candidate, [case], repeats=1, seed=1)
    timed: Any = card.time(candidate, case, QUICK)
    return [checked, timed]


def main() -> None:
    parts: dict[str, Callable[[], None]] = {"overhead": overhead, "rate": rate, "local": local}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*parts, "busy", []], metavar="PART")
    parser.add_argument("--slower", type=float, default=1.0, metavar="X")
    parser.add_argument("--candidates", type=int, default=PER_CARD, metavar="N", help="of each card")
    args = parser.parse_args()
    for name in args.parts or [*parts, "busy"]:
        if name == "busy":
            busy(args.slower, args.candidates)
        else:
            parts[name]()


if __name__ == "__main__":
    main()
