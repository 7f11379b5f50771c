"""Tables, indexes and journals of any shape: one line per part that is none, and the rest serves; lookup's checks."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.compile.test_manifest import filled
from tests.files.trees import SHAPES, edit, no_compiler, results_folder
from tuner.cli.main import main
from tuner.compile.manifest import Manifest
from tuner.devices.select import select_device
from tuner.runtime import explain, use_table
from tuner.runtime.choice.choose import Library
from tuner.stages.record import current
from tuner.tables.bundle import FOLDER, INDEX, Bundle
from tuner.tables.dispatch import DispatchTable
from tuner.tables.row import Row
from tuner.trials.journal_lines import write_line
from tuner.trials.journal_read import read_journal
from tuner.trials.rank_stability import ranked

SHAPE = "256,3840,3072,128"
COMMITTED = Path(__file__).resolve().parents[2] / "results" / "h200"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tuner.tables.bundle_write._built", no_compiler)
    return results_folder(tmp_path / "hostile", tmp_path / "cache")


def lines_of(folder: Path) -> list[str]:
    return (folder / "h200" / "dispatch.json").read_text().splitlines()


def with_row(text: str) -> Callable[[list[str]], list[str]]:
    return lambda lines: [lines[0], text + ",", *lines[1:]]


def changed(**fields: Any) -> Callable[[list[str]], list[str]]:
    """A third row, like the first but at M = 99 and with ``fields``, of the row or of its problem."""

    def change(lines: list[str]) -> list[str]:
        record = json.loads(lines[1].rstrip(","))
        problem = record["problem"] | {"m": 99}
        problem |= {name: value for name, value in fields.items() if name in problem}
        own = {name: value for name, value in fields.items() if name not in problem}
        return with_row(json.dumps({**record, "problem": problem, **own}))(lines)

    return change


def raw(old: str, new: str) -> Callable[[list[str]], list[str]]:
    def change(lines: list[str]) -> list[str]:
        row = changed()(lines)[1].rstrip(",")
        assert old in row
        return with_row(row.replace(old, new, 1))(lines)

    return change


BAD_ROWS: dict[str, Callable[[list[str]], list[str]]] = {
    "nested": with_row("[" * 200_000 + "]" * 200_000),
    "nested in its evidence": raw('"evidence": {', '"evidence": {"x": ' + "[" * 50 + "]" * 50 + ", "),
    "digits": raw('"time_us": 10.0', '"time_us": ' + "9" * 20_000),
    "infinite": raw('"time_us": 10.0', '"time_us": 1e999'),
    "infinity": raw('"time_us": 10.0', '"time_us": Infinity'),
    "not a number": raw('"time_us": 10.0', '"time_us": NaN'),
    "exponent": raw('"m": 99', '"m": 1e300'),
    "key twice": raw('"m": 99', '"m": 99, "m": 98'),
    "same row twice": lambda lines: with_row(lines[1].rstrip(","))(lines),
    "no JSON": with_row("<<<<<<< HEAD"),
    "torn": raw('"config"', '"con'),
    "null": with_row("null"),
    "a list": with_row("[]"),
    "a number": with_row("7"),
    "text": with_row('"row"'),
    "an empty row": with_row("{}"),
    "another operator": changed(op="../gemm"),
    "an operator as number": changed(op=7),
    "a problem of another form": changed(problem={"m": 99}),
    "another arch": changed(arch="sm_100a"),
    "an unknown arch": changed(arch="sm_1"),
    "an unknown kind": changed(kind="guessed"),
    "an unknown field": changed(more=1),
    "M as text": changed(m="99"),
    "M as truth": changed(m=True),
    "M of zero": changed(m=0),
    "M beyond": changed(m=1 << 62),
    "K as list": changed(k=[3840]),
    "an illegal size": changed(k=3841),
    "an unknown dtype": changed(lora_dtype="fp64"),
    "time as text": changed(time_us="fast"),
    "time as truth": changed(time_us=True, low_us=True, high_us=True),
    "time below zero": changed(time_us=-1.0),
    "config as number": changed(config=7),
    "config of a megabyte": changed(config="x" * (2 << 20)),
    "control characters": changed(config="\x1b[2J"),
    "half a character": changed(config="\ud800"),
    "config without equals": changed(config="fast please"),
    "an unknown knob": changed(config="turbo=true"),
    "object as text": changed(object="kernel.o"),
    "object without key": changed(object={"file": "kernel.o"}),
    "evidence as list": changed(evidence=[]),
    "runner-up as number": changed(runner_up=1),
}


@pytest.mark.parametrize("change", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_bad_row_costs_itself_and_is_named(
    change: Callable[[list[str]], list[str]],
    hostile: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = list(DispatchTable.load(hostile / "h200", arch=SM90A).rows)
    path = hostile / "h200" / "dispatch.json"
    path.write_text("\n".join(change(lines_of(hostile))) + "\n")
    said: list[str] = []
    rows = DispatchTable.load(hostile / "h200", arch=SM90A, say=said.append).rows
    assert set(good) <= set(rows) and len(said) == 1
    assert re.search(r"dispatch\.json: (row [123]|the row of 99,3840,3072,128) is passed over: .", said[0])
    assert len(said[0]) < 600 and said[0].isprintable()
    library = Library.load(hostile / "h200", SM90A, cache_dir=tmp_path / "none")
    for shape, config in SHAPES.items():
        with use_table(hostile):
            assert str(explain(shape, "h200").config) == config
    assert library.table.rows.keys() == rows.keys()
    capsys.readouterr()
    assert main(["lookup", "--device", "h200", "--shape", SHAPE, "--out", str(hostile), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["results"]
    assert (answer["source"], answer["config"]) == ("exact", SHAPES[SHAPE])
    assert main(["merge", str(hostile), "--out", str(tmp_path / "ours")]) == 0
    assert set(good) <= set(DispatchTable.load(tmp_path / "ours" / "h200", arch=SM90A).rows)


NO_TABLES = {
    "empty": b"",
    "zeros": b"\x00" * 1000,
    "no UTF-8": b'{"schema": 2, "rows": [\xff]}',
    "nested": b"[" * 500_000,
    "a list": b"[]",
    "a number": b"9" * 10_000,
    "schema of text": b'{"schema": "1", "rows": []}',
    "schema of truth": b'{"schema": true, "rows": []}',
    "another schema": b'{"schema": 99, "rows": []}',
    "a huge schema": b'{"schema": ' + b"9" * 1000 + b', "rows": []}',
    "rows of text": b'{"schema": 2, "rows": "all"}',
    "arch of number": b'{"schema": 2, "arch": 90, "rows": []}',
    "unknown arch": b'{"schema": 2, "arch": "sm_1", "rows": []}',
    "thousands of bad rows": b'{"schema": 2, "arch": "sm_90a", "rows": [' + b"0," * 5000 + b"0]}",
}


@pytest.mark.parametrize("data", NO_TABLES.values(), ids=NO_TABLES)
def test_what_is_no_table_is_one_line(
    data: bytes, hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hostile / "h200" / "dispatch.json"
    path.write_bytes(data)
    for command in (
        ["lookup", "--device", "h200", "--shape", SHAPE, "--out", str(hostile)],
        ["merge", str(hostile), "--out", str(tmp_path / "ours")],
        ["bundle", "--device", "h200", "--out", str(hostile)],
    ):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and said.count("\n") == 1 and len(said) < 600
    assert path.read_bytes() == data and not (tmp_path / "ours").exists()


def test_a_table_with_bad_rows_is_kept_when_it_is_written(hostile: Path, tmp_path: Path) -> None:
    theirs = shutil.copytree(hostile, tmp_path / "theirs")
    path = hostile / "h200" / "dispatch.json"
    spoiled = "\n".join(BAD_ROWS["torn"](lines_of(hostile))) + "\n"
    path.write_text(spoiled)
    for _ in range(2):
        assert main(["merge", str(theirs), "--out", str(hostile)]) == 0
        (aside,) = path.parent.glob("dispatch.json.damaged-*")
        assert aside.read_text() == spoiled
        assert json.loads(path.read_text())["schema"] == 2
        path.write_text(spoiled)


# -- lookup --


def lookup(folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], str]:
    command = ["lookup", "--device", "h200", "--shape", SHAPE, "--out", str(folder)]
    assert main([*command, "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["results"]
    assert main(command) == 0
    return record, capsys.readouterr().out


def test_lookup_says_whether_what_it_names_is_there_and_whole(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    record, text = lookup(hostile, capsys)
    assert record["object_state"] == "whole" and record["legal"] == "every rule passes"
    assert "legal      every rule passes" in text and "its SHA-256 is the one recorded" in text
    Path(record["object"]).write_bytes(b"other code")
    record, text = lookup(hostile, capsys)
    assert (record["object_state"], record["object"]) == ("damaged", None)
    assert "is damaged" in record["object_damage"] and "is damaged" in text and "make it: tune.py" in text
    shutil.rmtree(hostile / "h200" / FOLDER)
    record, text = lookup(hostile, capsys)
    assert (record["object_state"], record["object"], record["object_damage"]) == ("missing", None, None)


def test_lookup_asks_every_rule_of_a_row(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The row names a config that takes more shared memory than there is: fresh or not, it is passed over."""
    today = current(select_device("h200"))

    def change(document: Any) -> None:
        for row in document["rows"]:
            row["evidence"]["provenance"] = vars(today.provenance(Row.from_record(row)))
            row["config"] = re.sub(r"num_ab_stage=\d+", "num_ab_stage=16", row["config"])

    edit(hostile / "h200" / "dispatch.json", change)
    record, _ = lookup(hostile, capsys)
    assert record["source"] == "nearest M 16" and "passed over exact: smem_capacity" in record["reason"]
    assert "stale" not in record["reason"]


