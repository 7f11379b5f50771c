"""A card of arithmetic: launches cost cycles, a clock turns them into time, NVML answers from a table."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from tuner.card.samples.samples import State
from tuner.card.worker.telemetry import Telemetry


class FakeGpu:
    """``bench.Gpu`` without a card: launches made by ``candidate`` cost cycles of a clock of ``mhz(ms)``."""

    def __init__(self, mhz: Callable[[float], float] = lambda ms: 1000.0) -> None:
        self.now_ms = 0.0
        self.mhz = mhz
        self.in_flight = 0
        self.replayed: list[str] = []
        self.orders: list[list[int]] = []
        self._captured: list[tuple[str, int, float]] = []

    def candidate(self, name: str, cycles: Callable[[int], float]) -> Callable[[int], None]:
        return lambda index: self._captured.append((name, index, cycles(index)))

    def graph(self, launch: Callable[[int], None], order: Sequence[int]) -> Callable[[], None]:
        self._captured = []
        for index in order:
            launch(index)
        nodes = self._captured
        self.orders.append([index for _, index, _ in nodes])

        def replay() -> None:
            self.in_flight += 1
            self.replayed.append(nodes[0][0])
            for _, _, cycles in nodes:
                self.now_ms += cycles / self.mhz(self.now_ms) / 1000

        return replay

    def mark(self) -> float:
        return self.now_ms

    def ms(self, begin: float, end: float) -> float:
        return end - begin

    def finish(self) -> None:
        self.in_flight = 0


class FakeWatch:
    def __init__(self, state: Callable[[], State]) -> None:
        self.state = state

    def between(self, start_s: float, end_s: float) -> State:
        return self.state()


class FakeTelemetry(Telemetry):
    """States from a function instead of NVML."""

    def __init__(self, state: Callable[[], State], missing: str = "") -> None:
        self._state = state
        self.missing = missing
        self.uuid = "1234"
        self.driver = "580.0"

    @contextmanager
    def watching(self, *, period_s: float = 0.0) -> Iterator[Any]:
        yield FakeWatch(self._state)


def nvml_library(
    *,
    reasons: int = 0x4,
    sm: int = 1755,
    memory: int = 3201,
    celsius: int = 61,
    milliwatts: int = 690_123,
    **change: Any,
) -> SimpleNamespace:
    """Functions of NVML as ctypes calls them; ``change`` replaces or, with None, removes some."""

    def number(value: int) -> Callable[..., int]:
        def write(*arguments: Any) -> int:
            arguments[-1]._obj.value = value
            return 0

        return write

    def clock(handle: Any, kind: int, out: Any) -> int:
        out._obj.value = {1: sm, 2: memory}[kind]
        return 0

    def handle(uuid: bytes, out: Any) -> int:
        out._obj.value = 4711
        return 0 if uuid == b"GPU-1234" else 6

    def version(text: Any, size: ctypes.c_uint) -> int:
        text.value = b"580.159.04"
        return 0

    functions = {
        "nvmlInit_v2": lambda: 0,
        "nvmlDeviceGetHandleByUUID": handle,
        "nvmlSystemGetDriverVersion": version,
        "nvmlDeviceGetClockInfo": clock,
        "nvmlDeviceGetTemperature": number(celsius),
        "nvmlDeviceGetPowerUsage": number(milliwatts),
        "nvmlDeviceGetCurrentClocksEventReasons": number(reasons),
        **change,
    }
    return SimpleNamespace(**{name: function for name, function in functions.items() if function})
