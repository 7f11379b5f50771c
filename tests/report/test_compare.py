"""What a report says of the winner against others: causes, published configuration, peers, conditions, standing."""

from __future__ import annotations

import dataclasses
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tally.operator import TallyProblem

from kernel_space.build.build import build
from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.compiled_cases import resolved
from tests.report.test_report import STYLE, assert_offline, stages, sweep, trial
from tests.report.test_timeline import WORDS
from tuner.report.charts.compare import causes_bars, clock_sections
from tuner.report.data.causes import cause_rows, why
from tuner.report.data.clock import Clocked, Clocks, clock
from tuner.report.data.peers import read_peers
from tuner.report.data.published import knob_rows
from tuner.report.data.standing import standing
from tuner.report.data.timeline import timeline_of
from tuner.report.html import render_html
from tuner.report.markdown import render_markdown
from tuner.report.write import write_report
from tuner.simulated.time import SimulatedTime
from tuner.space.published import published, published_config, read_published
from tuner.trials.outcome import Kind, Origin, Trial

PROBLEM = GemmProblem.parse("4352,3840,3072,128")


def clocked(role: str, terms: dict[str, float], shares: tuple[float, ...] = (1.0, 1.0)) -> Clocked:
    """``shares``: its time under each set of constants over the nominal one, which is the sum of ``terms``."""
    us = sum(terms.values())
    sets_us = us * np.array(shares)
    run = SimpleNamespace(cycles=1000 * (sets_us - terms["launch"]))
    time = SimulatedTime(sets_us=sets_us, discrepancy=0.0, about="", terms=terms, run=run)  # type: ignore[arg-type]
    record = [("CTA 0 tensor", "mma mxf4nvf4", 0.0, 1.0)]
    timeline = timeline_of(record, words=WORDS, us_per_cycle=1.0, launch_us=1.0, end_us=us)
    return Clocked(roles=(role,), config="", time=time, timeline=timeline, tail_us=0.5, waves="2 on 1")


WINNER = clocked("winner", {"launch": 2.0, "tensor, NVFP4": 10.0, "waiting for A/B": 1.0, "prologue": 1.0})
RIVAL = clocked("runner-up", {"launch": 2.0, "tensor, NVFP4": 10.0, "waiting for A/B": 4.0}, (1.0, 0.8))


# ---- causes ---------------------------------------------------------------------------------------------------------
def test_why_names_the_causes_by_size() -> None:
    """16 us against 14; under the second set 12.8 against 14."""
    assert why(WINNER, RIVAL) == (
        "Simulated, the winner takes 2.00 µs (12.5%) less than the runner-up configuration, and less under 50% of 2 "
        "admissible sets of constants: it spends less on waiting for A/B (3.00 µs), but more on the prologue (1.00 µs)."
    )


def test_why_of_a_winner_that_is_nominally_behind() -> None:
    assert why(RIVAL, WINNER).startswith("Simulated, the winner takes 2.00 µs (14.3%) more than the winner")


def test_why_of_the_same_course() -> None:
    same = dataclasses.replace(WINNER, roles=("default",))
    assert "no effect on the simulation" in why(WINNER, same)
    # as without programmatic launch: 12 us from the first CTA on, less two instructions
    later = clocked("runner-up", WINNER.time.terms | {"launch": 2.5, "prologue": 0.998})
    assert why(WINNER, later).endswith("it spends less on the launch (0.50 µs).")
    clocks = Clocks(shown=(WINNER, later, same, RIVAL))
    assert clocks.rivals == (RIVAL,)
    body = clock_sections(clocks)[0].body
    assert "from the first CTA on it runs as the winner does: runner-up, default." in body
    slower = clocked("runner-up", WINNER.time.terms | {"prologue": 1.02})  # 0.17 % of 12 us
    assert Clocks(shown=(WINNER, slower)).rivals == (slower,)


