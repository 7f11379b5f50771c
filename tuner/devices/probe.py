"""The cards of this machine, as the driver and torch tell of them."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from tuner.devices.classes import Card

# CUdevice_attribute of cuda.h. ``cudaDeviceProp`` lost the memory's clock in CUDA 13, the driver still tells it.
_MEMORY_CLOCK_KHZ = 36
_BUS_WIDTH_BITS = 37
_L2_BYTES = 38
_TRANSFERS = 2  # per clock


def probe_cuda() -> list[Card]:
    """The cards that CUDA shows to torch; none on a machine without a GPU or driver."""
    if _driver() is None:  # without it, seconds of importing torch are for nothing
        return []
    import torch

    return [card_at(index) for index in range(torch.cuda.device_count())] if torch.cuda.is_available() else []


def card_at(index: int) -> Card:
    """``cuda:<index>``, which torch sees."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    driver, device = _driver(), ctypes.c_int()
    told = (
        driver is not None and driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0
    )
    ask = functools.partial(_attribute, driver, device) if told else (lambda number: None)
    clock, width = ask(_MEMORY_CLOCK_KHZ), ask(_BUS_WIDTH_BITS)
    return Card(
        index=index,
        name=properties.name,
        compute_capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        uuid=str(properties.uuid),
        dram_bytes_s=_TRANSFERS * clock * 1e3 * width / 8 if clock and width else None,
        l2_bytes=ask(_L2_BYTES) or None,
    )


@functools.cache
def _driver() -> Any | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _attribute(driver: Any, device: ctypes.c_int, number: int) -> int | None:
    """None where the driver does not know it; 0 is how it says so of a memory without a clock of its own."""
    value = ctypes.c_int()
    code = driver.cuDeviceGetAttribute(ctypes.byref(value), number, device)
    return value.value if code == 0 else None
