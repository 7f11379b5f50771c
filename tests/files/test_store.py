"""The store: real processes, real kills, a real file-size limit; the oracle is what is on the disk afterwards."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_space.core.errors import InputError
from tuner.files.store import (
    CorruptFile,
    StoreError,
    atomic_write,
    locked,
    make_folder,
    read_json,
    remove_leftovers,
    update_json,
)

SPAWN = multiprocessing.get_context("spawn")


def _append_many(path: Path, name: str, count: int) -> None:
    for number in range(count):
        update_json(path, lambda document, n=number: [*(document or []), f"{name}{n}"])


def test_two_processes_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    workers = [SPAWN.Process(target=_append_many, args=(path, name, 50)) for name in "ab"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    entries = json.loads(path.read_text())
    assert sorted(entries) == sorted(f"{name}{number}" for name in "ab" for number in range(50))
    # each process's own updates stay in order
    assert [entry for entry in entries if entry[0] == "a"] == [f"a{number}" for number in range(50)]


def test_threads_lose_no_update(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    threads = [threading.Thread(target=_append_many, args=(path, name, 20)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(json.loads(path.read_text()))) == 60


WRITE_FOREVER = """
import json, sys
from pathlib import Path
from tuner.files.store import update_json
path = Path(sys.argv[1])
def change(document):
    number = (document or {"number": 0})["number"] + 1
    return {"number": number, "filler": ["x" * 50] * (number % 400), "last": number}
update_json(path, change)
print("ready", flush=True)
while True:
    update_json(path, change)
"""


def test_kill_9_leaves_a_whole_file_and_no_stall(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    numbers = []
    for round_number in range(8):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITE_FOREVER, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"  # so the lock of the killed one before was free
        time.sleep(0.011 * (round_number + 1))  # another point of the write each time
        writer.kill()
        writer.wait()
        writer.stdout.close()
        document = json.loads(path.read_text())
        assert document["last"] == document["number"]
        assert len(document["filler"]) == document["number"] % 400
        numbers.append(document["number"])
    assert numbers == sorted(set(numbers))  # every process went on from the file it found
    update_json(path, lambda document: document | {"number": 0}, timeout_s=1.0)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["table.json", "table.json.lock"]


DIE_BEFORE_RENAME = """
import os, signal, sys
from pathlib import Path
import tuner.files.store as store
class Dying:
    write, fsync = staticmethod(os.write), staticmethod(os.fsync)
    def replace(self, source, target):
        os.kill(os.getpid(), signal.SIGKILL)
store.update_json(Path(sys.argv[1]), lambda document: {"new": True}, fs=Dying())
"""


def test_kill_between_write_and_rename(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"old": true}')
    victim = subprocess.run([sys.executable, "-c", DIE_BEFORE_RENAME, str(path)])
    assert victim.returncode == -signal.SIGKILL
    assert json.loads(path.read_text()) == {"old": True}
    leftovers = list(tmp_path.glob(".table.json.tmp-*"))
    assert len(leftovers) == 1
    assert remove_leftovers(path) == leftovers
    update_json(path, lambda document: {**document, "more": 1}, timeout_s=1.0)
    assert json.loads(path.read_text()) == {"old": True, "more": 1}


def test_leftover_of_a_living_writer_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "table.json"

    class Watching:
        write, fsync = staticmethod(os.write), staticmethod(os.fsync)

        def replace(self, source: Path, target: Path) -> None:
            assert remove_leftovers(path) == []
            os.replace(source, target)

    atomic_write(path, "{}", fs=Watching())
    assert path.read_text() == "{}"


@pytest.mark.parametrize("failing", ["write", "fsync", "replace"])
def test_full_disk_keeps_the_old_file(tmp_path: Path, failing: str) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"old": true}')

    class Full:
        write, fsync, replace = staticmethod(os.write), staticmethod(os.fsync), staticmethod(os.replace)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    disk = Full()
    setattr(disk, failing, refuse)
    with pytest.raises(StoreError, match="No space left on device") as caught:
        update_json(path, lambda document: {"new": True}, fs=disk)
    assert caught.value.errno == errno.ENOSPC
    assert "\n" not in str(caught.value)
    assert json.loads(path.read_text()) == {"old": True}
    assert list(tmp_path.glob(".table.json.tmp-*")) == []


HIT_A_REAL_LIMIT = """
import resource, signal, sys
from pathlib import Path
from tuner.files.store import StoreError, atomic_write
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    atomic_write(Path(sys.argv[1]), "x" * 5000)
except StoreError as error:
    print(error)
