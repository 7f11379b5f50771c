"""The journal of one problem on one device: every trial ever finished, one JSON line each.

The first line says what the file is about. Lines are appended and synced under a lock that dies with its
owner, so a killed tuner loses at most what it had not finished; a last line that a kill or a full disk tore is cut
off at the last newline by whoever comes next. Nothing is ever rewritten: a later line about the same
candidate supplements the earlier one. Every line has a checksum (``journal_lines.py``): one that is damaged is passed
over, the others stand, and what it held is evaluated again. Several tuners may append to one journal and see each
other's trials. What may take the tuner down with it is announced first (``attempt``), so that a later tuner knows the
culprit.

A journal belongs to one version of the kernel source, the DSL and the device's judgement. When one of them
changes, another file is started and the old one stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import AnyPath, below, open_plain
from kernel_space.core.problem import Problem
from tuner.files.notice import Say, notice
from tuner.files.record_checks import check_file_name, check_texts, shown
from tuner.files.store import StoreError, locked, make_folder
from tuner.trials.attempt import Attempt, blame
from tuner.trials.candidate import Numbers
from tuner.trials.journal_lines import ATTEMPT, GIVEN_UP, IDENTITY, MOST_BYTES, NOTE, read_line, write_line
from tuner.trials.outcome import Trial
from tuner.trials.subject import MIGRATE, subject_of

FORMAT_VERSION = 2
SHOWN = 8  # numbers of damaged lines in one message


def damage(path: Path, lines: Sequence[tuple[int, str]]) -> str:
    """One line for people about damaged ``lines``: (number, what is wrong)."""
    numbers = ", ".join(str(number) for number, _ in lines[:SHOWN])
    more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
    word = "line" if len(lines) == 1 else "lines"
    return f"{path}: passed over damaged {word} {numbers}{more} ({lines[0][1]}); the others stand"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """What a journal is about; trials of another identity never answer for this one.

    ``problem`` are the printed sizes, ``options`` the options by name. ``source_hash`` covers sources of all kernels
    that a search chooses from, ``judge`` what decides times and verdicts: the model's hash of a
    modelled device, driver and clocks of a real one.
    """

    op: str
    device: str
    arch: str
    problem: str
    options: dict[str, str]
    source_hash: str
    dsl_version: str
    judge: str

    @property
    def file_name(self) -> str:
        """Readable, and different for every identity: ``4352x3840x3072x128-0123456789ab.jsonl``."""
        text = json.dumps([FORMAT_VERSION, dataclasses.asdict(self)], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return f"{self.subject.slug}-{digest}.jsonl"

    @property
    def subject(self) -> Problem:
        """The problem that it is about."""
        return subject_of(self.op, self.problem, self.options)

    def folder(self, studies: AnyPath) -> Path:
        """Where its journal lies below ``studies``. Raises ``NotPlain`` when that is a link."""
        return below(studies, self.device, self.op)

    def header(self) -> dict[str, Any]:
        return {"version": FORMAT_VERSION, IDENTITY: dataclasses.asdict(self)}

    @classmethod
    def from_header(cls, record: dict[str, Any]) -> Self:
        """Raises ``InputError`` for what is no header, and for names that could lead out of a folder of journals,
        ``OtherVersion`` and ``NotInstalled`` for headers that this version or this machine cannot read."""
        version = record.get("version")
        if type(version) is int and version != FORMAT_VERSION:
            hint = f"; {MIGRATE}" if version < FORMAT_VERSION else ""
            raise OtherVersion(f"of version {version}, this reads {FORMAT_VERSION}{hint}")
        try:
            identity = cls(**record[IDENTITY])
        except (KeyError, TypeError):
            raise InputError("no line that says whose trials these are") from None
        check_texts(identity, [field.name for field in dataclasses.fields(cls) if field.name != "options"])
        check_file_name("device", identity.device)
        if version != FORMAT_VERSION:
            raise InputError(f"of version {shown(version)}, this reads {FORMAT_VERSION}")
        _ = identity.subject
        return identity

    def holds(self, trial: Trial) -> bool:
        """Whether ``trial`` is about the problem and the device of this journal."""
        names = ("op", "problem", "options", "device", "arch")
        return all(getattr(self, name) == getattr(trial, name) for name in names)


class OtherVersion(InputError):
    """The header of a journal that another version wrote."""


class Study:
    """An open journal. ``trials`` maps a resolved config to its latest trial, in the order of first appearance, each
    under a number of its own (``candidate.Numbers``); ``notes`` are other JSON values by key (``recall``).

    ``damaged``: (number, what is wrong) of lines that are not what this class writes; ``say`` is told of them.
    ``unverified``: lines without a checksum.

    Raises ``InputError`` when the folder cannot be made, the file is no plain one or is about something else, and
    ``StoreError`` when the disk refuses or the lock stays taken.
    """

    def __init__(self, folder: AnyPath, identity: Identity, *, say: Say = notice) -> None:
        self.identity = identity
        self.path = below(make_folder(identity.folder(folder)), identity.file_name)
        self.damaged: list[tuple[int, str]] = []
        self.unverified = 0
        self._say = say
        self._lines = 0
        self._is_named = False  # whether a line says whose trials these are
        self.trials: dict[str, Trial] = {}
        self._numbers = Numbers()
        self.notes: dict[str, Any] = {}
        self._attempts: dict[str, list[Attempt]] = {}  # without a verdict yet
        self._read_bytes = 0
        with self._caught_up():
            pass

    def find(self, resolved: str) -> Trial | None:
        """The latest trial of the candidate that resolves to ``resolved``, this process's or another's."""
        return self.trials.get(resolved)

    def append(self, trial: Trial) -> None:
        """Write ``trial`` so that it survives whatever ends the process; also picks up what others wrote.

        Raises ``ValueError`` for a trial without ``resolved``: an illegal point was not evaluated.
        """
        if not trial.resolved:
            raise ValueError("a journal holds legal candidates only")
        with self._caught_up() as fd:
            self._write(fd, trial.to_record())
        self._take_trial(trial)

    @contextlib.contextmanager
    def attempt(self, resolved: str) -> Iterator[None]:
        """Announce that the candidate runs now; its trial ends the announcement, and so does an exception.

        Raises ``StoreError`` before anything runs when the announcement cannot be written.
        """
        here = Attempt.here()
        with self._caught_up() as fd:
            self._write(fd, {ATTEMPT: resolved, "by": here.record()})
        self._attempts.setdefault(resolved, []).append(here)
        try:
            yield
        except BaseException:
            with contextlib.suppress(StoreError):  # the exception is the one to tell
                self._give_up(resolved, here)
            raise

    def blame(self, resolved: str) -> str:
        """Why the candidate must not run again, from attempts that ended with their process; empty if it may."""
        return blame(self._attempts.get(resolved, []))

    def _give_up(self, resolved: str, attempt: Attempt) -> None:
        self._forget(resolved, attempt)
        with self._caught_up() as fd:
            self._write(fd, {GIVEN_UP: resolved, "by": attempt.record()})

    def recall(self, key: str, make: Callable[[], Any], *, anew: bool = False) -> Any:
        """The JSON value noted under ``key``; the first time, or ``anew``, it is what ``make`` returns."""
        if anew or key not in self.notes:
            value = make()
            with self._caught_up() as fd:
                if anew or key not in self.notes:
                    self._write(fd, {NOTE: key, "value": value})
                    self.notes[key] = value
        return self.notes[key]

    @contextlib.contextmanager
    def _caught_up(self) -> Iterator[int]:
        """The open file, locked, with everything read and no torn line at its end."""
        with locked(self.path):
            fd = self._open()
            try:
                self._catch_up(fd)
                yield fd
            finally:
                os.close(fd)

    def _open(self) -> int:
        try:
            return open_plain(self.path, os.O_RDWR | os.O_CREAT, limit=MOST_BYTES)
        except OSError as error:
            raise StoreError(
                f"cannot open the journal {self.path}: {error.strerror}", errno=error.errno
            ) from None

    def _catch_up(self, fd: int) -> None:
        """Read what was appended since the last look, cut a torn tail off, say whose trials these are in a new file,
        and in one whose first line is damaged: its name says that they are this study's."""
        size = os.fstat(fd).st_size
        if size < self._read_bytes:  # somebody removed the file: start over, this process's trials stay known
            self._read_bytes = self._lines = self.unverified = 0
            self._is_named = False
            self.damaged.clear()
        data = _pread(fd, self._read_bytes, size)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(fd, self._read_bytes + whole)
        known = len(self.damaged)
        for line in data[:whole].split(b"\n")[:-1]:
            self._lines += 1
            self._take(line)
            self._read_bytes += len(line) + 1
        if len(self.damaged) > known:
            self._say(damage(self.path, self.damaged[known:]))
        if not self._is_named:
            self._write(fd, self.identity.header())
            self._is_named = True

    def _take(self, line: bytes) -> None:
        try:
            word, held, verified = read_line(line)
            if word == IDENTITY:
                self._check_header(held)
            elif word == NOTE:
                self.notes[_text(held, NOTE)] = held["value"]
            elif word == ATTEMPT:
                self._attempts.setdefault(_text(held, ATTEMPT), []).append(Attempt(**held["by"]))
            elif word == GIVEN_UP:
                self._forget(_text(held, GIVEN_UP), Attempt(**held["by"]))
            elif not self.identity.holds(held):
                raise InputError("a trial of something else")
            else:
                self._take_trial(held)
            self.unverified += not verified
        except _Foreign:
            raise
        except (ValueError, TypeError, KeyError) as error:
            self.damaged.append((self._lines, str(error)))

    def _take_trial(self, trial: Trial) -> None:
        self.trials[trial.resolved] = self._numbers.given(trial)
        self._attempts.pop(trial.resolved, None)

    def _forget(self, resolved: str, attempt: Attempt) -> None:
        """It may be gone: another tuner's verdict ends all attempts."""
        with contextlib.suppress(ValueError):
            self._attempts.get(resolved, []).remove(attempt)

    def _check_header(self, record: dict[str, Any]) -> None:
        if Identity.from_header(record) != self.identity:
            raise _Foreign(
                f"{self.path} is about something else: its first line must name {self.identity.problem} on "
                f"{self.identity.device}; move the file away to start anew"
            )
        self._is_named = True

    def _write(self, fd: int, record: dict[str, Any]) -> None:
        line = write_line(record)
        rest = memoryview(line)
        try:
            os.lseek(fd, 0, os.SEEK_END)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        except OSError as error:
            raise StoreError(
                f"cannot append to {self.path}: {error.strerror}; all earlier trials are kept",
                errno=error.errno,
            ) from error
        self._read_bytes += len(line)
        self._lines += 1


class _Foreign(InputError):
    """A journal of something else under this one's name."""


def _text(record: dict[str, Any], name: str) -> str:
    if not isinstance(record[name], str):
        raise InputError(f"{name} must be text, got {shown(record[name])}")
    return record[name]


def _pread(fd: int, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        part = os.pread(fd, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)
