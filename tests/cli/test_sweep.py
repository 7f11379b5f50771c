"""``tune.py check --sweep``: its options, what it prints and its exit codes, with a pool that answers at once; and once
with the real one, on a kernel that ends its process.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from typing import Any

import pytest

from kernel_space.check.sweep.run import Answer, SweepTask
from tuner.cli.judge import sweep
from tuner.cli.main import main
from tuner.simulated.check_worker import CheckDied, CheckHung

CONFIG = "mma_tiler_mn=128x64 cluster_shape_mn=1x1 num_ab_stage=3 epi_tile_n=32"


def swept(*options: str) -> int:
    return main(["check", "--shape", "300,544,200,64", "--config", CONFIG, *options])


class Pool:
    """Answers for a mutant by the order in which it comes; the kernel itself executes every instruction by one warp."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.asked = answers, 0

    def __call__(self, jobs: int, function: str) -> Pool:
        return self

    def submit(self, task: SweepTask) -> Future[Answer]:
        future: Future[Answer] = Future()
        if task.covers:
            names = set(re.findall(r"\.entry\s+(\w+)", task.compiled.ptx))
            seen = {(name, site): {0: 0xFFFFFFFF} for name in names for site in range(2000)}
            future.set_result(Answer(status="OK", reason="", seconds=1.0, seen=seen))
            return future
        answer = self.answers[self.asked % len(self.answers)]
        self.asked += 1
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(Answer(status=answer, reason=f"because {answer}", seconds=0.1))
        return future


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--limit", "3"], "--limit is for --sweep"),
        (["--jobs", "3"], "--jobs is for --sweep"),
        (["--sweep", "--limit", "0"], "must be a whole number of at least 1"),
        (["--sweep", "--full"], "--full is about one"),
        (["--sweep", "--inject", "no_ab_full_wait"], "--inject is about one"),
        (["--sweep", "--trace", "t.json"], "--trace is about one"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert swept(*options) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1


def test_a_sweep_counts_what_its_mutants_came_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ten answers six are reports, among them a hang and a death; survivors make exit code 1."""
    answers = ["RACE", "DEADLOCK", CheckHung("too long"), CheckDied("SIGSEGV"), "OK", "OK", "UNSUPPORTED", "RACE",
               "WRONG_RESULT", "UNSUPPORTED"]  # fmt: skip
    monkeypatch.setattr(sweep, "CheckPool", Pool(answers))
    code = swept("--sweep", "--limit", "10", "--json")
    output = capsys.readouterr()
    (record,) = json.loads(output.out)["sweeps"]
    verdicts = [one["verdict"] for one in record["found"]]
    assert (record["mutants"], record["checked"], len(verdicts)) == (10, 10, 10)
    assert [verdicts.count(name) for name in ("reported", "survives", "not applicable")] == [6, 2, 2]
    assert {one["status"] for one in record["found"]} == {
        "RACE",
        "DEADLOCK",
        "HUNG",
        "DIED",
        "WRONG_RESULT",
        "",
    }
    assert sum(row["mutants"] for row in record["kinds"]) == 10
    unexplained = sum(row["unexplained"] for row in record["kinds"])
    assert code == (1 if unexplained else 0) and "10/10 mutants" in output.err


def test_a_sweep_prints_a_table_and_its_survivors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "CheckPool", Pool(["OK"]))
    swept("--sweep", "--limit", "14", "--quiet")
    output = capsys.readouterr()
    assert output.err == ""
    assert re.search(r"^all +14 +0 ", output.out, re.M)
    assert output.out.count("  line ") == 14
    monkeypatch.setattr(sweep, "CheckPool", Pool(["RACE"]))
    assert swept("--sweep", "--limit", "14", "--quiet") == 0
    assert "  line " not in capsys.readouterr().out


def test_an_interruption_prints_what_was_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "CheckPool", Pool(["RACE", "RACE", KeyboardInterrupt()]))
    assert swept("--sweep", "--limit", "9", "--quiet") == 130
    output = capsys.readouterr()
    assert "interrupted: " in output.out and output.err.strip() == "error: interrupted"


def test_a_kernel_that_fails_itself_is_not_swept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool([])
    monkeypatch.setattr(
        pool, "submit", lambda task: _done(Answer(status="RACE", reason="it races", seconds=1.0))
    )
    monkeypatch.setattr(sweep, "CheckPool", pool)
    assert swept("--sweep", "--quiet") == 1
    assert "the kernel itself fails its check" in capsys.readouterr().err


def _done(answer: Answer) -> Future[Answer]:
    future: Future[Answer] = Future()
    future.set_result(answer)
    return future


@pytest.mark.slow
def test_a_sweep_with_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """One mutant of each kind: all but a few of any kernel's are reported."""
    code = swept("--sweep", "--limit", "7", "--jobs", "1", "--json", "--quiet")
    (record,) = json.loads(capsys.readouterr().out)["sweeps"]
    assert code in (0, 1) and record["checked"] == 7
    assert sum(row["reported"] for row in record["kinds"]) >= 4
