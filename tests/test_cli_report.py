"""``report`` again: of trials that this machine would not make so today."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tests.fakes import FakeDevice, small_space
from tests.test_driver import PROBLEM, SPACE, run
from tuner import cli_measure
from tuner.cli import main
from tuner.outcome import Kind


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
