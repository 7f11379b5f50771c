"""How many clusters of a compiled kernel a card holds at once, asked of the driver with the kernel's own launch.

Clusters of more than one CTA must fit into one GPC, and GPCs differ in their number of SMs, so the answer can be less
than SMs / cluster size. A persistent grid of more clusters than fit runs its last ones after all others.
"""

from __future__ import annotations

import ctypes
import math
from typing import Any

from kernel_space.capture import cluster_of
from kernel_space.runtime_symbols import CudaRuntime

_LAUNCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
_LAUNCH_SYMBOL = "_cudaLaunchKernelEx"


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
