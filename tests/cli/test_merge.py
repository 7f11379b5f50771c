"""Results of another machine: rows by the table's rules, trials once, reports with their rows."""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from pathlib import Path

import pytest

from kernel_space.core.errors import InputError
from tests.fakes import FakeDevice, small_space
from tests.tune.test_driver import PROBLEM, SPACE, run
from tuner.cli.main import main
from tuner.tables.dispatch import DispatchTable
from tuner.trials.final_order import FINAL, PLACE, finalists_first
from tuner.trials.journal_read import read_journal
from tuner.trials.outcome import Status, Trial
from tuner.trials.parquet import read_trials
from tuner.trials.study import Study
from tuner.tune.driver import TuneResult
from tuner.tune.merge import read_source

TWELVE = {name: SPACE[name] for name in ("mma_tiler_mn", "cluster_shape_mn", "raster_order")}  # 3 x 2 x 2


def tuned(
    out: Path, trials: int, seed: int = 0, wrong: str = "", choices: dict[str, str] = SPACE
) -> TuneResult:
    """``wrong``: a config whose check fails."""
    device = FakeDevice(verdicts={wrong: Status.WRONG_RESULT})
    return run(out, device=device, space=small_space(**choices), trials=trials, seed=seed)


def merge(capsys: pytest.CaptureFixture[str], folder: Path, out: Path) -> tuple[int, list[dict]]:
    code = main(["merge", str(folder), "--out", str(out), "--json"])
    printed = capsys.readouterr().out
    return code, json.loads(printed) if printed else []


def config_in(out: Path) -> str:
    row = DispatchTable.load(out / "b200").lookup(PROBLEM).row
    assert row is not None
    return row.config


def test_everything_comes_over_into_an_empty_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also what a search needs to make nothing again: the whole of a small space, whatever its course."""
    theirs = tuned(tmp_path / "theirs", 12, choices=TWELVE)
    code, (device,) = merge(capsys, tmp_path / "theirs", tmp_path / "ours")
    assert code == 0 and device["trials"] == 12 and [row["taken"] for row in device["rows"]] == [True]
    assert config_in(tmp_path / "ours") == config_in(tmp_path / "theirs")
    assert (tmp_path / "ours" / "b200" / "svdquant_gemm" / "4352x3840x3072x128" / "report.html").is_file()
    assert theirs.winner is not None
    again = tuned(tmp_path / "ours", 12, choices=TWELVE)
    assert (again.fresh, again.known) == (0, 12) and again.winner == theirs.winner


def test_a_second_merge_adds_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned(tmp_path / "theirs", 20)
    merge(capsys, tmp_path / "theirs", tmp_path / "ours")
    _, (device,) = merge(capsys, tmp_path / "theirs", tmp_path / "ours")
    assert device["trials"] == 0 and [row["taken"] for row in device["rows"]] == [False]


def test_the_better_row_stands_and_trials_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fake device's times are exact: the faster winner of the two must stand, whichever came first."""
    default = tuned(tmp_path / "any", 1).trials[0].resolved  # both begin with it, and it is a good one
    one, two = (
        tuned(tmp_path / name, 12, seed=seed, wrong=default) for name, seed in (("one", 1), ("two", 2))
    )
    assert one.winner is not None and two.winner is not None and one.winner.us != two.winner.us
    best = min(one.winner, two.winner, key=lambda trial: trial.us)
    both = {trial.resolved for trial in (*one.trials, *two.trials)}
    for first, second in (("one", "two"), ("two", "one")):
        out = tmp_path / f"{first} first"
        merge(capsys, tmp_path / first, out)
        _, (device,) = merge(capsys, tmp_path / second, out)
        assert config_in(out) == best.resolved
        (journal,) = (out / ".studies" / "b200" / "svdquant_gemm").glob("*.jsonl")
        lines = [json.loads(line) for line in journal.read_text().splitlines()]
        assert {line["resolved"] for line in lines if "resolved" in line} == both


