"""The report of an operator from outside: memory-bound, two outputs, a kernel that states nothing but itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rowstats.operator import RowstatsProblem

from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from tests.report.test_report import Page, trial
from tuner.devices.classes import DEVICE_CLASSES
from tuner.report.data.roofline import roofs
from tuner.report.html import render_html
from tuner.report.markdown import render_markdown
from tuner.report.write import Sweep, read_trials, report_folder, write_report
from tuner.space.count import Count
from tuner.trials.outcome import Kind, Trial

PROBLEM = RowstatsProblem(m=1000, k=1000)  # 4 bytes for each of 10^6 elements, 4 for each of 1000 rows


def rows_trial(place: int, us: float, knobs: str) -> Trial:
    config = parse_config("rowstats", SM90A, knobs)
    fields = {"op": "rowstats", "problem": "1000,1000", "options": {}, "device": "h200", "arch": "sm_90a"}
    return trial(
        place, us, config=config, kind=Kind.MEASURED, low_us=us - 1, high_us=us + 1, evidence={}, **fields
    )


TRIALS = [
    rows_trial(0, 20.0, "rows=4 vec=2"),
    rows_trial(1, 10.0, "rows=8 vec=4"),
    rows_trial(2, 12.5, "rows=8"),
]


def sweep() -> Sweep:
    legal = legalize(TRIALS[1].resolved_config, PROBLEM, SM90A)
    assert isinstance(legal, Legal)
    space = Count(raw=48, spelled=48, legal=48, rejected={})
    return Sweep(
        problem=PROBLEM, device="h200", arch=SM90A, sm_count=132, trials=TRIALS, budget=legal.budget, space=space
    )  # fmt: skip


def test_text_says_what_it_is_and_leaves_out_what_it_has_not() -> None:
    """4.004 MB in 10 us are 0.4004 TB/s."""
    text = render_markdown(sweep())
    assert text.startswith(
        "# rowstats 1000,1000 on h200\n\nM=1000 K=1000, sm_90a. 3 of 3 trials have a time.\n"
    )
    assert "- **10 us, measured**, interval 9 to 11 us, 0.4 useful TB/s (trial 1)\n" in text
    assert "(+25.0%), `vec=2`" in text
    assert "Budget" not in text and "rejects" not in text
    headings = re.findall(r"^#+ .*$", text, re.M)
    bodies = re.split(r"^#+ .*$", text, flags=re.M)[1:]
    assert not [name for name, body in zip(headings, bodies, strict=True) if not body.strip()]
    assert "| trial | us measured | interval | to winner | rows | vec |" in text


def test_page_has_no_empty_part() -> None:
    text = render_html(sweep())
    words = Page(text).words
    assert "rowstats on h200 (sm_90a)" in words and "0.4" in words and "useful TB/s, measured" in words
    titles = re.findall(r"<section[^>]*><h2>([^<]*)</h2>", text)
    assert {"Winner", "Trials", "Convergence", "Roofline", "Parallel coordinates"} <= set(titles)
    assert not re.findall(r"<section[^>]*><h2>[^<]*</h2>(?:<p class=\"about\">[^<]*</p>)?</section>", text)
    assert not re.findall(r"<pre>\s*</pre>|<tbody>\s*</tbody>", text)
    assert "A point counts for" not in text  # no rule rejects any


def test_roofline_by_dram_alone() -> None:
    """2 operations for 4.004 bytes: 2e6 / 10 us are 0.2 TFLOP/s, under 4.8 TB/s times 0.4995."""
    record = Page(render_html(sweep())).record
    [line] = record["roof"]["lines"]
    assert (line["label"], line["tera"], line["perByte"]) == ("DRAM 4.8 TB/s (published)", 4.8, True)
    assert not record["roof"]["fills"]
    # 2 operations for each of 10^6 elements, and 4.004 MB: all candidates stand at one place across
    assert record["roof"]["operations"] == 2e6
    assert [one["flop"] for one in record["trials"]] == [pytest.approx(2e6 / 4.004e6, rel=1e-4)] * 3


@pytest.mark.parametrize(("device", "bandwidth"), [("b200", 7.7), ("h200", 4.8)])
def test_roofs(device: str, bandwidth: float) -> None:
    machine = DEVICE_CLASSES[device]
    [dram] = roofs(PROBLEM, machine, machine.sm_count)
    assert (dram.name, dram.tera) == ("DRAM", pytest.approx(bandwidth))
    assert machine.arch.name in (SM90A.name, SM100A.name)


def test_files_read_back(tmp_path: Path) -> None:
    folder = report_folder(tmp_path, "h200", PROBLEM)
    assert folder == tmp_path / "h200" / "rowstats" / "1000x1000"
    files = write_report(folder, sweep())
    assert read_trials(files.parquet) == TRIALS
    head, first, *_ = files.csv.read_text().splitlines()
    assert {"kernel", "rows", "vec", "fused", "use_pdl"} <= set(head.split(","))
    assert dict(zip(head.split(","), first.split(","), strict=True))["rows"] == "4"
