"""Programmatic dependent launch. PTX ISA "griddepcontrol".

A launch with that attribute may begin once every CTA of the one before has executed ``launch_dependents`` or has ended.
From then on both run, on memory that only ``wait`` orders: for the thread that executes it, and for whoever is ordered
behind that thread. Without the attribute, ``wait`` has nothing to wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Warp


def launch_wait(w: Warp, mask: int, site: int) -> bool:
    """True: the warp has to sleep until the launch before has ended and its stores are performed."""
    w.site = site
    before = w.machine.before
    if before is None:
        return False
    if not before.ended:
        before.end_waiters.append(w)
        w.sleep(("launch", before, 0, site))
        return True
    if w.races is not None:
        w.races.launch_waited(w, mask)
    return False


def launch_dependents(w: Warp) -> bool:
    """True: the warp stands back, once, until the next launch has begun or nothing else can move."""
    machine = w.machine
    w.cta.signal_dependents()
    if machine.held is None or w.held:
        return False
    w.held = True
    machine.held.append(w)
    return True