# -- fuzz --


def mutated(data: bytes, dice: random.Random) -> bytes:
    """A few bytes changed, a piece cut out, doubled or moved, or a number or word replaced."""
    data = bytearray(data)
    for _ in range(dice.randint(1, 4)):
        if not data:
            break
        at, size = dice.randrange(len(data)), dice.choice((1, 1, 2, 8, 60, 500))
        piece = bytes(data[at : at + size])
        other = dice.choice(
            (b"", bytes(dice.randbytes(1)), piece * 2, b"null", b"-1", b"1e99", b"[[", b"}}", b'"', b"\n")
        )
        data[at : at + size] = other
    return bytes(data)


@pytest.mark.parametrize("seed", range(3))
def test_mutants_of_committed_files_raise_input_errors_only(seed: int, tmp_path: Path, hostile: Path) -> None:
    dice, quiet = random.Random(seed), lambda line: None
    table = (COMMITTED / "dispatch.json").read_bytes()
    index = (COMMITTED / FOLDER / INDEX).read_bytes()
    journal = min((hostile / ".studies" / "h200" / "svdquant_gemm").glob("*.jsonl"))
    whole = journal.read_bytes()
    rows = len(DispatchTable.load(COMMITTED, arch=SM90A).rows)
    (tmp_path / FOLDER).mkdir()
    fewest = rows
    for _ in range(40):
        (tmp_path / "dispatch.json").write_bytes(mutated(table, dice))
        (tmp_path / FOLDER / INDEX).write_bytes(mutated(index, dice))
        journal.write_bytes(mutated(whole, dice))
        for read in (
            lambda: DispatchTable.load(tmp_path, arch=SM90A, say=quiet).rows,
            lambda: Bundle.load(tmp_path / FOLDER, SM90A, say=quiet).entries,
            lambda: read_journal(journal, say=quiet).trials,
        ):
            try:
                found = read()
            except InputError as error:
                assert "\n" not in str(error)
            else:
                fewest = min(fewest, len(found))
    assert fewest < rows, "no mutant did harm"


