"""The timing protocol of a card, in one place: CUDA graphs, rotated operands, steady state, intervals.
See docs/inside_a_tune.md.

    time_launches(launch, sets, fidelity, telemetry) -> Samples          one candidate
    interleave(launches, sets, options, telemetry) -> list[Samples]      finalists: one replay of each per round

With ``outputs`` the graphs are replayed once more in the end, and what they wrote is compared with launches one at a
time: in a graph launches follow one another without a gap and, with programmatic dependent launch, overlap.


``launch(i)`` enqueues one launch with operand set i on torch's current stream and may be captured. The sets together
exceed three times the L2 (``sets_needed``), so no launch finds its operands there. A graph of at least ``replay_ms``
walks through the sets in order; replays follow one another without a gap, and each gives one sample: the time between
the events at its ends over the number of launches.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from tuner.card.samples.samples import Samples
from tuner.card.worker.telemetry import Telemetry, Watch

PROTOCOL = "graph replays, rotated operands, version 1"
L2_TIMES = 3
MOST_SETS = 64
MOST_LAUNCHES = 512  # of one graph: capturing costs host time
ESTIMATE_MS = 1.0  # of passes before the length of a graph is decided
QUEUED = 2  # replays on their way: no gap between them, and the host still knows when each ended
# An H200 at 700 W goes on for about 60 ms before its power limit takes 4 % of the clock: windows must be that long.
WINDOW_MS = 50.0  # of replays whose median is compared with the next window's
SETTLED_TIMES = 0.003  # medians of consecutive windows that differ by less have stopped moving
SETTLED_MHZ = 15  # one step of the clock
SETTLED_WINDOWS = 2  # agreements in a row

Launch = Callable[[int], object]  # on inputs of this number; nobody looks at what it returns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fidelity:
    """How much is spent on one candidate. Samples are taken until both ``gpu_ms`` and ``least_samples`` are reached.

    ``replay_ms``: least length of a replay. ``warm_up_ms``: least warm-up. ``settle_ms``: so long at most it is
    prolonged until times and clock have settled; 0: that is not waited for.
    """

    gpu_ms: float
    least_samples: int
    replay_ms: float
    warm_up_ms: float
    settle_ms: float = 0.0

    def __str__(self) -> str:
        """For people."""
        settled = (
            f", prolonged by at most {self.settle_ms:g} ms until it has settled" if self.settle_ms else ""
        )
        return (
            f"at least {self.least_samples} samples and {self.gpu_ms:g} ms, replays of {self.replay_ms:g} ms, "
            f"warm-up {self.warm_up_ms:g} ms{settled}"
        )


QUICK = Fidelity(gpu_ms=10.0, least_samples=7, replay_ms=0.8, warm_up_ms=3.0)
FULL = Fidelity(gpu_ms=120.0, least_samples=41, replay_ms=2.0, warm_up_ms=100.0, settle_ms=1500.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinalsOptions:
    """``rounds``: replays of each finalist, one per round, in an order drawn anew for each round from ``seed``.

    The rest as in ``Fidelity``; the warm-up goes round all finalists.
    """

    rounds: int
    seed: int = 0
    replay_ms: float = 2.0
    warm_up_ms: float = 100.0
    settle_ms: float = 0.0


class Gpu(Protocol):
    """The three things that timing needs of a card; ``torch_gpu.TorchGpu`` is one, tests have another."""

    def graph(self, launch: Launch, order: Sequence[int]) -> Callable[[], None]:
        """What replays ``launch(i)`` for i in ``order``."""
        ...

    def mark(self) -> Any:
        """A moment on the card: when everything enqueued before has ended."""
        ...

    def ms(self, begin: Any, end: Any) -> float:
        """Milliseconds on the card between two marks; waits for them."""
        ...

    def finish(self) -> None:
        """Waits for everything enqueued."""
        ...


class Outputs(Protocol):
    """What launches write; ``timed_outputs.TimedOutputs`` is one."""

    def blank(self) -> None:
        """Make it nothing that a launch writes."""
        ...

    def judge(self) -> None:
        """Raises ``CheckFailed`` when it is not what launches one at a time write."""
        ...


def sets_needed(bytes_per_set: int, l2_bytes: int) -> int:
    """Operand sets that together exceed ``L2_TIMES`` times the L2; at least 2, at most 64 (small test problems)."""
    return max(2, min(MOST_SETS, L2_TIMES * l2_bytes // max(1, bytes_per_set) + 1))


def time_launches(
    launch: Launch,
    sets: int,
    fidelity: Fidelity,
    telemetry: Telemetry,
    *,
    outputs: Outputs | None = None,
    gpu: Gpu | None = None,
) -> Samples:
    """Time one candidate alone. ``outputs`` are judged after the graph that was timed.

    Raises ``CheckFailed`` and what ``launch`` and the card raise.
    """
    gpu = gpu or _card()
    runner = _runner(gpu, launch, sets, fidelity.replay_ms)
    replays = _replays(gpu, itertools.repeat(runner))
    with telemetry.watching() as watch, contextlib.closing(replays):
        warm_up = _warm_up(replays, fidelity.warm_up_ms, fidelity.settle_ms, 1, watch)
        taken: list[_Replay] = []
        while len(taken) < fidelity.least_samples or sum(one.ms for one in taken) < fidelity.gpu_ms:
            taken.append(next(replays))
        samples = _samples(runner, taken, warm_up, watch, telemetry)
    _judge(gpu, runner, outputs)
    return samples


def interleave(
    launches: Sequence[Launch],
    sets: int | Sequence[int],
    options: FinalsOptions,
    telemetry: Telemetry,
    *,
    outputs: Sequence[Outputs] = (),
    gpu: Gpu | None = None,
) -> list[Samples]:
    """Time finalists against one another: sample r of each comes from round r, so that they make pairs.

    ``sets``: of all, or of each. ``outputs``: none, or of each; judged after a replay more of its graph. A drift of
    clock or temperature meets all of a round alike. At the power limit they share one clock, set by the mean of their
    powers. Raises ``CheckFailed`` and what the launches and the card raise.
    """
    gpu = gpu or _card()
    counts = [sets] * len(launches) if isinstance(sets, int) else sets
    runners = [
        _runner(gpu, launch, count, options.replay_ms) for launch, count in zip(launches, counts, strict=True)
    ]
    shuffle = random.Random(options.seed)
    orders: collections.deque[list[int]] = collections.deque()

    def forever() -> Iterator[_Runner]:
        while True:
            order = shuffle.sample(range(len(runners)), len(runners))
            orders.append(order)
            yield from (runners[index] for index in order)

    replays = _replays(gpu, forever())
    with telemetry.watching() as watch, contextlib.closing(replays):
        warm_up = _warm_up(replays, options.warm_up_ms, options.settle_ms, len(runners), watch)
        for _ in range(warm_up.replays // len(runners)):
            orders.popleft()
        taken: list[list[_Replay]] = [[] for _ in runners]
        for _ in range(options.rounds):
            for index in orders.popleft():
                taken[index].append(next(replays))
        samples = [
            _samples(runner, own, warm_up, watch, telemetry)
            for runner, own in zip(runners, taken, strict=True)
        ]
    for runner, own_outputs in zip(runners, outputs, strict=bool(outputs)):
        _judge(gpu, runner, own_outputs)
    return samples


def _card() -> Gpu:
    from tuner.card.worker.torch_gpu import (
        TorchGpu,
    )  # torch takes seconds to import, and the tuner itself times nothing

    return TorchGpu()


class _Runner(NamedTuple):
    """A captured graph."""

    replay: Callable[[], None]
    launches: int
    sets: int


class _Replay(NamedTuple):
    """One replay that has ended: its length on the card, and when it began and ended by the host's clock."""

    ms: float
    start_s: float
    end_s: float