def test_next_best_is_the_first_of_another_course(tmp_path: Path) -> None:
    """The runner-up's breakdown differs from the winner's in the launch alone; that of the third does otherwise."""
    both = {"kind": Kind.SIMULATED, "low_us": 1.0, "high_us": 99.0}
    breakdowns = (
        {"launch": 2.0, "tensor": 18.0},
        {"launch": 3.0, "tensor": 18.0},
        {"launch": 2.0, "tensor": 20.0},
    )
    trials = [
        trial(place, sum(terms.values()), config=stages(place + 2), evidence=terms, **both)
        for place, terms in enumerate(breakdowns)
    ]
    [sentence] = clock(sweep(trials, cache_dir=tmp_path)).missing
    assert sentence.startswith(
        "No timeline of winner, runner-up, next best, published: not in the build cache"
    )
    other = [trials[0], trials[2]]  # the runner-up itself takes another course
    [sentence] = clock(sweep(other, cache_dir=tmp_path)).missing
    assert sentence.startswith("No timeline of winner, runner-up, published: not")


def test_cause_table_by_hand() -> None:
    assert cause_rows([WINNER, RIVAL]) == [
        ["tensor, NVFP4", "10.00", "10.00 (0)"],
        ["waiting for A/B", "1.00", "4.00 (+3.00)"],
        ["prologue", "1.00", "0.00 (-1.00)"],
        ["launch", "2.00", "2.00 (0)"],
        ["sum", "14.00", "16.00 (+2.00)"],
        ["tail wave, within the above", "0.50", "0.50 (0)"],
    ]


def test_bars_lie_end_to_end_to_scale() -> None:
    """The longest, 16 us, takes 90 % of the width: 10 of MMAs, then 1 or 4 waiting for A/B."""
    bars = [
        (part.get("class"), [float(share) for share in re.findall(r":([\d.]+)%", part.get("style", ""))])
        for part in ElementTree.fromstring(causes_bars([WINNER, RIVAL])).iter()
        if part.get("style")
    ]
    us = 90 / 16
    for width in (1.0, 4.0):
        at = bars.index(("t-wait0", [pytest.approx(width * us, abs=0.006)]))
        assert bars[at - 1] == ("t-mma0", [pytest.approx(10 * us, abs=0.006)])
    # the tail wave's half microsecond ends where the winner's bar of 14 us ends
    assert ("tail t-tail", [pytest.approx(13.5 * us, abs=0.006), pytest.approx(0.5 * us, abs=0.006)]) in bars


def test_missing_clocks_are_sentences() -> None:
    [section] = clock_sections(Clocks(missing=("No timeline of the winner configuration: gone.",)))
    assert section.markdown == "No timeline of the winner configuration: gone."
    assert section.markdown in section.body


# ---- candidates with and without their PTX --------------------------------------------------------------------------
def candidates(*texts: str) -> list[Trial]:
    """Trials at 20, 21, ... us of resolved configs."""
    configs = [resolved(text, str(PROBLEM))[0] for text in texts]
    return [trial(place, 20.0 + place, config=config) for place, config in enumerate(configs)]


def test_clocks_of_a_sweep(tmp_path: Path) -> None:
    """Winner and default are in the cache; the published configuration is not. The default is the runner-up."""
    config = resolved("mma_tiler_mn=256x128", str(PROBLEM))[0]
    build(config, PROBLEM.problem_class, SM100A, cache_dir=tmp_path)
    trials = candidates("mma_tiler_mn=256x128", "mma_tiler_mn=256x128 num_ab_stage=2")
    trials[0] = dataclasses.replace(trials[0], origin=Origin.DEFAULT)
    found = clock(sweep(trials, cache_dir=tmp_path))
    assert [one.label for one in found.shown] == ["winner and default"]
    assert found.of("default") is found.shown[0]
    assert found.shown[0].waves == "408 pieces on 74 clusters are 5.51 waves, run as 6"
    assert [sentence.split(" (")[0] for sentence in found.missing] == [
        "No timeline of runner-up, published: not in the build cache"
    ]
    files = write_report(tmp_path / "report", sweep(trials, cache_dir=tmp_path))
    page = assert_offline(files.html.read_text())
    assert "timelines of the whole launch" in [
        value for name, value in page.attributes if name == "aria-label"
    ]
    used = {one for name, value in page.attributes if name == "class" for one in value.split()}
    assert {f"t-{key}" for key in ("tma0", "mma0", "wait0", "launch")} <= used
    assert not {one for one in used if f".{one}{{" not in STYLE and one.startswith("t-")}
    assert files.html.stat().st_size < 250_000


