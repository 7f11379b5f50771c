"""What a verdict of ``validate.py`` depends on, as one hash; imports nothing that is slow to import."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

from kernel_space.build.key import source_hash
from kernel_space.build.source_identity import identity
from kernel_space.core.operator import Deferred
from kernel_space.core.registry import kernel, operator

_ROOT = Path(__file__).resolve().parents[1]
# Where an operand lies and what is launched with it, and how outputs are compared.
_SHARED = ("core/signature.py", "launch/capture.py", "numerics/output_check.py", "numerics/tensors.py")


@functools.cache
def check_version(operator_name: str) -> str:
    """Hash of all that a verdict on an operator's kernels depends on besides kernel, problem and seed.

    The machine, this package, the operator's inputs and oracle, and what its kernels state of themselves.
    """
    parts = [machine_version(), *(f"{module} {source_hash(module)}" for module in _modules(operator_name))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@functools.cache
def machine_version() -> str:
    """Hash of the part that is the same for every operator."""
    machine = [path for path in (_ROOT / "machine").rglob("*.py") if path.parent.name != "clock"]
    files = [*machine, *(_ROOT / "check").glob("*.py"), *(_ROOT / name for name in _SHARED)]
    return identity(path.read_bytes() for path in files)


def _modules(operator_name: str) -> list[str]:
    """Modules of the operator that decide a verdict; each stands for all of the project or the operator it imports."""
    found = operator(operator_name)
    kernels = [kernel(operator_name, name) for name in found.kernels]
    functions = [found.inputs, found.check, found.ragged, *(one.room for one in kernels)]
    machines = [one.machine for one in kernels]
    return sorted({*(_module(one) for one in functions if one), *filter(None, machines)})


def _module(function: object) -> str:
    if isinstance(function, functools.partial):
        return _module(function.func)
    return function.name.partition(":")[0] if isinstance(function, Deferred) else function.__module__
