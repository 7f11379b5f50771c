"""Many searches at once: a process each, and a pool of processes that compile and simulate for all of them.

    process of a search  -- (number, config) -->  this process  -- tasks -->  pool (``tuner.simulated.check_worker``)
                         <-- (number, time) --    owns the files             <-- times

What one search asked serves the others, also while it is being compiled. Ways come in the order given, and of those
that run the one that was answered least comes first, so that all of a way end together. The sequence of each search is
that of a search alone: it asks ahead no further than it may lag behind.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import heapq
import itertools
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from benchmarks.search_times import Times, key_of, simulated_us
from benchmarks.search_ways import WAYS, Found, NotKnown
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator
from kernel_space.core.rules import Legal
from tuner.devices.classes import DEVICE_CLASSES
from tuner.devices.simulated import LIMIT_S, Chip
from tuner.processes import call_command, die_with, kill_group, start
from tuner.simulated.check_worker import CheckDied, CheckPool

SEARCHES = 2  # at once for each process of the pool: a search mostly waits
COMPILE_S, LOOK_S = 60.0, 60.0
FIRST = -1  # place before that of any way
EVALUATE = f"{__name__}:evaluate"
ENOUGH = "no more"  # what a search hears in place of a time that no file holds
# A matrix of a few hundred rows gains nothing from threads, and a hundred processes with a thread a core lose much.
ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One search that is wanted."""

    problem: Problem
    way: str
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a process of the pool is sent."""

    legal: Legal
    problem: Problem
    chip: Chip
    limit_s: float = COMPILE_S + LIMIT_S

    def run(self) -> float | None:
        return simulated_us(self.legal, self.problem, self.chip)


@dataclasses.dataclass(kw_only=True)
class _Searching:
    """A search that runs, and its process."""

    run: Run
    pipe: Connection
    process: Any
    asked: int = 0
    told: dict[int, float | None] = dataclasses.field(default_factory=dict)
    whole: bool = False

    def found(self) -> Found:
        """In the order in which it asked, up to the first that was not answered."""
        return [
            self.told[number] for number in itertools.takewhile(self.told.__contains__, itertools.count())
        ]


class Jobs:
    """``times``: of each problem; ``jobs``: processes that compile; ``device``: name of a class that is simulated;
    ``function``: ``module:name`` of what makes a time of an ``Evaluation``; ``enough``: a time of the problem that ends
    a search.
    """

    def __init__(
        self, times: dict[Problem, Times], device: str, *, jobs: int, trials: int, function: str = EVALUATE,
        enough: Callable[[Problem], float] = lambda problem: 0.0,
    ) -> None:  # fmt: skip
        self._times, self._device, self._jobs, self._trials = times, device, jobs, trials
        self._enough = enough
        os.environ.update(ONE_THREAD)  # of the children, which start after this
        self._pool = CheckPool(jobs, function)
        self._bugs: list[RuntimeError] = []
        self._wake, self._ring = Pipe(duplex=False)
        self._done: collections.deque[tuple[tuple[Problem, str], Legal, Any]] = collections.deque()
        self._heap: list[tuple[int, int, int, Legal, Problem]] = []
        self._order = itertools.count()
        self._wanted: dict[tuple[Problem, str], list[tuple[_Searching, int]]] = {}
        self._compiling = 0

    def results(
        self, runs: Sequence[Run], ends: float, *, first: Sequence[tuple[Problem, Legal]] = ()
    ) -> Iterator[tuple[Run, Found, bool]]:
        """(search, times in its order, whether it had all it wanted), each when it ends or was told a time that is
        enough, the rest when ``time.monotonic()`` is ``ends``. ``first``: what is timed before all else, for nobody;
        runs do not wait for it. Raises ``RuntimeError`` with the traceback of a bug when all is said: what others
        found is not lost to it.
        """
        for problem, legal in first:
            self._want(problem, legal, (FIRST, 0))
        self._compile_more()
        waiting, active = collections.deque(runs), dict[Connection, _Searching]()
        while waiting or active:
            while waiting and len(active) < SEARCHES * self._jobs:
                one = self._start(waiting.popleft())
                active[one.pipe] = one
            left_s = ends - time.monotonic()
            if left_s <= 0:
                break
            for ready in wait([self._wake, *active], min(left_s, LOOK_S)):
                if ready is self._wake:
                    self._wake.recv_bytes()
                    self._answer_all()
                elif not self._heard(active[ready]):  # type: ignore[index]  # only sockets are waited for
                    yield self._ended(active.pop(ready))  # type: ignore[call-overload]  # as above
            for pipe, one in list(active.items()):
                if self._has_enough(one):
                    yield self._ended(active.pop(pipe))
            self._compile_more()
        for one in active.values():
            yield self._ended(one)
        yield from ((run, [], False) for run in waiting)
        if self._bugs:
            raise self._bugs[0]

    def _start(self, run: Run) -> _Searching:
        pipe, end = Pipe()
        arguments = (run.problem.operator, str(run.problem), dict(run.problem.options), self._device)
        process = start(
            call_command(
                __name__, "search", end.fileno(), os.getpid(), run.way, *arguments, run.seed, self._trials
            ),
            pass_fds=[end.fileno()],
        )
        end.close()
        return _Searching(run=run, pipe=pipe, process=process)

    def _heard(self, one: _Searching) -> bool:
        """Takes one message; False when it was the last."""
        try:
            legal = one.pipe.recv()
        except (EOFError, OSError):
            print(f"{one.run}: its process ended", file=sys.stderr)
            return False
        if legal is None:
            one.whole = True
            return False
        number, one.asked = one.asked, one.asked + 1
        times, key = self._times[one.run.problem], key_of(legal.config)
        if key in times.known:
            self._tell(one, number, times.known[key])
        elif times.closed:
            self._send(one, number, ENOUGH)
        else:
            self._want(one.run.problem, legal, (list(WAYS).index(one.run.way), number)).append((one, number))
        return True

    def _want(self, problem: Problem, legal: Legal, place: tuple[int, int]) -> list[tuple[_Searching, int]]:
        """Who waits for this time; what nobody waited for is compiled in its turn, the least ``place`` first."""
        times, wanted = self._times[problem], (problem, key_of(legal.config))
        if wanted not in self._wanted and not times.closed and wanted[1] not in times.known:
            heapq.heappush(self._heap, (*place, next(self._order), legal, problem))
            self._wanted[wanted] = []
        return self._wanted.get(wanted, [])

    def _compile_more(self) -> None:
        while self._heap and self._compiling < self._jobs:
            way, *_, legal, problem = heapq.heappop(self._heap)
            wanted = (problem, key_of(legal.config))
            if way != FIRST and not self._wanted[wanted]:  # those who asked have ended since
                del self._wanted[wanted]
                continue
            self._compiling += 1
            task = Evaluation(legal=legal, problem=problem, chip=self._times[problem].chip)
            self._pool.submit(task).add_done_callback(self._noter(wanted, legal))

    def _noter(self, wanted: tuple[Problem, str], legal: Legal) -> Callable[[Any], None]:
        def note(future: Any) -> None:  # in a thread of the pool
            self._done.append((wanted, legal, future))
            self._ring.send_bytes(b".")

        return note

    def _answer_all(self) -> None:
        while self._done:
            wanted, legal, future = self._done.popleft()
            self._compiling -= 1
            times = self._times[wanted[0]]
            try:
                us = future.result()
                times.keep(legal.config, us)
            except (
                CheckDied,
                RuntimeError,
            ) as error:  # no fault of the config: no file says that it has no time
                print(f"{wanted[0]} {legal.config}: {error}", file=sys.stderr)
                us = times.known[wanted[1]] = None
                self._bugs += [error] if isinstance(error, RuntimeError) else []
            for one, number in self._wanted.pop(wanted):
                self._tell(one, number, us)

    def _tell(self, one: _Searching, number: int, us: float | None) -> None:
        one.told[number] = us
        self._send(one, number, us)

    def _send(self, one: _Searching, number: int, what: float | str | None) -> None:
        with contextlib.suppress(OSError):  # its process has ended, which its pipe will say
            one.pipe.send((number, what))

    def _has_enough(self, one: _Searching) -> bool:
        enough = self._enough(one.run.problem)
        return any(us is not None and us <= enough for us in one.found())

    def _ended(self, one: _Searching) -> tuple[Run, Found, bool]:
        kill_group(one.process)
        one.process.wait()
        one.pipe.close()
        for waiting in self._wanted.values():
            waiting[:] = [(other, number) for other, number in waiting if other is not one]
        return one.run, one.found(), one.whole


def evaluate(task: Evaluation) -> float | None:
    """What a process of the pool does."""
    return task.run()


class _Remote:
    """``Ask`` in the process of a search."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._asked = pipe, 0
        self._told: dict[int, Any] = {}

    def begin(self, legal: Legal) -> Callable[[], float | None]:
        number, self._asked = self._asked, self._asked + 1
        self._pipe.send(legal)
        return lambda: self._waited(number)

    def _waited(self, number: int) -> float | None:
        while number not in self._told:
            other, told = self._pipe.recv()
            self._told[other] = told
        if self._told[number] == ENOUGH:
            raise NotKnown("no file holds it")
        us: float | None = self._told.pop(number)
        return us


def search(
    descriptor: int, parent: int, way: str, name: str, shape: str, options: dict[str, str], device: str,
    seed: int, trials: int,
) -> None:  # fmt: skip
    """The process of a search: sends legal configs, hears times; None says that it had all it wanted."""
    die_with(parent)
    pipe = Connection(descriptor)
    problem = operator(name).problem.parse(shape, **options)
    try:
        WAYS[way](problem, DEVICE_CLASSES[device], _Remote(pipe), [], seed=seed, trials=trials)
    except (NotKnown, EOFError):
        return
    pipe.send(None)


def files(problems: Sequence[Problem], device: str, folder: Path, **how: bool) -> dict[Problem, Times]:
    """The file of each problem. Raises ``InputError`` for one that is damaged."""
    return {problem: Times(problem, DEVICE_CLASSES[device], folder, **how) for problem in problems}
