"""The file that ``tune.py calibrate`` leaves: sets of constants that reproduce measured times of one kind of chip.

It takes the place of the published sets for that arch (``clock_sets.admissible_sets``) and is part of the hash of
everything simulated. It belongs to one pool of sets and one machine: others refuse it with a line that says what to do.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from kernel_space.core.arch import Arch
from kernel_space.core.errors import InputError
from kernel_space.places import COMMAND
from tuner.files.store import atomic_write, make_folder
from tuner.simulated.constants import witness as clock_witness
from tuner.simulated.constants.hash import machine_hash
from tuner.simulated.constants.sets import ConstantSets, calibration_file, printed, stored_document


def write_calibration(
    arch: Arch, sets: ConstantSets, evidence: dict[str, Any], path: Path | None = None
) -> Path:
    """Store ``sets`` with what they were chosen by. Raises ``StoreError``."""
    path = path or calibration_file(arch)
    first = sets.take(range(min(clock_witness.SETS, sets.count)))
    document = {
        "arch": arch.name,
        "pool": pool_hash(),
        "machine": machine_hash(),
        "evidence": evidence,
        "discrepancy": round(sets.discrepancy, 4),
        "about": sets.about,
        "witness": clock_witness.cycles_of(clock_witness.load(), first.clock),
        "values": printed(sets),
    }
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in document.items())
    make_folder(path.parent)
    atomic_write(path, f"{{\n{lines}\n}}\n")
    return path


def calibrated_sets(arch: Arch, path: Path | None = None) -> ConstantSets:
    """The sets of the file. Raises ``InputError`` when it is damaged, or belongs to other sets or another machine."""
    path = path or calibration_file(arch)
    again = f"run {COMMAND} calibrate again, or remove the file"
    try:
        document = json.loads(path.read_text())
        values = {name: np.array(items, float) for name, items in document["values"].items()}
        sets = ConstantSets(values, float(document["discrepancy"]), document["about"])
        chosen_by = (document["arch"], document["pool"], document["machine"], document["witness"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path} is no calibration ({type(error).__name__}: {error}); {again}") from None
    of_arch, pool, machine, witness = chosen_by
    if (of_arch, pool) != (arch.name, pool_hash()):
        raise InputError(f"{path} was chosen from other sets of constants; {again}")
    if machine != machine_hash():
        first = sets.take(range(min(clock_witness.SETS, sets.count)))
        if changed := clock_witness.changes(witness, first.clock):
            raise InputError(f"{path} was made with a machine that answers otherwise ({changed}); {again}")
    return sets


def pool_hash() -> str:
    """Changes with the table of constants and with which sets of the draw agree with what was published."""
    document = stored_document()
    text = json.dumps([document["table"], document["pool"]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