ODD: tuple[Any, ...] = (
    None, [], {}, -1, 0, "", 1e308, 2**62, "x" * 5000, True, "../..", "measured", [[]], "0" * 64, "split_k=1"
)  # fmt: skip


def places(value: Any) -> list[tuple[Any, Any]]:
    """(list or object, index or key) of everything in ``value``."""
    found: list[tuple[Any, Any]] = []
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            found += [(value, key), *places(value[key])]
    return found


def rewritten(value: Any, dice: random.Random) -> Any:
    """``value`` with something else in one place, or without what was there."""
    holder, key = dice.choice(places(value))
    if dice.random() < 0.2:
        del holder[key]
    else:
        holder[key] = json.loads(json.dumps(dice.choice(ODD)))
    return value


def test_records_with_odd_values_raise_input_errors_only(tmp_path: Path, hostile: Path) -> None:
    """JSON that is whole, with fitting checksums: types and meanings are wrong."""
    filled(tmp_path / "carried", tmp_path / "home", 2)
    dice, quiet = random.Random(0), lambda line: None
    table, index = hostile / "h200" / "dispatch.json", hostile / "h200" / FOLDER / INDEX
    manifest = tmp_path / "carried" / "manifest.json"
    journal = min((hostile / ".studies" / "h200" / "svdquant_gemm").glob("*.jsonl"))
    whole = {path: path.read_text() for path in (table, index, manifest)}
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    refused = 0
    for _ in range(150):
        for path, text in whole.items():
            path.write_text(json.dumps(rewritten(json.loads(text), dice)))
        records = json.loads(json.dumps(lines))
        records = [{name: value for name, value in record.items() if name != "crc"} for record in records]
        journal.write_bytes(b"".join(write_line(record) for record in rewritten(records, dice) if record))
        for read in (
            lambda: Library.load(hostile / "h200", SM90A, cache_dir=tmp_path).choose(
                GemmProblem.parse(SHAPE)
            ),
            lambda: ranked(read_journal(journal, say=quiet).trials),
            lambda: Manifest.load(tmp_path / "carried"),
        ):
            try:
                read()
            except InputError as error:
                assert "\n" not in str(error)
                refused += 1
    assert 50 < refused < 400, "some mutants do harm, some none"
