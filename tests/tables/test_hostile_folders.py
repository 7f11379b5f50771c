"""Folders made by somebody who means harm: one line, nothing outside is read, written or removed, and nothing hangs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_space.build.cache import BuildCache
from kernel_space.core.errors import InputError
from tests.files.trees import edit, listing, no_compiler, results_folder
from tuner.cli.main import main
from tuner.runtime import explain, use_table
from tuner.tables.bundle import FOLDER, INDEX

SHAPE = "256,3840,3072,128"
COMMITTED = Path(__file__).resolve().parents[2] / "results" / "h200"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """What must stay as it is: files of the user beside the hostile folder."""
    folder = tmp_path / "victim"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "work.txt").write_text("years of work")
    (folder / "0123456789abcdef.o").write_text("an object of another project")
    (folder / "script.py").write_text("print('mine')")
    return folder


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of results that is still good, and a build cache that exists: without one nothing was deleted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    cache = tmp_path / "home" / "svdquant-tune" / "build"
    return results_folder(tmp_path / "hostile", cache)


def names_in_table(field: str, value: Any) -> Callable[[Path, Path], None]:
    def change(folder: Path, victim: Path) -> None:
        text = value.format(victim=victim) if isinstance(value, str) else value
        edit(
            folder / "h200" / "dispatch.json",
            lambda document: [row["object"].update({field: text}) for row in document["rows"]],
        )

    return change


def names_in_index(field: str, value: Any) -> Callable[[Path, Path], None]:
    def change(folder: Path, victim: Path) -> None:
        text = value.format(victim=victim) if isinstance(value, str) else value
        edit(
            folder / "h200" / FOLDER / INDEX,
            lambda document: [entry.update({field: text}) for entry in document["objects"]],
        )

    return change


def named(folder: Path, name: str) -> Path:
    """``name`` may hold ``{object}`` and ``{journal}``: the first of them."""
    objects, journals = (
        (folder / "h200" / FOLDER).glob("*.o"),
        (folder / ".studies" / "h200" / "svdquant_gemm").glob("*.jsonl"),
    )
    return folder / name.format(object=min(objects).name, journal=min(journals).name)


def link(name: str, target: str = "") -> Callable[[Path, Path], None]:
    """``name`` becomes a link to the same thing moved to the victim's folder, or to ``target``."""

    def change(folder: Path, victim: Path) -> None:
        path = named(folder, name)
        if target:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
            path.symlink_to(target.format(victim=victim))
        else:
            shutil.move(path, victim / path.name)
            path.symlink_to(victim / path.name)

    return change


def special(name: str, make: Callable[[Path], Any]) -> Callable[[Path, Path], None]:
    def change(folder: Path, victim: Path) -> None:
        path = named(folder, name)
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        make(path)

    return change


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 36)


def journal_named(device: str, problem: str) -> Callable[[Path, Path], None]:
    def change(folder: Path, victim: Path) -> None:
        from tests.files.trees import identity_of, table_rows

        row = table_rows(victim.parent / "other cache")[0]
        header = identity_of(row).header()
        header["identity"] |= {"device": device, "problem": problem}
        path = folder / ".studies" / "h200" / "svdquant_gemm" / "16x3840x3072x128-0123456789ab.jsonl"
        path.write_text(json.dumps(header) + "\n")

    return change


OBJECT = "h200/objects/{object}"
REPORT = "h200/svdquant_gemm/16x3840x3072x128"
# name -> what is done to the good folder
HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    "key: a folder": names_in_table("key", "{victim}"),
    "key: upwards": names_in_table("key", "../../../victim"),
    "key: nothing": names_in_table("key", ""),
    "key: a number": names_in_table("key", 7),
    "key: a zero byte": names_in_table("key", "\0" * 64),
    "object file: upwards": names_in_table("file", "../../../victim/script.py"),
    "object hash: short": names_in_table("sha256", "ab"),
    "index file: upwards": names_in_index("file", "../../../victim/script.py"),
    "index file: absolute": names_in_index("file", "{victim}/script.py"),
    "index file: the index": names_in_index("file", "index.json"),
    "index file: a list": names_in_index("file", ["a"]),
    "index hash: of another": names_in_index("sha256", "0" * 64),
    "index prefix: a path": names_in_index("prefix", "../x"),
    "journal of a device elsewhere": journal_named("../../../victim", "16,3840,3072,128"),
    "journal of a problem elsewhere": journal_named("h200", "../../../victim/16"),
    "table: link": link("h200/dispatch.json"),
    "table: link to a device": link("h200/dispatch.json", "/dev/zero"),
    "table: loop": link("h200/dispatch.json", "dispatch.json"),
    "table: fifo": special("h200/dispatch.json", os.mkfifo),
    "table: folder": special("h200/dispatch.json", Path.mkdir),
    "table: huge": special("h200/dispatch.json", huge),
    "table's lock: link": link("h200/dispatch.json.lock", "{victim}/script.py"),
    "device: link": link("h200"),
    "device: loop": link("h200", "."),
    "objects: link": link("h200/objects"),
    "objects: link to objects of others": link("h200/objects", "{victim}"),
    "objects: loop": link("h200/objects", "../h200"),
    "index: link": link("h200/objects/index.json"),
    "index: fifo": special("h200/objects/index.json", os.mkfifo),
    "index: huge": special("h200/objects/index.json", huge),
    "index's lock: link": link("h200/objects/index.json.lock", "{victim}/script.py"),
    "object: link": link(OBJECT),
    "object: fifo": special(OBJECT, os.mkfifo),
    "object: /dev/zero": link(OBJECT, "/dev/zero"),
    "object: huge": special(OBJECT, huge),
    "report: link": link(REPORT),
    "report: loop": link(REPORT, "../.."),
    "report's page: link": link(f"{REPORT}/report.html", "{victim}/script.py"),
    "report's page: fifo": special(f"{REPORT}/report.html", os.mkfifo),
    "report's trials: huge": special(f"{REPORT}/trials.parquet", huge),
    "journals: link": link(".studies"),
    "journals of the device: link": link(".studies/h200"),
    "journal: link": link(".studies/h200/svdquant_gemm/{journal}"),
    "journal: fifo": special(".studies/h200/svdquant_gemm/{journal}", os.mkfifo),
    "journal: huge": special(".studies/h200/svdquant_gemm/{journal}", huge),
    "journal's lock: link": link(".studies/h200/svdquant_gemm/{journal}.lock", "{victim}/script.py"),
}


