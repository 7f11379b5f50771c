"""A directory of immutable entries, each a folder of files named by a key; shared by processes.

* An entry appears with one rename, so there is no half-written one, whoever is killed when.
* Every file's hash is in the entry's ``meta.json``: an entry that does not match is thrown away and reported
missing. * The directory is kept below a size by removing what was used longest ago. An entry in use is not
pulled away:
  entries used within the last ``GRACE_SECONDS`` stay, even if that exceeds the size.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import filelock

from kernel_space.errors import InputError

META = "meta.json"
DEFAULT_MAX_BYTES = 1 << 30
GRACE_SECONDS = 3600.0
_CHECK_EVERY = 64  # entries stored by one process between two looks at the size
_HIDDEN = ".tmp-"


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME`` or ``~/.cache``, and the project's name below it."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "svdquant-autotuner" / "build"


class BuildCache:
    """``directory`` is created when the first entry is stored. Raises ``InputError`` if that is
    impossible.
    """

    def __init__(
        self, directory: Path, *, max_bytes: int = DEFAULT_MAX_BYTES, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        self.directory = directory
        self._max_bytes = max_bytes
        self._grace_seconds = grace_seconds
        self._stored = 0

    def path(self, key: str) -> Path:
        return self.directory / key

    def load(self, key: str) -> dict[str, Any] | None:
        """The entry's ``meta.json`` if all its files are there as stored, else None. Marks the entry as
        used.
        """
        path = self.path(key)
        try:
            meta = json.loads((path / META).read_bytes())
            intact = all(
                _sha256((path / name).read_bytes()) == digest for name, digest in meta["files"].items()
            )
            if intact:
                os.utime(path / META)
                return meta
        except FileNotFoundError:
            if not path.is_dir():
                return None
        except NotADirectoryError as error:
            raise InputError(f"the build cache must be a directory, got {self.directory}") from error
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # meta.json is not what was written
        self._remove(path)
        return None

    def store(self, key: str, files: Mapping[str, bytes], meta: Mapping[str, Any]) -> Path:
        """Adds an entry; if another process was faster, theirs stays. Returns the entry's folder."""
        temporary = self._new_hidden()
        record = {**meta, "files": {name: _sha256(data) for name, data in files.items()}}
        for name, data in files.items():
            (temporary / name).write_bytes(data)
        (temporary / META).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        try:
            os.rename(temporary, self.path(key))
        except OSError:
            if not self.path(key).is_dir():
                raise
            shutil.rmtree(temporary)
        self._stored += 1
        if self._stored % _CHECK_EVERY == 1:
            self.evict()
        return self.path(key)

    def evict(self) -> None:
        """Removes the entries used longest ago until the rest fits. One process at a time; others skip it."""
        with contextlib.suppress(filelock.Timeout), filelock.FileLock(self.directory / ".lock", timeout=0):
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
            if folder.name.startswith(".") or not folder.is_dir():
                continue
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                stats = {file.name: file.stat() for file in os.scandir(folder.path)}
                yield stats[META].st_mtime, sum(stat.st_size for stat in stats.values()), Path(folder.path)

    def _sweep(self) -> None:
        """Folders that killed processes left behind."""
        for folder in os.scandir(self.directory):
            if not folder.name.startswith(_HIDDEN):
                continue
            with contextlib.suppress(
                FileNotFoundError
            ):  # its writer or another process is done with it by now
                if folder.stat().st_mtime < time.time() - GRACE_SECONDS:
                    shutil.rmtree(folder.path, ignore_errors=True)

    def _remove(self, path: Path) -> None:
        """Out of sight with one rename, then deleted, so that nobody sees half of it."""
        hidden = self.directory / f"{_HIDDEN}{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):  # another process removed it
            os.rename(path, hidden)
            shutil.rmtree(hidden, ignore_errors=True)

    def _new_hidden(self) -> Path:
        path = self.directory / f"{_HIDDEN}{uuid.uuid4().hex}"
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise InputError(
                f"the build cache must be a writable directory, got {self.directory}: {error.strerror}"
            ) from error
        return path


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
