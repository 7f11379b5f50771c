"""What a verdict of ``validate.py`` depends on, as one hash; imports nothing that is slow to import."""

from __future__ import annotations

import functools
from pathlib import Path

from kernel_space.build.source_identity import identity

_MODULES = (
    "check/memory.py",
    "check/problem.py",
    "check/regions.py",
    "check/validate.py",
    "core/nvfp4.py",
    "core/tiles.py",
    "launch/capture.py",
    "operators/svdquant_gemm/full_range.py",
    "operators/svdquant_gemm/inputs.py",
    "operators/svdquant_gemm/operands.py",
    "operators/svdquant_gemm/output_check.py",
    "operators/svdquant_gemm/reference.py",
    "operators/svdquant_gemm/workspace.py",
)


@functools.cache
def check_version() -> str:
    """Hash of all that a verdict depends on besides kernel, problem and seed: machine, reference, ``validate*.py``."""
    root = Path(__file__).resolve().parents[1]
    machine = [path for path in (root / "machine").rglob("*.py") if path.parent.name != "clock"]
    return identity(path.read_bytes() for path in (*machine, *(root / name for name in _MODULES)))[:16]
