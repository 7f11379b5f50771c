"""The benchmark of what is launched without a row: ratios worked out by hand, and that its problems have none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bench_fallback
from kernel_space.core.registry import operator
from kernel_space.places import shipped
from tuner.compile.manifest import Manifest
from tuner.devices.classes import DEVICE_CLASSES
from tuner.files.store import read_json
from tuner.runtime.choice.choose import Library
from tuner.tables.borrow import table_of

RESULTS = shipped("results")
PARSE = operator("svdquant_gemm").problem.parse


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["bench_fallback", *map(str, arguments)])
    return bench_fallback.main()


def chosen(folder: Path, shape: str, device: str) -> str:
    """Notes the fallback of ``shape`` as ``compile`` would; its config."""
    config = str(
        Library.of_class(RESULTS, DEVICE_CLASSES[device], cache_dir=folder).choose(PARSE(shape)).config
    )
    bench_fallback._remember(folder, shape, {"op": "svdquant_gemm", "config": config, "reason": "by hand"})
    return config


def trials(out: Path, device: str, times: dict[tuple[str, str], float]) -> None:
    """What ``measure`` leaves, by hand."""
    out.mkdir()
    lines = [
        f'svdquant_gemm,"{shape}",{device},measured,ok,{us},{config}' for (shape, config), us in times.items()
    ]
    (out / "trials.csv").write_text("\n".join(["op,problem,device,kind,status,us,config", *lines]) + "\n")


def test_layers_are_twenty_of_which_no_row_is() -> None:
    assert len(set(bench_fallback.SHAPES)) == 20
    problems = [PARSE(shape) for shape in bench_fallback.SHAPES]
    assert {one.m for one in problems} == {1, 64, 256, 1024, 4608}
    rows = table_of(RESULTS, DEVICE_CLASSES["h200"]).table.rows
    known = {(row.key.problem.k, row.key.problem.n) for row in rows.values() if row.key.op == "svdquant_gemm"}
    assert known and not known & {(one.k, one.n) for one in problems}


@pytest.mark.parametrize("device", ["h200", "h100"])
def test_ratios_by_hand(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """20 / 16 and 30 / 30: a geometric mean of the square root of 1.25. The third was not measured. h100 borrows."""
    folder, out, lines = tmp_path / "folder", tmp_path / "out", tmp_path / "lines"
    folder.mkdir()
    first, second, third = "256,3072,9216,128", "4608,4096,4096,128", "64,4096,4096,128"
    one, two = chosen(folder, first, device), chosen(folder, second, device)
    other = chosen(folder, third, device)
    assert len({one, two, other}) == 3
    trials(out, device, {(first, one): 20, (first, two): 16, (second, two): 30, (second, one): 40})
    assert run(monkeypatch, "compare", folder, out, "--results", RESULTS, "--lines", lines) == 0
    text = capsys.readouterr().out
    assert f"measured on {device}: geometric mean 1.118, largest 1.250 ({first}), of 2 problems" in text
    assert f"the fallback was not measured: {third}" in text
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(f["problem"], f["ratio"], f["best_us"], f["trials"]) for f in found] == [
        (first, 1.25, 16, 2),
        (second, 1.0, 30, 2),
    ]
    assert all(
        f["device"] == device and f["kind"] == "measured" and f["fallback_estimated_us"] for f in found
    )


def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = tmp_path / "folder", tmp_path / "out"
    folder.mkdir()
    for says in ("has no fallback.json", "has no trials.parquet or", "no fallback was measured"):
        assert run(monkeypatch, "compare", folder, out, "--results", RESULTS) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and says in line
        if "fallback.json" in says:
            config = chosen(folder, "256,3072,9216,128", "h200")
        elif "parquet" in says:
            trials(out, "h200", {("64,4096,4096,128", config): 9})
    assert run(monkeypatch, "compile", folder, "--device", "h900") == 2
    assert run(monkeypatch, "compile", folder, "--shape", "1,2") == 2


@pytest.mark.slow
def test_several_at_once_compile_the_fallback_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What h100 would launch is the second candidate of each problem, after the default, and has an object."""
    folder, shapes = tmp_path / "folder", ("1,3072,12288,128", "64,4096,4096,128")
    options = ["--device", "h100", "--trials", "2", "--at-once", "2", "--jobs", "2", "--results", RESULTS]
    assert run(monkeypatch, "compile", folder, *options, *(f"--shape={one}" for one in shapes)) == 0
    noted, manifest = read_json(folder / bench_fallback.CHOSEN), Manifest.load(folder)
    assert noted is not None and noted.keys() == set(shapes)
    library = Library.of_class(RESULTS, DEVICE_CLASSES["h100"], cache_dir=tmp_path)
    for shape in shapes:
        launched = str(library.choose(PARSE(shape)).config)
        entry = manifest.problems[PARSE(shape)][1]
        assert noted[shape]["config"] == entry.resolved == launched and entry.status == "ok"
