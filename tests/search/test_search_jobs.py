"""Many searches at once are told what each alone would have been told, and nothing is timed twice."""

from __future__ import annotations

import hashlib
import math
import os
import time
from pathlib import Path

import pytest

from benchmarks.bench_search import curve_of, searched
from benchmarks.bench_search import main as bench_search
from benchmarks.search_jobs import Evaluation, Jobs, Run, files
from benchmarks.search_times import NO_TIME, Times, key_of
from kernel_space.core.registry import operator
from kernel_space.core.rules import Legal
from tuner.devices.classes import DEVICE_CLASSES

B200 = DEVICE_CLASSES["b200"]
PROBLEM = operator("svdquant_gemm").problem.parse("17,3840,3072,64")
RUNS = [Run(problem=PROBLEM, way=way, seed=seed) for way in ("random", "tpe") for seed in (0, 0, 1)]
TRIALS = 20  # more than are asked ahead
ASKED = "TEST_SEARCH_JOBS_ASKED"


def made_up(legal: Legal) -> float | None:
    """A time that any process finds the same; one in eight has none."""
    digest = hashlib.sha256(key_of(legal.config).encode()).digest()
    return None if digest[0] < 32 else float(f"{5 + digest[1] / 64:.5g}")


def noted(task: Evaluation) -> float | None:
    with open(os.environ[ASKED], "a") as file:
        file.write(f"{key_of(task.legal.config)}\n")
    return made_up(task.legal)


def slow(task: Evaluation) -> float | None:
    time.sleep(600)
    return None


def broken(task: Evaluation) -> float | None:
    raise ZeroDivisionError("a bug")


def jobs(folder: Path, function: str, *, count: int = 2, enough: float = 0.0, **how: bool) -> Jobs:
    times = files([PROBLEM], "b200", folder, **how)
    function = f"{__name__}:{function}"
    return Jobs(times, "b200", jobs=count, trials=TRIALS, function=function, enough=lambda problem: enough)


@pytest.mark.slow
def test_each_search_is_told_what_it_would_be_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASKED, str(tmp_path / "asked"))
    found = {
        run: curve_of(run, us, whole) for run, us, whole in jobs(tmp_path, "noted").results(RUNS, math.inf)
    }
    monkeypatch.setattr(Times, "_simulated", lambda self, legal: made_up(legal))
    alone = {run: searched(run, Times(PROBLEM, B200, tmp_path / "alone"), TRIALS) for run in set(RUNS)}
    assert found == alone and all(len(one.best) == TRIALS and one.whole for one in found.values())
    asked = (tmp_path / "asked").read_text().splitlines()
    assert len(asked) == len(set(asked))
    (path,) = tmp_path.glob("*.tsv")
    kept = dict(line.split("\t") for line in path.read_text().splitlines() if not line.startswith("#"))
    assert kept.keys() == set(asked) and NO_TIME in kept.values()
    again = jobs(tmp_path, "broken", closed=True).results(RUNS[:1], math.inf)
    assert [curve_of(*one) for one in again] == [alone[RUNS[0]]]


def test_what_no_file_holds_ends_a_search_that_may_not_compile(tmp_path: Path) -> None:
    assert list(jobs(tmp_path, "broken", closed=True).results(RUNS[:1], math.inf)) == [(RUNS[0], [], False)]


def test_what_is_cut_off_says_so(tmp_path: Path) -> None:
    start = time.monotonic()
    found = list(jobs(tmp_path, "slow").results(RUNS[:2], start + 1))
    assert time.monotonic() - start < 60 and found == [(run, [], False) for run in RUNS[:2]]


@pytest.mark.slow
def test_a_bug_is_told_in_the_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    results = jobs(tmp_path, "broken").results(RUNS[:1], math.inf)
    assert next(results) == (RUNS[0], [None] * TRIALS, True) and not list(tmp_path.iterdir())
    with pytest.raises(RuntimeError, match="ZeroDivisionError: a bug"):
        next(results)


