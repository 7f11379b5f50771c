"""What a tune needs besides a device: the compiler, and what proposes candidates."""

from __future__ import annotations

import importlib.util

from kernel_space.build.key import toolchain
from kernel_space.core.errors import InputError


def missing_to_tune() -> str:
    """What is not installed here, in words; empty where a tune can begin."""
    try:
        toolchain()
    except InputError as error:
        return str(error).partition(";")[0]
    return "" if importlib.util.find_spec("optuna") else "Optuna is not installed"
