"""What a simulated time depends on besides the kernel, as one hash; imports nothing that is slow to import.

What a kernel states of itself (``core.traits``) is part of ``kernel_space.check.version`` of its operator.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Final

from kernel_space.build.source_facts import identity

_ROOT: Final = Path(__file__).resolve().parents[3]
_MODULES: Final = (
    "kernel_space/core/arch.py",
    "kernel_space/launch/capture.py",
    "kernel_space/launch/loading.py",
    "kernel_space/launch/tensor_map.py",
    "tuner/simulated/constants/clock.py",
    "tuner/simulated/constants/sets.py",
    "tuner/simulated/time.py",
)
SETS_FILE: Final = Path(__file__).with_name("clock_sets.json")
CALIBRATIONS: Final = Path(__file__).with_name(
    "clock_calibrations"
)  # a file per arch, by ``tune.py calibrate``


def machine_files() -> list[Path]:
    """Sources of the clocked machine: what turns constants and PTX into cycles and microseconds."""
    machine = (_ROOT / "kernel_space" / "machine").rglob("*.py")
    return [*sorted(machine), *(_ROOT / name for name in _MODULES)]


@functools.cache
def machine_hash() -> str:
    """Changes with the code of anything that computes a simulated time, whether or not the time changes."""
    return identity(path.read_bytes() for path in machine_files())[:16]


@functools.cache
def simulation_hash() -> str:
    """Changes with anything that simulated times depend on besides the kernel: code, sets of constants, and what
    measured times have said about them."""
    digest = hashlib.sha256(machine_hash().encode())
    for path in (SETS_FILE, *sorted(CALIBRATIONS.glob("*.json"))):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
