"""Sets of machine constants: drawn inside the bounds of the table, and those that agree with what was published.

``admissible_sets`` are what predictions are made with. They were found by ``benchmarks/calibrate_clock.py`` and are
stored as numbers with a hash of the table they were drawn from (a changed bound makes them an error), and with what the
machine answered when they were chosen (``clock_witness``: other answers put them in doubt, and every time says so).
``admissible_pool`` are all sets that agree, many more, from which ``calibrate`` chooses by measured times.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from scipy.stats import qmc

from kernel_space.core.arch import SM100A, Arch
from kernel_space.core.errors import InputError
from kernel_space.machine.clock.clock import Clock, Times
from kernel_space.machine.clock.constants import Constant
from tuner.files.store import atomic_write
from tuner.simulated.constants.clock import LATER, make_clock, records_of
from tuner.simulated.constants.hash import CALIBRATIONS, machine_hash

STORED: Final = Path(__file__).with_name("clock_sets.json")
RENEW: Final = "run python -m benchmarks.calibrate_clock (docs/timing.md)"


@dataclasses.dataclass(frozen=True)
class ConstantSets:
    """``values``: name -> float64 [sets]; entry 0 is the nominal set.

    ``discrepancy``: what the machine gets wrong whatever its constants: the median leave-one-out error on the times
    that chose the sets, as a share. Intervals are widened by it; orders are not affected. ``about``: which sets these
    are, in words that stand beside every time.
    """

    values: dict[str, Times]
    discrepancy: float = 0.0
    about: str = ""

    @property
    def count(self) -> int:
        return len(next(iter(self.values.values())))

    @functools.cached_property
    def clock(self) -> Clock:
        return make_clock(self.values)

    def take(self, chosen: Sequence[int] | np.ndarray) -> ConstantSets:
        at = np.asarray(chosen, int)
        return dataclasses.replace(self, values={name: values[at] for name, values in self.values.items()})

    def microseconds(self, cycles: Times) -> Times:
        return cycles / self.values["clock_ghz"] / 1e3


def draw_sets(arch: Arch, count: int, *, seed: int = 0) -> ConstantSets:
    """The nominal set and ``count - 1`` points of a scrambled Sobol sequence inside the bounds of the table; of another
    sequence for the ``LATER`` ones.
    """
    records = records_of(arch)
    earlier = {name: record for name, record in records.items() if name not in LATER}
    return ConstantSets(_drawn(earlier, count, seed) | _drawn(LATER, count, seed + 1))


def _drawn(records: dict[str, Constant], count: int, seed: int) -> dict[str, Times]:
    points = qmc.Sobol(d=len(records), scramble=True, seed=seed).random(count)
    values = {}
    for column, (name, record) in enumerate(records.items()):
        drawn = record.low + points[:, column] * (record.high - record.low)
        drawn[0] = record.value
        values[name] = drawn
    return values


def table_hash(arch: Arch = SM100A) -> str:
    """Changes with every value and bound that sets are drawn from."""
    table = {
        name: (record.value, record.low, record.high) for name, record in sorted(records_of(arch).items())
    }
    return hashlib.sha256(json.dumps(table).encode()).hexdigest()[:16]


def store_sets(
    drawn: ConstantSets,
    *,
    agreeing: Sequence[int],
    kept: Sequence[int],
    seed: int,
    witness: dict[str, list[float]],
    evidence: dict[str, str],
    path: Path = STORED,
) -> None:
    """``agreeing`` and ``kept``: numbers of the sets of ``drawn`` that agree, and those predictions are made with."""
    sets = _with_own_first(drawn.take(kept))
    document = {
        "table": table_hash(),
        "machine": machine_hash(),
        "evidence": evidence,
        "discrepancy": round(drawn.discrepancy, 4),
        "witness": witness,
        "values": printed(sets),
        "kept": [int(number) for number in kept],
        "pool": {"draws": drawn.count, "seed": seed, "members": [int(number) for number in agreeing]},
    }
    _write(document, path)


def kept_sets() -> ConstantSets:
    """The stored sets by today's table, which may have more ``LATER`` constants than they were stored with.

    Raises ``InputError`` when any other constant is drawn otherwise.
    """
    document = json.loads(STORED.read_text())
    pool = document["pool"]
    sets = _with_own_first(draw_sets(SM100A, pool["draws"], seed=pool["seed"]).take(document["kept"]))
    _same_draw(sets, {name: v for name, v in document["values"].items() if name not in LATER})
    return dataclasses.replace(sets, discrepancy=document["discrepancy"])


def _with_own_first(sets: ConstantSets) -> ConstantSets:
    """The first set fits the GEMMs best, which says nothing of the ``LATER`` constants: there it has the table's."""
    own = {name: np.concatenate([[record.value], sets.values[name][1:]]) for name, record in LATER.items()}
    return dataclasses.replace(sets, values=sets.values | own)


