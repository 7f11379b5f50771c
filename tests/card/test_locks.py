"""A card is one tuner's at a time: other processes as the users, NVML from a table, nodes that are plain files."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.card import locks
from tuner.card.device_node import device_node
from tuner.card.locks import card_lock

HOLD = """
import sys
from pathlib import Path
from tuner.card.locks import card_lock
uuid, node = sys.argv[1:]
with card_lock(uuid, find_node=lambda _: Path(node) if node else None):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def uuid() -> str:
    """Of no card that there is: runs of these tests do not wait for one another."""
    return f"GPU-test-{secrets.token_hex(8)}"


class Tuner:
    """A process that takes the card, in an environment of its own, and lets go when told."""

    def __init__(self, uuid: str, tmpdir: Path, node: Path | None = None) -> None:
        tmpdir.mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLD, uuid, str(node or "")],
            env={**os.environ, "TMPDIR": str(tmpdir)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def holds(self, within_s: float) -> bool:
        """Has it said so by then?"""
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.append(self._process.stdout.readline()), daemon=True)
        if not hasattr(self, "_reader"):
            self._reader, self._said = reader, said
            reader.start()
        self._reader.join(within_s)
        return self._said == ["held\n"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            pipe.close()


@pytest.fixture
def tuners() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def start(*arguments: Any) -> Tuner:
            tuner = Tuner(*arguments)
            stack.callback(tuner.close)
            return tuner

        yield start


def test_private_folders_for_temporary_files_do_not_part_tuners(
    uuid: str, tmp_path: Path, tuners: Any
) -> None:
    """As Slurm and systemd give each job: the second waits until the first is gone, even by a kill."""
    first = tuners(uuid, tmp_path / "job1")
    assert first.holds(20)
    second = tuners(uuid.removeprefix("GPU-").upper(), tmp_path / "job2")
    assert not second.holds(1.0)
    first.kill()
    assert second.holds(20)


def test_another_card_is_nothing_to_wait_for(uuid: str, tmp_path: Path, tuners: Any) -> None:
    assert tuners(uuid, tmp_path).holds(20)
    assert tuners(f"{uuid}1", tmp_path).holds(20)


def test_the_node_parts_who_do_not_share_a_network(uuid: str, tmp_path: Path, tuners: Any) -> None:
    """Names of sockets that the other cannot see, here since they are different ones: the node is left."""
    node = tmp_path / "nvidia0"
    node.touch()
    first = tuners(f"{uuid}-a", tmp_path / "job1", node)
    assert first.holds(20)
    second = tuners(f"{uuid}-b", tmp_path / "job2", node)
    assert not second.holds(1.0)
    first.kill()
    assert second.holds(20)


def test_the_wait_is_told_once(
    uuid: str, tmp_path: Path, tuners: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "SAY_AFTER_S", 0.05)
    other = tuners(uuid, tmp_path)
    assert other.holds(20)
    said: list[str] = []
    timer = threading.Timer(0.5, other.kill)
    timer.start()
    with card_lock(uuid, say=said.append, find_node=lambda _: None):
        pass
    timer.join()
    assert len(said) == 1 and "waiting for the card: another tuner is using it (@svdquant" in said[0]


def test_a_node_that_cannot_be_opened_is_named_once(uuid: str, tmp_path: Path) -> None:
    """Root may open anything, but not what leads nowhere."""
    node = tmp_path / "nvidia7"
    node.symlink_to(node)
    said: list[str] = []
    for _ in range(2):
        with card_lock(uuid, say=said.append, find_node=lambda _: node):
            pass
    assert len(said) == 1 and str(node) in said[0] and "not kept away" in said[0]


def test_a_lock_is_free_again_after_an_exception(uuid: str, tmp_path: Path) -> None:
    node = tmp_path / "nvidia0"
    node.touch()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt), card_lock(uuid, find_node=lambda _: node):
            raise KeyboardInterrupt
    assert len(os.listdir("/proc/self/fd")) == before


CARD_UUID, SLICE_UUID = "263fddae-e746-440e-247e-ec170f025067", "0f3a1b2c-0000-5d11-9e11-5f6a7b8c9d0e"
CARD, SLICE = 0xCA4D, 0x511CE


def nvml(minor: int) -> SimpleNamespace:
    """A machine with one card, of which there is a slice. NVML has no minor number of slices."""
    handles = {f"GPU-{CARD_UUID}".encode(): CARD, f"MIG-{SLICE_UUID}".encode(): SLICE}

    def handle(uuid: bytes, out: Any) -> int:
        out._obj.value = handles.get(uuid, 0)
        return 0 if uuid in handles else 6

    def parent(slice_: ctypes.c_void_p, out: Any) -> int:
        assert slice_.value == SLICE
        out._obj.value = CARD
        return 0

    def number(card: ctypes.c_void_p, out: Any) -> int:
        out._obj.value = minor
        return 0 if card.value == CARD else 3

    return SimpleNamespace(
        nvmlInit_v2=lambda: 0,
        nvmlShutdown=lambda: 0,
        nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetDeviceHandleFromMigDeviceHandle=parent,
        nvmlDeviceGetMinorNumber=number,
    )


@pytest.mark.parametrize("uuid", [CARD_UUID, f"GPU-{CARD_UUID}", SLICE_UUID, f"MIG-{SLICE_UUID}"])
def test_the_node_of_a_card_and_of_a_slice(uuid: str, tmp_path: Path) -> None:
    (tmp_path / "nvidia3").touch()
    assert device_node(uuid, open_library=lambda name: nvml(3), dev=tmp_path) == tmp_path / "nvidia3"
    assert device_node(uuid, open_library=lambda name: nvml(4), dev=tmp_path) is None, "not in this container"
    assert device_node("index-0", open_library=lambda name: nvml(3), dev=tmp_path) is None


def test_without_a_driver_there_is_no_node() -> None:
    def missing(name: str) -> Any:
        raise OSError("libnvidia-ml.so.1: cannot open shared object file")

    assert device_node(CARD_UUID, open_library=missing) is None
    refuses = SimpleNamespace(nvmlInit_v2=lambda: 9)
    assert device_node(CARD_UUID, open_library=lambda name: refuses) is None
