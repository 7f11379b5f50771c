"""Sets of machine constants: drawn inside the bounds of the table, and those that agree with what was published.

``admissible_sets`` are what predictions are made with. They were found by ``benchmarks/calibrate_clock.py`` and are
stored as numbers with a hash of the table they were drawn from: a changed bound makes them stale, and a test says so.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from pathlib import Path
from typing import Final

import numpy as np
from scipy.stats import qmc

from kernel_space.arch import SM100A, Arch
from kernel_space.errors import InputError
from kernel_space.sim.timed.clock import Clock, Times
from tuner.clock_constants import make_clock, records_of

STORED: Final = Path(__file__).with_name("clock_sets.json")


@dataclasses.dataclass(frozen=True)
class ConstantSets:
    """``values``: name -> float64 [sets]; entry 0 is the nominal set.

    ``discrepancy``: what the machine gets wrong whatever its constants: the median leave-one-out error on the
    published GEMM times, as a share. Intervals are widened by it; orders are not affected.
    """

    values: dict[str, Times]
    discrepancy: float = 0.0

    @property
    def count(self) -> int:
        return len(next(iter(self.values.values())))

    @functools.cached_property
    def clock(self) -> Clock:
        return make_clock(self.values)

    def take(self, chosen: list[int]) -> ConstantSets:
        return dataclasses.replace(
            self, values={name: values[chosen] for name, values in self.values.items()}
        )

    def microseconds(self, cycles: Times) -> Times:
        return cycles / self.values["clock_ghz"] / 1e3


def draw_sets(arch: Arch, count: int, *, seed: int = 0) -> ConstantSets:
    """The nominal set and ``count - 1`` points of a scrambled Sobol sequence inside the bounds of the table."""
    records = records_of(arch)
    points = qmc.Sobol(d=len(records), scramble=True, seed=seed).random(count)
    values = {}
    for column, (name, record) in enumerate(records.items()):
        drawn = record.low + points[:, column] * (record.high - record.low)
        drawn[0] = record.value
        values[name] = drawn
    return ConstantSets(values)


def table_hash(arch: Arch = SM100A) -> str:
    """Changes with every value and bound that sets are drawn from."""
    table = {
        name: (record.value, record.low, record.high) for name, record in sorted(records_of(arch).items())
    }
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]


def store_sets(sets: ConstantSets, evidence: dict[str, str], path: Path = STORED) -> None:
    document = {
        "table": table_hash(),
        "evidence": evidence,
        "discrepancy": round(sets.discrepancy, 4),
        "values": {name: [float(f"{value:.6g}") for value in values] for name, values in sets.values.items()},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


@functools.cache
def admissible_sets(arch: Arch = SM100A) -> ConstantSets:
    """The sets that agree with what was published; for other chips than B200 with their own clock frequencies.

    Raises ``InputError`` when they were drawn from another table.
    """
    document = json.loads(STORED.read_text())
    if document["table"] != table_hash():
        raise InputError(
            f"{STORED.name} belongs to another table of constants; run benchmarks.calibrate_clock"
        )
    values = {name: np.array(items) for name, items in document["values"].items()}
    base, own = records_of(SM100A), records_of(arch)
    for name, record in own.items():
        if record != base[name]:
            share = (values[name] - base[name].low) / (base[name].high - base[name].low)
            values[name] = record.low + share * (record.high - record.low)
    return ConstantSets(values, document["discrepancy"])
