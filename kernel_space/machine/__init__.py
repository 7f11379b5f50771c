"""The executable model of sm_100a (and of what kernels for sm_90a need). See docs/simulator.md.

``run_compiled`` and ``run_ptx`` are its entry. They are imported when first asked for: a module of this package may be
wanted by itself, without numpy and the machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kernel_space.machine.run.run import SimResult, run_compiled, run_ptx

__all__ = ["SimResult", "run_compiled", "run_ptx"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kernel_space.machine.run import run

    return getattr(run, name)
