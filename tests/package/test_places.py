"""Where results lie, and how the user's shadow what is shipped: rows, objects, classes, neighbours."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kernel_space import places
from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.places import layers, shipped, user_results
from tests.runtime.test_choice import BOTH, PLAIN, SPLIT, entry, row, write
from tests.tables.test_borrow import GH200
from tuner.cli.main import main
from tuner.cli.tune.tune import _most_gain_first
from tuner.devices.recorded import keep_class
from tuner.devices.select import device_class_of, select_device
from tuner.runtime import explain, use_table
from tuner.runtime.state import RuntimeState
from tuner.stages.record import current
from tuner.stages.run import TuneOptions
from tuner.tables.dispatch import DispatchTable
from tuner.tune.near_rows import near_rows
from tuner.tune.retime import outdated_rows, table_of_device

SHAPE, OTHER = "256,3840,3072,128", "16,3840,3072,128"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """(the user's results, what is shipped), both empty."""
    mine, theirs = tmp_path / "mine", tmp_path / "site" / "results"
    monkeypatch.setenv("SVDQUANT_TUNE_RESULTS", str(mine))
    monkeypatch.setattr(places, "_ROOT", tmp_path / "site")
    return mine, theirs


def test_results_lie_in_the_platforms_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(places.sys, "platform", "linux")
    assert user_results() == Path("/home/someone/.local/share/svdquant-tune")
    monkeypatch.setattr(places.sys, "platform", "darwin")
    assert user_results() == Path("/home/someone/Library/Application Support/svdquant-tune")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert user_results() == Path("/data/svdquant-tune")
    monkeypatch.setenv("SVDQUANT_TUNE_RESULTS", "/team/results")
    assert user_results() == Path("/team/results")
    monkeypatch.setenv("SVDQUANT_TUNE_RESULTS", "")
    assert user_results() == Path("/data/svdquant-tune"), "empty is not set"


def test_a_checkout_ships_what_lies_in_it() -> None:
    assert shipped("results") == ROOT / "results" and shipped("search_spaces") == ROOT / "search_spaces"


def test_only_the_users_own_folder_lies_over_another(folders: tuple[Path, Path]) -> None:
    mine, theirs = folders
    assert layers(mine) == (mine, theirs)
    assert layers(theirs) == (theirs,) and layers("elsewhere") == (Path("elsewhere"),)


def test_a_user_whose_results_are_the_shipped_ones_has_them_once(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, theirs = folders
    monkeypatch.setenv("SVDQUANT_TUNE_RESULTS", str(theirs))
    assert layers(theirs) == (theirs,)


def test_a_row_shadows_the_shipped_one_of_its_problem_and_leaves_the_others(
    folders: tuple[Path, Path],
) -> None:
    mine, theirs = folders
    write(theirs, [row(SHAPE, PLAIN, us=10.0), row(OTHER, PLAIN, us=3.0)], [entry(PLAIN)])
    write(mine, [row(SHAPE, SPLIT, us=8.0)], [entry(SPLIT)])
    with use_table(mine):
        own, shipped_row = explain(SHAPE, "h200"), explain(OTHER, "h200")
    assert (str(own.config), own.row and own.row.time_us) == (SPLIT, 8.0)
    assert own.object.path.is_relative_to(mine)
    assert (str(shipped_row.config), shipped_row.row and shipped_row.row.time_us) == (PLAIN, 3.0)
    assert shipped_row.object.path.is_relative_to(theirs)
    with use_table(theirs):
        assert str(explain(SHAPE, "h200").config) == PLAIN


def test_the_run_time_asks_the_users_folder_without_being_told(folders: tuple[Path, Path]) -> None:
    mine, theirs = folders
    write(theirs, [row(SHAPE, PLAIN)], [entry(PLAIN)])
    classes = {"h200": device_class_of("h200")}
    problem = GemmProblem.parse(SHAPE)
    assert str(RuntimeState().choice(problem, classes["h200"]).config) == PLAIN
    write(mine, [row(SHAPE, SPLIT)], [entry(SPLIT)])
    assert str(RuntimeState().choice(problem, classes["h200"]).config) == SPLIT


def test_an_object_that_both_have_is_the_users(folders: tuple[Path, Path]) -> None:
    mine, theirs = folders
    write(theirs, [row(SHAPE, PLAIN)], BOTH)
    write(mine, [], [entry(PLAIN)])
    with use_table(mine):
        assert explain(SHAPE, "h200").object.path.is_relative_to(mine)


def test_a_row_that_this_version_cannot_read_shadows_nothing(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """As after an upgrade that took a knob away."""
    mine, theirs = folders
    write(theirs, [row(SHAPE, PLAIN)], [])
    write(mine, [dataclasses.replace(row(SHAPE), config="kernel=sm90a_ring speed=9")], [])
    table = DispatchTable.over([mine / "h200", theirs / "h200"], arch=SM90A)
    assert [one.config for one in table.rows.values()] == [PLAIN]
    assert "unknown knob 'speed'" in capsys.readouterr().err


def test_lookup_names_the_table_that_answers(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    mine, theirs = folders
    write(theirs, [row(SHAPE, PLAIN), row(OTHER, PLAIN, us=3.0)], [])
    write(mine, [row(SHAPE, SPLIT)], [])
    arguments = ["lookup", "--shape", SHAPE, "--shape", OTHER, "--device", "h200", "--json"]
    assert main(arguments) == 0
    own, other = json.loads(capsys.readouterr().out)["results"]
    assert own["table"] == str(mine / "h200" / "dispatch.json")
    assert other["table"] == str(theirs / "h200" / "dispatch.json")


def test_a_search_begins_with_shipped_rows(folders: tuple[Path, Path]) -> None:
    """So a short tune of a user is no worse than what is shipped, though its row shadows that."""
    mine, theirs = folders
    write(theirs, [row(SHAPE, PLAIN)], [])
    problem, h200 = GemmProblem.parse(SHAPE), select_device("h200")

    def begins(options: TuneOptions) -> list[str]:
        rows = near_rows(options.out, problem, h200)
        return [*rows.own, *rows.others]

    assert begins(TuneOptions()) == [PLAIN]
    assert begins(TuneOptions(out=mine.parent / "third")) == []
    write(mine, [row(OTHER, SPLIT)], [])
    assert begins(TuneOptions()) == [PLAIN, SPLIT]


def test_a_retime_is_of_shipped_rows_too(folders: tuple[Path, Path]) -> None:
    """What it finds is then the user's row, and it is that one that the next retime is about."""
    mine, theirs = folders
    h200 = select_device("h200")
    with pytest.raises(InputError, match=f"no row in {mine}"):
        table_of_device(mine, h200)
    write(theirs, [row(SHAPE, PLAIN), row(OTHER, PLAIN, us=3.0)], [])
    assert [one.config for one in table_of_device(mine, h200).rows.values()] == [PLAIN, PLAIN]
    write(mine, [row(SHAPE, SPLIT)], [])
    found = outdated_rows(table_of_device(mine, h200), current(h200))
    assert {str(one.problem): one.row.config for one in found} == {SHAPE: SPLIT, OTHER: PLAIN}
    assert len(outdated_rows(table_of_device(theirs, h200), current(h200))) == 2
    write(mine.parent / "third", [row(OTHER, SPLIT)], [])
    assert len(table_of_device(mine.parent / "third", h200).rows) == 1


def test_explain_says_that_a_shipped_row_is_stale(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, theirs = folders
    write(theirs, [row(SHAPE, PLAIN)], [])
    for shape, stale in ((SHAPE, True), (OTHER, False)):
        assert main(["explain", "--shape", shape, "--device", "h200", "--json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["results"]
        assert (found["stale_row"] is not None) is stale
        assert not stale or found["stale_row"].startswith("of 2026-01-01T00:00:00+00:00; changed since: ")


def test_a_model_begins_with_what_gains_most_over_shipped_rows(folders: tuple[Path, Path]) -> None:
    """The problem with a shipped row gains nothing from a tune, however often it is called."""
    mine, theirs = folders
    write(theirs, [row(SHAPE, PLAIN)], [])
    own, other = GemmProblem.parse(SHAPE), GemmProblem.parse(OTHER)
    h200 = select_device("h200")
    counted: dict[Problem, int | None] = {own: 1000, other: 1}
    assert _most_gain_first(counted, h200, mine, lambda line: None) == [other, own]
    assert _most_gain_first(counted, h200, mine.parent / "third", lambda line: None) == [own, other]


def test_a_shipped_class_that_is_known_by_its_file_is_found(folders: tuple[Path, Path]) -> None:
    mine, theirs = folders
    own = select_device("cuda:0", probe=lambda: [GH200]).device_class
    keep_class(theirs, own)
    assert device_class_of(own.name, results=mine).sm_count == own.sm_count
