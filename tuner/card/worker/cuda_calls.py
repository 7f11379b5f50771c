"""Waiting for a card without hanging on it, and what its error codes say of the kernel that ran."""

from __future__ import annotations

import ctypes
import time
from typing import Any

from tuner.trials.outcome import Status

SUCCESS, NOT_READY, OUT_OF_MEMORY, ASSERT = 0, 600, 2, 710
# cudaErrorIllegalAddress, HardwareStackError, MisalignedAddress, InvalidAddressSpace, InvalidPc (driver_types.h)
ILLEGAL_ACCESS = frozenset({700, 714, 716, 717, 718})
SPIN_S = 0.002  # the usual launch is over by then; later looks leave the processor to others
NAP_S = 0.0005


class CudaFault(Exception):
    """The card reported ``code``, or a launch did not end. The process can do nothing more with the card.

    ``status`` is what that says of the kernel that ran; ``str()`` is one line.
    """

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class CudaCalls:
    """``library``: the CUDA runtime of this process, ``CudaRuntime().library``."""

    def __init__(self, library: Any) -> None:
        self._library = library
        library.cudaStreamQuery.argtypes = [ctypes.c_void_p]
        for name in ("cudaGetErrorName", "cudaGetErrorString"):
            function = getattr(library, name)
            function.argtypes, function.restype = [ctypes.c_int], ctypes.c_char_p

    def wait(self, stream: int, limit_s: float, what: str) -> None:
        """Until ``stream`` is empty. Raises ``CudaFault``, after ``limit_s`` seconds as a deadlock."""
        start = time.monotonic()
        while (code := self._library.cudaStreamQuery(stream)) == NOT_READY:
            waited = time.monotonic() - start
            if waited > limit_s:
                raise CudaFault(Status.DEADLOCK, f"{what} did not end within {limit_s:g} s")
            if waited > SPIN_S:
                time.sleep(NAP_S)
        if code != SUCCESS:
            raise self.fault(code, what)

    def fault(self, code: int, what: str) -> CudaFault:
        """The exception for an error code that came up in ``what``."""
        name, text = (self._text(function, code) for function in ("cudaGetErrorName", "cudaGetErrorString"))
        return CudaFault(status_of(code), f"{what}: {name} ({code}): {text}")

    def synchronize(self) -> int:
        """The code of waiting for everything; a sticky error shows here whoever ran into it."""
        return int(self._library.cudaDeviceSynchronize())

    def driver_version(self) -> str:
        """The CUDA version that the driver supports, as ``13.0``."""
        version = ctypes.c_int()
        if code := self._library.cudaDriverGetVersion(ctypes.byref(version)):
            raise self.fault(code, "asking for the driver's version")
        return f"{version.value // 1000}.{version.value % 1000 // 10}"

    def _text(self, function: str, code: int) -> str:
        return (getattr(self._library, function)(code) or b"unknown error").decode()


def status_of(code: int) -> Status:
    """What an error code of the CUDA runtime says of a kernel."""
    return Status.ILLEGAL_ACCESS if code in ILLEGAL_ACCESS else Status.FAILED