@pytest.mark.parametrize("order", [("many", "few"), ("few", "many")])
def test_a_page_has_the_trials_of_both(
    order: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without journals: the few of a visit take their places among the many of a sweep, whichever comes first and
    whoever has the row. The default is right in the visit, which was later, and wrong in the sweep."""
    default = tuned(tmp_path / "any", 1).trials[0].resolved
    results = {"many": tuned(tmp_path / "many", 14, seed=1, wrong=default)}
    time.sleep(1.0)  # a trial's time is of whole seconds
    results["few"] = tuned(tmp_path / "few", 7, seed=5)
    for name in results:
        shutil.rmtree(tmp_path / name / ".studies")
    out = tmp_path / "ours"
    for name in order:
        merge(capsys, tmp_path / name, out)
    page = out / "b200" / "svdquant_gemm" / "4352x3840x3072x128"
    candidates = {
        name: {trial.resolved for trial in result.trials if trial.resolved}
        for name, result in results.items()
    }
    assert candidates["many"] - candidates["few"] and candidates["few"] - candidates["many"]
    trials = [trial for trial in read_trials(page / "trials.parquet") if trial.status is not Status.ILLEGAL]
    assert sorted(trial.resolved for trial in trials) == sorted(candidates["many"] | candidates["few"])
    assert len({trial.number for trial in trials}) == len(trials)
    (both,) = (trial for trial in trials if trial.resolved == default)
    assert both.status is Status.OK  # of the later one
    best = min(
        (trial for result in results.values() for trial in result.trials if trial.us), key=lambda one: one.us
    )
    assert config_in(out) == best.resolved or best.resolved == default
    assert config_in(out) in (page / "report.md").read_text()
    assert "results that were merged" in (page / "report.md").read_text()
    before = {path: path.read_bytes() for path in page.iterdir()}
    merge(capsys, tmp_path / "few", out)
    assert {path: path.read_bytes() for path in page.iterdir()} == before
    merge(capsys, tmp_path / "many", out)
    assert {path: path.read_bytes() for path in page.iterdir()} == before


def in_final(trial: Trial, final: str, place: int, finished: str, us: float) -> Trial:
    evidence = {**trial.evidence, FINAL: final, PLACE: place}
    return dataclasses.replace(trial, evidence=evidence, finished=finished, us=us, low_us=us, high_us=us)


@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_a_final_keeps_its_first_however_late_another_s_is_looked_at(
    order: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both machines had the same two finalists; on the first the winner was checked again after the second's final."""
    result = tuned(tmp_path / "one", 2)
    tuned(tmp_path / "two", 2)
    (path,) = (tmp_path / "one" / ".studies" / "b200" / "svdquant_gemm").glob("*.jsonl")
    identity = read_journal(path).identity
    winner, second = sorted(result.trials, key=lambda trial: trial.us or 0)
    for name, final, look in (
        ("one", "2026-01-01T01", "2026-01-01T09"),
        ("two", "2026-01-01T02", "2026-01-01T02"),
    ):
        study = Study(tmp_path / name / ".studies", identity)
        study.append(in_final(second, final, 2, final, 11.0))
        study.append(in_final(winner, final, 1, look, 10.0))
    for name in order:
        merge(capsys, tmp_path / name, tmp_path / "ours")
    trials = Study(tmp_path / "ours" / ".studies", identity).trials.values()
    assert {trial.evidence[FINAL] for trial in trials} == {"2026-01-01T02"}
    assert finalists_first(list(trials))[0].resolved == winner.resolved


def test_a_later_refusal_stands_against_any_final(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tuned(tmp_path / "one", 2)
    tuned(tmp_path / "two", 2)
    (path,) = (tmp_path / "one" / ".studies" / "b200" / "svdquant_gemm").glob("*.jsonl")
    identity = read_journal(path).identity
    best = min(result.trials, key=lambda trial: trial.us or 0)
    ours, theirs = (Study(tmp_path / name / ".studies", identity) for name in ("one", "two"))
    ours.append(in_final(best, "2026-01-01T02", 1, "2026-01-01T02", 10.0))
    theirs.append(dataclasses.replace(best, status=Status.RACE, finished="2099-01-01T00"))
    merge(capsys, tmp_path / "two", tmp_path / "one")
    again = Study(tmp_path / "one" / ".studies", identity)
    assert again.trials[best.resolved].status is Status.RACE


def test_what_holds_no_results_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", str(tmp_path), "--out", str(tmp_path / "ours")]) == 2
    assert "must hold results of a tune" in capsys.readouterr().err
    tuned(tmp_path / "theirs", 3)
    assert main(["merge", str(tmp_path / "theirs"), "--out", str(tmp_path / "theirs")]) == 2
    assert "from another folder" in capsys.readouterr().err


def test_a_renamed_journal_is_refused(tmp_path: Path) -> None:
    result = tuned(tmp_path / "theirs", 3)
    result.journal.rename(result.journal.with_name("other.jsonl"))
    with pytest.raises(InputError, match="must be named"):
        read_source(tmp_path / "theirs", "b200")


DAMAGE = {
    "journal of bytes": (".studies/b200/svdquant_gemm/x.jsonl", b"\xff\xfe\n", "no journal of trials"),
    "journal of something else": (".studies/b200/svdquant_gemm/x.jsonl", b"[1]\n", "no journal of trials"),
    "index of objects": ("b200/objects/index.json", b"[]", "is damaged"),
}


@pytest.mark.parametrize(("name", "content", "said"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_found_before_anything_is_taken(
    name: str, content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(tmp_path / "theirs", 3)
    (tmp_path / "theirs" / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "theirs" / name).write_bytes(content)
    capsys.readouterr()
    assert main(["merge", str(tmp_path / "theirs"), "--out", str(tmp_path / "ours")]) == 2
    error = capsys.readouterr().err
    assert said in error and name in error and error.count("\n") == 1
    assert not (tmp_path / "ours").exists()
