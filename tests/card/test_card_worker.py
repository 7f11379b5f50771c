"""Every way of losing a worker is one verdict and one new worker. The workers are real processes without a card."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.card.fake_card_worker import FREE, UUID
from tuner.card.card_worker import CandidateFault, CardLost, CardWorker, Limits
from tuner.card.worker.bench import QUICK, FinalsOptions
from tuner.card.worker.candidate import Case, Loadable
from tuner.trials.outcome import TRANSIENT, Status

LIMITS = Limits(start_s=60, health_s=30, case_s=1.0, time_s=1.0, final_s=1.0, attempts=3, pause_s=0.01)
CASE = Case(problem=GemmProblem.parse("256,512,128,32"))


def candidate(config: str) -> Loadable:
    return Loadable(object_path="none", object_sha256="none", prefix="k", arguments=(), config=config)


class Log:
    """What the workers were asked, by their processes."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    def entries(self) -> list[tuple[int, str]]:
        lines = (self._scratch / "log").read_text().splitlines()
        return [(int(pid), op) for pid, op in (line.split() for line in lines)]

    def workers(self) -> list[int]:
        return list(dict.fromkeys(pid for pid, _ in self.entries()))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., CardWorker]]:
    made: list[CardWorker] = []

    def make(limits: Limits = LIMITS, **options: object) -> CardWorker:
        command = [sys.executable, "-m", "tests.card.fake_card_worker", str(tmp_path)]
        worker = CardWorker(0, UUID, limits=limits, command=command, lock_folder=tmp_path, **options)
        made.append(worker)
        return worker

    yield make
    for worker in made:
        worker.close()


def check(worker: CardWorker, config: str) -> list:
    return worker.check(candidate(config), [CASE], repeats=4, seed=1)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_answers_come_back(make: Callable[..., CardWorker], log: Log) -> None:
    worker = make()
    assert worker.health.name == "Fake card"
    assert [report.problem for report in check(worker, "launch:fine")] == ["256,512,128,32"]
    samples = worker.time(candidate("time:fine"), CASE, QUICK)
    assert samples.us == (10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0)
    entries = [(candidate("time:fine"), CASE), (candidate("time:fine"), CASE)]
    assert len(worker.finals(entries, FinalsOptions(rounds=3))) == 2
    assert [op for _, op in log.entries()] == ["health", "check", "time", "finals"]
    assert len(log.workers()) == 1


def test_a_worker_may_be_started_before_it_is_asked(make: Callable[..., CardWorker], log: Log) -> None:
    worker = make()
    assert not worker.begin() and not worker.begin(), "it does not serve yet"
    assert not (log._scratch / "log").exists(), "and was asked nothing"
    check(worker, "launch:fine")
    assert worker.begin() and worker.started == 1
    assert [op for _, op in log.entries()] == ["health", "check"] and len(log.workers()) == 1


def test_a_worker_that_was_only_started_ends_with_its_owner(make: Callable[..., CardWorker]) -> None:
    worker = make()
    worker.begin()
    (pid,) = children()
    worker.close()
    assert not alive(pid)


