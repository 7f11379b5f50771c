"""The index of a device: what its rows say, who writes it, and what it links."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.report.test_report import BASE, Page, sweep, trial
from tuner.report.index_files import INDEX, write_index
from tuner.report.page import ASSET_FILES, PROBLEMS_FILE, asset
from tuner.report.write import report_folder, write_report
from tuner.tables.row import DispatchKey, Provenance, Row
from tuner.trials.outcome import Kind, Origin

SOURCES = Provenance(kernel_source="a" * 64, dsl_version="1", model="b" * 64)
NASTY = "<img src=x onerror=alert(1)>"


def row(m: int, us: float, **changes: object) -> Row:
    fields: dict[str, object] = {
        "key": DispatchKey.of(GemmProblem(m=m, k=3840, n=3072, r=128), SM100A.name),
        "config": str(BASE),
        "kind": Kind.MODELLED,
        "time_us": us,
        "low_us": us - 1,
        "high_us": us + 1,
        "provenance": SOURCES,
        "protocol": "p",
        "date": "2025-11-21T00:00:00+00:00",
    }
    return Row(**{**fields, **changes})  # type: ignore[arg-type]


def table(*rows: Row) -> list[tuple[Problem, Row]]:
    return [(one.key.problem, one) for one in rows]


def write_page(results: Path, m: int) -> Path:
    """With peers of which one is 1.5 times as fast and one takes 3 times as long, and a default of twice the time."""
    problem = GemmProblem(m=m, k=3840, n=3072, r=128)
    trials = [
        trial(0, 40.0, origin=Origin.DEFAULT, config=BASE.replace(num_ab_stage=3), problem=str(problem)),
        trial(1, 20.0, problem=str(problem)),
    ]
    folder = report_folder(results, "b200", problem)
    write_report(folder, sweep(trials, problem=problem))
    rows = [("svdquant_gemm", 30.0), ("slow", 90.0), (NASTY, 20.0)]
    peers = [
        {"problem": str(problem), "peer": peer, "us": us, "low_us": us, "high_us": us} for peer, us in rows
    ]
    about = {"device": "d", "driver": "1", "date": "2025", "protocol": "p"}
    (folder / "peers.json").write_text(json.dumps({**about, "rows": peers}))
    return folder


def test_index_by_hand(tmp_path: Path) -> None:
    write_page(tmp_path, 256)
    path = write_index(tmp_path, "b200", lambda: table(row(4352, 50.0), row(256, 20.0)))
    text = path.read_text()
    page = Page(text)
    assert path == tmp_path / "b200" / "index.html"
    assert "2 problems: 2 modelled" in page.words
    rows = [attributes for tag, attributes in page.elements if tag == "tr" and "data-kind" in attributes]
    assert [one["data-sizes"].split()[:4] for one in rows] == [
        ["256", "3840", "3072", "128"],
        ["4352", "3840", "3072", "128"],
    ]
    # 20 us against the default's 40; peers 20 / 30 and 90 / 30 of this kernel's time in their run
    assert "2.00×" in page.words and f"0.67 {NASTY}3.00 slow" in page.words
    assert "<img" not in text
    links = {value for name, value in page.attributes if name == "href"}
    assert "svdquant_gemm/256x3840x3072x128/report.html" in links
    assert not [link for link in links if "4352" in link]  # that problem has no page
    assert all((path.parent / link).is_file() for link in links)


def test_pages_of_problems_without_a_row_are_listed(tmp_path: Path) -> None:
    write_page(tmp_path, 256)
    words = Page(write_index(tmp_path, "b200", list).read_text()).words
    assert "1 problems: 1 no row" in words


def test_what_pages_share_is_there_once(tmp_path: Path) -> None:
    folder = write_page(tmp_path, 256)
    index = write_index(tmp_path, "b200", lambda: table(row(256, 20.0)))
    for name in ASSET_FILES:
        assert (index.parent / "assets" / name).read_bytes() == asset(name)
    listed = (index.parent / PROBLEMS_FILE).read_text()
    [known] = json.loads(listed.removeprefix("window.problems = ").removesuffix(";\n"))
    assert known == {"page": "svdquant_gemm/256x3840x3072x128", "name": "svdquant_gemm 256,3840,3072,128"}
    page = Page((folder / "report.html").read_text())
    shared = [value for name, value in page.attributes if name in ("href", "src")]
    assert shared and all((folder / value).resolve().is_file() for value in shared)
    assert [attributes["data-page"] for tag, attributes in page.elements if tag == "html"] == [known["page"]]


def test_the_library_is_the_stated_version() -> None:
    about = asset("README.md").decode()
    version = about.partition("uPlot) ")[2].split(",")[0]
    assert asset("uplot.min.js").decode().startswith(f"/*! https://github.com/leeoniya/uPlot (v{version}) */")
    assert "Permission is hereby granted" in asset("uplot.LICENSE").decode()


def test_two_tuners_that_end_together_leave_both_rows(tmp_path: Path) -> None:
    """The first has read the table and waits; the second, whose row is newer, must not be overwritten by the first."""
    rows = [row(256, 20.0)]
    reading, go_on = threading.Event(), threading.Event()

    def slow() -> list[tuple[Problem, Row]]:
        found = table(*rows)
        reading.set()
        go_on.wait(10)
        return found

    first = threading.Thread(target=write_index, args=(tmp_path, "b200", slow))
    first.start()
    assert reading.wait(10)
    rows.append(row(512, 30.0))
    second = threading.Thread(target=write_index, args=(tmp_path, "b200", lambda: table(*rows)))
    second.start()
    second.join(0.3)
    go_on.set()
    first.join(10)
    second.join(10)
    words = Page((tmp_path / "b200" / INDEX).read_text()).words
    assert "2 problems" in words and "512,3840,3072,128" in words


def test_a_link_in_the_place_of_a_page_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b200").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "b200" / INDEX).symlink_to(tmp_path / "mine")
    with pytest.raises(InputError, match="link"):
        write_index(tmp_path, "b200", list)
    assert (tmp_path / "mine").read_text() == "mine"
