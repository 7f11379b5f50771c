"""Streams, graphs and marks of a real card: ``bench.Gpu`` by torch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

Launch = Callable[[int], object]


def capture(stream: Any, launch: Launch, order: Sequence[int]) -> Any:
    """``torch.cuda.CUDAGraph`` of ``launch(i)`` for i in ``order``, on a ``stream`` that is not the default one."""
    # Not torch.cuda.graph: entering that collects garbage and empties the allocator's cache, tens of milliseconds.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        launch(order[0])  # what is loaded or allocated on first use is not allowed in a capture
        stream.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for index in order:
                launch(index)
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the first error is the one to tell
                graph.capture_end()
            raise
        graph.capture_end()
    return graph


class TorchGpu:
    """A stream of its own on torch's current device."""

    def __init__(self) -> None:
        self._stream = torch.cuda.Stream()

    def graph(self, launch: Launch, order: Sequence[int]) -> Callable[[], None]:
        graph = capture(self._stream, launch, order)

        def replay() -> None:
            with torch.cuda.stream(self._stream):
                graph.replay()

        return replay

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def ms(self, begin: Any, end: Any) -> float:
        end.synchronize()
        return begin.elapsed_time(end)

    def finish(self) -> None:
        self._stream.synchronize()
