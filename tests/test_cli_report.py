"""``report`` again: of trials that this machine would not make so today."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pytest

from tests.fakes import FakeDevice, small_space
from tests.test_driver import PROBLEM, SPACE, run
from tuner import cli_measure, cli_report
from tuner.cli import main
from tuner.cli_merge import _identity
from tuner.dispatch import FILE_NAME, DispatchTable, record
from tuner.final_order import FINAL, PLACE
from tuner.outcome import Kind, Trial
from tuner.results import current, winning_row
from tuner.study import Study


def test_measured_trials_keep_their_provenance_where_no_card_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here b200 is simulated: a report of measured trials must not say that its simulator judged them."""
    card = FakeDevice(kind=Kind.MEASURED, judge="a card elsewhere")
    result = run(tmp_path, device=card, space=small_space(**SPACE), trials=3)
    assert main(["report", "--shape", str(PROBLEM), "--device", "b200", "--out", str(tmp_path)]) == 0
    page = result.report.markdown.read_text()
    made = page[page.index("## How it was made") :]
    assert "| times | measured |" in made and "simulated" not in made
    assert "| kernel source | source |" in made and "| nvidia-cutlass-dsl | 4.8.1 |" in made  # of tests.fakes
    assert "trials.parquet" in made and str(capsys.readouterr().out).count("report.html") == 1


def test_a_report_of_merged_visits_leads_with_what_the_table_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One visit's final found 9 us, which the table took; another's, later and among other kernels, 10 and 11 us."""
    card = FakeDevice(kind=Kind.MEASURED)
    for name in ("one", "two"):
        result = run(tmp_path / name, device=card, space=small_space(**SPACE), trials=4)
    a, b, c = result.trials[:3]
    late = [in_final(b, "2026-02", 1, 11.0), in_final(c, "2026-02", 2, 10.0)]
    finals = {"one": [in_final(a, "2026-01", 1, 9.0)], "two": late}
    monkeypatch.setattr(cli_report, "select_device", lambda _: card)
    for name, placed in finals.items():
        (path,) = (tmp_path / name / ".studies" / "b200").glob("*.jsonl")
        study = Study(tmp_path / name / ".studies", _identity(path))
        for trial in placed:
            study.append(trial)
        (tmp_path / name / "b200" / FILE_NAME).unlink()
        row = winning_row(card, placed, None)
        record(tmp_path / name / "b200" / FILE_NAME, [row], current(card))
        main(["merge", str(tmp_path / name), "--out", str(tmp_path / "ours")])
    command = ["report", "--shape", str(PROBLEM), "--device", "b200", "--out", str(tmp_path / "ours")]
    assert main(command) == 0
    page = (tmp_path / "ours" / "b200" / "4352x3840x3072x128" / "report.md").read_text()
    launched = DispatchTable.load(tmp_path / "ours" / "b200").lookup(PROBLEM).row
    assert launched is not None and launched.config == a.resolved
    assert f"## Winner\n\n```\n{a.resolved}\n```\n\n- **9 us, measured**" in page


def in_final(trial: Trial, final: str, place: int, us: float) -> Trial:
    evidence = {**trial.evidence, FINAL: final, PLACE: place}
    times = {"us": us, "low_us": us, "high_us": us}
    return dataclasses.replace(trial, evidence=evidence, finished=final, **times)


def test_a_report_with_peers_still_says_how_the_tune_went(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = FakeDevice(kind=Kind.MEASURED)
    result = run(tmp_path, device=card, space=small_space(**SPACE), trials=3)
    monkeypatch.setattr(cli_measure, "measure_peers", lambda *_: None)
    monkeypatch.setattr(cli_measure, "cached_build", lambda *_, **__: None)
    before = result.report.markdown.read_text()
    result.report.markdown.unlink()
    arguments = argparse.Namespace(out=tmp_path, folder=tmp_path)
    cli_measure._peers(None, result, card, arguments)  # type: ignore[arg-type]
    assert "| search | seed 0, 3 new and 0 known trials |" in before
    assert result.report.markdown.read_text() == before


def test_a_report_written_again_still_says_how_the_tune_went(tmp_path: Path) -> None:
    result = run(tmp_path, device=FakeDevice(kind=Kind.MEASURED), space=small_space(**SPACE), trials=3)
    command = ["report", "--shape", str(PROBLEM), "--device", "b200", "--out", str(tmp_path)]
    assert main(command) == 0 and main(command) == 0
    assert "| search | seed 0, 3 new and 0 known trials |" in result.report.markdown.read_text()
