"""Arch records: every hardware number once, with unit and source."""

from __future__ import annotations

import dataclasses

from kernel_space.core.errors import InputError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arch:
    """One GPU architecture the kernels are compiled for.

    ``smem_capacity``: dynamic shared memory one CTA may request, bytes (CUDA programming guide, table of
    technical specifications: 227 KB for 9.0, 10.0 and 10.3).
    ``tmem_columns``: 32-bit columns of tensor memory per SM (PTX ISA, tcgen05); 0 = no tensor memory.
    ``compute_capability``: what ``cudaDeviceProp`` reports.
    """

    name: str
    compute_capability: tuple[int, int]
    smem_capacity: int
    tmem_columns: int


SMEM_CAPACITY = 227 * 1024

SM100A = Arch(
    name="sm_100a",
    compute_capability=(10, 0),
    smem_capacity=SMEM_CAPACITY,
    tmem_columns=512,
)
SM103A = dataclasses.replace(SM100A, name="sm_103a", compute_capability=(10, 3))
SM90A = Arch(
    name="sm_90a",
    compute_capability=(9, 0),
    smem_capacity=SMEM_CAPACITY,
    tmem_columns=0,
)

ARCHS = {arch.name: arch for arch in (SM100A, SM103A, SM90A)}


def arch(name: str) -> Arch:
    """The record of ``name``. Raises ``InputError`` for one the project does not know."""
    if name not in ARCHS:
        raise InputError(f"arch must be one of {', '.join(ARCHS)}, got {name!r}")
    return ARCHS[name]