class _WarmUp(NamedTuple):
    ms: float
    replays: int
    settled: bool | None


def _runner(gpu: Gpu, launch: Launch, sets: int, replay_ms: float) -> _Runner:
    """A graph of whole passes over the sets that lasts at least ``replay_ms``, as far as ``MOST_LAUNCHES`` allows."""
    once = gpu.graph(launch, range(sets))
    pass_ms, spent_ms = 0.0, 0.0
    while spent_ms < ESTIMATE_MS:  # the first passes of a card at rest are slow
        begin = gpu.mark()
        once()
        pass_ms = max(gpu.ms(begin, gpu.mark()), 1e-3)
        spent_ms += pass_ms
    passes = max(1, min(math.ceil(replay_ms / pass_ms), MOST_LAUNCHES // sets))
    if passes == 1:
        return _Runner(once, sets, sets)
    return _Runner(gpu.graph(launch, list(range(sets)) * passes), sets * passes, sets)


def _judge(gpu: Gpu, runner: _Runner, outputs: Outputs | None) -> None:
    """Replay once more: operand sets are shared, so others may have written their outputs since."""
    if outputs is None:
        return
    outputs.blank()
    runner.replay()
    gpu.finish()
    outputs.judge()


def _replays(gpu: Gpu, runners: Iterator[_Runner]) -> Generator[_Replay, None, None]:
    """Replays ``runners`` one after another, ``QUEUED`` of them always on their way; yields each as it ends.

    Closed, it waits for those still on their way: nobody may write operands under them.
    """
    before, start_s = gpu.mark(), time.monotonic()
    waiting: collections.deque[Any] = collections.deque()
    try:
        for runner in runners:
            runner.replay()
            waiting.append(gpu.mark())
            if len(waiting) < QUEUED:
                continue
            end = waiting.popleft()
            ms, end_s = gpu.ms(before, end), time.monotonic()
            yield _Replay(ms, start_s, end_s)
            before, start_s = end, end_s
    finally:
        gpu.finish()


def _warm_up(
    replays: Iterator[_Replay], least_ms: float, settle_ms: float, group: int, watch: Watch
) -> _WarmUp:
    """Replay for ``least_ms``, then until nothing moves, at most ``settle_ms`` in all; whole groups of ``group``.

    Settled: the median per group and the SM clock of consecutive windows agree ``SETTLED_WINDOWS`` times in a row.
    """
    total, count, agreements = 0.0, 0, 0
    last: tuple[float, int] | None = None
    while total < least_ms or (total < settle_ms and agreements < SETTLED_WINDOWS):
        window: list[float] = []
        while not window or sum(window) < min(WINDOW_MS, max(least_ms, 1.0)):
            ended = [next(replays) for _ in range(group)]
            window.append(sum(replay.ms for replay in ended))
            count += group
        total += sum(window)
        now = statistics.median(window), watch.between(ended[0].start_s, ended[-1].end_s).sm_mhz or 0
        agreements = agreements + 1 if last is not None and _agree(last, now) else 0
        last = now
    return _WarmUp(total, count, agreements >= SETTLED_WINDOWS if settle_ms else None)


def _agree(last: tuple[float, int], now: tuple[float, int]) -> bool:
    return abs(now[0] / last[0] - 1) < SETTLED_TIMES and abs(now[1] - last[1]) <= SETTLED_MHZ


def _samples(
    runner: _Runner, taken: Sequence[_Replay], warm_up: _WarmUp, watch: Watch, telemetry: Telemetry
) -> Samples:
    return Samples(
        protocol=PROTOCOL,
        us=tuple(replay.ms * 1000 / runner.launches for replay in taken),
        states=tuple(watch.between(replay.start_s, replay.end_s) for replay in taken),
        launches=runner.launches,
        sets=runner.sets,
        warm_up_ms=warm_up.ms,
        settled=warm_up.settled,
        gpu_ms=warm_up.ms + sum(replay.ms for replay in taken),
        telemetry=telemetry.missing,
        driver=telemetry.driver,
        card=telemetry.uuid,
    )
