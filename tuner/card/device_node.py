"""Which file of ``/dev`` a card is: ``/dev/nvidia<minor>``, the minor number from NVML."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_CARD, _SLICE = "GPU-", "MIG-"  # torch names either by the UUID alone


def device_node(
    uuid: str, *, open_library: Callable[[str], Any] = ctypes.CDLL, dev: Path = Path("/dev")
) -> Path | None:
    """The node of the card ``uuid`` (with ``GPU-`` or ``MIG-`` before it, or without), of a slice that of its card.

    None where there is no driver, or it knows no such card, or its node is not in ``dev``.
    """
    try:
        nvml = open_library(_LIBRARY)
    except OSError:
        return None
    if nvml.nvmlInit_v2():
        return None
    try:
        minor = _minor(nvml, uuid)
    finally:
        nvml.nvmlShutdown()
    if minor is None:
        return None
    node = dev / f"nvidia{minor}"
    return node if node.exists() else None


def _minor(nvml: Any, uuid: str) -> int | None:
    bare = uuid.removeprefix(_CARD).removeprefix(_SLICE)
    for form in (_CARD, _SLICE):
        handle, minor = ctypes.c_void_p(), ctypes.c_uint()
        if nvml.nvmlDeviceGetHandleByUUID(f"{form}{bare}".encode(), ctypes.byref(handle)):
            continue
        card = ctypes.c_void_p()
        if form == _SLICE and not nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
            handle, ctypes.byref(card)
        ):
            handle = card
        if not nvml.nvmlDeviceGetMinorNumber(handle, ctypes.byref(minor)):
            return int(minor.value)
    return None
