"""``report`` again: of trials that this machine would not make so today."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.card.test_peers import answer
from tests.fakes import FakeDevice, small_space
from tests.tune.test_driver import PROBLEM, SPACE, run
from tuner.cli.look import report as cli_report
from tuner.cli.main import main
from tuner.cli.tune import measure as cli_measure
from tuner.cli.tune import peers as cli_peers
from tuner.stages.record import current, winning_row
from tuner.tables.dispatch import FILE_NAME, DispatchTable, record
from tuner.trials.final_order import FINAL, PLACE
from tuner.trials.journal_read import read_journal
from tuner.trials.outcome import Kind, Trial
from tuner.trials.study import Study


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
    monkeypatch.setattr(cli_report, "select_device", lambda _, **options: card)
    for name, placed in finals.items():
        (path,) = (tmp_path / name / ".studies" / "b200" / "svdquant_gemm").glob("*.jsonl")
        study = Study(tmp_path / name / ".studies", read_journal(path).identity)
        for trial in placed:
            study.append(trial)
        (tmp_path / name / "b200" / FILE_NAME).unlink()
        row = winning_row(card, placed, None)
        record(tmp_path / name / "b200" / FILE_NAME, [row], current(card))
        main(["merge", str(tmp_path / name), "--out", str(tmp_path / "ours")])
    command = ["report", "--shape", str(PROBLEM), "--device", "b200", "--out", str(tmp_path / "ours")]
    assert main(command) == 0
    page = (tmp_path / "ours" / "b200" / "svdquant_gemm" / "4352x3840x3072x128" / "report.md").read_text()
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


def test_the_page_shows_peers_that_were_timed_after_the_tune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``tune.py peers`` after a sweep: a page used to keep the peers of an earlier visit until it was written again."""
    card = FakeDevice(kind=Kind.MEASURED)
    result = run(tmp_path, device=card, space=small_space(**SPACE), trials=3)
    card.card, card.worker = SimpleNamespace(index=0, name="NVIDIA H200"), SimpleNamespace(uuid="test")
    monkeypatch.setattr(cli_peers, "cuda_device", lambda _: card)
    monkeypatch.setattr(cli_peers, "_own", lambda *_: None)
    process = SimpleNamespace(ask=lambda request: json.loads(json.dumps(answer(PROBLEM))))
    monkeypatch.setattr(cli_peers, "PeersProcess", lambda _: contextlib.nullcontext(process))
    page = result.report.markdown
    assert "## Peers" not in page.read_text()
    command = ["peers", "--shape", str(PROBLEM), "--device", "cuda:0", "--out", str(tmp_path)]
    assert main(command) == 0
    assert "## Peers, measured" in page.read_text() and "580.0" in page.read_text()
    assert "| search | seed 0, 3 new and 0 known trials |" in page.read_text(), "and how the tune went"
    assert str(page) in capsys.readouterr().out


def test_a_report_written_again_keeps_the_points_that_were_rejected(tmp_path: Path) -> None:
    """The journal does not hold them: they were never compiled."""
    choices = {
        "mma_tiler_mn": "256x128 128x128 128x64 256x64", "mma_tiler_k": "128 256", "split_k": "1 2 4",
        "cluster_shape_mn": "1x1 2x1 1x2 2x2", "num_ab_stage": "auto 2 8 11", "epi_tile_n": "32 64",
        "raster_order": "m n", "use_pdl": "false true",
    }  # fmt: skip
    space = small_space(**choices)
    result = run(tmp_path, device=FakeDevice(kind=Kind.MEASURED), space=space, trials=12)
    line = f"a rule rejected, never compiled: {len(result.illegal)}."
    assert result.illegal and line in result.report.markdown.read_text()
    assert cli_report.write_again(tmp_path, PROBLEM, FakeDevice(kind=Kind.MEASURED)) is not None
    assert line in result.report.markdown.read_text()


def test_peers_without_a_sweep_make_no_page(tmp_path: Path) -> None:
    assert cli_report.write_again(tmp_path, PROBLEM, FakeDevice(kind=Kind.MEASURED)) is None
    assert not list(tmp_path.iterdir())
