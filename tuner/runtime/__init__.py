"""The tuned kernels from torch: any operator by its name, and the functions and layers of ``tuner.layers``.

    from tuner.runtime import explain, launch, prepare

Needs torch and llvmlite; neither the compiler nor the search. See docs/runtime.md.
"""

import importlib
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.launch.loading import HostCallError
from tuner.runtime.ask import explain, prepare
from tuner.runtime.choice.choice import Choice
from tuner.runtime.direct import launch
from tuner.runtime.load.early import allow_early
from tuner.runtime.record import record_problems
from tuner.runtime.state import use_table
from tuner.runtime.torch_operator import torch_operator

__all__ = [
    "Choice",
    "HostCallError",
    "InputError",
    "allow_early",
    "explain",
    "launch",
    "prepare",
    "record_problems",
    "torch_operator",
    "use_table",
]
# Made of what is here, so it cannot be imported before; its list of names imports nothing.
_LAYERS = importlib.import_module("tuner.layers")

__all__ += _LAYERS.EXPORTS


def __getattr__(name: str) -> Any:
    """A name of ``tuner.layers``, loaded when it is asked for."""
    if name not in _LAYERS.EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAYERS.EXPORTS[name]), name)


for _module in _LAYERS.OPERATORS:  # so that torch.ops has them
    importlib.import_module(_module)