"""


def test_write_that_the_kernel_cuts_short(tmp_path: Path) -> None:
    """A file-size limit acts as a disk that fills up in the middle: a short write first, then an error."""
    path = tmp_path / "table.json"
    path.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", HIT_A_REAL_LIMIT, str(path)], capture_output=True, text=True, check=True
    )
    assert "File too large" in done.stdout
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["table.json"]


def test_short_writes_are_continued(tmp_path: Path) -> None:
    class Slow:
        fsync, replace = staticmethod(os.fsync), staticmethod(os.replace)

        def write(self, fd: int, data: memoryview) -> int:
            return os.write(fd, data[:3])

    atomic_write(tmp_path / "f", "0123456789é", fs=Slow())
    assert (tmp_path / "f").read_bytes() == "0123456789é".encode()


def test_lock_held_elsewhere_times_out_with_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    with locked(path):
        start = time.monotonic()
        with pytest.raises(StoreError, match=f"held by process {os.getpid()}"), locked(path, timeout_s=0.2):
            pass
        assert 0.2 <= time.monotonic() - start < 5
    with locked(path, timeout_s=0.2):
        pass


FORK_AND_DIE = """
import os, signal, sys, time
from pathlib import Path
from tuner.files.store import locked
with locked(Path(sys.argv[1])):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_forked_child_does_not_keep_a_dead_parents_lock(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    parent = subprocess.Popen(
        [sys.executable, "-c", FORK_AND_DIE, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.wait()
    parent.stdout.close()
    try:
        os.kill(child, 0)  # it lives
        with locked(path, timeout_s=1.0):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


def test_corrupt_file_raises_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"rows": [\n<<<<<<< HEAD\n]}')
    with pytest.raises(CorruptFile, match=r"table\.json is damaged: line 2 column 1"):
        update_json(path, lambda document: {})
    assert "HEAD" in path.read_text()


def test_corrupt_file_is_kept_aside(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    told = []
    for content in ("{", "not json"):
        path.write_text(content)
        new = update_json(path, lambda document: {"was": document}, on_damage=lambda *args: told.append(args))
        assert new == read_json(path) == {"was": None}
    assert (tmp_path / "table.json.damaged-1").read_text() == "{"
    assert (tmp_path / "table.json.damaged-2").read_text() == "not json"
    assert [aside.name for _, aside in told] == ["table.json.damaged-1", "table.json.damaged-2"]


def test_unchanged_document_is_not_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    update_json(path, lambda document: {"a": 1})
    before = path.stat().st_ino
    update_json(path, lambda document: document)
    assert path.stat().st_ino == before
    update_json(path, lambda document: {"a": 2})
    assert path.stat().st_ino != before


def test_read_json_of_a_missing_file(tmp_path: Path) -> None:
    assert read_json(tmp_path / "none.json") is None


def test_a_link_is_followed_only_where_the_user_named_it(tmp_path: Path) -> None:
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}")
    link.symlink_to(real)
    for write in (lambda: update_json(link, lambda document: {"a": 1}), lambda: atomic_write(link, "x")):
        with pytest.raises(InputError, match="link"):
            write()
    assert real.read_text() == "{}"
    atomic_write(link, "mine", follow=True)
    assert link.is_symlink() and real.read_text() == "mine"


@pytest.mark.parametrize("follow", [False, True])
def test_a_fifo_or_a_socket_is_not_replaced(tmp_path: Path, follow: bool) -> None:
    """Nor a device: whoever may write to its folder would take it away from everybody."""
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
        for name in ("fifo", "socket"):
            with pytest.raises(InputError, match="is no plain file and is not replaced"):
                atomic_write(tmp_path / name, "x", follow=follow)
    assert stat.S_ISFIFO(os.lstat(tmp_path / "fifo").st_mode)
    assert stat.S_ISSOCK(os.lstat(tmp_path / "socket").st_mode)
    assert len(list(tmp_path.iterdir())) == 2


def test_data_in_pieces(tmp_path: Path) -> None:
    atomic_write(tmp_path / "x", iter([b"ab", memoryview(b"cd"), b""]))
    assert (tmp_path / "x").read_bytes() == b"abcd"


def test_an_error_between_pieces_keeps_the_old_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise ValueError("no more")

    (tmp_path / "x").write_bytes(b"old")
    with pytest.raises(ValueError, match="no more"):
        atomic_write(tmp_path / "x", pieces())
    assert (tmp_path / "x").read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_new_file_obeys_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        atomic_write(tmp_path / "f", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("below", ["file", "file/results", "file/results/b200"])
def test_folder_below_a_regular_file(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--out must be a folder, got .*file is a file") as caught:
        make_folder(tmp_path / below)
    assert "\n" not in str(caught.value)


def test_make_folder(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a" / "b")
    assert folder.is_dir()
    assert make_folder(folder) == folder


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    """A file where a folder should be holds no document; a folder where the document should be is bad input."""
    (tmp_path / "file").write_text("")
    assert read_json(tmp_path / "file" / "document.json") is None
    with pytest.raises(InputError, match="must be a plain file, it is a folder"):
        read_json(tmp_path)
