"""Files in folders that somebody else may have filled: read only what is a regular file, no link, and not too large.

A folder may come from anybody. In it a name can be a link to elsewhere, a FIFO that blocks whoever opens it, a device,
or a file of any size. ``below`` joins names to a folder without leaving it, ``read_plain`` and ``open_plain`` open
what may be read. The folder that the user names may itself be a link; what lies in it may not.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from kernel_space.core.errors import InputError

MIB = 1 << 20
LARGEST = 64 * MIB  # bytes; a table of ten thousand rows has half as many
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotPlain(InputError):
    """What stands where a plain file or folder was expected is something else: one line."""


AnyPath = str | os.PathLike[str]  # what public functions take as a path


def below(folder: AnyPath, *names: str) -> Path:
    """``folder`` with ``names`` below it, whether or not they are there.

    Raises ``NotPlain`` when one of them is a link, or no name: that would lead out of the folder.
    """
    path = Path(folder)
    for name in names:
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise NotPlain(f"a name in {folder} must be a plain one, got {name!r:.80}")
        path = path / name
        if path.is_symlink():
            raise NotPlain(f"{path} is a link, which is not followed; put what it stands for in its place")
    return path


def read_plain(path: Path, *, limit: int = LARGEST, follow: bool = False) -> bytes:
    """The bytes of ``path``. ``follow``: it is a name that the user gave, which may be a link.

    Raises ``NotPlain`` for anything but a regular file of at most ``limit`` bytes, and ``OSError`` as ``open`` does.
    """
    fd = open_plain(path, os.O_RDONLY, limit=limit, follow=follow)
    with os.fdopen(fd, "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:  # it grows while it is read
        raise NotPlain(_too_large(path, limit))
    return data


def open_plain(path: Path, flags: int, *, limit: int | None = None, follow: bool = False) -> int:
    """A descriptor of the regular file ``path``. Never waits, and opens nothing else.

    Raises ``NotPlain`` and ``OSError`` as ``read_plain`` does.
    """
    try:
        _refuse(path, os.stat(path, follow_symlinks=follow))  # before it is opened: a device may act on that
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
    fd = os.open(path, flags | (_FLAGS & ~os.O_NOFOLLOW if follow else _FLAGS), 0o666)
    try:
        found = os.fstat(fd)
        _refuse(path, found)
        if limit is not None and found.st_size > limit:
            raise NotPlain(_too_large(path, limit))
    except BaseException:
        os.close(fd)
        raise
    return fd


def check_plain_file(path: Path, *, limit: int = LARGEST) -> None:
    """Raises what ``read_plain`` would, without reading; a file that is not there is none that is wrong."""
    try:
        os.close(open_plain(path, os.O_RDONLY, limit=limit))
    except FileNotFoundError:
        return
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def is_plain(path: Path) -> bool:
    """Whether ``path`` is a regular file and no link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def _refuse(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise NotPlain(f"{path} must be a plain file, it is {kind}")


def _too_large(path: Path, limit: int) -> str:
    return f"{path} must be a file of at most {limit / MIB:g} MiB, it is larger"
