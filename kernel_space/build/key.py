"""What a compiled kernel depends on: its sources, the compiler packages, and the candidate itself.

Nothing here imports the DSL, so a cache can be asked without paying for that import.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernel_space.build.source_facts import identity, source_facts
from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel
from kernel_space.core.problem import ProblemClass
from kernel_space.core.registry import kernel_of
from kernel_space.places import TO_TUNE

KEY_SCHEMA = 1  # raise it when the files of a cache entry or the way they are made change
_DSL = "nvidia-cutlass-dsl"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toolchain:
    """``dsl_version`` of nvidia-cutlass-dsl; ``variant`` of its libraries, which decides PTX version and
    ptxas:
    ``cu12`` or ``cu13``; ``packages``: every package that takes part, ``name==version``.
    """

    dsl_version: str
    variant: str
    packages: tuple[str, ...]


def toolchain() -> Toolchain:
    """The installed compiler, or the one that ``adopt_toolchain`` named. Raises ``InputError`` without either."""
    return _adopted[-1] if _adopted else _installed()


def adopt_toolchain(made_by: Toolchain) -> None:
    """From now on this process is about objects of ``made_by``, whatever is installed: a machine that only launches
    what another compiled. It finds them in a cache under the same keys; compiling would put a wrong name on them.
    """
    _adopted.append(made_by)


_adopted: list[Toolchain] = []


@functools.cache
def _installed() -> Toolchain:
    versions = {
        name: distribution.version
        for distribution in importlib.metadata.distributions()
        if (name := distribution.metadata["Name"] or "").startswith(_DSL)
    }
    variants = sorted(match.group(1) for name in versions if (match := re.search(r"-libs-(cu\d+)$", name)))
    if _DSL not in versions or not variants:
        raise InputError(f"the CuTe DSL is not installed; pip install {TO_TUNE}")
    packages = tuple(f"{name}=={version}" for name, version in sorted(versions.items()))
    return Toolchain(dsl_version=versions[_DSL], variant=variants[-1], packages=packages)


def kernel_source_hash(kernel: Kernel) -> str:
    """``identity`` of the kernel's module and of every module of this project that it imports, directly or not; of a
    chain, its own and those of all its parts.

    Raises ``InputError`` for a kernel whose module does not exist.
    """
    own = source_hash(kernel.source)
    if not kernel.parts:
        return own
    digests = [own, *(kernel_source_hash(part) for part in kernel.parts)]
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


@functools.cache
def source_hash(module: str) -> str:
    """The same of any module."""
    if _source(module) is None:
        raise InputError(f"there is no module {module}, which should hold a kernel's sources")
    return identity(_closure(module).values())


def space_source_hash(kernels: Iterable[Kernel]) -> str:
    """Of all ``kernels`` that one search chooses from."""
    digests = sorted(f"{kernel.full_name} {kernel_source_hash(kernel)}" for kernel in kernels)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()


def build_key(
    config: KernelConfig, problem_class: ProblemClass, arch: Arch, kernel: Kernel | None = None
) -> str:
    """SHA-256 of everything that decides the artifacts; also the name of the cache entry.

    The exported object is host code, so the kind of this machine is part of it.
    """
    kernel = kernel or kernel_of(config, problem_class)
    parts = {
        "schema": KEY_SCHEMA,
        "kernel": kernel.full_name,
        "sources": kernel_source_hash(kernel),
        "packages": toolchain().packages,
        "host": platform.machine(),
        "arch": arch.name,
        "class": str(problem_class),
        "config": str(config),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _closure(module: str) -> dict[str, bytes]:
    roots = {module.partition(".")[0], "kernel_space"}
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] not in roots:
            continue
        source = _source(name)
        if source is None:
            continue
        found[name] = source
        waiting += _imports(name, source)
    return found


def _imports(module: str, source: bytes) -> Iterator[str]:
    """Names that may be modules: ``from a import b`` gives ``a`` and ``a.b``. Parents of a module run as
    well.
    """
    yield module.rpartition(".")[0]
    try:
        imports = source_facts(source).imports
    except SyntaxError as error:
        raise InputError(f"{module} is not Python: line {error.lineno}: {error.msg}") from None
    for level, name, taken in imports:
        base = _absolute(module, level, name)
        yield base
        yield from (f"{base}.{one}" for one in taken)


def _absolute(module: str, level: int, name: str) -> str:
    if not level:
        return name
    parent = module.rsplit(".", level)[0]
    return f"{parent}.{name}" if name else parent


def _source(module: str) -> bytes | None:
    """The source of ``module``, or None if there is no such Python file. Imports nothing: it could be the DSL."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top) if top else None
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]).joinpath(*rest)
    for file in (path / "__init__.py", path.with_name(f"{path.name}.py")):
        if file.is_file():
            return file.read_bytes()
    return None
