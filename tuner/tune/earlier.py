"""What earlier visits found of one problem: the best of them to look around, and what needs no second look.

Trials lie in ``trials.parquet`` beside the report of the visit whose row stands, and in the journals of all visits,
merged ones too.
"""

from __future__ import annotations

import dataclasses
import glob
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from kernel_space.build.key import kernel_source_hash
from kernel_space.core.config import kernel_name
from kernel_space.core.plain_files import AnyPath, below
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernels_of
from kernel_space.places import layers
from tuner.devices.device import Device
from tuner.report.write import report_folder
from tuner.stages.journal import STUDY_FOLDER
from tuner.trials.final_order import FINAL
from tuner.trials.journal_read import read_journal
from tuner.trials.outcome import TRANSIENT, Kind, Trial
from tuner.trials.parquet import read_trials
from tuner.trials.rank_stability import ranked


@dataclasses.dataclass(frozen=True, kw_only=True)
class Earlier:
    """``best``: configs, measured ones first, then simulated ones, the fastest of each first. ``known``: resolved
    configs that were measured or refused with today's sources of the kernel."""

    best: tuple[str, ...] = ()
    known: frozenset[str] = frozenset()


def earlier_visits(results: AnyPath, problem: Problem, device: Device) -> Earlier:
    """Raises ``InputError`` for damaged files."""
    visits = list(_visits(results, problem, device))
    latest: dict[str, Trial] = {}
    for trial in (trial for visit in visits for trial in visit):
        if trial.resolved not in latest or supersedes(trial, latest[trial.resolved]):
            latest[trial.resolved] = trial
    usable = [trial for trial in latest.values() if trial.ok]
    measured = sorted(
        (trial for trial in usable if trial.kind is Kind.MEASURED),
        key=lambda trial: (trial.us or 0.0, trial.number),
    )
    simulated = ranked(trial for trial in usable if trial.kind is Kind.SIMULATED)
    today = {kernel.name: kernel_source_hash(kernel) for kernel in kernels_of(problem.operator, device.arch)}
    return Earlier(
        # By time alone: the latest final may be of a visit that did not have the best of another one.
        best=tuple(trial.config for trial in (*measured, *simulated)),
        known=frozenset(name for visit in visits for name in _settled(visit, today) if name in latest),
    )


def supersedes(later: Trial, earlier: Trial) -> bool:
    """Of two trials of one candidate, does the first stand? The one that finished last; of two good ones that of the
    last final: contenders of a final must not lose one of them to a later look at what another final found."""
    if later.ok and earlier.ok:
        return _last_final(later) > _last_final(earlier)
    return later.finished > earlier.finished


def _last_final(trial: Trial) -> tuple[str, str]:
    return str(trial.evidence.get(FINAL, "")), trial.finished


def _visits(results: AnyPath, problem: Problem, device: Device) -> Iterable[list[Trial]]:
    """Legal candidates with a verdict, by the file that they are in: of those of a journal, each kernel has one
    source."""
    pages = (report_folder(layer, device.name, problem) / "trials.parquet" for layer in layers(results))
    files = [read_trials(path) for path in pages if path.is_file()]
    studies = below(results, STUDY_FOLDER, device.name, problem.operator)
    for journal in sorted(studies.glob(f"{glob.escape(problem.slug)}-*.jsonl")):
        files.append([trial for trial in read_journal(journal).trials if trial.subject == problem])
    for trials in files:
        yield [trial for trial in trials if trial.resolved and trial.status not in TRANSIENT]


def _settled(visit: Sequence[Trial], today: Mapping[str, str]) -> Iterable[str]:
    """``today``: kernel -> hash of its sources. A simulated time settles nothing for a card, a refusal does. Candidates
    without a cubin do not say what they were compiled from, others of their kernel and file do."""
    sources = defaultdict(set)
    for trial in visit:
        if source := trial.build.get("source_hash"):
            sources[kernel_name(trial.resolved)].add(source)
    for trial in visit:
        kernel = kernel_name(trial.resolved)
        now = today.get(kernel, "")
        others_of_today = sources[kernel] <= {
            now
        }  # a page that a retime renewed has trials of several sources
        of_today = others_of_today and trial.build.get("source_hash", now) == now
        if of_today and (trial.kind is Kind.MEASURED or not trial.ok):
            yield trial.resolved
