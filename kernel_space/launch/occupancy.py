"""How many clusters of a compiled kernel a card holds at once, asked of the driver with the kernel's own launch.

Clusters of more than one CTA must fit into one GPC, and GPCs differ in their number of SMs, so the answer can be less
than SMs / cluster size. A persistent grid of more clusters than fit runs its last ones after all others.

``grid_clusters`` is the grid of every launch: the one that is timed and the one that users get.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from kernel_space.core.arguments import Argument
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of
from kernel_space.launch.capture import cluster_of
from kernel_space.launch.loading import load_bytes
from kernel_space.launch.runtime_symbols import CudaRuntime

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_LAUNCH_SYMBOL = "_cudaLaunchKernelEx"
_ADDRESS = 1 << 30  # nothing runs, but the host code encodes TMA descriptors: aligned and not 0


class OccupancyRuntime(CudaRuntime):
    """A CUDA runtime in which a launch only asks: an object loaded with it sets ``clusters`` when it is called.

    ``clusters`` is 0 before the first call and for a kernel that does not fit at all; launches without clusters (a
    helper's) do not count. Raises as ``CudaRuntime``.
    """

    def __init__(self, device_ids: tuple[int, ...] = (0,), **options: Any) -> None:
        super().__init__(device_ids, **options)
        self._counts: list[int] = []
        self._callback = _LAUNCH(self._ask)

    @property
    def clusters(self) -> int:
        return min(self._counts, default=0)

    def addresses(self) -> dict[str, int]:
        ours = ctypes.cast(self._callback, ctypes.c_void_p).value or 0
        return {**super().addresses(), _LAUNCH_SYMBOL: ours}

    def _ask(self, config: int, kernel: int, arguments: int) -> int:
        """In place of ``cudaLaunchKernelExC``.

        ``cudaKernel_t`` is the driver's ``CUkernel``, which its occupancy calls take as a function, and the two launch
        configurations have one layout: the runtime's 64-bit shared memory size is the driver's 32 bits and padding.
        """
        if math.prod(cluster_of(config)) == 1:
            return 0
        # A process that has used no card yet has no context to ask in (CUDA error 201): this gives it the device's.
        self.library.cudaFree(ctypes.c_void_p())
        count = ctypes.c_int()
        ask = self.driver.cuOccupancyMaxActiveClusters
        code = ask(ctypes.byref(count), ctypes.c_void_p(kernel), ctypes.c_void_p(config))
        self._counts.append(count.value)
        return int(code)


def grid_clusters(meant: int, fit: int | None) -> int:
    """Clusters of a persistent grid: what the config means to have, and no more than the card holds.

    ``meant``: ``config.max_active_clusters``; ``fit``: what ``clusters_that_fit`` gave, None for single CTAs.
    """
    return max(1, meant) if fit is None else min(max(1, meant), fit)


def clusters_that_fit(
    data: bytes,
    prefix: str,
    arguments: tuple[Argument, ...] | None,
    problem: Problem,
    runtime: OccupancyRuntime,
    *,
    meant: int,
) -> int:
    """Clusters of the object ``data`` that the current device of ``runtime`` holds at once; nothing is launched.

    ``problem``: any that its config is legal for; ``meant``: as for ``grid_clusters``. Raises ``InputError`` for an
    object of other arguments than the operator's, and for a kernel that does not fit at all.
    """
    signature = operator_of(problem).signature
    pointers = dict.fromkeys(signature.pointers, _ADDRESS)
    with load_bytes(data, prefix, runtime, arguments=arguments) as loaded:
        signature.require(loaded.arguments, prefix)
        loaded.call(*signature.values(problem, pointers, clusters=max(1, meant)))
    if runtime.clusters == 0:
        raise InputError(f"no cluster of the kernel {prefix} fits the card")
    return runtime.clusters
