"""Build: one candidate to PTX, cubin, self-contained object and resource usage, cached on disk. Needs no
GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from kernel_space.build.cache import BuildCache, default_cache_dir
from kernel_space.build.dsl_compile import Artifacts, CompileError, compile_errors, compile_function
from kernel_space.build.dsl_env import import_dsl
from kernel_space.build.key import (
    Toolchain,
    build_key,
    kernel_source_hash,
    toolchain,
)
from kernel_space.build.resources import Resources, largest, read_resources, sass_counts
from kernel_space.core.arch import Arch
from kernel_space.core.arguments import Argument, arguments_from_header
from kernel_space.core.config import AUTO, KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.kernel import Kernel
from kernel_space.core.problem import ProblemClass
from kernel_space.core.registry import kernel_of, operator_of

__all__ = ["CompileError", "CompiledKernel", "build", "cached_build", "default_cache_dir"]

SERIALIZED = "wgmma.mma_async instructions are serialized"
PTX, CUBIN, OBJECT, HEADER = "kernel.ptx", "kernel.cubin", "kernel.o", "kernel.h"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CompiledKernel:
    """One cache entry.

    ``kernel``, ``arch``, ``config``, ``problem_class``: printed forms
    ``directory``      holds kernel.ptx, kernel.cubin, kernel.o, kernel.h and meta.json; its name is the
        build key
    ``prefix``         of the object's symbols; ``arguments`` of its host function
    ``resources``      of the kernel in the shipped cubin; of several, the most of each
    ``source_hash``    over the kernel's sources; ``cubin_sha256``, ``object_sha256`` of the files
    ``dsl_version``, ``variant``  of the compiler (``cu12`` or ``cu13``)
    ``foreign``        the entry lies in somebody else's folder: nothing is written there, and nothing beside the files
        is believed
    """

    kernel: str
    arch: str
    config: str
    problem_class: str
    directory: Path
    prefix: str
    arguments: tuple[Argument, ...]
    resources: Resources
    source_hash: str
    cubin_sha256: str
    object_sha256: str
    dsl_version: str
    variant: str
    foreign: bool = False

    @property
    def key(self) -> str:
        return self.directory.name

    @property
    def ptx(self) -> str:
        return (self.directory / PTX).read_text()

    @property
    def cubin(self) -> bytes:
        return self.cubin_path.read_bytes()

    @property
    def ptx_path(self) -> Path:
        return self.directory / PTX

    @property
    def cubin_path(self) -> Path:
        return self.directory / CUBIN

    @property
    def object_path(self) -> Path:
        return self.directory / OBJECT

    def resources_of(self, entry: str) -> Resources:
        """Of one kernel of the object, where it has several; else ``resources``. Raises ``ToolError``."""
        if self.ptx.count(".entry ") == 1:
            return self.resources
        return _resources_by_entry(self.cubin_path, self.cubin_sha256)[entry]

    def sass_counts(self) -> dict[str, int]:
        """SASS mnemonic -> occurrences; 0.4 s. Raises ``ToolError``."""
        return sass_counts(self.cubin_path)


def build(
    config: KernelConfig,
    problem_class: ProblemClass,
    arch: Arch,
    *,
    cache_dir: Path | None = None,
    kernel: Kernel | None = None,
) -> CompiledKernel:
    """The compiled kernel of a resolved ``config``, from the cache or compiled now (about half a second).

    ``kernel``: another generator that takes such a config, in place of the config's own.
    ``cache_dir``: where artifacts live, by default ``default_cache_dir()``.
    Raises ``CompileError`` with the compiler's reason, ``InputError`` for a config with ``auto`` left in it.
    """
    kernel = kernel or kernel_of(config, problem_class)
    found = cached_build(config, problem_class, arch, cache_dir=cache_dir, kernel=kernel)
    if found is not None:
        return found
    key = build_key(config, problem_class, arch, kernel)
    prefix = f"k{key[:16]}"
    artifacts, arguments = _compile(config, problem_class, arch, prefix, kernel)
    meta = {
        "kernel": kernel.full_name,
        "arch": arch.name,
        "config": str(config),
        "problem_class": str(problem_class),
        "prefix": prefix,
        "arguments": [dataclasses.asdict(argument) for argument in arguments],
        "resources": dataclasses.asdict(_resources(artifacts.cubin)),
        "source_hash": kernel_source_hash(kernel),
        "cubin_sha256": hashlib.sha256(artifacts.cubin).hexdigest(),
        "object_sha256": hashlib.sha256(artifacts.object_code).hexdigest(),
        "dsl_version": toolchain().dsl_version,
        "variant": toolchain().variant,
    }
    files = {
        PTX: artifacts.ptx.encode(),
        CUBIN: artifacts.cubin,
        OBJECT: artifacts.object_code,
        HEADER: (artifacts.header or "").encode(),
    }
    directory = _cache(cache_dir).store(key, files, meta)
    return _from_meta(meta, directory)


def cached_build(
    config: KernelConfig,
    problem_class: ProblemClass,
    arch: Arch,
    *,
    cache_dir: Path | None = None,
    foreign: bool = False,
    kernel: Kernel | None = None,
) -> CompiledKernel | None:
    """``build`` if it is in the cache, else None. Does not import the DSL.

    ``foreign``: ``cache_dir`` is somebody else's, and nothing is written there.
    """
    unresolved = [name for name, text in config.fields().items() if text == AUTO]
    if unresolved:
        raise InputError(f"a config must be resolved before it is built, {' '.join(unresolved)} is {AUTO}")
    cache = _cache(cache_dir, foreign)
    kernel = kernel or kernel_of(config, problem_class)
    key = build_key(config, problem_class, arch, kernel)
    meta = cache.load(key)
    wanted = {
        "kernel": kernel.full_name,
        "arch": arch.name,
        "config": str(config),
        "problem_class": str(problem_class),
    }
    if meta is None:
        return None
    try:
        if all(meta[name] == text for name, text in wanted.items()):
            return dataclasses.replace(_from_meta(meta, cache.path(key)), foreign=foreign)
    except (KeyError, TypeError, ValueError, AttributeError):
        pass
    cache.discard(key)  # whole, but not what ``build`` writes, or put under the name of another
    return None


def _cache(cache_dir: Path | None, foreign: bool = False) -> BuildCache:
    """One object per directory and process, which counts what it stored."""
    directory = (cache_dir or default_cache_dir()).absolute()
    if foreign:
        return BuildCache(directory, foreign=True)
    return _CACHES.setdefault(directory, BuildCache(directory))


_CACHES: dict[Path, BuildCache] = {}


def _compile(
    config: KernelConfig, problem_class: ProblemClass, arch: Arch, prefix: str, kernel: Kernel
) -> tuple[Artifacts, tuple[Argument, ...]]:
    import_dsl(arch.name)
    _check_variant(toolchain())
    module, wanted = importlib.import_module(kernel.source), operator_of(problem_class).signature.abi
    with compile_errors():
        function, arguments = module.host_function(config, problem_class, arch)
    _, artifacts = compile_function(function, arguments, {}, arch=arch.name, prefix=prefix)
    refuse_serialized(artifacts)
    if artifacts.header is None:
        raise CompileError(f"{kernel.full_name} takes arguments that its C header cannot describe")
    declared = arguments_from_header(artifacts.header)
    if declared != wanted:
        raise CompileError(
            f"the host function of {kernel.full_name} must take the arguments of its operator, {_listed(wanted)}; it "
            f"takes {_listed(declared)}"
        )
    return artifacts, declared


def _listed(arguments: tuple[Argument, ...]) -> str:
    return "(" + ", ".join(f"{one.name} {one.kind}" for one in arguments) + ")"


def refuse_serialized(artifacts: Artifacts) -> None:
    """Raise ``CompileError`` if ptxas made every ``wgmma`` wait for the one before (C7510, C7512, C7513 and others).

    The results would be right, so nothing else tells; it costs 15 to 20 % (H200, docs/kernel_sm90a.md).
    """
    for note in artifacts.ptxas_notes:
        if SERIALIZED in note:
            code, _, reason = note.partition(" ")
            raise CompileError(f"ptxas serializes wgmma ({code}): {reason.partition(SERIALIZED)[2].strip()}")


def _check_variant(expected: Toolchain) -> None:
    """With several library variants installed the DSL picks one by the driver; the key must name that one."""
    library = getattr(sys.modules.get("cutlass._mlir._mlir_libs._cutlass_ir"), "__file__", "") or ""
    if f".{expected.variant}." not in os.path.basename(library):
        raise InputError(
            f"the DSL loaded {os.path.basename(library)} although {expected.variant} is installed; "
            "keep one of nvidia-cutlass-dsl-libs-cu12 and -cu13"
        )


@functools.lru_cache(maxsize=256)  # a launch of each kernel asks, and the tool takes 50 ms
def _resources_by_entry(cubin_path: Path, cubin_sha256: str) -> dict[str, Resources]:
    return read_resources(cubin_path)


def _resources(cubin: bytes) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return largest(read_resources(Path(file.name)))


_TEXTS = ("prefix", "source_hash", "cubin_sha256", "object_sha256", "dsl_version", "variant")


def _from_meta(meta: dict[str, Any], directory: Path) -> CompiledKernel:
    """Raises ``KeyError``, ``TypeError`` or ``ValueError`` for what ``build`` does not write."""
    fields = {field.name for field in dataclasses.fields(CompiledKernel)}
    values = {name: value for name, value in meta.items() if name in fields - {"directory", "foreign"}}
    if not all(isinstance(values[name], str) for name in _TEXTS):
        raise TypeError(f"{', '.join(_TEXTS)} must be text")
    values["arguments"] = tuple(Argument(**argument) for argument in meta["arguments"])
    values["resources"] = Resources(**meta["resources"])
    return CompiledKernel(directory=directory, **values)
