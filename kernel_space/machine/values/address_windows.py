"""Windows of the generic address space that hold kernel parameters, shared and local memory."""

from __future__ import annotations

PARAM_WINDOW = 0x2000_0000_0000_0000
SHARED_WINDOW = 0x1000_0000_0000_0000
LOCAL_WINDOW = 0x3000_0000_0000_0000
