"""Take over results that were made elsewhere: rows of the dispatch table, journals, reports and bundled objects.

The source may belong to somebody else: it is only read, no lock is made in it, nothing in it is mended, and no link in
it is followed. What was named in it was checked when it was parsed.

The order makes a merge repeatable. Journals come first, which know a trial that they have; then, under the lock of the
table, the objects and the reports of the rows that are about to stand; the rows last. So a kill at any point leaves a
table whose rows have what belongs to them, and the next merge brings the rest: a row that is not there yet is taken
again, and of one that is there already whatever the target lacks is brought. Last, pages of which both sides have
trials are joined, whichever row stands.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below, check_plain_file
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import knob_rejection
from tuner.devices.classes import DeviceClass
from tuner.devices.device import Device
from tuner.devices.recorded import keep_class
from tuner.devices.select import device_class_of, select_device
from tuner.files.notice import Say, notice, say_each
from tuner.files.store import make_folder, read_bytes, write_if_new
from tuner.report.data.peers import FILE_NAME as PEERS_FILE
from tuner.report.write import FINAL_FILE, REPORT_FILES, read_trials, report_folder
from tuner.stages.journal import STUDY_FOLDER
from tuner.stages.record import current, renew_index
from tuner.tables.bundle import FOLDER, INDEX, Bundle
from tuner.tables.bundle_write import take_over
from tuner.tables.dispatch import FILE_NAME, DispatchTable, record
from tuner.tables.merge import Decision
from tuner.tables.row import Row
from tuner.trials.journal_read import Journal, read_journal
from tuner.trials.outcome import Trial
from tuner.trials.study import Study
from tuner.trials.subject import MIGRATE, NotInstalled, foreign_lines
from tuner.tune.earlier import supersedes
from tuner.tune.joined_pages import TRIALS, has_others, join_page

FILES = (
    *REPORT_FILES,
    FINAL_FILE,
    PEERS_FILE,
)  # of a report's folder; whatever else lies there stays where it is


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """What one device's part of a folder holds, checked."""

    folder: Path
    device: Device
    device_class: DeviceClass
    rows: tuple[Row, ...]
    bundle: Bundle
    journals: tuple[Journal, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Merged:
    """``decisions``: one per row of the source. ``trials``: how many the journals gained, ``objects``: the bundle."""

    decisions: tuple[Decision, ...]
    trials: int
    objects: int


def read_source(folder: AnyPath, name: str, *, say: Say = notice) -> Source:
    """The results of device ``name`` in ``folder``. ``say`` is told which rows, entries, journals and lines are passed
    over.

    Raises ``InputError`` for whatever must not be taken over: a file that is no table, index or journal, an object
    whose bytes are not those recorded, a link, a journal under another's name.
    """
    folder = Path(folder)
    device_class, device = device_class_of(name, results=folder), select_device(name, results=folder)
    table = DispatchTable.load(below(folder, name), arch=device.arch, say=say)
    bad: list[str] = []
    bundle = Bundle.load(below(folder, name, FOLDER), device.arch, say=bad.append)
    strange = foreign_lines(bundle.folder / INDEX, bundle.foreign, "object")
    say_each(strange, say)
    if (
        bad := [line for line in bad if line not in strange]
    ):  # an index is written whole: what is wrong with a part of it is no accident, and rows need their objects
        raise InputError(f"{bad[0]}; nothing is taken over")
    for entry in bundle.entries:
        bundle.file_of(entry).read()
    for row in table.rows.values():
        source = report_folder(folder, name, row.key.problem)
        for file in FILES:
            check_plain_file(below(source, file))
    return Source(
        folder=folder,
        device=device,
        device_class=device_class,
        rows=tuple(table.rows.values()),
        bundle=bundle,
        journals=tuple(_journals(below(folder, STUDY_FOLDER, name), say)),
    )


def merge(source: Source, out: AnyPath, *, say: Say = notice) -> Merged:
    """Raises ``InputError`` for a target that is damaged, ``StoreError`` when the disk refuses."""
    name = source.device.name
    keep_class(out, source.device_class)
    folder = make_folder(below(out, name))
    trials = sum(_merge_journal(journal, source.device, out, say) for journal in source.journals)
    objects = 0

    def bring(decisions: Sequence[Decision]) -> None:
        nonlocal objects
        pairs = list(zip(source.rows, decisions, strict=True))
        taken = {(row.key.op, row.config) for row, decision in pairs if decision.recorded}
        there = {(row.key.op, row.config) for row, decision in pairs if _stands(row, decision)}
        objects = take_over(source.bundle, folder, source.device.arch, taken, lacking=there)
        for row, decision in pairs:
            _bring_report(source, out, row, decision)

    decisions = record(folder / FILE_NAME, source.rows, current(source.device), say=say, before=bring)
    for decision in decisions:
        _join_page(source, out, decision.row, say)
    renew_index(out, source.device)
    return Merged(decisions=tuple(decisions), trials=trials, objects=objects)


def _stands(row: Row, decision: Decision) -> bool:
    """Is ``row`` what the table holds now, or held before but for its date?"""
    return dataclasses.replace(row, date=decision.row.date) == decision.row


def _bring_report(source: Source, out: AnyPath, row: Row, decision: Decision) -> None:
    """Of a row that was taken all files; of one that stood already those that the target lacks. Of any other row too,
    where the target has no report of its own: at most a part of this one, from a merge that was interrupted."""
    device, problem = source.device.name, row.key.problem
    folder = report_folder(source.folder, device, problem)
    target = report_folder(out, device, problem)
    theirs = {name: data for name in FILES if (data := read_bytes(below(folder, name))) is not None}
    ours = {name: read_bytes(below(target, name)) for name in theirs}
    other = any(data is not None and data != theirs[name] for name, data in ours.items())
    if other and not decision.recorded and not _stands(row, decision):
        return
    keep = REPORT_FILES if ours.get(TRIALS) and _has_others(target, folder) else ()
    for name, data in theirs.items():
        if ours[name] is None or (decision.recorded and name not in keep):
            write_if_new(make_folder(target) / name, data)


def _has_others(target: Path, folder: Path) -> bool:
    """A page that is no table any more has nothing to keep."""
    try:
        return has_others(below(target, TRIALS), below(folder, TRIALS))
    except InputError:
        return False


def _join_page(source: Source, out: AnyPath, row: Row, say: Say) -> None:
    """Where both sides have trials. A page that cannot be read is left as it is."""
    name, problem = source.device.name, row.key.problem
    ours, theirs = (below(report_folder(folder, name, problem), TRIALS) for folder in (out, source.folder))
    if not (ours.is_file() and theirs.is_file()) or read_bytes(ours) == read_bytes(theirs):
        return
    try:
        trials = [one for one in read_trials(theirs) if not one.resolved or _is_legal(one, source.device)]
        join_page(out, source.device, row, trials)
    except InputError as error:
        say(f"{error}: the trials of {problem} are not joined with those of {source.folder}")


def _journals(folder: Path, say: Say) -> Iterator[Journal]:
    """Of one device, by operator; those of operators that are not installed here are passed over."""
    if old := sorted(folder.glob("*.jsonl")):
        raise InputError(f"{old[0]} must lie in the folder of its operator; {MIGRATE}")
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    for name in names:
        for path in sorted(below(folder, name).glob("*.jsonl")):
            try:
                yield _journal(path, say)
            except NotInstalled as error:
                say(f"{error}: passed over")


def _journal(path: Path, say: Say) -> Journal:
    journal = read_journal(path, say=say)
    about = journal.identity
    if (about.device, about.op, about.file_name) != path.parts[-3:]:
        raise InputError(
            f"{path} must be named {about.file_name} by its first line and lie below {about.device}/{about.op}; was it "
            "renamed?"
        )
    return journal


def _merge_journal(journal: Journal, device: Device, out: AnyPath, say: Say) -> int:
    """Add trials that are new here, or supersede the same candidate's here; returns how many."""
    ours = Study(below(out, STUDY_FOLDER), journal.identity, say=say)
    added = refused = 0
    for resolved, trial in journal.latest.items():
        known = ours.find(resolved)
        if known is not None and not supersedes(trial, known):
            continue
        if not _is_legal(trial, device):
            refused += 1
            continue
        ours.append(trial)
        added += 1
    if refused:
        say(
            f"{journal.path}: passed over {refused} trials of configs that this version does not know as legal"
        )
    return added


def _is_legal(trial: Trial, device: Device) -> bool:
    """A tune that meets the trial in its journal asks it no more."""
    try:
        config = parse_config(trial.op, device.arch, trial.resolved)
    except InputError:
        return False
    return trial.arch == device.arch.name and knob_rejection(config, trial.subject, device.arch) is None
