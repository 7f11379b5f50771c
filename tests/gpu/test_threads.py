"""Threads that launch at once, on one stream and on streams of their own, faster than the card follows.

Every thread has activations of its own, and every output is compared to the bit, on the card, with what the same call
gave alone: a kernel that reads what another thread put into the workspace counts as a wrong call.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes
from tests.gpu.test_runtime import OWN, OnCard, bits
from tuner.runtime import explain, svdquant_gemm, use_table

pytestmark = pytest.mark.gpu

THREADS = 4
SECONDS = 5.0
EXPANDED = ["1024,3840,3072,128", "128,2048,7168,0", "4352,3840,3072,128"]
MIXED = ["1024,3840,3072,128", "128,2048,7168,0", "16,3840,3072,128", "128,7168,4096,0", "256,3840,3072,128"]


@pytest.fixture(scope="module", autouse=True)
def table() -> Iterator[None]:
    with use_table(OWN) if OWN.is_dir() else contextlib.nullcontext():
        yield


class Case:
    """A layer's operands and the output that a call gives when nobody else launches, checked against float64."""

    def __init__(self, shape: str, seed: int) -> None:
        self.one = OnCard(shape, seed=seed)
        self.wanted = self.one.call().clone()
        torch.cuda.synchronize()
        self.one.check(self.wanted)

    def wrong(self, y: torch.Tensor) -> torch.Tensor:
        """1 if a bit differs, on the card."""
        return (bits(y) != bits(self.wanted)).any().to(torch.int64)


def hammer(cases: list[list[Case]], stream_of: Callable[[int], torch.cuda.Stream], seconds: float) -> None:
    """Each thread calls its cases in turn until the time is over; then all the outputs must have been right."""
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in cases]
    calls, errors = [0] * len(cases), []
    together = threading.Barrier(len(cases))
    torch.cuda.synchronize()

    def work(index: int) -> None:
        try:
            together.wait()
            until = time.perf_counter() + seconds
            with torch.cuda.stream(stream_of(index)):
                for case in itertools.cycle(cases[index]):
                    # Several at once, so that launches follow each other; the comparison slows the queue down.
                    ys = [case.one.call() for _ in range(8)]
                    for y in ys:
                        wrong[index].add_(case.wrong(y))
                    calls[index] += len(ys)
                    if time.perf_counter() > until:
                        break
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(cases))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not errors, errors
    counted = [int(one) for one in wrong]
    print(f"{sum(counted)} of {sum(calls)} calls wrong")
    assert sum(counted) == 0, f"{sum(counted)} of {sum(calls)} calls wrong, by thread {counted} of {calls}"


def default_stream(_: int) -> torch.cuda.Stream:
    return torch.cuda.default_stream()


@pytest.mark.parametrize("shape", EXPANDED)
def test_threads_on_the_default_stream(shape: str) -> None:
    problem = OnCard(shape).problem
    assert workspace_bytes(explain(problem).config, problem), (
        "this row no longer has a workspace: take another"
    )
    hammer([[Case(shape, seed)] for seed in range(THREADS)], default_stream, SECONDS)


def test_threads_with_several_layers_on_one_stream() -> None:
    """Workspaces of all sizes, with and without counters, and kernels without one in between."""
    cases = [
        [Case(shape, 10 * index + seed) for seed, shape in enumerate(MIXED[index:] + MIXED[:index])]
        for index in range(THREADS)
    ]
    shared = torch.cuda.Stream()
    hammer(cases, lambda _: shared, SECONDS)


def test_threads_on_streams_of_their_own() -> None:
    cases = [[Case(shape, 10 * index) for shape in MIXED] for index in range(THREADS)]
    streams = [torch.cuda.Stream() for _ in cases]
    hammer(cases, lambda index: streams[index], SECONDS)


def test_threads_on_the_stream_that_each_thread_has() -> None:
    """cudaStreamPerThread, one handle. torch's allocator takes it for one stream, so the outputs are there before."""
    cases = [Case("128,2048,7168,0", seed) for seed in range(THREADS)]
    outs = [[torch.empty_like(case.wanted) for _ in range(64)] for case in cases]
    errors: list[BaseException] = []
    torch.cuda.synchronize()

    def work(index: int) -> None:
        try:
            one = cases[index].one
            stream = torch.cuda.ExternalStream(2)
            with torch.cuda.stream(stream):
                for _ in range(20):
                    for out in outs[index]:
                        svdquant_gemm(one.act, one.ascales, one.packed, one.lora, out)
                stream.synchronize()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert not errors, errors
    assert not [index for index, case in enumerate(cases) for y in outs[index] if int(case.wrong(y))]


def test_threads_while_another_captures() -> None:
    """A graph is captured on a stream of its own while others launch on the default one; both are right."""
    cases = [Case("1024,3840,3072,128", seed) for seed in range(3)]
    graph, captured = torch.cuda.CUDAGraph(), []
    torch.cuda.synchronize()

    def work(index: int, stop: threading.Event, wrong: torch.Tensor) -> None:
        while not stop.is_set():
            wrong.add_(cases[index].wrong(cases[index].one.call()))

    stop = threading.Event()
    wrong = [torch.zeros((), dtype=torch.int64, device="cuda") for _ in range(2)]
    threads = [threading.Thread(target=work, args=(index, stop, wrong[index])) for index in range(2)]
    for index in range(2):
        wrong[index].add_(cases[index].wrong(cases[index].one.call()))  # the allocator has what they need
    torch.cuda.synchronize()
    for thread in threads:
        thread.start()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(), capture_error_mode="thread_local"):
            captured = [cases[2].one.call() for _ in range(4)]
        for _ in range(20):
            graph.replay()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    torch.cuda.synchronize()
    assert not [y for y in captured if int(cases[2].wrong(y))]
    assert [int(one) for one in wrong] == [0, 0]