def _same_draw(sets: ConstantSets, stored: dict[str, list[float]]) -> None:
    for name, values in stored.items():
        if not np.allclose(sets.values[name], values, rtol=1e-5):
            raise InputError(f"the draw of {STORED.name} comes out otherwise here; {RENEW}")


def restate_sets(sets: ConstantSets, witness: dict[str, list[float]], path: Path = STORED) -> None:
    """Keep ``sets``, the ``kept_sets``, with what the machine of today answers."""
    document = json.loads(STORED.read_text())
    today = {"table": table_hash(), "machine": machine_hash(), "witness": witness, "values": printed(sets)}
    _write(document | today, path)


def _write(document: dict[str, Any], path: Path) -> None:
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in document.items())
    atomic_write(path, f"{{\n{lines}\n}}\n")


def printed(sets: ConstantSets) -> dict[str, list[float]]:
    """Six significant digits: far below what any of them is known to."""
    return {name: [float(f"{value:.6g}") for value in values] for name, values in sets.values.items()}


@functools.cache
def admissible_sets(arch: Arch = SM100A) -> ConstantSets:
    """The sets that agree with what was published, or with what was measured if there is a calibration; for other
    chips than B200 with their own clock frequencies.

    Raises ``InputError`` when they were drawn from another table, or calibrated with another machine.
    """
    if calibration_file(arch).exists():
        from tuner.simulated.constants.store import calibrated_sets

        return calibrated_sets(arch)
    document = stored_document()
    values = {name: np.array(items) for name, items in document["values"].items()}
    about = f"{len(values['clock_ghz'])} admissible sets"
    doubt = doubt_about_sets()
    return ConstantSets(
        for_arch(values, arch), document["discrepancy"], f"{about}; {doubt}" if doubt else about
    )


def calibration_file(arch: Arch) -> Path:
    """Where ``tune.py calibrate`` leaves what measured times of this kind of chip say about the constants."""
    return CALIBRATIONS / f"{arch.name}.json"


@functools.cache
def admissible_pool(arch: Arch = SM100A) -> ConstantSets:
    """Every set of the draw that agrees with what was published; the nominal set of ``admissible_sets`` is first.

    Raises ``InputError`` as ``admissible_sets``, and when the draw does not come out as it did.
    """
    document = stored_document()
    pool, kept = document["pool"], document["kept"]
    drawn = draw_sets(SM100A, pool["draws"], seed=pool["seed"])
    _same_draw(_with_own_first(drawn.take(kept)), document["values"])
    first = kept[0]
    members = [first, *(number for number in pool["members"] if number != first)]
    values = _with_own_first(drawn.take(members)).values
    return ConstantSets(for_arch(values, arch), document["discrepancy"], f"{len(members)} admissible sets")


def for_arch(values: dict[str, Times], arch: Arch) -> dict[str, Times]:
    """Sets of B200 constants at the same places within the bounds of another chip's table."""
    base, own = records_of(SM100A), records_of(arch)
    moved = {}
    for name, record in own.items():
        if record != base[name]:
            share = (values[name] - base[name].low) / (base[name].high - base[name].low)
            moved[name] = record.low + share * (record.high - record.low)
    return values | moved


@functools.cache
def stored_document() -> dict[str, Any]:
    """What ``store_sets`` wrote. Raises ``InputError`` when that was for another table of constants."""
    document = json.loads(STORED.read_text())
    if document["table"] != table_hash():
        raise InputError(f"{STORED.name} belongs to another table of constants; {RENEW}")
    return document


@functools.cache
def doubt_about_sets() -> str:
    """Why the stored sets may not be admissible any more, in one line; empty while the machine answers as it did."""
    document = stored_document()
    if document["machine"] == machine_hash():
        return ""
    from tuner.simulated.constants import witness as clock_witness

    values = {name: np.array(items)[: clock_witness.SETS] for name, items in document["values"].items()}
    changed = clock_witness.changes(document["witness"], ConstantSets(values).clock)
    return f"STALE, the machine answers otherwise since: {changed}; {RENEW}" if changed else ""
