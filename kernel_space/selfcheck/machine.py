"""The second executor of probes: the PTX machine."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np

from kernel_space.capture import Launch
from kernel_space.selfcheck.probe import Ending, Probe, Result
from kernel_space.selfcheck.tensor_maps import encode

_ALIGNMENT = 256  # of cuMemAlloc
_BUDGET = 20_000_000


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Bytes at an aligned address of this process."""

    bytes: np.ndarray

    @classmethod
    def of(cls, data: bytes) -> Buffer:
        room = np.zeros(len(data) + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        view = room[start : start + len(data)]
        view[:] = np.frombuffer(data, np.uint8)
        return cls(view)

    @property
    def address(self) -> int:
        return self.bytes.ctypes.data


def run_in_machine(probe: Probe, *, schedule: str = "eager", seed: int = 0) -> Result:
    """Execute ``probe`` in the machine, races checked. A race or any other finding ends as FAULT with its text."""
    from kernel_space.sim.faults import SimStatus
    from kernel_space.sim.global_memory import GlobalMemory
    from kernel_space.sim.run import run_launch

    source, target = Buffer.of(probe.inputs), Buffer.of(probe.output)
    memory = GlobalMemory()
    memory.add(source.address, len(probe.inputs), "in")
    memory.add(target.address, len(probe.output), "out")
    launch = _launch(probe, source, target)
    options = {
        "schedule": schedule,
        "seed": seed,
        "check_races": probe.race_free,
        "max_instructions": _BUDGET,
    }
    try:
        with np.errstate(all="ignore"):
            outcome = run_launch(launch, probe.ptx, memory, **options)
    except Exception as error:  # a defect of the machine must not hide the probes behind it
        return Result(ending=Ending.CRASH, detail=f"{type(error).__name__}: {error}")
    endings = {SimStatus.OK: Ending.BYTES, SimStatus.UNSUPPORTED: Ending.UNSUPPORTED, SimStatus.DEADLOCK: Ending.HANG,
               SimStatus.BUDGET_EXCEEDED: Ending.HANG}  # fmt: skip
    ending = endings.get(outcome.status, Ending.FAULT)
    detail = "; ".join(str(finding) for finding in outcome.findings)
    return Result(
        ending=ending, data=target.bytes.tobytes() if ending is Ending.BYTES else b"", detail=detail
    )


def _launch(probe: Probe, source: Buffer, target: Buffer) -> Launch:
    addresses = {"in": source.address, "out": target.address}
    maps = [encode(spec, addresses[spec.buffer]) for spec in probe.maps]
    params = [struct.pack("<Q", address) for address in addresses.values()] + maps
    return Launch(
        kernel_name="probe",
        grid=(probe.grid, 1, 1),
        cluster=(probe.cluster, 1, 1),
        block=(probe.block, 1, 1),
        smem_bytes=probe.smem_bytes,
        params=tuple(params),
        tensor_maps={},
        attributes={},
        stream=0,
    )


def descriptors(probe: Probe) -> tuple[bytes, ...]:
    """First 64 bytes of every tensor map as this project encodes it, the address words zeroed."""
    return tuple(bytes(8) + encode(spec, 0)[8:64] for spec in probe.maps)
