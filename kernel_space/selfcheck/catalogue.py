"""All probes, in the order in which they run."""

from __future__ import annotations

import functools
import importlib

from kernel_space.selfcheck.text.probe import Probe

_MODULES = (
    "convert", "float", "integer", "warp", "memory", "matrix", "atomic", "barrier", "cluster", "tma_load", "tma_store",
    "tmem", "mma", "mma_scaled", "fault",
)  # fmt: skip


@functools.cache
def catalogue() -> tuple[Probe, ...]:
    """Every probe; names are unique."""
    modules = [importlib.import_module(f"kernel_space.selfcheck.probes.{name}") for name in _MODULES]
    found = tuple(probe for module in modules for probe in module.probes())
    names = [probe.name for probe in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"probes of the same name: {', '.join(twice)}")
    return found
