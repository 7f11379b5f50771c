"""A chain by the command line, from its space to a row, a report and a launch: nothing but its folder knows of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_space.core import registry
from kernel_space.core.arch import SM100A
from kernel_space.launch.capture import capture
from tuner.cli import main as cli
from tuner.tables.dispatch import DispatchTable

SHAPE = ("--op", "twice", "--shape", "9,64", "--device", "b200")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results")
    assert cli.main(["tune", *SHAPE, "--trials", "2", "--out", str(out)]) == 0
    return out


def test_the_row_is_found_and_launches_every_link(results: Path) -> None:
    problem = registry.operator("twice").problem.parse("9,64")
    lookup = DispatchTable.load(results / "b200", arch=SM100A).lookup(problem)
    assert (lookup.source, lookup.config.kernel) == ("exact", "rows+rows")
    signature = registry.operator("twice").signature
    pointers = {name: (number + 1) << 32 for number, name in enumerate(signature.pointers)}
    launches = capture(lookup.build(), *signature.values(problem, pointers, clusters=1))
    assert [launch.grid for launch in launches] == [
        (-(-9 // lookup.config.of(link).rows), 1, 1) for link in ("first", "second")
    ]


def test_its_page_and_answers_name_the_knobs_of_both(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (results / "b200" / "twice" / "9x64" / "report.md").read_text()
    assert "first_rows" in page and "second_vec" in page
    assert "half and before and y and count to the bit" in page
    assert cli.main(["lookup", *SHAPE, "--out", str(results)]) == 0
    assert "config     kernel=rows+rows first_rows=" in capsys.readouterr().out
    assert cli.main(["explain", *SHAPE, "--out", str(results), "--config", "second_rows=64"]) == 2
    assert "in second, rows must be 1 to 32, got 64" in capsys.readouterr().err


def test_an_unknown_knob_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["check", *SHAPE, "--config", "vec=8"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "unknown knob 'vec'" in said and "first_vec" in said
