"""One user of a card at a time on this machine, whoever it is and wherever its temporary files lie.

Two things are held together, because neither is common to everybody; both go with their owner, however that ends:

- a socket in Linux's abstract namespace, named after the card's UUID: no file, so neither folders nor permissions
  matter. Common to all users and jobs of a machine, of a container to those within it that share its network.
- ``flock`` on the card's node, ``/dev/nvidia<minor>``, which whoever uses the card can open: also across containers
  that were given the host's node (a bind mount, as NVIDIA's container runtime makes). A container with nodes of its own
  (``mknod``) and a network of its own hides its tuners from the others: these are not kept apart.

Slices of a card (MIG) have its node in common and take turns: they share its clock and its power.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from kernel_space.core.plain_files import open_plain
from tuner.card.device_node import device_node

POLL_S = 0.02
SAY_AFTER_S = 3.0
_NAME = "svdquant-autotuner-card-"

Say = Callable[[str], None]
FindNode = Callable[[str], Path | None]


class _Lock(Protocol):
    """``take``: whether it is this process's now; it stays so until ``close``. ``str()`` names it."""

    def take(self) -> bool: ...

    def close(self) -> None: ...


class _NodeLock:
    """``flock`` on a file that is there, or on one that is made. Raises ``OSError`` when it cannot be opened."""

    def __init__(self, path: Path, fd: int) -> None:
        self._path, self._fd = path, fd

    def __str__(self) -> str:
        return str(self._path)

    def take(self) -> bool:
        return take(self._fd)

    def close(self) -> None:
        os.close(self._fd)


class _NameLock:
    """A name in the abstract namespace of sockets: whose socket is bound to it has it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __str__(self) -> str:
        return f"@{self._name}"

    def take(self) -> bool:
        try:
            self._socket.bind(f"\0{self._name}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
        return True

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def card_lock(
    uuid: str,
    *,
    say: Say = lambda line: None,
    folder: Path | None = None,
    find_node: FindNode = device_node,
) -> Iterator[None]:
    """Hold the card against other tuners of this machine; waits as long as it takes and says so once.

    ``folder``: hold a file there instead, against those alone who name the same folder; tests do. ``find_node``: the
    card's node, None if there is none. Not reentrant, in threads of one process neither. Raises ``OSError`` when a lock
    cannot be opened.
    """
    with contextlib.ExitStack() as stack:
        told = False
        for lock in _locks(uuid, say, folder, find_node):
            stack.callback(lock.close)
            told = _wait_for(lock, say, told)
        yield


def lock_path(uuid: str, folder: Path) -> Path:
    """The lock of a card that lies in ``folder``."""
    return folder / f"{_NAME}{_plain(uuid)}.lock"


def _locks(uuid: str, say: Say, folder: Path | None, find_node: FindNode) -> Iterator[_Lock]:
    """In the order in which everybody takes them, each made when the one before is held."""
    if folder is not None:
        path = lock_path(uuid, folder)
        yield _NodeLock(path, open_lock(path))
        return
    yield _NameLock(f"{_NAME}{_plain(uuid)}")
    node = _node(uuid, find_node)
    if node is None:
        return
    try:
        fd = _open_node(node)
    except OSError as error:
        reason = f"{node} cannot be locked ({error.strerror})"
        _warn_once(say, f"{reason}: tuners in other containers are not kept away")
    else:
        yield _NodeLock(node, fd)


def _open_node(node: Path) -> int:
    """A descriptor of it, on which ``flock`` works: some sandboxes refuse that for devices. Raises ``OSError``."""
    # Opening its node wakes a card that nobody uses, which takes a second; the driver need not be waited for.
    fd = os.open(node, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        take(fd)
    except OSError:
        os.close(fd)
        raise
    return fd


@functools.lru_cache(maxsize=64)
def _node(uuid: str, find_node: FindNode) -> Path | None:
    """Every request to a card asks; a card does not change its node."""
    return find_node(uuid)


def _plain(uuid: str) -> str:
    """One spelling: torch leaves out the ``GPU-`` or ``MIG-`` that the driver puts before it."""
    return re.sub(r"[^0-9a-z-]", "_", uuid.lower().removeprefix("gpu-").removeprefix("mig-"))[:64]


def _wait_for(lock: _Lock, say: Say, told: bool) -> bool:
    """Returns whether the user was told of the wait, now or before."""
    start = time.monotonic()
    while not lock.take():
        if not told and time.monotonic() - start > SAY_AFTER_S:
            told = True
            say(f"waiting for the card: another tuner is using it ({lock})")
        time.sleep(POLL_S)
    return told


_warned: set[str] = set()


def _warn_once(say: Say, line: str) -> None:
    if line not in _warned:
        _warned.add(line)
        say(line)


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
