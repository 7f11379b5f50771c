"""Windows of the generic address space: kernel parameters, shared and local memory, variables of the module."""

from __future__ import annotations

PARAM_WINDOW = 0x2000_0000_0000_0000
SHARED_WINDOW = 0x1000_0000_0000_0000
LOCAL_WINDOW = 0x3000_0000_0000_0000
MODULE_WINDOW = 0x0800_0000_0000_0000  # they have addresses there, and no memory
