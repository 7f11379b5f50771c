"""``space`` prints what every kernel has, and all of them together: numbers by hand in tests/space/test_union.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tuner.cli.main import main

PLUGINS = str(Path(__file__).resolve().parents[1] / "plugins")
ARGUMENTS = ["space", "--op", "tally", "--operators", PLUGINS, "--shape", "40,256"]


def test_a_section_for_each_kernel_and_their_sum(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*ARGUMENTS, "--device", "h200", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "problem    tally 40,256 (kind=plain)",
        "kernel     wide (sm_90a)",
        "points     72",
        "legal      24 points, 20 distinct candidates",
        "rejected by the first rule that does not hold",
        "  smem_capacity                    30",
        "  unroll_fits                      18",
        "kernel     deep (sm_90a)",
        "points     72",
        "legal      45 points, 39 distinct candidates",
        "rejected by the first rule that does not hold",
        "  few_rows                         18",
        "  fold_unrolled                     9",
        "kernel     all 2 of sm_90a",
        "points     144",
        "legal      69 points, 59 distinct candidates",
    ]


def test_one_kernel_needs_no_sum(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*ARGUMENTS, "--device", "b200", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "wide (sm_100a)" in out and "deep" not in out and "all " not in out


def test_json_holds_the_sum_and_each_kernel(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main([*ARGUMENTS, "--device", "h200", "--out", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kernels"] == ["wide", "deep"]
    (result,) = document["results"]
    assert (result["op"], result["shape"], result["kind"]) == ("tally", "40,256", "plain")
    counts = [
        (one["size"], one["legal_points"], one["legal_kernels"])
        for one in (result, *result["kernels"].values())
    ]
    assert counts == [(144, 69, 59), (72, 24, 20), (72, 45, 39)]
    assert result["rejected"] == {"unroll_fits": 18, "smem_capacity": 30, "few_rows": 18, "fold_unrolled": 9}
    assert result["kernels"]["deep"]["rejected"] == {"few_rows": 18, "fold_unrolled": 9}
