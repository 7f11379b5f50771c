"""The one place that imports the CuTe DSL for modules outside ``kernels/``."""

from __future__ import annotations

import os
from typing import Any


def import_dsl(arch_name: str) -> Any:
    """``cutlass.cute``, imported with an architecture set: without one the DSL asks a GPU driver on import.

    The first import of a process decides the default; a compilation names its own with ``--gpu-arch``.
    """
    os.environ.setdefault("CUTE_DSL_ARCH", arch_name)
    import cutlass.cute as cute

    return cute
