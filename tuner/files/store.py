"""Files that stay whole: atomic replacement, and read-modify-write under a lock that dies with its owner.

No link is followed, and nothing but a regular file is opened (``kernel_space/core/plain_files.py``): a folder of
results may come from anybody, and a file in it that is a link could make this program write elsewhere.

A reader needs no lock: ``os.replace`` swaps one complete file for another. Writers that build on what is
there (``update_json``) take an advisory ``flock`` on ``<name>.lock`` beside the file; the kernel drops it
when the process ends in whatever way, so that a killed tuner leaves nothing stale behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from kernel_space.core.errors import InputError
from kernel_space.core.plain_files import LARGEST, NotPlain, open_plain, read_plain

LOCK_TIMEOUT_S = 30.0
POLL_S = 0.01


class StoreError(RuntimeError):
    """A file could not be written or locked (disk full, lock held): one line. What was there before still is.

    ``errno`` is the system's reason, None for a lock that stayed taken.
    """

    def __init__(self, message: str, *, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class CorruptFile(ValueError):
    """A file that should hold JSON does not: ``path`` and where it breaks, in one line."""

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(f"{path} is damaged: {what}")
        self.path = path
        self.what = what


class FileSystem(Protocol):
    """The three calls of a write that can fail when the disk does; tests replace them."""

    def write(self, fd: int, data: memoryview) -> int: ...

    def fsync(self, fd: int) -> None: ...

    def replace(self, source: Path, target: Path) -> None: ...


class _OsFileSystem:
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    replace = staticmethod(os.replace)


OS_FILE_SYSTEM: FileSystem = _OsFileSystem()


def make_folder(path: Path, *, option: str = "--out") -> Path:
    """Create ``path`` and its parents. Raises ``InputError`` when it cannot be a folder one can write to."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        blocker = next(part for part in (path, *path.parents) if part.exists())
        raise InputError(
            f"{option} must be a folder, got {path} but {blocker} is a file; choose another path"
        ) from None
    except OSError as error:
        raise InputError(f"{option} must be a folder one can create, got {path}: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise InputError(f"{option} must be a folder one can write to, got {path}; check its permissions")
    return path


def atomic_write(
    path: Path,
    data: str | bytes | Iterable[bytes | memoryview],
    *,
    fs: FileSystem = OS_FILE_SYSTEM,
    follow: bool = False,
) -> None:
    """Replace ``path`` by ``data`` (text as UTF-8): whoever reads sees the old file or the new one, whole.

    ``data`` may come in pieces, for what should not be in memory at once.
    ``follow``: the user gave this name, so that a link is replaced where it points to; otherwise it is refused.
    Raises ``StoreError`` when the disk refuses; the old file is then untouched and the temporary one gone. Raises
    ``NotPlain`` (an ``InputError``) when what is there is no plain file.
    """
    if follow:
        path = Path(os.path.realpath(path))  # replacing a symlink itself would detach it from its target
    elif path.is_symlink():
        raise NotPlain(f"{path} is a link, which is not followed; put a file or nothing in its place")
    _refuse_special(path)
    remove_leftovers(path)
    data = data.encode() if isinstance(data, str) else data
    pieces = (data,) if isinstance(data, bytes) else data
    try:
        with _temporary(path) as (fd, temporary):
            for piece in pieces:
                _write_all(fd, piece, fs)
            fs.fsync(fd)
            fs.replace(temporary, path)
    except OSError as error:
        raise StoreError(
            f"cannot write {path}: {error.strerror}; what was there before is kept", errno=error.errno
        ) from error
    _sync_folder(path.parent)


def _refuse_special(path: Path) -> None:
    """Raises ``NotPlain`` for a device, a FIFO or a socket, which whoever may write to its folder would replace."""
    with contextlib.suppress(OSError):
        mode = os.lstat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder cannot be replaced, the system says so
            raise NotPlain(f"{path} is no plain file and is not replaced; name another file")


def write_if_new(path: Path, data: bytes) -> bool:
    """``atomic_write`` unless ``path`` is a file of these bytes already; returns whether it wrote. Raises likewise."""
    if is_whole(path, hashlib.sha256(data).hexdigest()):
        return False
    atomic_write(path, data)
    return True


def is_whole(path: Path, sha256: str) -> bool:
    """Whether ``path`` is a file of these bytes."""
    try:
        return hashlib.sha256(read_plain(path)).hexdigest() == sha256
    except (OSError, NotPlain):
        return False


def read_json(path: Path) -> Any | None:
    """The document in ``path``, None when there is no such file. Raises ``CorruptFile``, and ``InputError`` for what
    cannot be read."""
    data = read_bytes(path)
    return None if data is None else parse_json(data, path)


def read_bytes(path: Path, *, limit: int = LARGEST) -> bytes | None:
    """The bytes of ``path``, None when there is no such file. Raises ``InputError`` for what cannot be read."""
    try:
        return read_plain(path, limit=limit)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def parse_json(data: bytes | str, path: Path) -> Any:
    """The document in ``data``, which came from ``path``. Raises ``CorruptFile`` for anything else, and for what JSON
    does not have: ``NaN``, infinities, one key twice in an object."""
    try:
        return json.loads(data, parse_constant=_no_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise CorruptFile(path, f"line {error.lineno} column {error.colno}: {error.msg}") from None
    except UnicodeDecodeError as error:
        raise CorruptFile(path, f"byte {error.start} is not UTF-8") from None
    except RecursionError:
        raise CorruptFile(path, "it is nested too deeply") from None
    except ValueError as error:  # of ours, or of a number with thousands of digits
        raise CorruptFile(path, str(error).partition(";")[0]) from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def update_json(
    path: Path,
    change: Callable[[Any | None], Any],
    *,
    render: Callable[[Any], str] = lambda document: json.dumps(document, indent=1) + "\n",
    on_damage: Callable[[CorruptFile, Path], None] | None = None,
    timeout_s: float = LOCK_TIMEOUT_S,
    fs: FileSystem = OS_FILE_SYSTEM,
) -> Any:
    """Replace the document in ``path`` by ``change(document or None)`` under its lock; returns the new one.

    Nothing is written when the rendered text equals the file. A file that does not parse, or in which
    ``change`` finds a ``CorruptFile``, raises that; with ``on_damage`` it is renamed instead,
    ``on_damage(error, new name)`` tells, and the document starts anew. Raises ``StoreError`` when the lock
    stays taken for ``timeout_s`` seconds or the disk refuses, and what ``change`` raises; the file is then as
    it was.
    """
    with locked(path, timeout_s=timeout_s):
        try:
            document = change(read_json(path))
        except CorruptFile as error:
            if on_damage is None:
                raise
            on_damage(error, set_aside(path))
            document = change(None)
        data = render(document).encode()
        if not is_whole(path, hashlib.sha256(data).hexdigest()):
            atomic_write(path, data, fs=fs)
    return document


def set_aside(path: Path) -> Path:
    """Rename a damaged file to the first free ``<name>.damaged-<n>``; returns that. Use under ``locked``."""
    number = 1
    while os.path.lexists(aside := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    os.rename(path, aside)
    return aside


@contextlib.contextmanager
def locked(path: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[None]:
    """Hold the lock of ``path`` against processes and threads. Raises ``StoreError`` after ``timeout_s``, ``NotPlain``
    when what should be the lock's file is something else.

    Not reentrant: a thread that holds it and asks again runs into the timeout.
    """
    real = Path(os.path.realpath(path.parent)) / path.name
    lock_path = real.with_name(real.name + ".lock")
    try:
        fd = open_plain(lock_path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise StoreError(f"cannot open the lock {lock_path}: {error.strerror}", errno=error.errno) from None
    with _closing(fd):
        _wait_for_lock(fd, lock_path, timeout_s)
        _sign(fd)
        yield


def remove_leftovers(path: Path) -> list[Path]:
    """Delete temporary files of ``path`` whose writers are dead; returns them.

    A writer holds a lock on its temporary file, so one that can be locked belongs to nobody: no guess from
    process ids, which repeat in containers, nor from age.
    """
    prefix, removed = _temporary_prefix(path), []
    with contextlib.suppress(FileNotFoundError), os.scandir(path.parent) as entries:
        candidates = [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]
        for candidate in candidates:
            with contextlib.suppress(OSError, NotPlain), _closing(open_plain(candidate, os.O_RDWR)) as fd:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(candidate)
                removed.append(candidate)
    return removed


def _wait_for_lock(fd: int, lock_path: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                owner = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                raise StoreError(
                    f"{lock_path} is held by process {owner} for more than {timeout_s:g} s; "
                    "end that process or try again"
                ) from None
            time.sleep(POLL_S)


def _sign(fd: int) -> None:
    """Leave the owner's process id for whoever waits in vain; a full disk may refuse even that."""
    with contextlib.suppress(OSError):
        if os.fstat(fd).st_nlink > 1:
            return  # the same file as one of another name, which must not be emptied
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def _write_all(fd: int, payload: bytes | memoryview, fs: FileSystem) -> None:
    rest = memoryview(payload)
    while rest:
        rest = rest[fs.write(fd, rest) :]


@contextlib.contextmanager
def _temporary(path: Path) -> Iterator[tuple[int, Path]]:
    """A locked new file beside ``path``; what is left of it is deleted at the end."""
    while True:
        temporary = path.with_name(f"{_temporary_prefix(path)}{secrets.token_hex(6)}")
        with _opened(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.fstat(fd).st_nlink == 0:
                continue  # another process took it for a leftover between open and flock
            try:
                yield fd, temporary
            finally:
                temporary.unlink(missing_ok=True)
            return


def _temporary_prefix(path: Path) -> str:
    return f".{path.name}.tmp-"


def _sync_folder(folder: Path) -> None:
    """Make the rename itself survive a power cut."""
    try:
        with _opened(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
            os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot sync folders has nothing to wait for
            raise StoreError(f"cannot sync {folder}: {error.strerror}", errno=error.errno) from error


_held: set[int] = set()


def _opened(path: Path, flags: int = os.O_RDWR) -> contextlib.AbstractContextManager[int]:
    """Opens at once, so that the error comes from this call; closes at the end of the ``with``."""
    return _closing(os.open(path, flags | os.O_CLOEXEC, 0o666))


@contextlib.contextmanager
def _closing(fd: int) -> Iterator[int]:
    _held.add(fd)
    try:
        yield fd
    finally:
        if fd in _held:  # not so in a child forked meanwhile: its copy is closed already
            _held.discard(fd)
            os.close(fd)


def _drop_inherited() -> None:
    """A forked compile worker must not keep its parent's locks alive after the parent was killed."""
    for fd in _held:
        os.close(fd)
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited)
