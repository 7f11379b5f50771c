"""The journal of one problem on one device: every trial ever finished, one JSON line each.

The first line says what the file is about. Lines are appended and synced under a lock that dies with its
owner, so a killed tuner loses at most what it had not finished; a last line that a kill or a full disk tore is cut
off at the last newline by whoever comes next. Nothing is ever rewritten: a later line about the same
candidate supplements the earlier one. Several tuners may append to one journal and see each other's trials. What may
take the tuner down with it is announced first (``attempt``), so that a later tuner knows the culprit.

A journal belongs to one version of the kernel source, the DSL and the device's judgement. When one of them
changes, another file is started and the old one stays.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kernel_space.errors import InputError
from tuner.attempt import Attempt, blame
from tuner.outcome import Trial
from tuner.store import StoreError, locked, make_folder

FORMAT_VERSION = 1
TRIAL, IDENTITY, NOTE, ATTEMPT, GIVEN_UP = "trial", "identity", "note", "attempt", "given_up"
"""What a line holds: a word that it has, or else a trial."""


def read_line(line: str | bytes, *, first: bool) -> tuple[str, Any]:
    """One whole line as (what it holds, its record; of a trial the ``Trial``). Raises ``InputError``."""
    try:
        record = json.loads(line)
    except ValueError:
        raise InputError("no JSON") from None
    if not isinstance(record, dict) or first != (IDENTITY in record):
        raise InputError(
            "no journal of trials, which begins with whose trials it holds; a tune writes them below --out/.studies"
        )
    for word in (IDENTITY, NOTE, ATTEMPT, GIVEN_UP):
        if word in record:
            return word, record
    return TRIAL, Trial.from_record(record)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """What a journal is about; trials of another identity never answer for this one.

    ``source_hash`` covers the kernel's sources, ``judge`` what decides times and verdicts: the model's hash of a
    modelled device, driver and clocks of a real one.
    """

    op: str
    device: str
    arch: str
    problem: str
    lora_dtype: str
    out_dtype: str
    source_hash: str
    dsl_version: str
    judge: str

    @property
    def file_name(self) -> str:
        """Readable, and different for every identity: ``4352x3840x3072x128_fp16_fp16-0123456789ab.jsonl``."""
        text = json.dumps([FORMAT_VERSION, dataclasses.astuple(self)])
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        sizes = self.problem.replace(",", "x")
        return f"{sizes}_{self.lora_dtype}_{self.out_dtype}-{digest}.jsonl"

    def header(self) -> dict[str, Any]:
        return {"version": FORMAT_VERSION, IDENTITY: dataclasses.asdict(self)}


class Study:
    """An open journal. ``trials`` maps a resolved config to its latest trial, in the order of first appearance;
    ``notes`` are other JSON values by key (``recall``).

    Raises ``InputError`` when the folder cannot be made or a complete line is not what this class writes, and
    ``StoreError`` when the disk refuses or the lock stays taken.
    """

    def __init__(self, folder: Path, identity: Identity) -> None:
        self.identity = identity
        self.path = make_folder(folder / identity.device) / identity.file_name
        self.trials: dict[str, Trial] = {}
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
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise StoreError(
                f"cannot open the journal {self.path}: {error.strerror}", errno=error.errno
            ) from None

    def _catch_up(self, fd: int) -> None:
        """Read what was appended since the last look, cut a torn tail off, write the header of a new file."""
        size = os.fstat(fd).st_size
        if size < self._read_bytes:  # somebody removed the file: start over, this process's trials stay known
            self._read_bytes = 0
        data = _pread(fd, self._read_bytes, size)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(fd, self._read_bytes + whole)
        for line in data[:whole].split(b"\n")[:-1]:
            self._take(line)
            self._read_bytes += len(line) + 1
        if self._read_bytes == 0:
            self._write(fd, self.identity.header())

    def _take(self, line: bytes) -> None:
        try:
            word, held = read_line(line, first=self._read_bytes == 0)
            if word == IDENTITY:
                self._check_header(held)
            elif word == NOTE:
                self.notes[held[NOTE]] = held["value"]
            elif word == ATTEMPT:
                self._attempts.setdefault(held[ATTEMPT], []).append(Attempt(**held["by"]))
            elif word == GIVEN_UP:
                self._forget(held[GIVEN_UP], Attempt(**held["by"]))
            else:
                self._take_trial(held)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{self.path} is damaged at byte {self._read_bytes} ({error}); move the file away to start anew"
            ) from None

    def _take_trial(self, trial: Trial) -> None:
        self.trials[trial.resolved] = trial
        self._attempts.pop(trial.resolved, None)

    def _forget(self, resolved: str, attempt: Attempt) -> None:
        """It may be gone: another tuner's verdict ends all attempts."""
        with contextlib.suppress(ValueError):
            self._attempts.get(resolved, []).remove(attempt)

    def _check_header(self, record: Any) -> None:
        if record != self.identity.header():
            raise InputError(f"the first line must name {self.identity.problem} on {self.identity.device}")

    def _write(self, fd: int, record: dict[str, Any]) -> None:
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
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


def _pread(fd: int, start: int, end: int) -> bytes:
    parts = []
    while start < end:
        part = os.pread(fd, end - start, start)
        if not part:
            break
        parts.append(part)
        start += len(part)
    return b"".join(parts)
