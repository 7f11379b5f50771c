"""Rows that a class borrows from a sibling: whose they are is said wherever they are told or launched."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.runtime.test_choice import BOTH, PLAIN, SPLIT, entry, row, write
from tuner.cli.main import main
from tuner.devices.classes import DEVICE_CLASSES, Card
from tuner.devices.recorded import keep_class
from tuner.devices.select import select_device
from tuner.runtime import explain, prepare, use_table
from tuner.runtime.load.trampoline import trampoline_of
from tuner.tables.borrow import table_of
from tuner.tables.dispatch import Lookup, render_table

SHAPE = "256,3840,3072,128"
SHIPPED = Path(__file__).resolve().parents[2] / "results"
GH200 = Card(index=0, name="NVIDIA GH200 480GB", compute_capability=(9, 0), sm_count=132, dram_bytes_s=4.0e12)


@pytest.fixture
def h200_only(tmp_path: Path) -> Path:
    return write(tmp_path / "results", [row(SHAPE, us=10.0)], BOTH)


def empty(root: Path, device: str) -> None:
    (root / device).mkdir(parents=True)
    (root / device / "dispatch.json").write_text(render_table([], "sm_90a"))


@pytest.mark.parametrize("own", ["nothing", "an empty table"])
def test_a_class_without_rows_borrows_and_says_so(
    h200_only: Path, own: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if own != "nothing":
        empty(h200_only, "h100")
    with use_table(h200_only):
        lent, h200 = explain(SHAPE, "h100"), explain(SHAPE, "h200")
    said = "borrowed from h200: no table for h100"
    assert lent.borrowed == said and lent.reason.endswith(f"; {said}") and said in str(lent)
    assert "measured 10 us" in lent.reason and lent.object == h200.object
    assert h200.borrowed == "" and "borrowed" not in str(h200)
    assert capsys.readouterr().err.count(said) == 1, "once for the process, which may never ask why"


def test_a_class_with_rows_borrows_those_of_problems_that_it_has_none_of(tmp_path: Path) -> None:
    """Its own row of a problem stands; the sibling's exact one comes before its own of another M, and is named."""
    root = write(tmp_path, [row("16,3840,3072,128", SPLIT, us=5.0)], [entry(SPLIT)], "h100")
    write(root, [row(SHAPE, us=10.0), row("16,3840,3072,128", us=4.0)], BOTH, "h200")
    with use_table(root):
        own, lent, near = (
            explain(shape, "h100") for shape in ("16,3840,3072,128", SHAPE, "17,3840,3072,128")
        )
        theirs = explain("16,3840,3072,128", "h200")
    assert (own.source, str(own.config), own.borrowed) == ("exact", SPLIT, "")
    assert own.object.path.is_relative_to(root / "h100")
    assert (lent.source, str(lent.config)) == ("exact", PLAIN) and lent.object.path.is_relative_to(
        root / "h200"
    )
    assert (
        lent.borrowed == "borrowed from h200: no row of the problem for h100" and lent.borrowed in lent.reason
    )
    assert (near.source, near.borrowed) == ("nearest M 16", "")
    assert (theirs.source, str(theirs.config), theirs.borrowed) == ("exact", PLAIN, "")


def test_objects_of_a_sibling_serve_its_rows_alone(h200_only: Path) -> None:
    """Nothing stands in for the missing object of one's own row."""
    write(h200_only, [row(SHAPE, SPLIT)], [], "h100")
    with use_table(h200_only), pytest.raises(InputError, match="bundle --device h100 makes"):
        explain(SHAPE, "h100")


def test_the_nearest_sibling_lends(h200_only: Path) -> None:
    """For an H100 that is the NVL; for a GH200, which is no shipped class, too. Nobody borrows from b200."""
    write(h200_only, [row(SHAPE, us=7.0)], [entry(PLAIN)], "h100-nvl")
    own = select_device("cuda:0", probe=lambda: [GH200])
    keep_class(h200_only, own.device_class)
    with use_table(h200_only):
        for name in ("h100", "nvidia-gh200-480gb"):
            answer = explain(SHAPE, name)
            assert answer.row is not None and answer.row.time_us == 7.0
            assert answer.borrowed == f"borrowed from h100-nvl: no table for {name}"
        with pytest.raises(InputError, match="no kernel for .* on sm_103a"):
            explain(SHAPE, "b300")


def test_a_table_that_was_named_answers_for_any_class_and_says_whose_it_is(
    h200_only: Path, tmp_path: Path
) -> None:
    with use_table(h200_only / "h200"):
        assert explain(SHAPE, "h100").borrowed == "borrowed from h200: its table was named for h100"
        assert explain(SHAPE, "h200").borrowed == ""
    (h200_only / "h200").rename(tmp_path / "served")
    with use_table(tmp_path / "served"):
        assert explain(SHAPE, "h100").borrowed == "", "a folder of no class is nobody's"


@pytest.mark.parametrize(("shape", "borrowed"), [("300,3840,3072,128", True), ("64,512,256,32", False)])
def test_what_is_compiled_on_request_is_borrowed_if_its_config_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str, borrowed: bool
) -> None:
    """M = 300 takes the config of the sibling's row; for another layer the default rule has one, which is nobody's."""
    built = SimpleNamespace(
        object_path=tmp_path / "kernel.o",
        prefix="kernel",
        arguments=trampoline_of("svdquant_gemm").arguments,
        object_sha256="00",
    )
    built.object_path.write_bytes(b"object")
    monkeypatch.setattr(Lookup, "build", lambda self: built)
    with use_table(write(tmp_path / "results", [row(SHAPE)], [])):
        answer = prepare(shape, "h100", compile=True)
    assert answer.source == f"compiled for {shape}"
    assert ("borrowed from h200" in answer.reason) == bool(answer.borrowed) == borrowed


