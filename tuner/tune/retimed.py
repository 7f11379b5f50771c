"""What a retime found of a row, and the log of the last retime of each row of a device.

``retime.json`` holds a record per row, ``retime.md`` the same for people. Both are written whole under one lock after
every row, so that a kill costs nothing and tuners on several cards share them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below
from kernel_space.places import COMMAND
from tuner.files.notice import Say
from tuner.files.record_checks import check_numbers, check_plain, check_texts, shown
from tuner.files.store import CorruptFile, atomic_write, locked, make_folder, read_json, set_aside
from tuner.report.marks.text import markdown_table
from tuner.search.trial_of import utc_now
from tuner.tune.retime import Outdated
from tuner.tune.tune_result import TuneResult

SLOWER: Final = 1.03  # the best of a retime over the row's time: beyond it another config may be better now
LOG, PAGE = "retime.json", "retime.md"
VERSION: Final = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retimed:
    """One row before and after. ``since``: the row's date, ``reason``: what changed since then. ``config_us``: the
    row's config as it is now, None with ``config_status`` where it has no time. ``config_after``, ``us_after``: of the
    best now, empty and None where nothing could be used. ``table``: what became of the row. Times in microseconds,
    ``date`` in UTC.
    """

    op: str
    problem: str
    options: dict[str, str]
    since: str
    reason: str
    kind_before: str
    us_before: float
    config_before: str
    config_us: float | None
    config_status: str
    kind_after: str
    us_after: float | None
    config_after: str
    candidates: int
    stopped: str
    table: str
    seconds: float
    date: str

    @classmethod
    def of(cls, outdated: Outdated, result: TuneResult, candidates: int) -> Self:
        row, best = outdated.row, result.winner
        same = next((trial for trial in result.trials if trial.resolved == row.config), None)
        return cls(
            op=row.key.op,
            problem=str(row.key.problem),
            options=dict(row.key.problem.options),
            since=row.date,
            reason=outdated.reason,
            kind_before=str(row.kind),
            us_before=row.time_us,
            config_before=row.config,
            config_us=same.us if same is not None and same.ok else None,
            config_status=str(same.status) if same is not None else "not tried",
            kind_after=str(best.kind) if best is not None else "",
            us_after=None if best is None or best.us is None else float(f"{best.us:.6g}"),
            config_after=best.resolved if best is not None else "",
            candidates=candidates,
            stopped=result.stopped,
            table=_table(result),
            seconds=round(result.seconds, 3),
            date=utc_now(),
        )

    @classmethod
    def from_record(cls, record: Any) -> Self:
        """Raises ``InputError`` for what ``dataclasses.asdict`` does not give."""
        try:
            one = cls(**record)
        except TypeError as error:
            raise InputError(f"not the record of a retime: {error}") from None
        _check(one)
        return one

    @property
    def search_command(self) -> str:
        """Options of the command line that name the problem."""
        options = [f"--option {name}={value}" for name, value in self.options.items()]
        return " ".join(["--op", self.op, "--shape", self.problem, *options])

    @property
    def ratio(self) -> float | None:
        """Time now over the time before; None where there is none, or the two are not of one kind."""
        if self.us_after is None or self.kind_after != self.kind_before:
            return None
        return self.us_after / self.us_before

    @property
    def is_whole(self) -> bool:
        """Was every candidate judged, and one of them usable?"""
        return self.us_after is not None and not self.stopped

    @property
    def winner_changed(self) -> bool:
        return bool(self.config_after) and self.config_after != self.config_before

    @property
    def search_again(self) -> bool:
        """Nothing usable, or slower than before: what is best now is perhaps not among what was best then."""
        return self.us_after is None or (self.ratio is not None and self.ratio > SLOWER)

    @property
    def verdict(self) -> str:
        if self.stopped:
            return f"stopped by {self.stopped}, the next retime goes on"
        if self.us_after is None:
            return "nothing usable: search again"
        said = "another winner" if self.winner_changed else "the same winner"
        return f"{said}, slower: search again" if self.search_again else said


_TEXTS = (
    "op", "problem", "since", "reason", "kind_before", "config_before", "config_status", "kind_after", "config_after",
    "stopped", "table", "date",
)  # fmt: skip


def _check(one: Retimed) -> None:
    check_texts(one, _TEXTS)
    check_numbers(one, ("us_before", "config_us", "us_after", "seconds"))
    if not (isinstance(one.us_before, float | int) and one.us_before > 0):
        raise InputError("us_before must be a time above 0")
    if not isinstance(one.options, dict) or not all(isinstance(text, str) for text in one.options.values()):
        raise InputError("options must be texts by name")


def _table(result: TuneResult) -> str:
    if result.decision is None:
        return "the row stays as it was"
    state = "recorded" if result.decision.recorded else "not recorded"
    return f"row {state}: {result.decision.reason}"


def log_retime(results: AnyPath, device: str, new: Retimed, *, say: Say) -> Path:
    """Put ``new`` in place of the row's last record; returns the page. Raises ``StoreError``, for links ``NotPlain``.

    A log that is none is renamed, and ``say`` told so."""
    folder = make_folder(below(results, device))
    path, page = below(folder, LOG), below(folder, PAGE)
    with locked(path):
        known = {_key(one): one for one in _read(path, say)} | {_key(new): new}
        records = [known[key] for key in sorted(known)]
        document = {"version": VERSION, "rows": [dataclasses.asdict(one) for one in records]}
        atomic_write(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
        atomic_write(page, render(device, records))
    return page


def _key(one: Retimed) -> tuple[str, tuple[str, ...], str]:
    return one.op, tuple(one.options.values()), one.problem


def _read(path: Path, say: Say) -> list[Retimed]:
    """The records there are; call it under the lock. The log can be made again: a damaged one costs its words only."""
    try:
        document = read_json(path)
        return [] if document is None else _records(document, path)
    except CorruptFile as error:
        say(f"{error}; kept as {set_aside(path).name}, a new log begins")
        return []


def _records(document: Any, path: Path) -> list[Retimed]:
    try:
        check_plain(document)
        if document["version"] != VERSION:
            raise InputError(f"of version {shown(document['version'])}, this reads {VERSION}")
        return [Retimed.from_record(record) for record in document["rows"]]
    except (InputError, KeyError, TypeError) as error:
        raise CorruptFile(path, f"no log of retimes: {error}") from None


def render(device: str, records: Sequence[Retimed]) -> str:
    """``retime.md``: the last retime of each row."""
    again = [one for one in records if one.search_again]
    parts = [
        f"# Retimed rows of {device}",
        f"The last retime of each row (`{COMMAND} retime`): its time before, and that of the best of its config, its "
        "runners-up and the default, rebuilt, checked and timed. Microseconds.",
        markdown_table(_HEAD, [_cells(one) for one in records]),
    ]
    if again:
        parts += [
            f"## To be searched again\n\nSlower than before by more than {SLOWER - 1:.0%}, or nothing usable:",
            "\n".join(f"    {COMMAND} --device {device} {one.search_command}" for one in again),
        ]
    moved = [one for one in records if one.winner_changed]
    if moved:
        parts.append("## Other winners")
        parts += [f"{_name(one)}\n\n    was {one.config_before}\n    now {one.config_after}" for one in moved]
    return "\n\n".join(parts) + "\n"


_HEAD = (
    "problem",
    "row of",
    "what changed",
    "before",
    "its config now",
    "best now",
    "ratio",
    "verdict",
    "retimed",
)


def _cells(one: Retimed) -> list[str]:
    return [
        _name(one),
        one.since,
        one.reason or "nothing",
        f"{one.us_before:.4g} {one.kind_before}",
        shown_us(one.config_us) if one.config_us is not None else one.config_status,
        f"{shown_us(one.us_after)} {one.kind_after}".rstrip(),
        "" if one.ratio is None else f"{one.ratio:.4f}",
        one.verdict,
        one.date,
    ]


def shown_us(us: float | None) -> str:
    return "none" if us is None else f"{us:.4g}"


def _name(one: Retimed) -> str:
    options = ", ".join(f"{name}={value}" for name, value in one.options.items())
    return f"{one.op} {one.problem}" + (f" ({options})" if options else "")
