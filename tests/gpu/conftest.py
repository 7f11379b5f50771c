"""What tests on a card share: compiled objects, and a worker of their own."""

from __future__ import annotations

import fcntl
import importlib.util
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.objects import FOLDER, MANIFEST, Entry, build_all, load_all
from tuner.card.card_worker import CardWorker, Limits
from tuner.card.worker_process import worker_command

LAUNCH_LIMIT_S = 2.0
CARD_LOCK = Path(tempfile.gettempdir()) / "svdquant-gpu-tests.lock"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """With pytest-xdist several tests use the card at once, but one marked ``alone``, which times, has it to itself.

    Also from the fixtures of others; hence no fixture.
    """
    alone = item.get_closest_marker("alone") is not None
    with CARD_LOCK.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Entry]:
    """By name: those that were carried here, else built now."""
    if (FOLDER / MANIFEST).is_file():
        return load_all(FOLDER)
    if importlib.util.find_spec("cutlass") is None:
        pytest.fail("no objects to run: build them where the DSL is, python -m tests.gpu.objects .pack/gpu")
    return build_all(tmp_path_factory.mktemp("objects"))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CardWorker]:
    """On cuda:0. The lock lies in a folder of this run, so that several may share the card: no time is for keeps."""
    command = worker_command(0, "--launch-limit", str(LAUNCH_LIMIT_S))
    limits = Limits(pause_s=1.0)
    with CardWorker(
        0, "gpu-tests", limits=limits, command=command, lock_folder=tmp_path_factory.mktemp("lock")
    ) as made:
        yield made


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path
