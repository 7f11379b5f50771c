"""``tune.py time``: what it prints and writes, held against the same numbers in another form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.cli import main as cli

SHAPE = ["--shape", "256,3840,3072,32"]
CONFIG = ["--config", "mma_tiler_mn=256x128"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(["time", *argv])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


@pytest.mark.slow
def test_json_terms_add_up_and_changes_are_sorted(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SHAPE, *CONFIG, "--json", "--changes", "2")
    assert code == 0
    (result,) = json.loads(out)["results"]
    simulated = result["simulated"]
    assert sum(simulated["terms_us"].values()) == pytest.approx(simulated["us"])
    assert simulated["low_us"] < simulated["us"] < simulated["high_us"]
    times = [change["us"] for change in result["changes"]]
    assert len(times) == 2
    assert times == sorted(times)
    assert all(change["config"] != result["config"] for change in result["changes"])


def test_text_says_simulated_and_names_the_best_change(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *SHAPE, *CONFIG, "--changes", "2")
    assert code == 0
    assert "us simulated (interval" in out
    assert "24 pieces on 74 clusters are 0.32 waves, run as 1" in out  # 1 x 24 tiles by hand
    assert "next-best change" in out


def test_pieces_of_a_split_tile(capsys: pytest.CaptureFixture[str]) -> None:
    """24 tiles in 4 splits on 74 pairs."""
    config = "mma_tiler_mn=256x128 split_k=4 lora_schedule=tail"
    code, out, _ = run(capsys, *SHAPE, "--config", config, "--changes", "0")
    assert code == 0
    assert "96 pieces on 74 clusters are 1.30 waves, run as 2" in out


def test_trace_holds_the_tensor_time_of_the_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    code, out, _ = run(capsys, *SHAPE, *CONFIG, "--json", "--changes", "0", "--trace", str(path))
    assert code == 0
    terms = json.loads(out)["results"][0]["simulated"]["terms_us"]
    document = json.loads(path.read_text())
    assert document["otherData"]["kind"] == "simulated"
    lanes = {event["tid"]: event["args"]["name"] for event in document["traceEvents"] if event["ph"] == "M"}
    slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
    mma = sum(event["dur"] for event in slices if event["name"] == "mma mxf4nvf4")
    assert mma == pytest.approx(terms["tensor, NVFP4"], rel=1e-3)
    loads = [event for event in slices if lanes[event["tid"]].endswith("TMA")]
    assert len(loads) == 2 * (15 * 4 + 2)  # two CTAs, four loads per k-tile, one slice of each LoRA operand


def test_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, *SHAPE, "--changes", "many")[0] == 2
    assert run(capsys, *SHAPE, *SHAPE[:1], "64,256,64,0", "--trace", str(tmp_path / "t.json"))[0] == 2
    code, _, err = run(capsys, *SHAPE, *CONFIG, "--changes", "0", "--trace", str(tmp_path / "no" / "t.json"))
    assert code == 2
    assert "--trace must name a file in a folder that exists" in err
