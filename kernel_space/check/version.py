"""What a verdict of ``validate.py`` depends on, as one hash; imports nothing that is slow to import."""

from __future__ import annotations

import functools
from pathlib import Path

from kernel_space.core.source_identity import identity


@functools.cache
def check_version() -> str:
    """Hash of all that a verdict depends on besides kernel, problem and seed: machine, reference, ``validate*.py``."""
    here = Path(__file__).parent
    machine = [path for path in (here / "sim").glob("*.py") if not path.name.startswith("mutat")]
    parts = [*sorted(machine), *sorted(here.glob("validate*.py"))]
    names = (
        "reference",
        "output_check",
        "operands",
        "full_range",
        "nvfp4",
        "inputs",
        "tiles",
        "workspace",
        "capture",
    )
    parts += [here / f"{name}.py" for name in names]
    return identity(path.read_bytes() for path in parts)[:16]