def test_a_damaged_sibling_is_said_and_not_passed_over(h200_only: Path) -> None:
    (h200_only / "h200" / "dispatch.json").write_text("{")
    with pytest.raises(InputError, match="h200/dispatch.json"):
        table_of(h200_only, DEVICE_CLASSES["h100"])


# -- the command line --


def lookup(capsys: pytest.CaptureFixture[str], root: Path, device: str, *more: str) -> str:
    assert main(["lookup", "--shape", SHAPE, "--device", device, "--out", str(root), *more]) == 0
    return capsys.readouterr().out


def test_lookup_says_whose_row_it_is(h200_only: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = lookup(capsys, h200_only, "h100")
    assert "exact row, measured 10 us" in text and "borrowed from h200: no table for h100" in text
    found: dict[str, Any] = json.loads(lookup(capsys, h200_only, "h100", "--json"))
    assert found["device"]["name"] == "h100" and found["table"] == str(h200_only / "h200" / "dispatch.json")
    assert found["borrowed"] == "borrowed from h200: no table for h100"
    own = json.loads(lookup(capsys, h200_only, "h200", "--json"))
    assert own["borrowed"] is None and "borrowed" not in own["results"][0]["reason"]
    assert not (h200_only / "h100").exists(), "to look is not to write"


def of_linear(**fields: Any) -> dict[str, Any]:
    """A row of another operator, as the shipped table of the h200 has it."""
    table = json.loads((SHIPPED / "h200" / "dispatch.json").read_text())
    found = next(one for one in table["rows"] if one["op"] == "svdquant_linear")
    return {**found, **fields}


def test_a_class_without_a_table_borrows_from_all_siblings(
    h200_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The nearer one's few rows hide nothing of the other's, and each is named."""
    write(h200_only, [row("16,3840,3072,128", SPLIT, us=5.0)], [entry(SPLIT)], "h100")
    with use_table(h200_only):
        few, many = (explain(shape, "h100-pcie") for shape in ("16,3840,3072,128", SHAPE))
    said = [f"borrowed from {name}: no table for h100-pcie" for name in ("h100", "h200")]
    assert [(str(one.config), one.borrowed) for one in (few, many)] == [(SPLIT, said[0]), (PLAIN, said[1])]
    assert few.object.path.is_relative_to(h200_only / "h100")
    assert many.object.path.is_relative_to(h200_only / "h200")
    assert capsys.readouterr().err.count("kernels of svdquant_gemm for h100-pcie are borrowed") == 1


def test_objects_without_a_row_are_lent_and_named(tmp_path: Path) -> None:
    """Those for dtypes that nobody tuned."""
    bf16 = "r=128 lora_dtype=bf16 out_dtype=bf16"
    root = write(tmp_path, [row("16,3840,3072,128", SPLIT, us=5.0)], [entry(SPLIT)], "h100")
    other = PLAIN.replace("swizzle_size=1", "swizzle_size=4")
    assert other != PLAIN
    write(root, [row(SHAPE), row("16,3840,3072,128", other)], [*BOTH, entry(PLAIN, bf16), entry(other, bf16)])
    problem = GemmProblem.parse(SHAPE, lora_dtype="bf16", out_dtype="bf16")
    with use_table(root):
        found = explain(problem, "h100")
    assert (str(found.config), found.borrowed) == (
        PLAIN,
        "borrowed from h200: no row of the problem for h100",
    )
    files = {one.file for one in table_of(root, DEVICE_CLASSES["h100"]).bundle().entries}
    assert entry(PLAIN, bf16).file in files, "of a config that is lent"
    assert entry(other, bf16).file not in files, "of a row that one's own shadows"


def test_rows_of_another_operator_are_lent_with_their_objects_alone(
    h200_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """h100 has a row of one operator, h200 of that problem and of another operator."""
    root = write(h200_only, [row(SHAPE, SPLIT, us=5.0)], [entry(SPLIT)], "h100")
    path = root / "h200" / "dispatch.json"
    document = json.loads(path.read_text())
    document["rows"].append(of_linear())
    path.write_text(json.dumps(document))
    found = table_of(root, DEVICE_CLASSES["h100"])
    said = "borrowed from h200: no row of the problem for h100"
    (lent,) = [one for one in found.table.rows.values() if one.key.op == "svdquant_linear"]
    (own,) = [one for one in found.table.rows.values() if one.key.op == "svdquant_gemm"]
    assert found.lent == {lent.key: said} and (found.borrowed, found.owner) == ("", "h100")
    assert found.folder_of(lent) == root / "h200" and own.config == SPLIT
    assert found.borrowed_for(lent) == said and found.borrowed_for(own) == ""
    assert {one.file for one in found.bundle().entries} == {entry(SPLIT).file}, "no objects of a shadowed row"
    with use_table(root):
        assert explain(SHAPE, "h100").borrowed == ""
    assert capsys.readouterr().err == ""


def test_a_damaged_table_of_a_sibling_takes_nothing_from_ones_own(
    h200_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write(h200_only, [row("16,3840,3072,128", SPLIT, us=5.0)], [entry(SPLIT)], "h100")
    (root / "h200" / "dispatch.json").write_text("{")
    with use_table(root):
        assert explain(SHAPE, "h100").source == "nearest M 16"
    assert "nothing is borrowed from h200: " in capsys.readouterr().err
