"""Have the clocked machine's answers changed since its sets of constants were chosen?

The sets agree with published times *as the machine computes them*. Two compiled kernels of this project are kept with
their launches (``clock_witness.json.gz``); their cycles under the first sets were stored when the sets were chosen. A
change of the machine's sources that leaves these cycles alone leaves the sets as good as they were.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from kernel_space.launch.capture import Launch
from kernel_space.launch.tensor_map import decode_tensor_map
from kernel_space.machine.clock.clock import Clock
from kernel_space.machine.clock.estimate import simulate_launch
from kernel_space.machine.values.faults import Fault, Unsupported
from tuner.files.store import atomic_write

STORED: Final = Path(__file__).with_name("clock_witness.json.gz")
SETS: Final = 4  # cycles are kept under so many sets, the nominal one first
TOLERANCE: Final = 1e-4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Witness:
    """One launch as ``simulate_launch`` takes it, from a cold L2."""

    name: str
    ptx: str
    launch: Launch
    sm_count: int
    places: int
    map_names: Mapping[int, str]
    atomic_results: tuple[int, ...]

    def cycles(self, clock: Clock) -> list[float]:
        run = simulate_launch(
            self.launch, self.ptx, clock, sm_count=self.sm_count, places=self.places, cold=True,
            map_names=dict(self.map_names), atomic_results=self.atomic_results,
        )  # fmt: skip
        return [float(f"{cycles:.7g}") for cycles in run.cycles]


def store(witnesses: Sequence[Witness], path: Path = STORED) -> None:
    text = json.dumps([_record(witness) for witness in witnesses], indent=1)
    atomic_write(path, gzip.compress(text.encode(), mtime=0))


def load(path: Path = STORED) -> list[Witness]:
    return [_witness(record) for record in json.loads(gzip.decompress(path.read_bytes()))]


def cycles_of(witnesses: Sequence[Witness], clock: Clock) -> dict[str, list[float]]:
    """Name -> cycles under each set of ``clock``; what is stored beside the sets."""
    return {witness.name: witness.cycles(clock) for witness in witnesses}


def changes(stored: Mapping[str, Sequence[float]], clock: Clock, path: Path = STORED) -> str:
    """What differs from the ``stored`` cycles, in one line; empty if nothing does."""
    found = []
    for witness in load(path):
        before = stored.get(witness.name)
        try:
            now = witness.cycles(clock)
        except (Fault, Unsupported) as error:
            found.append(f"{witness.name} does not run any more ({error})")
            continue
        if before is None or not np.allclose(now, before, rtol=TOLERANCE, atol=0.0):
            was = "no cycles" if not before else f"{before[0]:.0f} cycles"
            found.append(f"{witness.name} took {was}, now {now[0]:.0f}")
    return "; ".join(found)


def _record(witness: Witness) -> dict[str, Any]:
    launch = witness.launch
    return {
        "name": witness.name,
        "kernel": launch.kernel_name,
        "grid": launch.grid,
        "cluster": launch.cluster,
        "block": launch.block,
        "smem_bytes": launch.smem_bytes,
        "params": [data.hex() for data in launch.params],
        "maps": {str(index): witness.map_names[index] for index in launch.tensor_maps},
        "sm_count": witness.sm_count,
        "places": witness.places,
        "atomic_results": witness.atomic_results,
        "ptx": witness.ptx.split("\n"),
    }


def _witness(record: dict[str, Any]) -> Witness:
    params = tuple(bytes.fromhex(text) for text in record["params"])
    names = {int(index): name for index, name in record["maps"].items()}
    launch = Launch(
        kernel_name=record["kernel"],
        grid=tuple(record["grid"]),
        cluster=tuple(record["cluster"]),
        block=tuple(record["block"]),
        smem_bytes=record["smem_bytes"],
        params=params,
        tensor_maps={index: decode_tensor_map(params[index]) for index in names},
        attributes={},
        stream=0,
    )
    return Witness(
        name=record["name"],
        ptx="\n".join(record["ptx"]),
        launch=launch,
        sm_count=record["sm_count"],
        places=record["places"],
        map_names=names,
        atomic_results=tuple(record["atomic_results"]),
    )
