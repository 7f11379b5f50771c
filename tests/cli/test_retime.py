"""``retime`` as a command: which rows, exit codes, what it prints; and with objects that another machine compiled."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.compile.test_manifest import PROBLEM as CARD_PROBLEM
from tests.compile.test_manifest import Compiler, filled, on_a_bare_machine
from tests.fakes import FakeDevice, fake_us
from tests.tune.test_driver import PROBLEM
from tests.tune.test_retime import NEW, OLD, OtherTimes, StopsAt, TodaysPool, kernels, own_row, tuned
from tuner.cli.look import explain as cli_explain
from tuner.cli.main import main
from tuner.cli.tune import compile_only as cli_compile_only
from tuner.cli.tune import retime as cli_retime
from tuner.cli.tune import tune as cli_tune
from tuner.compile.manifest import Manifest
from tuner.space.count import Count
from tuner.stages import report as report_stage
from tuner.tables.dispatch import DispatchTable
from tuner.trials.outcome import Status

RetimeCommand = Callable[..., int]


@pytest.fixture
def retime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetimeCommand:
    """The command on results of another day, with ``device`` and ``pool``."""

    monkeypatch.setattr(
        report_stage, "count_space", lambda *_: Count(raw=3, spelled=2, legal=1, rejected={"r": 1})
    )

    def command(*more: str, device: Any = None, pool: Any = None) -> int:
        judge, compiler = device or OtherTimes(), pool or TodaysPool()
        monkeypatch.setattr(cli_retime, "select_device", lambda name, **options: judge)
        monkeypatch.setattr(cli_tune, "CompilePool", lambda *settings: contextlib.nullcontext(compiler))
        return main(["retime", "--device", "b200", "--out", str(tmp_path), "--jobs", "2", *more])

    return command


def test_it_says_what_moved(
    retime: RetimeCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(tmp_path)
    before, best = own_row(tmp_path), kernels()
    device = OtherTimes(factors={best[0]: 1.5, best[1]: 1.5, best[2]: 1.5, best[3]: 1.5})
    assert retime("--json", device=device) == 0
    document = json.loads(capsys.readouterr().out)
    (found,) = document["results"]
    now = min(set(device.timed), key=device.us)
    assert found["config_before"] == best[0] and found["us_before"] == before.time_us
    assert found["config_after"] == now == own_row(tmp_path).config
    assert found["us_after"] == pytest.approx(device.us(now), rel=1e-5)
    assert found["ratio"] == pytest.approx(device.us(now) / fake_us(best[0]), rel=1e-4)
    assert found["winner_changed"] is (now != best[0])
    assert found["since"] == before.date and found["reason"].startswith("model fake oracle ")
    assert Path(document["page"]).read_text().count(str(PROBLEM)) >= 1

    assert retime(device=device) == 0
    assert "nothing is stale: the 1 rows of the table are of today's sources" in capsys.readouterr().out


def test_a_slower_row_is_to_be_searched_again(
    retime: RetimeCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(tmp_path)
    device = OtherTimes()
    device.us = lambda resolved: fake_us(resolved) * 1.2  # type: ignore[method-assign]
    assert retime(device=device) == 0
    said = capsys.readouterr().out
    assert (
        "1.2000 of the time before" in said and "the same winner, slower: search again (6 candidates" in said
    )
    command = f"tune.py --device b200 --op svdquant_gemm --shape {PROBLEM} --option lora_dtype=fp16"
    assert command in said and "1 slower by more than 3% or without a winner" in said
    assert f"    {command} " in (tmp_path / "b200" / "retime.md").read_text()


def test_all_times_fresh_rows_anew(
    retime: RetimeCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(tmp_path)
    device = FakeDevice(judge=OLD)
    assert retime("--all", "--json", device=device) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert (found["reason"], found["ratio"]) == ("", pytest.approx(1.0, rel=1e-5))
    assert len(device.timed) == 6, "the journal of today does not answer"


def test_without_a_usable_candidate_the_row_stays_and_it_is_1(
    retime: RetimeCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(tmp_path)
    table = (tmp_path / "b200" / "dispatch.json").read_bytes()
    assert retime(pool=TodaysPool(lambda config: Status.COMPILE_FAILED)) == 1
    said = capsys.readouterr()
    assert f"error: no candidate could be used for svdquant_gemm {PROBLEM}: the rows stay" in said.err
    assert "nothing usable: search again" in said.out
    assert (tmp_path / "b200" / "dispatch.json").read_bytes() == table


def test_interrupted_it_is_130_and_the_next_one_goes_on(
    retime: RetimeCommand, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(tmp_path)
    assert retime("--jobs", "1", pool=StopsAt(4)) == 130
    assert "stopped by interrupted, the next retime goes on" in capsys.readouterr().out
    device = OtherTimes()
    assert retime("--json", device=device) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["candidates"] == 6
    assert 0 < len(device.timed) < 6


def test_what_another_tuner_made_fresh_meanwhile_is_passed_over(
    retime: RetimeCommand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(tmp_path)
    turns = cli_retime.in_turn

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(cli_retime, "in_turn", turns)
        assert retime() == 0  # somebody else, before this one's turn has come
        return turns(*arguments, **options)

    monkeypatch.setattr(cli_retime, "in_turn", meanwhile)
    device = OtherTimes()
    monkeypatch.setattr(cli_retime, "select_device", lambda name, **options: device)
    assert retime(device=device) == 0
    assert not device.timed and "another tuner has made its row fresh" in capsys.readouterr().err


BAD = {
    "a shape without a row": (["--shape", "8,64,64,0"], "the table has no row of 8,64,64,0; tune it first"),
    "a dtype without a shape": (["--dtype", "bf16"], "name it with --shape"),
    "both": (["--all", "--stale-only"], "not allowed with argument"),
    "no number": (["--runners-up", "-1"], "at least 0, got '-1'"),
    "no objects": (["--objects", "."], "must hold a folder objects"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    retime: RetimeCommand,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    tuned(tmp_path)
    files = sorted(tmp_path.rglob("*"))
    assert retime(*arguments) == 2
    said = capsys.readouterr()
    assert message in said.err and said.err.count("\n") == 1 and not said.out
    assert sorted(tmp_path.rglob("*")) == files


def test_explain_says_what_changed_since_the_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned(tmp_path)
    date = own_row(tmp_path).date
    for judge, stale in ((OLD, False), (NEW, True)):
        device = FakeDevice(judge=judge)
        monkeypatch.setattr(cli_explain, "select_device", lambda name, device=device, **options: device)
        assert main(["explain", "--shape", str(PROBLEM), "--out", str(tmp_path), "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["results"]
        assert (found["stale_row"] is not None) is stale
    assert re.fullmatch(
        rf"of {re.escape(date)}; changed since: model .*, now .*; tune.py retime .*", found["stale_row"]
    )


@pytest.mark.slow
def test_a_card_without_a_compiler_retimes_what_another_machine_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, again = tmp_path / "dir", tmp_path / "results", tmp_path / "again"
    filled(path, tmp_path / "home", 6)
    done = on_a_bare_machine(tmp_path, "measure", str(path), "--out", str(out))
    assert done.returncode == 0, done.stderr
    table = out / "h200" / "dispatch.json"
    table.write_text(table.read_text().replace('"dsl_version": "', '"dsl_version": "0.'))
    shutil.rmtree(out / ".studies")
    (row,) = DispatchTable.load(out / "h200").rows.values()

    compiler = Compiler(tmp_path / "home")
    monkeypatch.setattr(
        cli_compile_only, "CompilePool", lambda jobs, limit_s: contextlib.nullcontext(compiler)
    )
    arguments = ["compile-only", "--retime", "--device", "h200", "--results", str(out), "--out", str(again)]
    assert main([*arguments, "--runners-up", "2"]) == 0
    assert (
        f"next, on a machine with the card and these sources: tune.py retime --device cuda:0 --objects {again}"
        in (capsys.readouterr().out)
    )
    entries = Manifest.load(again).problems[CARD_PROBLEM]
    assert entries[0].resolved == row.config and 3 <= len(entries) <= 4  # it, the default, two more

    command = ("retime", "--device", "cuda:0", "--out", str(out), "--json")
    refused = on_a_bare_machine(tmp_path, *command)
    assert refused.returncode == 2 and "run tune.py compile-only --retime --device h200" in refused.stderr
    done = on_a_bare_machine(tmp_path, *command, "--objects", str(again))
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["results"]
    assert found["reason"].startswith("dsl version 0.") and found["candidates"] == len(entries)
    assert found["kind_after"] == "measured" and found["table"].startswith("row recorded")
    (now,) = DispatchTable.load(out / "h200").rows.values()
    assert now.config == min((entry.resolved for entry in entries), key=fake_us)
    assert now.provenance.dsl_version == row.provenance.dsl_version.removeprefix("0.")


def test_nothing_stale_leaves_no_folder_of_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "dir", tmp_path / "results"
    filled(path, tmp_path / "home", 2)
    done = on_a_bare_machine(tmp_path, "measure", str(path), "--out", str(out))
    assert done.returncode == 0, done.stderr
    arguments = [
        "compile-only",
        "--retime",
        "--device",
        "h200",
        "--results",
        str(out),
        "--out",
        str(tmp_path / "o"),
    ]
    assert main([*arguments, "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["results"] == [] and "is stale: nothing is compiled" in said.err
    assert not (tmp_path / "o").exists()
