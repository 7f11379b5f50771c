"""One step of ``day-one``: a command of this project as a process of its own, with a time limit.

A step may hang, crash or lose the card, and the next one must not notice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from kernel_space.core.errors import InputError
from tuner.files.store import atomic_write, parse_json
from tuner.processes import kill_group
from tuner.processes import start as start_group

GRACE_S = 45.0  # after an interrupt: a tune then holds its final and writes what it has


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ended:
    """``code``: its exit code; ``document``: what it printed, None if that is no JSON; ``said``: its last line on
    stderr. ``late``: it was ended as its time was over."""

    code: int
    document: dict[str, Any] | None
    said: str
    seconds: float
    late: bool


def command_of(arguments: Sequence[str]) -> list[str]:
    """What runs a command of this project wherever the parent found it."""
    start = f"import sys; sys.path[:] = {sys.path!r}; from tuner.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", start, *arguments]


def run_step(
    command: Sequence[str], folder: Path, name: str, limit_s: float, say: Callable[[str], None]
) -> Ended:
    """Run it; leaves its document in ``folder``/``name``.json and its stderr, line by line also told to ``say``, in
    ``name``.log. Paths below ``folder`` are written as relative ones there: the folder is to be shared."""
    start = time.monotonic()
    lines: list[str] = []
    process = start_group(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    printed: list[str] = []
    readers = [
        threading.Thread(target=_listen, args=(process.stderr, lines, say), daemon=True),
        threading.Thread(target=_listen, args=(process.stdout, printed, lambda line: None), daemon=True),
    ]
    for reader in readers:
        reader.start()
    late = False
    try:
        late = not _ends_within(process, limit_s)
    finally:
        _end(process)
        for reader in readers:
            reader.join(5.0)
    atomic_write(folder / f"{name}.log", _shareable("".join(lines), folder))
    return Ended(
        code=process.returncode,
        document=_document("".join(printed), folder, name),
        said=_shareable(lines[-1].strip(), folder) if lines else "",
        seconds=time.monotonic() - start,
        late=late,
    )


def _ends_within(process: subprocess.Popen[str], limit_s: float) -> bool:
    try:
        process.wait(limit_s)
        return True
    except subprocess.TimeoutExpired:
        return False


def _end(process: subprocess.Popen[str]) -> None:
    """Interrupted, so that it keeps what it has; killed with all that it started if that takes too long."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        _ends_within(process, GRACE_S)
    kill_group(process)
    process.wait()


def _listen(pipe: IO[str] | None, lines: list[str], say: Callable[[str], None]) -> None:
    assert pipe is not None, "the process was started with pipes"
    for line in pipe:
        lines.append(line)
        say(line.rstrip())


def _document(text: str, folder: Path, name: str) -> dict[str, Any] | None:
    path = folder / f"{name}.json"
    if not text.strip():
        return None
    text = _shareable(text, folder)
    try:
        found = parse_json(text, path)
    except InputError:
        return None
    atomic_write(path, text)
    return found if isinstance(found, dict) else None


def _shareable(text: str, folder: Path) -> str:
    return text.replace(f"{folder.absolute()}/", "").replace(str(Path.home()), "~")
