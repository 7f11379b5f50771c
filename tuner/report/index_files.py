"""The index of a device's results, and what its pages share: written after every report, by whoever wrote it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, Protocol

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, NotPlain, below, is_plain
from kernel_space.core.problem import Problem
from tuner.files.store import locked, make_folder, write_if_new
from tuner.report.data.pairs import default_speedup
from tuner.report.data.peers import Peers, read_peers
from tuner.report.index import Entry, ordered, problems_script, render_index
from tuner.report.page import ASSET_FILES, ASSETS, PAGE_FILE, PROBLEMS_FILE, asset
from tuner.report.write import report_folder
from tuner.trials.checked import Check
from tuner.trials.outcome import Kind
from tuner.trials.parquet import read_trials

INDEX: Final = "index.html"
LINKS: Final = ("dispatch.json", "retime.md")
TRIALS: Final = "trials.parquet"


class TableRow(Protocol):
    """What the index reads of a row of the dispatch table, whose folder knows nothing of pages."""

    @property
    def kind(self) -> Kind: ...
    @property
    def config(self) -> str: ...
    @property
    def time_us(self) -> float: ...
    @property
    def low_us(self) -> float: ...
    @property
    def high_us(self) -> float: ...
    @property
    def evidence(self) -> dict[str, Any]: ...
    @property
    def check(self) -> Check: ...
    @property
    def date(self) -> str: ...


Rows = Callable[[], Iterable[tuple[Problem, TableRow]]]


def write_index(results: AnyPath, device: str, read_rows: Rows) -> Path:
    """``index.html``, the list of problems and the shared files in ``results/<device>``, from the rows of its table and
    the reports that lie there.

    What is read and what is written is one step under a lock: of two tuners that end together, the later index has the
    rows and pages of both. Raises what ``read_rows`` does, ``InputError`` for links, ``StoreError``.
    """
    folder = make_folder(below(results, device))
    shared = make_folder(below(folder, ASSETS))
    for name in ASSET_FILES:
        write_if_new(below(shared, name), asset(name))
    path = below(folder, INDEX)
    with locked(path):
        entries = ordered(_entries(results, device, read_rows()))
        links = [name for name in LINKS if is_plain(folder / name)]
        write_if_new(below(folder, PROBLEMS_FILE), problems_script(entries).encode())
        write_if_new(path, render_index(device, entries, links).encode())
    return path


def problems_with_trials(results: AnyPath, device: str, but: Collection[Path] = ()) -> Iterator[Problem]:
    """Of the reports in ``results/<device>`` whose folders are none of ``but``; those of operators that are not
    installed, and folders whose trials cannot be read, are passed over."""
    for path in sorted(below(results, device).glob(f"*/*/{TRIALS}")):
        if path.parent in but:
            continue
        try:
            problem = next((one.subject for one in read_trials(path)), None)
            if problem is not None and report_folder(results, device, problem) == path.parent:
                yield problem
        except InputError:
            continue


def _entries(results: AnyPath, device: str, table: Iterable[tuple[Problem, TableRow]]) -> Iterator[Entry]:
    rows = dict(table)
    for problem, row in rows.items():
        yield _entry(results, device, problem, row)
    folders = {report_folder(results, device, problem) for problem in rows}
    for problem in problems_with_trials(results, device, but=folders):
        yield _entry(results, device, problem, None)


def _entry(results: AnyPath, device: str, problem: Problem, row: TableRow | None) -> Entry:
    folder = report_folder(results, device, problem)
    page = f"{problem.operator}/{problem.slug}" if is_plain(folder / PAGE_FILE) else ""
    if row is None:
        return Entry(problem=problem, page=page)
    return Entry(
        problem=problem,
        page=page,
        kind=str(row.kind),
        us=row.time_us,
        low_us=row.low_us,
        high_us=row.high_us,
        config=row.config,
        speedup=_speedup(folder, row),
        peers=_peers(folder, problem),
        checked=str(row.check),
        date=row.date,
    )


def _peers(folder: Path, problem: Problem) -> Peers | None:
    try:
        return read_peers(folder, problem)
    except NotPlain:
        raise
    except InputError:  # the problem's own page says what is wrong with it
        return None


def _speedup(folder: Path, row: TableRow) -> float | None:
    """From the final of a measured row; of another kind from its trials."""
    ratio = row.evidence.get("default_ratio")
    if isinstance(ratio, int | float) and ratio > 0:
        return 1 / ratio
    if row.kind is Kind.MEASURED or not is_plain(folder / TRIALS):
        return None
    try:
        trials = read_trials(folder / TRIALS)
    except InputError:
        return None
    winner = next(
        (one for one in trials if one.ok and (one.resolved, one.kind) == (row.config, row.kind)), None
    )
    return default_speedup(trials, winner) if winner else None
