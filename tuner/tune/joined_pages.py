"""Pages of a merge: where both sides have trials of a problem, the page shows those of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kernel_space.core.plain_files import AnyPath, below
from tuner.devices.device import Device
from tuner.report.write import read_facts, read_trials, report_folder
from tuner.search.trial_of import utc_now
from tuner.stages.report import recorded_provenance, write_sweep
from tuner.tables.row import Row
from tuner.trials.outcome import NEVER_COMPILED, Trial
from tuner.trials.renewed import JOINED, renewed
from tuner.tune.earlier import supersedes

TRIALS = "trials.parquet"


def has_others(ours: Path, theirs: Path) -> bool:
    """Has the first table of trials candidates that the second lacks? Raises ``InputError`` for what is no table."""
    if not (ours.is_file() and theirs.is_file()):
        return False
    mine, yours = (
        {trial.resolved for trial in read_trials(path) if trial.resolved} for path in (ours, theirs)
    )
    return bool(mine - yours)


def join_page(out: AnyPath, device: Device, row: Row, theirs: Sequence[Trial]) -> bool:
    """Add what the page of ``row``'s problem below ``out`` lacks of ``theirs``; ``row`` is the one that stands. Whether
    there was anything. Raises ``InputError`` and ``StoreError``."""
    problem = row.key.problem
    path = below(report_folder(out, device.name, problem), TRIALS)
    ours = read_trials(path)
    both = joined(ours, theirs)
    if both == ours:
        return False
    candidates = [trial for trial in both if trial.status not in NEVER_COMPILED]
    news = sum(trial not in ours for trial in candidates)
    told = f"{news} of {len(candidates)} candidates are of results that were merged on {utc_now()}"
    write_sweep(
        out,
        problem,
        device,
        both,
        facts={JOINED: told},
        provenance=recorded_provenance(both),
        earlier=read_facts(path),
        row=row,
    )
    return True


def joined(ours: Sequence[Trial], theirs: Iterable[Trial]) -> list[Trial]:
    """Each candidate once, by its resolved config; of two trials the one that stands (``earlier.supersedes``), in the
    place of ours. Then the others of theirs, with the points that only their search rejected, by config."""
    known = {trial.resolved: trial for trial in ours if trial.resolved}
    rejected = {trial.config for trial in ours if not trial.resolved}
    found, points = {}, []
    for trial in theirs:
        if not trial.resolved:
            points += [trial] if trial.config not in rejected else []
        elif trial.resolved not in known or supersedes(trial, known[trial.resolved]):
            found[trial.resolved] = trial
    return [*renewed(ours, found), *points]
