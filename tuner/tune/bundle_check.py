"""``bundle --check``: the card's check on every bundled object that nobody judged, and the evidence into the index.

An object of another dtype than its row's, or of the largest rank, was compiled and never launched. Each is judged in
the card's worker, which may be killed, as the winner of a tune is: the problem and ragged ones, fresh operands, many
launches. The index is written after every object, so that an interruption loses one at most.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

from kernel_space.core.arch import Arch
from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath
from kernel_space.core.registry import parse_config
from kernel_space.places import COMMAND
from tuner.card.card_worker import CandidateFault, CardLost
from tuner.card.ragged import ragged_of_object
from tuner.card.worker.candidate import Loadable
from tuner.card.worker.check import CHECK_VERSION, CaseReport
from tuner.devices.card import CudaDevice
from tuner.files.store import atomic_write, locked
from tuner.tables.bundle import INDEX, Bundle, Entry, render_index
from tuner.tables.card_check import CardCheck
from tuner.trials.outcome import Status

NO_VERDICT = (Status.TIMED_OUT, Status.WORKER_LOST)  # says nothing about the object: ask again

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckedBundle:
    """``passed`` now, ``known`` from before; ``failed`` with the reason, of which ``removed`` are bundled no more."""

    passed: tuple[Entry, ...]
    known: tuple[Entry, ...]
    failed: tuple[tuple[Entry, str], ...]
    removed: tuple[Entry, ...]


def check_bundle(folder: AnyPath, arch: Arch, device: CudaDevice, *, say: Say) -> CheckedBundle:
    """Judge what lacks evidence of today's check in ``folder``, the objects of one device's table, on ``device``.

    What the check refutes is removed from the index, and its file; what a broken worker or file left without a verdict
    stays as it is. Raises ``CardLost`` when the card fails, ``InputError`` for a damaged index.
    """
    folder = Path(folder)
    bundle = Bundle.load(folder, arch)
    here = [entry for entry in bundle.entries if entry.host == platform.machine()]
    known = tuple(entry for entry in here if is_judged(entry))
    passed, failed, removed = [], [], []
    for entry in here:
        if entry in known:
            continue
        try:
            judged = dataclasses.replace(entry, checked=_check(bundle, entry, device))
        except CandidateFault as fault:
            failed.append((entry, f"{fault.status}: {fault}"))
            if fault.status not in NO_VERDICT:
                removed.append(entry)
                _replace(folder, arch, entry, None)
        except CardLost:
            raise
        except InputError as error:  # the file, or how it would be launched
            failed.append((entry, str(error)))
        else:
            passed.append(judged)
            _replace(folder, arch, entry, judged)
            say(f"{entry.problem} ({entry.problem_class}): {judged.checked}")
    return CheckedBundle(passed=tuple(passed), known=known, failed=tuple(failed), removed=tuple(removed))


def is_judged(entry: Entry) -> bool:
    return entry.checked is not None and entry.checked.version == CHECK_VERSION


def _check(bundle: Bundle, entry: Entry, device: CudaDevice) -> CardCheck:
    """Raises ``CandidateFault``, ``CardLost``, and ``InputError`` when the object cannot be launched as it is."""
    config, problem = parse_config(entry.op, bundle.arch, entry.config), entry.problem
    file = bundle.find(config, problem)
    if file is None:
        raise InputError(f"no kernel of today has the config {entry.config}; run {COMMAND} bundle again")
    file.read()
    candidate = Loadable.of_bundled(file, config)
    ragged = ragged_of_object(config, problem, bundle.arch)
    reports = device.check_object(candidate, config, [problem, *ragged])
    return _evidence(reports, device)


def _evidence(reports: Sequence[CaseReport], device: CudaDevice) -> CardCheck:
    health = device.worker.health
    return CardCheck(
        card=health.name,
        driver=health.driver,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        version=CHECK_VERSION,
        problems=tuple(report.problem for report in reports),
        launches=min(report.launches for report in reports),
        worst=round(max(report.max_ratio for report in reports), 4),
    )


def _replace(folder: Path, arch: Arch, entry: Entry, judged: Entry | None) -> None:
    """In the index as it is now, ``judged`` in place of ``entry``; None: without it, and without a file nobody uses."""
    with locked(folder / INDEX):
        there = Bundle.load(folder, arch)
        entries = [one for one in there.entries if one != entry]
        if judged is not None:
            entries.append(judged)
        atomic_write(folder / INDEX, render_index(entries, there.foreign))
        if judged is None and entry.file not in {one.file for one in entries}:
            (folder / entry.file).unlink(missing_ok=True)