def test_without_the_winner_nothing_is_compared(tmp_path: Path) -> None:
    found = clock(sweep(candidates("mma_tiler_mn=256x128 num_ab_stage=3"), cache_dir=tmp_path))
    assert found.shown == ()
    assert found.missing[0].startswith("No timeline of winner, published: not in the build cache")


def test_hopper_has_no_clock() -> None:
    found = clock(sweep(candidates("mma_tiler_mn=256x128"), arch=SM90A))
    assert found.missing == ("Timelines are simulated for sm_100a and sm_103a, not for sm_90a.",)


# ---- published ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("shape", "ab", "lora", "c"),
    [
        ("4352,3840,3072,128", 4, 2, 2),  # the row of stage 2 of the published sweep
        ("256,3840,3072,128", 4, 2, 2),
        ("4352,3840,3072,0", 7, 0, 3),  # stage 0
    ],
)
def test_published_configurations_have_the_published_stages(shape: str, ab: int, lora: int, c: int) -> None:
    problem = GemmProblem.parse(shape)
    entry = published_config(problem, SM100A)
    assert entry is not None
    legal = legalize(entry.config, problem, SM100A)
    assert isinstance(legal, Legal), legal
    config = legal.config
    assert (config.num_ab_stage, config.num_lora_stage, config.num_c_stage) == (ab, lora, c)
    assert (config.mma_tiler_mn, config.cta_group) == ((256, 128), 2)
    # SMEM budget of the source: 28672 bytes an A/B stage, 8192 a C stage, 32768 and 16384 a LoRA stage
    sizes = {row.name: row.total for row in legal.budget.smem.rows}
    assert sum(sizes[name] for name in ("A", "B", "SFA", "SFB")) == ab * 28672
    assert sizes["C"] == c * 8192
    if lora:
        assert (sizes["LoRA act"], sizes["LoRA up"]) == (lora * 32768, lora * 16384)


def test_every_published_entry_is_legal_somewhere() -> None:
    for r, name in (
        (128, "svdquant-kernels v2"),
        (32, "svdquant-kernels v2 at R = 32"),
        (0, "svdquant-kernels v2 without LoRA"),
    ):
        problem = GemmProblem(m=4352, k=10240, n=3072, r=r)
        entry = published_config(problem, SM100A)
        assert entry is not None and entry.name == name
        assert isinstance(legalize(entry.config, problem, SM100A), Legal)
    assert published_config(PROBLEM, SM90A) is None


def test_bad_published_files(tmp_path: Path) -> None:
    path = tmp_path / "published.yaml"
    wrong = "not a list of published"
    for text, said in (("[", "not YAML"), ("published: 3", wrong), ("published: [{name: x}]", wrong)):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            read_published(path, GemmProblem.operator)
    entry = "{name: x, kernel: sm100a, when: {}, config: bogus=1, source: s}"
    path.write_text(f"published: [{entry}]")
    with pytest.raises(InputError, match="published configuration 'x': unknown knob 'bogus'"):
        read_published(path, GemmProblem.operator)
    path.write_text(f"published: [{entry.replace('bogus=1', 'split_k=1').replace('{}', '{q_at_most: 1}')}]")
    with pytest.raises(InputError, match="published configuration 'x': a config is bounded by m_at_least"):
        read_published(path, GemmProblem.operator)


def test_an_operator_may_have_nothing_published() -> None:
    assert published("tally") == () and published_config(TallyProblem.parse("40,256"), SM90A) is None


def test_knob_rows_say_where_a_value_comes_from() -> None:
    entry = published_config(GemmProblem.parse("4352,10240,3072,32"), SM100A)
    assert entry is not None
    theirs = KernelConfigSm100a(
        num_ab_stage=5, num_lora_stage=2, num_acc_stage=2, num_c_stage=4, lora_tile_k="all", epi_tile_n=32
    )
    ours = theirs.replace(mma_tiler_mn=(256, 192), num_ab_stage=4, use_pdl=True)
    assert knob_rows(str(ours), str(theirs), entry) == [
        ("mma_tiler_mn", "256x192", "256x128", "stated by the source"),
        ("num_ab_stage", "4", "5", "auto, resolved by the budget"),
        ("use_pdl", "true", "false", "not stated; the default of the config"),
    ]


