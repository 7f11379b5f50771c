"""Fences have no effect on the data here, since memory is coherent; the race checker judges them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp


def proxy_fence(w: Warp, kind: str, space: str, mask: int, site: int) -> None:
    w.site = site
    if w.races is not None:
        w.races.proxy_fence(w, kind, space, mask)


def init_fence(w: Warp, site: int) -> None:
    w.site = site
    if w.races is not None:
        w.races.init_fence(w)


def memory_fence(w: Warp, order: str, scope: str, mask: int, site: int) -> None:
    w.site = site
    if w.races is not None:
        w.races.memory_fence(w, order, scope, mask)


def tensor_fence(w: Warp, before: bool, mask: int, site: int) -> None:
    w.site = site
    if w.races is not None:
        w.races.tensor_fence(w, before, mask)


def warp_synced(w: Warp, mask: int) -> None:
    """``bar.warp.sync``: what one of these lanes has written, the others know."""
    if w.races is not None:
        w.races.warp_synced(w, mask)
