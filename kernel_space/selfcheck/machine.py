"""The second executor of probes: the PTX machine."""

from __future__ import annotations

import dataclasses

import numpy as np

from kernel_space.selfcheck.text.probe import Ending, Probe, Result
from kernel_space.selfcheck.text.tensor_maps import encode

_ALIGNMENT = 256  # of cuMemAlloc
_BUDGET = 20_000_000
# SimStatus -> how a run with that verdict ended; every other verdict is a fault of the program
_ENDINGS = {
    "OK": Ending.BYTES,
    "UNSUPPORTED": Ending.UNSUPPORTED,
    "DEADLOCK": Ending.HANG,
    "BUDGET_EXCEEDED": Ending.HANG,
}


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Bytes at an aligned address of this process."""

    room: np.ndarray

    @classmethod
    def of(cls, data: bytes) -> Buffer:
        room = np.zeros(len(data) + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        view = room[start : start + len(data)]
        view[:] = np.frombuffer(data, np.uint8)
        return cls(view)

    @property
    def address(self) -> int:
        return self.room.ctypes.data


def run_in_machine(probe: Probe, *, schedule: str = "eager", seed: int = 0) -> Result:
    """Execute ``probe`` in the machine, races checked. A race or any other finding ends as FAULT with its text."""
    from kernel_space.machine.run.run import run_ptx

    source, target = Buffer.of(probe.inputs), Buffer.of(probe.output)
    addresses = {"in": source.address, "out": target.address}
    maps = [encode(spec, addresses[spec.buffer]) for spec in probe.maps]
    try:
        with np.errstate(all="ignore"):
            outcome = run_ptx(
                probe.ptx, source.room, target.room, *maps, grid=(probe.grid, 1, 1), block=(probe.block, 1, 1),
                cluster=(probe.cluster, 1, 1), smem_bytes=probe.smem_bytes, schedule=schedule, seed=seed,
                check_races=probe.race_free, max_instructions=_BUDGET,
            )  # fmt: skip
    except Exception as error:  # a defect of the machine must not hide the probes behind it
        return Result(ending=Ending.CRASH, detail=f"{type(error).__name__}: {error}")
    ending = _ENDINGS.get(str(outcome.status), Ending.FAULT)
    detail = " ".join("; ".join(str(finding) for finding in outcome.findings).split())
    return Result(ending=ending, data=target.room.tobytes() if ending is Ending.BYTES else b"", detail=detail)


def descriptors(probe: Probe) -> tuple[bytes, ...]:
    """First 64 bytes of every tensor map as this project encodes it, the address words zeroed."""
    return tuple(bytes(8) + encode(spec, 0)[8:64] for spec in probe.maps)