def test_page_compares_with_the_published_configuration() -> None:
    entry = published_config(PROBLEM, SM100A)
    assert entry is not None
    published = legalize(entry.config, PROBLEM, SM100A).config  # type: ignore[union-attr]
    trials = [trial(0, 20.0, config=published.replace(epi_tile_n=64)), trial(1, 30.0, config=published)]
    words = assert_offline(render_html(sweep(trials))).words
    assert "The published configuration takes 30 µs, the winner 20 µs (modelled): 1.50x as fast." in words
    assert "epi_tile_n6432stated by the source" in words
    assert "The winner is the published configuration." in render_markdown(sweep(trials[1:]))


# ---- peers ----------------------------------------------------------------------------------------------------------
DOCUMENT = {
    "device": "NVIDIA H200",
    "driver": "580.1",
    "date": "2025-11-21",
    "protocol": "CUDA graphs, inputs rotated",
    "rows": [
        {"problem": str(PROBLEM), "peer": "torch.compile", "us": 30.0, "low_us": 29.0, "high_us": 31.0},
        {"problem": str(PROBLEM), "peer": "eager", "us": 90.0, "low_us": 89.0, "high_us": 91.0},
        {"problem": "1,64,64,0", "peer": "eager", "us": 5.0, "low_us": 5.0, "high_us": 5.0},
    ],
}
OWN = {
    "problem": str(PROBLEM),
    "peer": "svdquant_gemm",
    "us": 25.0,
    "low_us": 24.0,
    "high_us": 26.0,
    "lora_dtype": "fp16",
    "out_dtype": "fp16",
    "evidence": {"sm_mhz": 1830.0},
}


def with_peers(folder: Path, document: Any) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.json").write_text(document if isinstance(document, str) else json.dumps(document))
    trials = [trial(0, 20.0, kind=Kind.MEASURED)]
    return write_report(folder, sweep(trials, clocks=Clocks())).markdown.read_text()


def test_ratios_are_against_the_kernel_in_the_same_run(tmp_path: Path) -> None:
    text = with_peers(tmp_path, DOCUMENT | {"rows": [*DOCUMENT["rows"], OWN]})
    assert "| svdquant_gemm, this kernel | 25.00 | 24.00 to 26.00 | 1\u2009830 | 1.00 |" in text
    assert (
        "| torch.compile | 30.00 | 29.00 to 31.00 | – | 1.20 |\n| eager | 90.00 | 89.00 to 91.00 | – | 3.60 |"
        in text
    )
    assert "Measured on NVIDIA H200, driver 580.1, 2025-11-21" in text and "in the same run" in text


def test_peers_of_other_dtypes_and_configurations(tmp_path: Path) -> None:
    rows = [*DOCUMENT["rows"], OWN | {"config": "other=1"}, OWN | {"peer": "bf16 one", "out_dtype": "bf16"}]
    text = with_peers(tmp_path, DOCUMENT | {"rows": rows})
    assert "That run timed another configuration than this page's winner: other=1." in text
    assert "bf16 one" not in text


def test_ratios_to_another_run_say_so(tmp_path: Path) -> None:
    text = with_peers(tmp_path, DOCUMENT)
    assert "| torch.compile | 30.00 | 29.00 to 31.00 | – | 1.50 |" in text
    assert "clocks may have differed" in text


def test_peers_of_a_device_are_found_one_folder_higher(tmp_path: Path) -> None:
    (tmp_path / "peers.json").write_text(json.dumps(DOCUMENT))
    peers = read_peers(tmp_path / "4352x3840x3072x128", PROBLEM)
    assert peers is not None and [row.name for row in peers.rows] == ["torch.compile", "eager"]
    assert read_peers(tmp_path / "x", GemmProblem.parse("2,64,64,0")) is None
    assert read_peers(tmp_path / "x" / "y", PROBLEM) is None


@pytest.mark.parametrize(
    "document",
    [
        "{",
        {"rows": []} | {"device": "x"},
        DOCUMENT | {"rows": [OWN | {"us": -1}]},
        DOCUMENT | {"rows": [OWN | {"us": None}]},
    ],
)
def test_a_damaged_peers_file_is_named_and_the_report_written(tmp_path: Path, document: Any) -> None:
    text = with_peers(tmp_path, document)
    assert "peers.json is not a file of measured peers" in text
    assert "Peers, measured" not in text


