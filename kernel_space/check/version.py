"""What a verdict of ``validate.py`` depends on, as one hash; imports nothing that is slow to import."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from pathlib import Path

from kernel_space.build.key import source_hash
from kernel_space.build.source_facts import identity
from kernel_space.core.kernel import Kernel
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
    return _hash([machine_version(), *_sources({*_oracle(operator_name), *_machines(operator_name)})])


@functools.cache
def oracle_version(operator_name: str) -> str:
    """Hash of all that a card's verdict on an operator's kernels depends on besides the kernel and the check: inputs,
    oracle, ragged problems and workspace, as they are in the sources today.
    """
    return _hash(_sources(_oracle(operator_name)))


@functools.cache
def machine_version() -> str:
    """Hash of the part that is the same for every operator."""
    machine = [path for path in (_ROOT / "machine").rglob("*.py") if path.parent.name != "clock"]
    files = [*machine, *(_ROOT / "check").glob("*.py"), *(_ROOT / name for name in _SHARED)]
    return identity(path.read_bytes() for path in files)


def _kernels(operator_name: str) -> list[Kernel]:
    return [kernel(operator_name, name) for name in operator(operator_name).kernels]


def _links(operator_name: str) -> list[str]:
    """The operators of a chain."""
    composed = operator(operator_name).composed
    return [link.operator for link in composed.links] if composed else []


def _machines(operator_name: str) -> set[str]:
    """Modules in which kernels state something of themselves."""
    own = {one.machine for one in _kernels(operator_name) if isinstance(one.machine, str)}
    return (own - {""}).union(*map(_machines, _links(operator_name)))


def _oracle(operator_name: str) -> set[str]:
    """Modules of the operator that decide a verdict; each stands for all of the project or the operator it imports."""
    found = operator(operator_name)
    functions = [found.inputs, found.check, found.ragged, *(one.room for one in _kernels(operator_name))]
    return {_module(one) for one in functions if one}.union(*map(_oracle, _links(operator_name)))


def _sources(modules: Iterable[str]) -> list[str]:
    return [f"{module} {source_hash(module)}" for module in sorted(modules)]


def _hash(parts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _module(function: object) -> str:
    if isinstance(function, functools.partial):
        return _module(function.func)
    return function.name.partition(":")[0] if isinstance(function, Deferred) else str(function.__module__)