def test_a_search_ends_with_the_first_time_that_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of it is not compiled for nobody, while another goes on."""
    monkeypatch.setenv(ASKED, str(tmp_path / "asked"))
    monkeypatch.setattr(Times, "_simulated", lambda self, legal: made_up(legal))
    early, late = (Run(problem=PROBLEM, way="random", seed=seed) for seed in (0, 4))
    alone = [Times(PROBLEM, B200, tmp_path / str(one.seed)) for one in (early, late)]
    assert all(searched(one, times, TRIALS).whole for one, times in zip((early, late), alone, strict=True))
    (early_asked, early_us), (late_asked, late_us) = (([*one.known], [*one.known.values()]) for one in alone)
    assert early_us[3] == 5.5 and min(us for us in (*early_us[:3], *late_us) if us) > 5.5
    one_process = jobs(tmp_path, "noted", count=1, enough=5.5)
    found = {run: (us, whole) for run, us, whole in one_process.results([early, late], math.inf)}
    assert found == {early: (early_us[:4], False), late: (late_us, True)}
    asked = (tmp_path / "asked").read_text().splitlines()
    assert sorted(asked) == sorted([*early_asked[:4], *late_asked])


def test_until_close_is_until_the_best_known_of_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The row takes 10 us, so 10.09 is enough for seed 0, until seed 1 finds 9: then the same command goes on."""
    row, first, second = (10.0,), (None, 12.0, 10.2, 10.09), (11.0, 9.0)
    to_come = iter((*row, *first, *second, 9.2, 9.09))
    monkeypatch.setattr(Times, "_simulated", lambda self, legal: next(to_come))
    command = f"bench_search --shape {PROBLEM} --ways random --seeds 0,1 --until-close --times {tmp_path}"
    monkeypatch.setattr("sys.argv", command.split())
    for cell in ("> 4 2", "6 2"):
        assert bench_search() == 0
        (line,) = (one for one in capsys.readouterr().out.splitlines() if str(PROBLEM) in one)
        assert line.startswith(f"| {PROBLEM} | random | 9 |") and line.endswith(f"| {cell} |")
    assert not list(to_come)


def test_without_a_row_no_search_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own first time would be the best known."""
    to_come = iter((7.0, 8.0, 6.0))
    monkeypatch.setattr(Times, "_simulated", lambda self, legal: next(to_come))
    command = "bench_search --shape 19,3840,3072,64 --ways random --seeds 0 --trials 3 --until-close"
    monkeypatch.setattr("sys.argv", [*command.split(), "--times", str(tmp_path)])
    assert bench_search() == 0 and not list(to_come)


def test_a_budget_ends_a_search_before_its_next_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))  # one look before the search, one before each candidate
    monkeypatch.setattr("benchmarks.bench_search.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(Times, "_simulated", lambda self, legal: 7.25)
    times = Times(PROBLEM, B200, tmp_path)
    cut = searched(RUNS[0], times, TRIALS, ends=4)
    assert (len(cut.best), cut.whole, len(times.known)) == (3, False, 3)
    assert searched(RUNS[0], times, TRIALS, ends=4) == curve_of(RUNS[0], [], False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--seeds 0,x", "--seeds must be numbers"),
        ("--ways search,all", "--ways must be of search, random, tpe, got all"),
        ("--op smooth_lora_down", "b200 has no row of smooth_lora_down"),
        ("--shape 1,2", "must be four integers M,K,N,R"),
        ("--op none --shape 1,2,3,4", "none"),
    ],
)
def test_bad_input_is_one_line(
    arguments: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench_search", *arguments.split()])
    assert bench_search() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and says in line


def test_a_torn_line_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Times, "_simulated", lambda self, legal: 7.25)
    (run,) = RUNS[:1]
    whole = searched(run, Times(PROBLEM, B200, tmp_path), 3)
    (path,) = tmp_path.iterdir()
    text = path.read_text()
    path.write_text(text[:-3])  # "7.25\n" without "25\n" would be read as 7
    torn = Times(PROBLEM, B200, tmp_path)
    assert len(torn.known) == 2 and set(torn.known.values()) == {7.25}
    assert searched(run, torn, 3) == whole and path.read_text() == text
