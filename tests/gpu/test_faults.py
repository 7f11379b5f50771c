"""Each way in which a candidate can go wrong, on a real card: one verdict, and the next one is judged as if nothing had
been. The kernels are in ``tests/kernels/faulty.py``; they come through the same path as candidates.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernel_space.launch.elf import read_elf
from tests.gpu.objects import Entry
from tests.trials.test_study import IDENTITY, trial
from tuner.card.card_worker import CandidateFault, CardWorker
from tuner.card.worker.bench import QUICK
from tuner.card.worker.candidate import Case, Loadable
from tuner.files.store import StoreError
from tuner.trials.outcome import Status
from tuner.trials.study import Study

pytestmark = pytest.mark.gpu


def fault_of(worker: CardWorker, entry: Entry) -> CandidateFault:
    with pytest.raises(CandidateFault) as fault:
        worker.check(entry.candidate, [entry.case], repeats=4, seed=1)
    assert "\n" not in str(fault.value)
    return fault.value


def still_in_order(worker: CardWorker, objects: dict[str, Entry]) -> None:
    """The next candidate gets its verdict, on a card that has passed its self test."""
    entry = objects["plain"]
    assert worker.check(entry.candidate, [entry.case], repeats=2, seed=1)[0].max_ratio <= 1


FATAL = {
    "fault-spins": (Status.DEADLOCK, "launch 1 on 64,128,64,0 did not end within 2 s"),
    "fault-waits": (Status.DEADLOCK, "launch 1 on 64,128,64,0 did not end within 2 s"),
    "fault-traps": (Status.FAILED, "launch 1 on 64,128,64,0: cudaError"),
    "fault-asserts": (Status.FAILED, "launch 1 on 64,128,64,0: cudaError"),
    "fault-stores_to_null": (Status.ILLEGAL_ACCESS, "cudaErrorIllegalAddress (700)"),
    "fault-stores_far_away": (Status.ILLEGAL_ACCESS, "cudaErrorIllegalAddress (700)"),
    "fault-misaligned": (Status.ILLEGAL_ACCESS, "cudaErrorMisalignedAddress (716)"),
}


@pytest.mark.parametrize("name", FATAL)
def test_a_fault_costs_one_verdict_and_one_worker(
    worker: CardWorker, objects: dict[str, Entry], name: str
) -> None:
    status, words = FATAL[name]
    assert worker.health
    before = worker.started
    fault = fault_of(worker, objects[name])
    assert (fault.status, words in str(fault)) == (status, True), str(fault)
    still_in_order(worker, objects)
    assert worker.started == before + 1


FOUND = {
    "fault-lifeless": (Status.WRONG_RESULT, "4096 of 4096 elements beyond the tolerance"),
    "fault-stores_behind_y": (Status.ILLEGAL_ACCESS, "2 bytes changed behind y, the first 0 past its end"),
    "fault-stores_before_y": (
        Status.ILLEGAL_ACCESS,
        "2 bytes changed before y, the first 2 bytes ahead of it",
    ),
    "fault-stores_into_wgt": (Status.ILLEGAL_ACCESS, "input: 2 bytes changed in wgt, the first at byte 6"),
    "fault-leaves_counters": (Status.WRONG_RESULT, "counters were not left zero"),
}


@pytest.mark.parametrize("name", FOUND)
def test_a_defect_that_the_card_does_not_notice_is_found(
    worker: CardWorker, objects: dict[str, Entry], name: str
) -> None:
    status, words = FOUND[name]
    assert worker.health
    before = worker.started
    fault = fault_of(worker, objects[name])
    assert (fault.status, words in str(fault)) == (status, True), str(fault)
    still_in_order(worker, objects)
    assert worker.started == before, "the context is sound: no new worker"


def test_a_real_kernel_that_leaves_its_workspace_is_caught(
    worker: CardWorker, objects: dict[str, Entry]
) -> None:
    entry = objects["split"]
    short = dataclasses.replace(entry.case, workspace_bytes=entry.case.workspace_bytes - 4096)
    fault = fault_of(worker, dataclasses.replace(entry, case=short))
    assert fault.status is Status.ILLEGAL_ACCESS
    assert "changed behind workspace, the first 0 past its end" in str(fault)
    still_in_order(worker, objects)


def test_a_candidate_that_exhausts_memory(worker: CardWorker, objects: dict[str, Entry]) -> None:
    entry = objects["split"]
    fault = fault_of(
        worker, dataclasses.replace(entry, case=dataclasses.replace(entry.case, workspace_bytes=1 << 45))
    )
    assert fault.status is Status.FAILED and str(fault).startswith("out of device memory")
    still_in_order(worker, objects)


def test_a_worker_killed_at_work_is_asked_once_more(worker: CardWorker, objects: dict[str, Entry]) -> None:
    """Killed while a kernel hangs on the card; the second worker finds the deadlock."""
    assert worker.health and worker._process is not None
    before, pid = worker.started, worker._process.pid
    killer = threading.Timer(0.7, os.kill, (pid, signal.SIGKILL))
    killer.start()
    fault = fault_of(worker, objects["fault-waits"])
    killer.join()
    assert fault.status is Status.DEADLOCK
    assert worker.started == before + 1
    still_in_order(worker, objects)
    assert worker.started == before + 2


def test_a_hang_while_timing(worker: CardWorker, objects: dict[str, Entry]) -> None:
    entry = objects["fault-spins"]
    with pytest.raises(CandidateFault) as fault:
        worker.time(entry.candidate, entry.case, QUICK)
    assert fault.value.status is Status.DEADLOCK
    still_in_order(worker, objects)


def test_a_worker_ends_with_its_tuner(scratch: Path) -> None:
    """Even if that is killed: nothing of it stays on the card."""
    program = (
        "import time; from pathlib import Path; from tuner.card.card_worker import CardWorker\n"
        f"worker = CardWorker(0, 'gpu-tests', lock_folder=Path({str(scratch)!r}))\n"
        "assert worker.health; print(worker._process.pid, flush=True); time.sleep(600)"
    )
    tuner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert tuner.stdout is not None
    pid = int(tuner.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    tuner.kill()
    tuner.wait()
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"worker {pid} outlives its tuner"
        time.sleep(0.05)


# -- corrupt objects


def test_a_damaged_file_is_not_loaded(worker: CardWorker, objects: dict[str, Entry], scratch: Path) -> None:
    entry = objects["plain"]
    data = bytearray(Path(entry.candidate.object_path).read_bytes())
    data[len(data) // 2] ^= 1
    (scratch / "k.o").write_bytes(data)
    damaged = dataclasses.replace(entry.candidate, object_path=str(scratch / "k.o"))
    worker.unload()  # an object that is loaded is not read again
    before = worker.started
    fault = fault_of(worker, dataclasses.replace(entry, candidate=damaged))
    assert fault.status is Status.FAILED and "is damaged: its SHA-256 is" in str(fault)
    missing = dataclasses.replace(entry.candidate, object_path=str(scratch / "none.o"))
    assert "cannot be read: No such file" in str(
        fault_of(worker, dataclasses.replace(entry, candidate=missing))
    )
    still_in_order(worker, objects)
    assert worker.started == before


@pytest.mark.parametrize("part", ["header", "tail", "cubin"])
def test_an_object_that_was_compiled_badly(
    worker: CardWorker, objects: dict[str, Entry], scratch: Path, part: str
) -> None:
    """The recorded hash is that of the bad bytes: the loader, the driver or the processor must find out."""
    entry = objects["plain"]
    candidate = _spoilt(entry.candidate, scratch / "k.o", part)
    fault = fault_of(worker, dataclasses.replace(entry, candidate=candidate))
    assert fault.status is Status.FAILED, str(fault)
    still_in_order(worker, objects)


def _spoilt(candidate: Loadable, path: Path, part: str) -> Loadable:
    data = bytearray(Path(candidate.object_path).read_bytes())
    if part == "header":
        data[:64] = bytes(64)
    elif part == "tail":
        del data[len(data) // 2 :]
    else:
        assert read_elf(bytes(data)).symbols
        start = data.index(b"\x7fELF", 64)  # the cubin is an ELF file in the data of the host's
        data[start + 64 : start + 4096] = bytes(4032)
    path.write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return dataclasses.replace(candidate, object_path=str(path), object_sha256=digest)


# -- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"a file system cannot be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_stops_before_the_candidate_and_loses_nothing(
    worker: CardWorker, objects: dict[str, Entry], small_disk: Path
) -> None:
    study = Study(small_disk, IDENTITY)
    study.append(trial(1))
    (small_disk / "ballast").write_bytes(bytes(1))
    with (
        pytest.raises(OSError, match="No space left"),
        (small_disk / "ballast").open("ab", buffering=0) as ballast,
    ):
        while True:
            ballast.write(bytes(4096))
    ran = 0
    with pytest.raises(StoreError, match="No space left"):
        for _ in range(1000):  # until the journal's last page is full too
            with study.attempt("num_ab_stage=4"):
                ran += 1
    (small_disk / "ballast").unlink()
    again = Study(small_disk, IDENTITY)
    assert list(again.trials) == [trial(1).resolved]
    with again.attempt("num_ab_stage=4"):
        still_in_order(worker, objects)
    again.append(trial(2))
    assert list(Study(small_disk, IDENTITY).trials) == [trial(1).resolved, trial(2).resolved]


def test_time_is_not_lost_on_a_second_look(worker: CardWorker, objects: dict[str, Entry]) -> None:
    """A candidate that passed is loaded once: a timing after the check takes well under a second."""
    entry = objects["plain"]
    case = Case(problem=entry.case.problem)
    worker.check(entry.candidate, [case], repeats=2, seed=1)
    worker.time(entry.candidate, case, QUICK)
    start = time.monotonic()
    worker.time(entry.candidate, case, QUICK)
    assert time.monotonic() - start < 1.0
