"""A directory of immutable entries, each a folder of files named by a key; shared by processes.

* An entry appears with one rename, so there is no half-written one, whoever is killed when.
* Every file's hash is in the entry's ``meta.json``: an entry that does not match is thrown away and reported
missing. * The directory is kept below a size by removing what was used longest ago. An entry in use is not
pulled away:
  entries used within the last ``GRACE_SECONDS`` stay, even if that exceeds the size.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import NotPlain, is_plain, read_plain
from kernel_space.places import cache_folder

META = "meta.json"
DEFAULT_MAX_BYTES = 1 << 30
GRACE_SECONDS = 3600.0
_CHECK_EVERY = 64  # entries stored by one process between two looks at the size
_PROBE_BYTES = 1 << 16
_HIDDEN = ".tmp-"
_KEY = re.compile(r"[0-9a-f]{64}")  # a SHA-256
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


def default_cache_dir() -> Path:
    """The user's build cache; ``places.cache_folder`` says where."""
    return cache_folder() / "build"


def check_takes_entries(directory: Path) -> None:
    """Raises ``InputError`` unless ``directory``, which may be missing, takes a file as large as a small kernel: better
    learnt before a search than from its first candidate.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(bytes(_PROBE_BYTES))
    except OSError as error:
        raise _refused(directory, error) from None


def _refused(directory: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write to the build cache {directory}: {error.strerror}; make room, or name another with "
        "SVDQUANT_TUNE_CACHE"
    )


def is_key(text: Any) -> bool:
    """Whether ``text`` can name an entry. A name that can not may lead out of the directory."""
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


class BuildCache:
    """``directory`` is created when the first entry is stored. Raises ``InputError`` if that is
    impossible.

    ``foreign``: the directory belongs to somebody else. It is only read: no entry is marked as used, and a damaged one
    is left where it is.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int = DEFAULT_MAX_BYTES,
        grace_seconds: float = GRACE_SECONDS,
        foreign: bool = False,
    ) -> None:
        self.directory = directory
        self._foreign = foreign
        self._max_bytes = max_bytes
        self._grace_seconds = grace_seconds
        self._stored = 0

    def path(self, key: str) -> Path:
        """Raises ``InputError`` for what is no key: nothing outside of the directory may be read or removed."""
        if not is_key(key):
            raise InputError(f"a key of the build cache must be 64 hexadecimal digits, got {key!r:.80}")
        return self.directory / key

    def load(self, key: str) -> dict[str, Any] | None:
        """The entry's ``meta.json`` if all its files are there as stored, else None. Marks the entry as
        used.
        """
        path = self.path(key)
        try:
            if path.is_symlink():
                raise NotPlain(f"{path} is a link")
            meta = json.loads(read_plain(path / META))
            if all(_is_intact(path, name, digest) for name, digest in meta["files"].items()):
                if not self._foreign:
                    _mark_used(path / META)
                return meta
        except FileNotFoundError:
            if not path.is_dir():
                return None
        except NotADirectoryError as error:
            if not self.directory.is_dir():
                raise InputError(f"the build cache must be a directory, got {self.directory}") from error
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass  # meta.json is not what was written
        if not self._foreign:
            self._remove(path)
        return None

    def read(self, key: str, name: str) -> bytes:
        """The file ``name`` of an entry that ``load`` found. Raises ``InputError`` when it is gone meanwhile."""
        path = self.path(key) / name
        try:
            return read_plain(path)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror}") from None

    def discard(self, key: str) -> None:
        """Remove an entry that is whole and wrong all the same."""
        if not self._foreign:
            self._remove(self.path(key))

    def store(self, key: str, files: Mapping[str, bytes], meta: Mapping[str, Any]) -> Path:
        """Adds an entry; if another process was faster, theirs stays. Returns the entry's folder. Raises ``InputError``
        when the disk refuses; nothing is left of the entry then.
        """
        if self._foreign:
            raise AssertionError(f"{self.directory} belongs to somebody else")
        path = self.path(key)
        temporary = self._new_hidden()
        record = {**meta, "files": {name: _sha256(data) for name, data in files.items()}}
        try:
            for name, data in files.items():
                (temporary / name).write_bytes(data)
            (temporary / META).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise _refused(self.directory, error) from None
        try:
            os.rename(temporary, path)
        except OSError:
            if not path.is_dir():
                raise
            shutil.rmtree(temporary)
        self._stored += 1
        if self._stored % _CHECK_EVERY == 1:
            self.evict()
        return path

    def evict(self) -> None:
        """Removes the entries used longest ago until the rest fits. One process at a time; others skip it."""
        lock = self.directory / ".lock"
        if os.path.lexists(lock) and not is_plain(lock):
            raise InputError(f"{lock} must be a plain file, it is none; remove it")
        with contextlib.suppress(filelock.Timeout), filelock.FileLock(lock, timeout=0):
            self._sweep()
            entries = sorted(self._entries())
            excess = sum(size for _, size, _ in entries) - self._max_bytes
            youngest = time.time() - self._grace_seconds
            for used, size, path in entries:
                if excess <= 0 or used > youngest:
                    break
                self._remove(path)
                excess -= size

    def _entries(self) -> Iterator[tuple[float, int, Path]]:
        """(last use, bytes, folder) of every entry."""
        for folder in os.scandir(self.directory):
            if not is_key(folder.name) or not folder.is_dir(follow_symlinks=False):
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                stats = {file.name: file.stat(follow_symlinks=False) for file in os.scandir(folder.path)}
                if META not in stats:
                    continue
                yield stats[META].st_mtime, sum(stat.st_size for stat in stats.values()), Path(folder.path)

    def _sweep(self) -> None:
        """Folders that killed processes left behind."""
        for folder in os.scandir(self.directory):
            if not folder.name.startswith(_HIDDEN):
                continue
            with contextlib.suppress(
                FileNotFoundError
            ):  # its writer or another process is done with it by now
                if folder.stat(follow_symlinks=False).st_mtime < time.time() - GRACE_SECONDS:
                    _delete(Path(folder.path))

    def _remove(self, path: Path) -> None:
        """Out of sight with one rename, then deleted, so that nobody sees half of it."""
        hidden = self.directory / f"{_HIDDEN}{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            os.rename(path, hidden)
            _delete(hidden)

    def _new_hidden(self) -> Path:
        path = self.directory / f"{_HIDDEN}{uuid.uuid4().hex}"
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise InputError(
                f"the build cache must be a writable directory, got {self.directory}: {error.strerror}"
            ) from error
        return path


def _mark_used(path: Path) -> None:
    """Where one may: a cache on a read-only disk or of another user serves all the same."""
    try:
        os.utime(path)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def _is_intact(folder: Path, name: str, digest: str) -> bool:
    if not _FILE.fullmatch(name):
        raise NotPlain(f"an entry's file must have a plain name, got {name!r:.80}")
    return _sha256(read_plain(folder / name)) == digest


def _delete(path: Path) -> None:
    """A folder, or whatever else took the name of one; of a link only the link itself."""
    if path.is_symlink() or is_plain(path):
        path.unlink(missing_ok=True)
    else:
        shutil.rmtree(path, ignore_errors=True)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
