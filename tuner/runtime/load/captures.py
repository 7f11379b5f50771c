"""Counters of launches that are captured into CUDA graphs: memory that was zeroed before the capture began.

A graph needs a workspace of its own: a replay may run on another stream, at the same time as launches on the one that
was captured. Memory of the graph's pool would have to be zeroed by the graph in front of every launch: 4.8 us each and
the overlap with the launch before (measured, H100, a layer of one row). So small workspaces are cut from a block that
is zeroed once, outside of any capture. Launches of one capture on one stream follow each other and share a piece, as
eager ones do. Larger ones, which hold partial sums behind their counters, are allocated and zeroed when a capture first
asks, beside it: by another thread, on a stream that is not captured. Neither is ever handed out again, as nobody says
when a graph is gone; when the block is used up, or ``MOST_LARGE`` are out, a graph zeroes its own again.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

ALIGN = 256
BLOCK_BYTES = 1 << 20
MOST_BYTES = 4096  # of a piece of the block: counters
MOST_LARGE = 128 << 20  # bytes of all that hold partial sums, too
ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED

MakeZeros = Callable[[int], torch.Tensor]
MakeBeside = Callable[[int, int], torch.Tensor]


class Captures:
    """The block of one device. Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._block: torch.Tensor | None = None
        self._beside: MakeBeside | None = None
        self._used = 0
        self._large: list[torch.Tensor] = []  # for ever: graphs use them
        self._pieces: dict[tuple[int, int, int, int], torch.Tensor] = {}  # of the captures under way

    def prepare(self, make: MakeZeros, beside: MakeBeside) -> None:
        """Outside of a capture: have a block. ``make(size)`` gives zeros that every stream may use from now on;
        ``beside(size, zeroed)`` memory with so many leading ones, also during a capture.
        """
        with self._lock:
            if self._block is None:
                self._block, self._beside = make(BLOCK_BYTES), beside

    def take(self, size: int, zeroed: int, stream: int) -> torch.Tensor | None:
        """``size`` bytes for the capture that ``stream`` is in, the same ones for each launch of it with as many
        leading zeros. None where there are none: nothing was prepared, or all is used up; and for memory without
        zeros, which costs a graph nothing.
        """
        if not (size and zeroed) or self._block is None or not (capture := capture_of(stream)):
            return None
        with self._lock:
            key = (capture, stream, zeroed, size)
            if key not in self._pieces:
                self._pieces = {known: piece for known, piece in self._pieces.items() if known[0] == capture}
                piece = self._cut(size) if size <= MOST_BYTES else self._add(size, zeroed)
                if piece is None:
                    return None
                self._pieces[key] = piece
            return self._pieces[key]

    def _cut(self, size: int) -> torch.Tensor | None:
        begin, end = self._used, self._used + -(-size // ALIGN) * ALIGN
        if end > BLOCK_BYTES or self._block is None:
            return None
        self._used = end
        return self._block[begin : begin + size]

    def _add(self, size: int, zeroed: int) -> torch.Tensor | None:
        if sum(one.numel() for one in self._large) + size > MOST_LARGE or self._beside is None:
            return None
        self._large.append(self._beside(size, zeroed))
        return self._large[-1]


def capture_of(stream: int) -> int:
    """What CUDA calls the capture that ``stream`` is in: a number, of no other one in this process; 0 if it is in
    none, or nobody can tell.
    """
    ask = _driver_function("cuStreamGetCaptureInfo_v2")
    if ask is None:
        return 0
    status, number = ctypes.c_int(0), ctypes.c_ulonglong(0)
    code = ask(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None)
    return number.value if code == 0 and status.value == ACTIVE else 0


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """This thread may allocate and wait for streams that are not captured, while others are."""
    exchange, mode = _driver_function("cuThreadExchangeStreamCaptureMode"), ctypes.c_int(RELAXED)
    if exchange is not None:
        exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        if exchange is not None:
            exchange(ctypes.byref(mode))


@functools.cache
def _driver_function(name: str) -> Any:
    """Of the CUDA driver, by what it exports; None where there is none."""
    try:
        return getattr(ctypes.CDLL("libcuda.so.1"), name)
    except (OSError, AttributeError):
        return None