def children() -> list[int]:
    """Processes of this one that run the fake worker."""
    done = subprocess.run(
        ["ps", "-o", "pid=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True
    )
    return [int(line.split()[0]) for line in done.stdout.splitlines() if "fake_card_worker" in line]


LOSSES = [
    # what the worker does, the verdict, a word of its reason
    ("launch:hang", Status.DEADLOCK, "no answer within 1 s (at launch)"),
    ("time:hang", Status.DEADLOCK, "(at time)"),
    ("operands:hang", Status.TIMED_OUT, "(at operands)"),
    ("compare:hang", Status.TIMED_OUT, "(at compare)"),
    ("launch:illegal", Status.ILLEGAL_ACCESS, "cudaErrorIllegalAddress"),
    ("launch:segfault", Status.FAILED, "killed by SIGSEGV"),
    ("load:abort", Status.FAILED, "killed by SIGABRT"),
    ("load:exit", Status.FAILED, "exit code 1) at load: LLVM ERROR: bad relocation"),
    ("operands:memory", Status.FAILED, "out of device memory"),
    ("launch:garbage", Status.FAILED, "no answer: b'Segmentation fau'"),
    ("launch:killed", Status.WORKER_LOST, "killed by SIGKILL"),
]


@pytest.mark.parametrize(("config", "status", "reason"), LOSSES)
def test_a_loss_is_a_verdict_and_the_next_candidate_gets_a_checked_worker(
    make: Callable[..., CardWorker], log: Log, config: str, status: Status, reason: str
) -> None:
    worker = make()
    with pytest.raises(CandidateFault) as fault:
        check(worker, config)
    assert fault.value.status is status
    assert reason in str(fault.value)
    lost = log.workers()
    assert not any(alive(pid) for pid in lost), "the lost worker must be gone before anything else is asked"
    assert check(worker, "launch:fine")
    fresh = [entry for entry in log.entries() if entry[0] not in lost]
    assert [op for _, op in fresh] == ["health", "check"], "a new worker passes the self test first"


def test_a_wrong_result_costs_no_worker(make: Callable[..., CardWorker], log: Log) -> None:
    worker = make()
    with pytest.raises(CandidateFault) as fault:
        check(worker, "compare:wrong")
    assert fault.value.status is Status.WRONG_RESULT
    assert check(worker, "launch:fine")
    assert len(log.workers()) == 1


@pytest.mark.parametrize("deed", ["killed", "terminated"])
def test_a_worker_that_somebody_killed_is_asked_once_more(
    make: Callable[..., CardWorker], log: Log, deed: str
) -> None:
    worker = make()
    assert check(worker, f"launch:once-{deed}"), "the second try answers"
    assert len(log.workers()) == 2
    assert Status.WORKER_LOST in TRANSIENT


def test_a_worker_killed_between_requests_costs_nothing(make: Callable[..., CardWorker], log: Log) -> None:
    worker = make()
    check(worker, "launch:fine")
    os.kill(log.workers()[0], signal.SIGKILL)
    assert check(worker, "launch:fine")


def test_prints_of_libraries_do_not_disturb(make: Callable[..., CardWorker]) -> None:
    assert check(make(), "launch:print")


def test_a_bug_of_the_worker_is_no_verdict(make: Callable[..., CardWorker]) -> None:
    with pytest.raises(RuntimeError, match="ZeroDivisionError: in the worker"):
        check(make(), "launch:bug")


def test_a_card_that_recovers_is_used_again(
    make: Callable[..., CardWorker], tmp_path: Path, log: Log
) -> None:
    said: list[str] = []
    worker = make(say=said.append)
    with pytest.raises(CandidateFault):
        check(worker, "launch:illegal")
    (tmp_path / "sick").write_text("2")
    assert check(worker, "launch:fine")
    assert [op for _, op in log.entries()] == ["health", "check", "health", "health", "health", "check"]
    assert len(said) == 2 and "does not pass its self test" in said[0]


def test_a_card_that_stays_bad_stops_everything_with_one_line(
    make: Callable[..., CardWorker], tmp_path: Path, log: Log
) -> None:
    worker = make()
    with pytest.raises(CandidateFault):
        check(worker, "launch:illegal")
    (tmp_path / "sick").write_text("99")
    with pytest.raises(CardLost) as lost:
        check(worker, "launch:fine")
    assert isinstance(lost.value, InputError), "one line and exit code 2"
    assert "did not in 3 fresh processes" in str(lost.value) and "journal" in str(lost.value)
    assert "\n" not in str(lost.value)
    assert [op for _, op in log.entries()].count("check") == 1, "no candidate on a card that is not in order"


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [("free", str(FREE // 2), "memory are free"), ("uuid", "GPU-other", "another card")],
)
def test_a_card_that_is_not_as_before_is_not_used(
    make: Callable[..., CardWorker], tmp_path: Path, name: str, value: str, word: str
) -> None:
    worker = make()
    with pytest.raises(CandidateFault):
        check(worker, "launch:illegal")
    (tmp_path / name).write_text(value)
    with pytest.raises(CardLost, match=word):
        check(worker, "launch:fine")


def test_a_worker_that_cannot_start_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no torch here')"]
    with (
        CardWorker(0, UUID, limits=LIMITS, command=command, lock_folder=tmp_path) as worker,
        pytest.raises(CardLost, match="no torch here"),
    ):
        check(worker, "launch:fine")


def test_an_interrupt_ends_the_worker_that_is_being_asked(make: Callable[..., CardWorker], log: Log) -> None:
    worker = make(Limits(case_s=60))
    assert worker.health

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            check(worker, "launch:hang")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not any(alive(pid) for pid in log.workers())
    assert check(worker, "launch:fine")


def test_two_tuners_take_turns(make: Callable[..., CardWorker], tmp_path: Path) -> None:
    """While another process holds the card, nothing is asked; when it is killed, its lock goes with it."""
    program = (
        "import time; from pathlib import Path; from tuner.card.locks import card_lock\n"
        f"with card_lock({UUID!r}, folder=Path({str(tmp_path)!r})): print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert other.stdout is not None and other.stdout.readline() == b"held\n"
    worker = make()
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(check(worker, "launch:fine")))
    thread.start()
    time.sleep(0.5)
    assert not answers and not (tmp_path / "log").exists()
    other.kill()
    thread.join(30)
    assert answers
    other.wait()
    other.stdout.close()


def test_the_worker_imports_neither_compiler_nor_search() -> None:
    program = (
        "import sys, tuner.card.worker.main, tuner.card.worker.session\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'cutlass', 'optuna', 'sqlalchemy'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