# ---- standing and conditions ----------------------------------------------------------------------------------------
def measured(place: int, us: float, **evidence: Any) -> Trial:
    config = stages(place + 2)
    return trial(
        place, us, config=config, kind=Kind.MEASURED, low_us=us - 1, high_us=us + 1, evidence=evidence
    )


def test_standing_of_simulated_trials_is_a_share_of_the_sets() -> None:
    both = {"kind": Kind.SIMULATED}
    first = trial(0, 20.0, evidence={"sets_us": "20 22 30 20", "judge": "a"}, **both)
    second = trial(1, 21.0, evidence={"sets_us": "21 21 31 22", "judge": "a"}, **both)
    assert standing(first, second) == (
        "Simulated, the winner is the faster one under 75% of 4 admissible sets of constants."
    )
    other = dataclasses.replace(second, evidence=second.evidence | {"judge": "b"})
    assert "not simulated under the same sets" in standing(first, other)


def test_standing_of_measured_trials() -> None:
    paired = {"ratio": 1.02, "ratio_low": 1.01, "ratio_high": 1.03, "p_value": 0.001, "rounds": 24}
    final = {**paired, "final": "2025-11-21 x"}
    verdict = "faster than every other finalist"
    text = standing(
        measured(0, 20.0, **final, final_place=1, versus="runner-up", finals_verdict=verdict),
        measured(1, 20.4, **final, final_place=2, versus="winner"),
    )
    assert "takes 1.0200 of the winner's time (1.0100 to 1.0300, paired, p 0.001, 24 rounds)" in text
    assert text.endswith("the winner is faster than every other finalist.")
    assert standing(measured(0, 20.0), measured(1, 21.0)).startswith("Their measured intervals overlap")
    assert standing(measured(0, 20.0), measured(1, 23.0)).startswith(
        "Their measured intervals do not overlap"
    )


def test_final_lists_its_contenders_by_place() -> None:
    """The winner's own evidence is about the runner-up; a contender that was halved away has no ratio."""
    about = {"final": "2025-11-21 x", "p_value": 0.002, "rounds": 24, "ratio_low": 1.01, "ratio_high": 1.03}
    first = {
        **about,
        "final_place": 1,
        "versus": "runner-up",
        "ratio": 1.02,
        "quick_us": 20.5,
        "finals_verdict": "faster",
    }
    second = {**about, "final_place": 2, "versus": "winner", "ratio": 1.02}
    trials = [
        measured(0, 20.4, **second),
        measured(1, 20.0, **first),
        measured(2, 21.0, final="2025-11-21 x", final_place=3),
        measured(3, 19.0, final="2025-11-20 old", final_place=1),
    ]
    text = render_markdown(sweep(trials, winner=trials[1]))
    rows = text.partition("## Final, measured")[2].splitlines()[2:]
    assert rows[0].startswith("Winner: faster. Contenders")
    assert rows[4:7] == [
        "| 1 | #1 | 20.00 | – | – | – | – |",
        "| 2 | #0 | 20.40 | 1.0200 (1.0100 to 1.0300) | 0.002 | 24 | num_ab_stage=2 |",
        "| 3 | #2 | – | – | – | – | num_ab_stage=4 |",
    ]
    assert "Final, measured" not in render_markdown(sweep([measured(0, 20.0)]))


def test_conditions_of_a_measurement() -> None:
    calm = {
        "sm_mhz": 1830,
        "celsius": 61,
        "watts": 690.2,
        "samples": 15,
        "throttled_samples": 0,
        "settled": True,
    }
    hot = calm | {"sm_mhz": 1400, "throttled_samples": 15, "throttled_used": True}
    text = render_markdown(sweep([measured(0, 20.0, **calm), measured(1, 30.0, **hot)]))
    assert "## Conditions of the measurement" in text
    assert "in 1 of 2 measured trials, in 1 of them too many to leave out" in text
    assert "1\u2009400 to 1\u2009830 MHz" in text
    assert "| power, highest, W | 690 | 690 |" in text
    assert "| settled before the first sample | yes | yes |" in text
    assert "Conditions" not in render_markdown(sweep([trial(0, 20.0)]))
