"""A merge or a bundle that is killed at any write: what is there is consistent, and the next one completes it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_space.core.arch import SM90A
from tests.files.trees import SHAPES, listing, no_compiler, results_folder
from tuner.cli.main import main
from tuner.report.page import ASSET_FILES
from tuner.tables.bundle import FOLDER, Bundle
from tuner.tables.dispatch import DispatchTable
from tuner.trials.journal_read import read_journal

ROOT = Path(__file__).resolve().parents[2]

# One process that has imported everything; every attempt is a fork of it, which ends at its n-th write.
DRIVER = """
import os, shutil, sys
from pathlib import Path
from tests.files.trees import no_compiler
from tuner.cli.tune import bundle, merge
from tuner.tables import bundle_write
from tuner.cli.main import main
from tuner.devices.select import select_device
from tuner.stages.record import current
current(select_device("h200"))
bundle_write._built = no_compiler

command, start, target, kept = sys.argv[1].split(), Path(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
expected = int(sys.argv[5])
COUNTED = ("write", "fsync", "replace", "rename", "unlink", "mkdir", "ftruncate")

def attempt(n):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = [n]
    def dying(function):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os._exit(99)
            return function(*arguments, **options)
        return call
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if n:
        for name in COUNTED:
            setattr(os, name, dying(getattr(os, name)))
        from tuner.files import store
        for name in ("write", "fsync", "replace"):
            setattr(store._OsFileSystem, name, staticmethod(getattr(os, name)))
    os._exit(main([*command, "--out", str(target)]))

n = 1
while True:
    shutil.rmtree(target, ignore_errors=True)
    if start.exists():
        shutil.copytree(start, target)
    code = attempt(n)
    if code != 99:
        print(n, code)
        break
    shutil.copytree(target, kept / f"{n} killed")  if target.exists() else (kept / f"{n} killed").mkdir()
    code = attempt(0)
    assert code == expected, (n, code)
    shutil.copytree(target, kept / f"{n} again")
    n += 1
"""


def killed_everywhere(command: str, start: Path, tmp_path: Path, code: int = 0) -> list[Path]:
    """Folders after a kill at the first, second, ... write of ``tune.py command``; beside each what the next run made
    of it, which ends with ``code``."""
    kept = tmp_path / "kept"
    kept.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, command, str(start), str(tmp_path / "target"), str(kept), str(code)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    points, ended = map(int, done.stdout.split()[-2:])
    assert ended == code and points > 8, done.stdout
    return [kept / f"{number} killed" for number in range(1, points)]


def again(killed: Path) -> Path:
    return killed.with_name(killed.name.replace("killed", "again"))


def holds(folder: Path) -> dict[str, tuple]:
    """Without times, and without the locks, which only hold who had them last."""
    return {name: about for name, about in listing(folder, times=False).items() if not name.endswith(".lock")}


@pytest.mark.slow
@pytest.mark.parametrize("start", ["nothing", "other results"])
def test_a_merge_killed_anywhere_is_completed_by_the_next(
    start: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = results_folder(tmp_path / "source", tmp_path / "cache")
    before = tmp_path / "before"
    if start == "other results":
        worse(shutil.copytree(source, before))
    whole = tmp_path / "whole"
    if before.exists():
        shutil.copytree(before, whole)
    assert main(["merge", str(source), "--out", str(whole)]) == 0
    for killed in killed_everywhere(f"merge {source}", before, tmp_path):
        assert holds(again(killed)) == holds(whole), killed.name
        for row in DispatchTable.load(killed / "h200", arch=SM90A).rows.values():
            if before.exists() and row.time_us == 100.0:
                continue  # it stood before
            bundle = Bundle.load(killed / "h200" / FOLDER, SM90A)
            assert row.config in [entry.config for entry in bundle.entries], killed.name
            for entry in bundle.entries:
                bundle.file_of(entry).read()
            report = (
                killed / "h200" / "svdquant_gemm" / str(row.key.problem).replace(",", "x") / "report.html"
            )
            assert report.read_text() == f"report.html of {row.key.problem}", killed.name
            assert len(list((killed / ".studies" / "h200" / "svdquant_gemm").glob("*.jsonl"))) == 2, (
                killed.name
            )


def worse(folder: Path) -> None:
    """Results of the same problems: slower rows, an own report of one, no objects, journals without one trial."""
    path = folder / "h200" / "dispatch.json"
    document = json.loads(path.read_text())
    for entry in document["rows"]:
        entry |= {"time_us": 100.0, "low_us": 99.0, "high_us": 101.0}
        entry["evidence"]["date"] = "2020-01-01T00:00:00+00:00"
    path.write_text(json.dumps(document))
    shutil.rmtree(folder / "h200" / FOLDER)
    for journal in (folder / ".studies" / "h200" / "svdquant_gemm").glob("*.jsonl"):
        journal.write_text("".join(journal.read_text().splitlines(keepends=True)[:2]))
    (folder / "h200" / "svdquant_gemm" / "16x3840x3072x128" / "report.html").write_text("mine")


def test_what_an_interrupted_merge_of_rows_left_out_is_brought(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that are there already, and nothing beside them."""
    source = results_folder(tmp_path / "source", tmp_path / "cache")
    ours = tmp_path / "ours"
    (ours / "h200").mkdir(parents=True)
    shutil.copy(source / "h200" / "dispatch.json", ours / "h200")
    assert main(["merge", str(source), "--out", str(ours), "--json"]) == 0
    (said,) = json.loads(capsys.readouterr().out)
    assert [row["taken"] for row in said["rows"]] == [False, False]
    assert (said["trials"], said["objects"]) == (4, 2)
    theirs = holds(source)
    assert {name: about for name, about in holds(ours).items() if name in theirs} == theirs
    shared = {"h200/assets", *(f"h200/assets/{name}" for name in ASSET_FILES)}
    assert holds(ours).keys() - theirs.keys() == shared | {"h200/index.html", "h200/problems.js"}


def test_an_own_report_of_a_row_that_stands_is_left_alone(tmp_path: Path) -> None:
    source = results_folder(tmp_path / "source", tmp_path / "cache")
    ours = shutil.copytree(source, tmp_path / "ours")
    page = ours / "h200" / "svdquant_gemm" / "16x3840x3072x128" / "report.html"
    page.write_text("written again here")
    (page.parent / "report.md").unlink()
    assert main(["merge", str(source), "--out", str(ours)]) == 0
    assert page.read_text() == "written again here"
    assert (page.parent / "report.md").read_text() == "report.md of 16,3840,3072,128"


def test_a_bundle_killed_anywhere_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler, so that there is none of the largest rank: exit code 1."""
    monkeypatch.setattr("tuner.tables.bundle_write._built", no_compiler)
    source = results_folder(tmp_path / "source", tmp_path / "cache" / "objects")
    start = tmp_path / "start"
    shutil.copytree(source, start)
    (start / "h200" / FOLDER / ("0" * 16 + ".o")).write_text("of a row that is gone")
    for entry in Bundle.load(start / "h200" / FOLDER, SM90A).entries[:1]:
        (start / "h200" / FOLDER / entry.file).write_text("damaged")
        (start / "h200" / FOLDER / "index.json").write_text('{"schema": 2, "objects": []}')
    kept = tmp_path / "kept"
    command = f"bundle --device h200 --objects {tmp_path / 'cache'}"
    kept.mkdir()
    whole = shutil.copytree(start, tmp_path / "whole")
    assert main([*command.split(), "--out", str(whole)]) == 1
    assert len(Bundle.load(whole / "h200" / FOLDER, SM90A).entries) == len(SHAPES)
    kept.rmdir()
    for killed in killed_everywhere(command, start, tmp_path, code=1):
        assert holds(again(killed)) == holds(whole), killed.name
        bundle = Bundle.load(killed / "h200" / FOLDER, SM90A)
        for entry in bundle.entries:
            bundle.file_of(entry).read()


# -- sources of others --


def test_a_merge_leaves_its_source_as_it_is(tmp_path: Path) -> None:
    """Also one with a torn journal, whose owner is still at it, without locks."""
    source = results_folder(tmp_path / "source", tmp_path / "cache")
    for lock in source.rglob("*.lock"):
        lock.unlink()
    (journal, _) = sorted((source / ".studies" / "h200" / "svdquant_gemm").glob("*.jsonl"))
    with journal.open("ab") as file:
        file.write(b'{"number":9,"torn')
    before = listing(source)
    folders = {path: path.stat().st_mtime_ns for path in (source, *source.rglob("*")) if path.is_dir()}
    assert main(["merge", str(source), "--out", str(tmp_path / "ours")]) == 0
    assert listing(source) == before
    assert {path: path.stat().st_mtime_ns for path in folders} == folders
    assert (
        len(read_journal(tmp_path / "ours" / ".studies" / "h200" / "svdquant_gemm" / journal.name).trials)
        == 2
    )


def test_nothing_is_opened_for_writing_in_the_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may be allowed to write anywhere, so permissions prove nothing: system calls do."""
    source = results_folder(tmp_path / "source", tmp_path / "cache")
    touched: list[str] = []
    watch_writes(source, touched)
    assert main(["merge", str(source), "--out", str(tmp_path / "ours")]) == 0
    WATCHED.clear()
    assert touched == []
    watch_writes(tmp_path / "ours", touched)
    (tmp_path / "ours" / "h200" / "x").write_text("the watch sees this")
    WATCHED.clear()
    assert touched


WATCHED: list[tuple[str, list[str]]] = []
CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.utime", "os.link")


def _audit(event: str, arguments: tuple) -> None:
    if not WATCHED:
        return
    folder, touched = WATCHED[-1]
    writes = (
        event == "open" and isinstance(arguments[2], int) and arguments[2] & 0o1103
    )  # write, create, truncate
    if writes or event in CHANGES:
        touched += [f"{event} {one}" for one in arguments if str(one).startswith(folder)]


sys.addaudithook(_audit)


def watch_writes(folder: Path, touched: list[str]) -> None:
    WATCHED.append((str(folder), touched))


def test_results_are_not_merged_into_where_they_come_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = results_folder(tmp_path / "source", tmp_path / "cache")
    before = listing(source)
    for out in (source, source / "merged", tmp_path / "other" / ".." / "source"):
        assert main(["merge", str(source), "--out", str(out)]) == 2
        assert "from another folder than --out" in capsys.readouterr().err
    assert listing(source) == before
