"""``lookup`` names what a launch takes: the run time, asked by itself, is the oracle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.places import shipped
from tests.runtime.test_choice import PLAIN, SPLIT, entry, row, write
from tests.tables.test_bundle import tuned
from tests.tables.test_order import FURTHER, NEAREST, WIDE
from tuner.cli.main import main
from tuner.devices.classes import DEVICE_CLASSES
from tuner.runtime import explain, use_table
from tuner.runtime.choice.choose import Library
from tuner.tables.bundle import Bundle

UNTUNED = ("256,3072,9216,128", "1,14336,4096,128", "4608,5120,5120,64")  # the last is padded to R = 128


def lookup(capsys: pytest.CaptureFixture[str], root: Path, device: str, shape: str) -> dict[str, Any]:
    assert main(["lookup", "--device", device, "--shape", shape, "--out", str(root), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    return dict(found)


@pytest.mark.parametrize("device", ["h200", "h100"])
@pytest.mark.parametrize("shape", UNTUNED)
def test_of_what_is_shipped(
    device: str, shape: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With the estimate in the reason; h100 has no rows, and says whose it borrows."""
    root, device_class = shipped("results"), DEVICE_CLASSES[device]
    choice = Library.of_class(root, device_class, cache_dir=tmp_path).choose(GemmProblem.parse(shape))
    found = lookup(capsys, root, device, shape)
    assert (found["config"], found["reason"]) == (str(choice.config), choice.reason)
    assert (found["source"], found["object"]) == (choice.source, str(choice.object.path))
    assert "estimated " in found["reason"] and " within " in found["reason"]
    assert ("borrowed from h200" in found["reason"]) == (device == "h100")
    with use_table(root):
        text = str(explain(shape, device))
    assert found["config"] in text and found["reason"] in text


def test_of_what_is_only_in_the_build_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No bundle: the object of M = 64 is gone, that of M = 256 is there. By nearness 80 is M = 64's."""
    monkeypatch.setenv("SVDQUANT_TUNE_CACHE", str(tmp_path / "cache"))
    kept = tuned(tmp_path / "cache" / "build", "256,3840,3072,128", SPLIT)
    root = write(tmp_path / "results", [row("64,3840,3072,128", PLAIN), kept], [])
    assert not Bundle.load(root / "h200" / "objects", DEVICE_CLASSES["h200"].arch).entries
    own = lookup(capsys, root, "h200", "64,3840,3072,128")
    assert (own["config"], own["object"]) == (PLAIN, None)
    assert (own["run_time"]["config"], own["run_time"]["source"]) == (SPLIT, "nearest M 256")
    near = lookup(capsys, root, "h200", "80,3840,3072,128")
    assert (near["config"], near["source"], near["run_time"]) == (SPLIT, "nearest M 256", None)
    assert near["object"] and "passed over nearest M 64" in near["reason"]


def test_of_a_row_whose_tiles_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As in ``test_order``: two waves of the nearest row's tiles, where it was timed with one; one of the other's."""
    rows = [row(NEAREST, PLAIN, us=10.0), row(FURTHER, WIDE, us=15.0)]
    root = write(tmp_path / "results", rows, [entry(PLAIN), entry(WIDE)])
    found = lookup(capsys, root, "h200", "1024,3840,2304,128")
    assert (found["config"], found["source"], found["run_time"]) == (WIDE, f"nearest layer {FURTHER}", None)
    with use_table(root):
        choice = explain("1024,3840,2304,128", "h200")
    assert (str(choice.config), choice.source) == (WIDE, found["source"])
    assert found["object"] == str(choice.object.path)
