"""Fences have no effect on the data here, since memory is coherent; the race checker judges them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp


def proxy_fence(w: Warp, kind: str, space: str, site: int) -> None:
    w.site = site
    if w.races is not None:
        w.races.proxy_fence(w, kind, space)


def memory_fence(w: Warp, order: str, scope: str, site: int) -> None:
    w.site = site
    if w.races is not None:
        w.races.memory_fence(w, order, scope)
