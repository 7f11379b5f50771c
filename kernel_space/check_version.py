"""What a verdict of ``validate.py`` depends on, as one hash; imports nothing that is slow to import."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path


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
    digest = hashlib.sha256()
    for path in parts:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
