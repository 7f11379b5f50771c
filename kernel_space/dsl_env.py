"""The one place that imports the CuTe DSL for modules outside ``kernels/``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any


def import_dsl(arch_name: str) -> Any:
    """``cutlass.cute``, imported with an architecture set: without one the DSL asks a GPU driver on import.

    The first import of a process decides the default; a compilation names its own with ``--gpu-arch``.
    """
    os.environ.setdefault("CUTE_DSL_ARCH", arch_name)
    import cutlass.cute as cute

    return cute


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