COMMANDS = {
    "merge": ["merge", "{hostile}", "--out", "{ours}"],
    "merge into it": ["merge", "{good}", "--out", "{hostile}"],
    "bundle": ["bundle", "--device", "h200", "--out", "{hostile}"],
    "lookup": ["lookup", "--device", "h200", "--shape", SHAPE, "--out", "{hostile}"],
    "report": ["report", "--device", "h200", "--shape", "16,3840,3072,128", "--out", "{hostile}"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_folder_reaches_nothing_outside(
    command: str,
    change: Callable[[Path, Path], None],
    hostile: Path,
    victim: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = shutil.copytree(hostile, tmp_path / "good")
    change(hostile, victim)
    before, cache = listing(victim), listing(tmp_path / "home", times=False)
    names = {"hostile": hostile, "good": good, "ours": tmp_path / "ours"}
    monkeypatch.setattr("tuner.tables.bundle_write._built", no_compiler)
    code = main([word.format(**names) for word in COMMANDS[command]])
    said = capsys.readouterr().err
    assert code in (0, 1, 2), said
    if code == 2:
        assert said.startswith(("error: ", "warning: ")) and "Traceback" not in said
    assert listing(victim) == before
    kept = {
        name: about for name, about in listing(tmp_path / "home", times=False).items() if "/.tmp" not in name
    }
    assert kept.items() >= cache.items(), "an entry of the build cache went"
    if command == "merge":
        assert (tmp_path / "ours").exists() == (code == 0)
        assert code == 2 or "index" not in change.__qualname__


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_the_run_time_survives_it(change: Callable[[Path, Path], None], hostile: Path, victim: Path) -> None:
    change(hostile, victim)
    before = listing(victim)
    try:
        with use_table(hostile):
            explain(SHAPE, "h200").object.read()
    except InputError as error:
        assert "\n" not in str(error)
    assert listing(victim) == before


@pytest.mark.parametrize(
    "key", ["/some/dir", "..", "", ".lock", "a" * 63, "A" * 64, "a" * 64 + "\n", None, 7]
)
def test_the_build_cache_takes_keys_only(key: Any, tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    cache.store("a" * 64, {"kernel.o": b"x"}, {})
    before = listing(tmp_path)
    for use in (cache.load, cache.path, cache.discard, lambda name: cache.store(name, {}, {})):
        with pytest.raises(InputError, match="64 hexadecimal digits"):
            use(key)
    assert listing(tmp_path) == before


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "a/b", "", ".", "..", "x\0"])
def test_an_entry_s_files_lie_in_it(name: str, tmp_path: Path) -> None:
    (tmp_path / "cache" / ("a" * 64)).mkdir(parents=True)
    (tmp_path / "cache" / "outside").write_text("")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    meta = tmp_path / "cache" / ("a" * 64) / "meta.json"
    meta.write_text(json.dumps({"files": {name: empty}}))
    before = listing(tmp_path)
    assert BuildCache(tmp_path / "cache", foreign=True).load("a" * 64) is None
    assert listing(tmp_path) == before, "what belongs to somebody else is left where it is"
    assert BuildCache(tmp_path / "cache").load("a" * 64) is None
    assert not meta.exists() and (tmp_path / "cache" / "outside").exists()


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), huge])
def test_a_file_of_an_entry_is_a_plain_one(make: Callable[[Path], Any], tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    cache.store("a" * 64, {"kernel.o": b"x"}, {})
    (tmp_path / ("a" * 64) / "kernel.o").unlink()
    make(tmp_path / ("a" * 64) / "kernel.o")
    assert cache.load("a" * 64) is None


def test_an_entry_that_is_a_link_is_unlinked_and_no_more(tmp_path: Path, victim: Path) -> None:
    cache = BuildCache(tmp_path / "cache", max_bytes=0, grace_seconds=0)
    cache.store("b" * 64, {"kernel.o": b"x"}, {})
    (tmp_path / "cache" / ("a" * 64)).symlink_to(victim)
    before = listing(victim)
    assert cache.load("a" * 64) is None
    (tmp_path / "cache" / ("c" * 64)).symlink_to(victim)
    cache.evict()
    assert listing(victim) == before and not (tmp_path / "cache" / ("a" * 64)).is_symlink()


# -- what hangs --


def test_no_command_waits_for_a_fifo(hostile: Path, tmp_path: Path) -> None:
    """In a process of its own, which would wait for ever."""
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    for name in ("a.csv", "a.parquet", "a.jsonl"):
        os.mkfifo(tmp_path / name)
    script = f"""
import sys
from tuner.cli.main import main
codes = [
    main(["space", "--shapes", {str(fifo)!r}]),
    *(main(["calibrate", f"{tmp_path}/a.{{kind}}", "--dry-run"]) for kind in ("csv", "parquet", "jsonl")),
]
sys.exit(codes != [2, 2, 2, 2])
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path.cwd(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 4 and done.stderr.count("FIFO") == 4
