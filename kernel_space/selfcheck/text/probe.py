"""A probe: one PTX kernel, the bytes it reads, and the bytes it must leave behind on every executor."""

from __future__ import annotations

import dataclasses
import hashlib
from enum import StrEnum


class Target(StrEnum):
    """Oldest architecture that a probe runs on. Programs for SM90 also run on later cards, SM100A only on 10.0."""

    SM90 = "sm_90"
    SM100A = "sm_100a"


class Ending(StrEnum):
    """How a run ended."""

    BYTES = "bytes"  # the grid completed; the output buffer counts
    FAULT = "fault"  # illegal instruction, illegal or misaligned address
    HANG = "hang"  # ran past its time limit
    REFUSED = "refused"  # the driver did not take the program or its tensor map
    UNSUPPORTED = "unsupported"  # the machine does not model it and says so
    CRASH = "crash"  # the machine itself failed: a defect in it


@dataclasses.dataclass(frozen=True, kw_only=True)
class MapSpec:
    """A tensor map over the probe's input or output buffer. Tuples start with the contiguous dimension.

    ``dtype``     name of the driver's CU_TENSOR_MAP_DATA_TYPE without the prefix, in lower case
    ``dims``, ``box``, ``element_strides``  elements; ``strides`` bytes, one entry fewer
    ``offset``    bytes from the start of the buffer, a multiple of 16
    ``swizzle``   0, 32, 64, 128, or "128_atom_32", "128_atom_32_flip_8", "128_atom_64"
    """

    buffer: str
    dtype: str
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...] = ()
    offset: int = 0
    swizzle: int | str = 0
    interleave: int = 0
    oob_nan: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """One program and its launch.

    The kernel ``probe`` takes the address of the input buffer, of the output buffer, and the tensor maps in order.

    ``name``       dotted, unique: ``tma_load.swizzle_128.u8``
    ``asks``       the question the bytes answer, one line
    ``inputs``     contents of the input buffer
    ``output``     contents of the output buffer before the run; its length is what comes back
    ``item_bytes`` (input, output) bytes of one item where item i of the output depends on item i of the input
                   only, so that a difference can name its operands; (0, 0) otherwise
    ``ulp``        0: bytes must be equal. Else the outputs are f32 and may differ by so many units in the last
                   place, the error that the ISA documents for an approximate instruction
    ``in_vain``    some thread gives up waiting after a time: the outcome needs a fair schedule
    ``race_free``  False: the program races on purpose, in a way that cannot change its bytes
    """

    name: str
    asks: str
    ptx: str
    inputs: bytes
    output: bytes
    target: Target = Target.SM90
    grid: int = 1
    cluster: int = 1
    block: int = 32
    smem_bytes: int = 0
    maps: tuple[MapSpec, ...] = ()
    item_bytes: tuple[int, int] = (0, 0)
    ulp: int = 0
    race_free: bool = True
    in_vain: bool = False

    @property
    def digest(self) -> str:
        """Identity of everything that decides the outcome: program, launch, data."""
        launch = (self.target, self.grid, self.cluster, self.block, self.smem_bytes, self.maps)
        text = f"{self.ptx}\0{launch}\0{self.inputs.hex()}\0{self.output.hex()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def topic(self) -> str:
        return self.name.partition(".")[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """What one executor made of a probe. ``descriptors``: first 64 bytes of each tensor map, address words zeroed."""

    ending: Ending
    data: bytes = b""
    detail: str = ""
    descriptors: tuple[bytes, ...] = ()


def seeded_bytes(seed: str, count: int) -> bytes:
    """``count`` bytes that depend on ``seed`` alone, on every machine and library version."""
    return hashlib.shake_128(seed.encode()).digest(count)
