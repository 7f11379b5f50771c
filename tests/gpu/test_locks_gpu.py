"""The lock of a real card: its node, and two processes that find each other whatever their TMPDIR."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tuner.card.device_node import device_node

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card"),
]
HOLD = """
import sys, time
from tuner.card.locks import card_lock
with card_lock(sys.argv[1], say=print):
    print("held", flush=True)
    sys.stdin.readline()
    print("done", time.monotonic(), flush=True)
"""


def uuid() -> str:
    return str(torch.cuda.get_device_properties(0).uuid)


def test_the_node_is_the_character_device_of_this_card() -> None:
    """Where the driver lists its cards in /proc, the minor number is the one it gives there."""
    node = device_node(uuid())
    if node is None:
        assert not list(Path("/dev").glob("nvidia[0-9]*")), "there are nodes, and none is this card's"
        pytest.skip("this machine shows no nodes of cards")
    status = node.stat()
    assert stat.S_ISCHR(status.st_mode) and node.name == f"nvidia{os.minor(status.st_rdev)}"
    for about in Path("/proc/driver/nvidia/gpus").glob("*/information"):
        text = about.read_text()
        if uuid() in text:
            assert re.search(r"Device Minor:\s*(\d+)", text)[1] == str(os.minor(status.st_rdev))


def test_two_processes_with_private_folders_take_turns(tmp_path: Path) -> None:
    started = []
    for name in ("job1", "job2"):
        (tmp_path / name).mkdir()
        environment = {**os.environ, "TMPDIR": str(tmp_path / name)}
        command = [sys.executable, "-c", HOLD, uuid()]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=environment, **pipes))
        if name == "job1":
            assert started[0].stdout.readline() == "held\n"
    first, second = started
    try:
        assert "waiting for the card" in second.stdout.readline()  # after three seconds
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline().startswith("done")
        assert second.stdout.readline() == "held\n"
    finally:
        for process in started:
            process.kill()
            process.communicate()
