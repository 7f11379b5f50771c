"""One user of a card at a time: a lock per card on this machine, by the card's UUID, which dies with its owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from kernel_space.plain_files import open_plain

POLL_S = 0.02
SAY_AFTER_S = 3.0


def lock_path(uuid: str, folder: Path | None = None) -> Path:
    """Where the lock of a card lies: in the folder for temporary files, which all users of a machine share."""
    name = re.sub(r"[^0-9A-Za-z-]", "_", uuid)
    return (folder or Path(tempfile.gettempdir())) / f"svdquant-tuner-card-{name}.lock"


@contextlib.contextmanager
def card_lock(
    uuid: str, *, say: Callable[[str], None] = lambda line: None, folder: Path | None = None
) -> Iterator[None]:
    """Hold the card against other tuners of this machine; waits as long as it takes and says so once.

    Not reentrant, in threads of one process neither. Raises ``OSError`` when the lock cannot be opened.
    """
    path = lock_path(uuid, folder)
    fd = open_lock(path)
    try:
        start, said = time.monotonic(), False
        while not take(fd):
            if not said and time.monotonic() - start > SAY_AFTER_S:
                said = True
                say(f"waiting for the card: another tuner is using it ({path})")
            time.sleep(POLL_S)
        yield
    finally:
        os.close(fd)


def take(fd: int) -> bool:
    """Whether the lock is this process's now: nobody else holds it. It goes with the descriptor."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def open_lock(path: Path) -> int:
    """A descriptor of the lock's file, which is made if need be.

    Another user's lock may only be readable, and the system may refuse to open it with ``O_CREAT``. Raises ``NotPlain``
    (an ``InputError``) when something else lies there.
    """
    with contextlib.suppress(FileNotFoundError):
        return open_plain(path, os.O_RDONLY)
    fd = open_plain(path, os.O_RDONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        os.fchmod(fd, 0o666)
    return fd
