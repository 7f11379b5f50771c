"""The page of the sweeps says what their records hold, and its figures add up."""

from __future__ import annotations

from benchmarks.sweep_table import by_kernel, by_kind, condensed, read, tables
from tests.docs.pages import ROOT


def test_the_page_has_the_tables_of_the_records() -> None:
    assert tables(read()) in (ROOT / "docs" / "evidence" / "sweeps.md").read_text()


def test_figures_of_a_record_add_up() -> None:
    """Three mutants by hand: one reported, one harmless, one missed."""
    found = [
        {"kind": "removed", "line": number, "ptx": "bar.sync 0", "mutation": "deleted", "verdict": verdict,
         "status": "", "reason": reason}
        for number, (verdict, reason) in enumerate([("reported", "x"), ("survives", "it is late"), ("survives", "")])
    ]  # fmt: skip
    row = {
        "kind": "removed",
        "mutants": 3,
        "reported": 1,
        "harmless": 1,
        "unexplained": 1,
        "not_applicable": 0,
    }
    sweep = {"op": "o", "shape": "1", "config": "c", "seed": 0, "kinds": [row], "found": found}
    record = condensed({"sweeps": [sweep]}, "one")
    assert by_kind([record])[-1] == "| all | 3 | 1 | 1 | 0 | 1 | 0 |"
    record["survivors"][1]["by_hand"] = "nobody is there"
    assert by_kernel([record])[-1] == "| one (`o`) | 3 | 1 | 1 | 1 | 0 | 0 |"
    assert "| 1 | it is late |" in tables([record]) and "| 1 | nobody is there |" in tables([record])
