"""The one place that imports the CuTe DSL for modules outside ``kernels/``, and what steers its compiler from outside.

Environment variables such as ``CUTE_DSL_COMPILER_OPT=opt-level=0`` or ``CUTE_DSL_LINEINFO=1`` change the cubin. They
are no part of a candidate, so they are no part of its build key either: they are taken out before the DSL sees them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from kernel_space.core.errors import InputError
from kernel_space.places import COMMAND

# What the DSL and the compilers in its library read; 4.8.1 has no others that change a cubin (docs/build.md).
_STEERING = (
    "CUTE_DSL_",
    "CUTE_EXPERIMENTAL_DSL_",
    "CUTLASS_",
    "LIBNVVM_",
    "NVVM_",
    "PTXAS_",
    "LLVM_OVERRIDE_",
)
# Of the DSL's own: where it logs and keeps files, how it words errors, and the default architecture, which every
# compilation replaces by its own.
_HARMLESS = (
    "ARCH",
    "CACHE_DIR",
    "FILTER_STACKTRACE",
    "JIT_TIME_PROFILING",
    "LOG_LEVEL",
    "LOG_TO_CONSOLE",
    "LOG_TO_FILE",
    "SHOW_STACKTRACE",
)
_KEPT = frozenset(f"{prefix}{name}" for prefix in _STEERING[:2] for name in _HARMLESS)


def clean_environment() -> list[str]:
    """Take out of this process's environment, and so of its children's, what would change a cubin; their names.

    One line on stderr names them.
    """
    found = sorted(name for name in os.environ if name.startswith(_STEERING) and name not in _KEPT)
    for name in found:
        del os.environ[name]
    if found:
        print(
            f"ignored, as it would change what is compiled: {', '.join(found)}", file=sys.stderr, flush=True
        )
    return found


def import_dsl(arch_name: str) -> Any:
    """``cutlass.cute``, imported with an architecture set: without one the DSL asks a GPU driver on import.

    The first import of a process decides the default; a compilation names its own with ``--gpu-arch``. The environment
    is cleaned before. Raises ``InputError`` where it is not installed.
    """
    clean_environment()
    os.environ.setdefault("CUTE_DSL_ARCH", arch_name)
    try:
        import cutlass.cute as cute
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "cutlass":
            raise
        raise InputError(
            "this needs the CuTe DSL, which is not installed here: pip install 'svdquant-tune[tune]', or do this part "
            "on a machine that has it (docs/gpu.md)"
        ) from error

    return cute


def refuse_steered() -> None:
    """Raise ``InputError`` if this process's DSL was imported, by somebody else, with a setting that changes a cubin.

    The DSL reads its environment once, when it is imported; cleaning it afterwards changes nothing.
    """
    from cutlass.cutlass_dsl import CuTeDSL

    settings = CuTeDSL._get_dsl().envar
    steered = [
        f"{settings.prefix}_{entry.source}={value}"
        for entry in settings._ENV_VAR_SPEC
        if entry.affects_compile and isinstance(entry.source, str) and entry.source not in _HARMLESS
        if (value := getattr(settings, entry.attribute)) != _default(entry, settings)
    ]
    if steered:
        raise InputError(
            f"the CuTe DSL must compile with its default settings, this process imported it with {', '.join(steered)}; "
            f"unset that and start the process again, or compile beforehand with {COMMAND} bundle"
        )


def _default(entry: Any, settings: Any) -> Any:
    return entry.default(settings) if callable(entry.default) else entry.default


@contextlib.contextmanager
def mlir_for(arch_name: str) -> Iterator[None]:
    """An MLIR context and module to build layouts in, outside a compilation, as if for ``arch_name``.

    MMA operations check the architecture they are built for, which outside a compilation is the process's default:
    it is exchanged for the time of the block.
    """
    import_dsl(arch_name)
    from cutlass._mlir import ir
    from cutlass.base_dsl.dsl import BaseDSL

    environment = BaseDSL._get_dsl().envar
    default, environment.arch = environment.arch, arch_name
    try:
        with ir.Context(), ir.Location.unknown():
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                yield
    finally:
        environment.arch = default
