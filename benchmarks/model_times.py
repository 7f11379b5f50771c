"""What the parts of ``bench_model`` share: times of a call eager, compiled and in a CUDA graph, and lines of results.

Times are of the device (events), the median of several calls after two that do not count. Without a card they are wall
times, which say that a script works and nothing else, and there are no graphs.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

Call = Callable[[], torch.Tensor]
DTYPE = torch.bfloat16
WARM = 2


class Lines:
    """Results as they come: a line on stdout and, with a ``path``, one JSON document a line behind what is there."""

    def __init__(self, path: Path | None, **always: Any) -> None:
        self._path, self._always = path, always
        self.start = time.monotonic()

    def add(self, text: str, **result: Any) -> None:
        print(f"[{time.monotonic() - self.start:6.1f} s] {text}", flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**self._always, **result}) + "\n")


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def ms(call: Call, device: torch.device, count: int = 7) -> float:
    """Of one call, eager or compiled."""
    return statistics.median(turns([call], device, count)[0])


def turns(calls: list[Call], device: torch.device, count: int = 7) -> list[list[float]]:
    """Milliseconds of calls that take turns, so that none has the cooler card."""
    found: list[list[float]] = [[] for _ in calls]
    for number in range(WARM + count):
        for times, call in zip(found, calls, strict=True):
            took = _once(call, device)
            if number >= WARM:
                times.append(took)
    return found


def _once(call: Call, device: torch.device) -> float:
    if device.type != "cuda":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end)


def captured(call: Call, calls: int = 1) -> tuple[Callable[[], None], torch.Tensor]:
    """(replay, what it writes) of a CUDA graph of so many ``call`` s; called before, so that everything is decided."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            y = call()
    return graph.replay, y


def graph_ms(call: Call, device: torch.device, calls: int = 1, count: int = 7) -> float | None:
    """Of one call in a graph of ``calls``; None without a card."""
    if device.type != "cuda":
        return None
    replay, _y = captured(call, calls)

    def replayed() -> torch.Tensor:
        replay()
        return _y

    return statistics.median(turns([replayed], device, count)[0]) / calls


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Norm of the difference over the norm, in float64."""
    exact = wanted.double()
    return ((got.double() - exact).norm() / exact.norm()).item()


def table(rows: Mapping[str, Mapping[str, float | None]]) -> str:
    """Names to columns of milliseconds."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    width = max(map(len, rows))
    lines = [" " * width + "".join(f"{name:>18}" for name in names)]
    for title, row in rows.items():
        cells = [f"{'-':>18}" if row.get(name) is None else f"{row[name]:>18.3f}" for name in names]
        lines.append(f"{title:<{width}}" + "".join(cells))
    return "\n".join(lines)
