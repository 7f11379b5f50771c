"""The CUDA runtime symbols that exported host code calls, and where they come from.

An exported object has eight undefined symbols. A ``Runtime`` provides an address for each: ``CudaRuntime``
the functions of the installed CUDA runtime and driver, ``capture.CaptureRuntime`` callbacks that record the
launch.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

CUDA_RUNTIME_SYMBOLS = {
    "_cudaLibraryLoadData": "cudaLibraryLoadData",
    "_cudaLibraryGetKernel": "cudaLibraryGetKernel",
    "_cudaGetDevice": "cudaGetDevice",
    "_cudaDeviceGetAttribute": "cudaDeviceGetAttribute",
    "_cudaFuncSetAttribute": "cudaFuncSetAttribute",
    "_cudaKernelSetAttributeForDevice": "cudaKernelSetAttributeForDevice",
    "_cudaLaunchKernelEx": "cudaLaunchKernelExC",  # the C++ template of this name ends in the C function
}
CUDA_DRIVER_SYMBOLS = {"_cuKernelGetAttribute": "cuKernelGetAttribute"}
RUNTIME_SYMBOLS = (*CUDA_RUNTIME_SYMBOLS, *CUDA_DRIVER_SYMBOLS)

_RUNTIME_LIBRARIES = ("libcudart.so.13", "libcudart.so.12")
_DRIVER_LIBRARIES = ("libcuda.so.1",)


class CudaUnavailableError(RuntimeError):
    """No CUDA runtime or driver library that can be loaded on this machine."""


class Runtime(Protocol):
    """What ``load`` binds an object to."""

    device_ids: tuple[int, ...]
    """Devices the object's kernels are prepared for when it is loaded."""

    def addresses(self) -> dict[str, int]:
        """The address of each of ``RUNTIME_SYMBOLS``. The runtime must outlive the loaded object."""
        ...

    def check(self) -> None:
        """Raises what went wrong in the calls since the last check, if the runtime knows more than a code."""
        ...


class CudaRuntime:
    """The installed CUDA runtime and driver: a loaded object launches on a real device.

    ``open_library`` is called with a library name or path and raises ``OSError`` when it cannot be loaded.
    ``library`` and ``driver`` are what ``ctypes`` opened. Raises ``CudaUnavailableError`` naming what was tried.
    """

    def __init__(
        self, device_ids: tuple[int, ...] = (0,), *, open_library: Callable[[str], Any] = ctypes.CDLL
    ) -> None:
        self.device_ids = device_ids
        self.library = _open_first("CUDA runtime", list(_runtime_candidates()), open_library)
        self.driver = _open_first("CUDA driver", list(_DRIVER_LIBRARIES), open_library)

    def addresses(self) -> dict[str, int]:
        return {
            **_addresses(self.library, CUDA_RUNTIME_SYMBOLS),
            **_addresses(self.driver, CUDA_DRIVER_SYMBOLS),
        }

    def check(self) -> None:
        """CUDA reports by return code, which the loaded object checks itself."""


def _runtime_candidates() -> Iterator[str]:
    """The dynamic linker's own search first, then the libraries that PyPI wheels of NVIDIA bring."""
    yield from _RUNTIME_LIBRARIES
    spec = importlib.util.find_spec("nvidia")
    for root in (spec.submodule_search_locations or []) if spec else []:
        for name in _RUNTIME_LIBRARIES:
            yield from (str(path) for path in sorted(Path(root).glob(f"*/lib/{name}")))


def _open_first(what: str, candidates: list[str], open_library: Callable[[str], Any]) -> Any:
    for candidate in candidates:
        try:
            return open_library(candidate)
        except OSError:
            continue
    raise CudaUnavailableError(
        f"no {what} library could be loaded, tried {', '.join(candidates)}; "
        "launching needs an NVIDIA driver and libcudart"
    )


def _addresses(library: Any, symbols: dict[str, str]) -> dict[str, int]:
    return {
        symbol: ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
        for symbol, function in symbols.items()
    }
