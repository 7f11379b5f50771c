"""Reports: figures worked out by hand from a few trials, files that read back, a page that needs nothing else."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import random
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.budget import Row as BudgetRow
from kernel_space.core.budget import Table as BudgetTable
from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_ring.config import RingConfig
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.traffic import fill_bytes
from tuner.devices.classes import DEVICE_CLASSES, READ, DeviceClass
from tuner.report.data.pairs import order
from tuner.report.data.roofline import dram_bytes, groups, points, roofs
from tuner.report.data.standing import MEANS
from tuner.report.data.sweep import (
    convergence,
    default_trial,
    differences,
    failures,
    knob_importance,
    ranked,
    tflops,
    time_terms,
    timed,
    times_per_value,
    varying_knobs,
    winner_and_runner_up,
)
from tuner.report.html import render_html
from tuner.report.markdown import render_markdown
from tuner.report.marks.svg import Scale, escape, number
from tuner.report.page import asset
from tuner.report.write import Section, Sweep, read_trials, report_folder, trials_csv, write_report
from tuner.space.count import Count
from tuner.trials.outcome import Kind, Origin, Status, Trial

PROBLEM = GemmProblem(m=4352, k=3840, n=3072, r=128)
BASE = KernelConfigSm100a(num_ab_stage=4, num_lora_stage=2, num_acc_stage=2, num_c_stage=2)


def trial(place: int, us: float | None, status: Status = Status.OK, **changes: Any) -> Trial:
    """A trial with ``num_ab_stage`` = 4 unless ``config`` says more."""
    config = changes.pop("config", BASE)
    fields: dict[str, Any] = {
        "number": place,
        "op": PROBLEM.operator,
        "problem": str(PROBLEM),
        "options": {"lora_dtype": "fp16", "out_dtype": "fp16"},
        "device": "b200",
        "arch": "sm_100a",
        "config": str(config),
        "resolved": str(config),
        "status": status,
        "build": {"registers": 128, "smem_bytes": 200000, "cubin_sha256": "f" * 64},
        "finished": "2025-01-02T00:00:00+00:00",
        "compile_seconds": 0.5,
    }
    if us is not None:
        fields |= {"kind": Kind.MODELLED, "us": us, "low_us": us - 1, "high_us": us + 2}
    return Trial(**{**fields, **changes})


def stages(count: int) -> KernelConfigSm100a:
    return BASE.replace(num_ab_stage=count)


# Six trials: times 30, failed, 20, 24, 20.5, 40 of configs with 4, 5, 6, 3, 6 (tail), 4 (tail) A/B stages.
SIX = [
    trial(0, 30.0, origin=Origin.DEFAULT, config=stages(4)),
    trial(1, None, Status.COMPILE_TIMEOUT, reason="no result after 60 s", config=stages(5)),
    trial(2, 20.0, config=stages(6), evidence={"mma": 12.0, "launch": 8.0, "bound": "tensor"}),
    trial(3, 24.0, config=stages(3)),
    trial(4, 20.5, config=stages(6).replace(lora_schedule="tail")),
    trial(5, 40.0, config=stages(4).replace(lora_schedule="tail")),
]
ILLEGAL = [
    trial(-1, None, Status.ILLEGAL, resolved="", reason="split_k: every split needs a k-tile, got 16"),
    trial(-1, None, Status.ILLEGAL, resolved="", reason="split_k: every split needs a k-tile, got 8"),
    trial(-1, None, Status.ILLEGAL, resolved="", reason="cluster_of_pairs: use 2x1"),
]


@dataclasses.dataclass(frozen=True)
class Tables:
    """What the report reads of a ``Budget``."""

    tables: tuple[BudgetTable, ...]

    def __str__(self) -> str:
        return "\n\n".join(map(str, self.tables))


BUDGET = Tables(
    tables=(
        BudgetTable("SMEM per CTA", "bytes", (BudgetRow("A", 16384, 6), BudgetRow("B", 8192, 6)), 232448),
        BudgetTable("TMEM per SM", "columns", (BudgetRow("accumulators", 128, 2),), 512),
    )
)


def sweep(trials: list[Trial], **changes: Any) -> Sweep:
    fields: dict[str, Any] = {
        "problem": PROBLEM,
        "device": "b200",
        "arch": SM100A,
        "sm_count": 148,
        "trials": trials,
    }
    return Sweep(**{**fields, **changes})


FULL = sweep(
    [*SIX, *ILLEGAL],
    budget=BUDGET,
    space=Count(
        raw=1000, spelled=700, legal=250, rejected={"split_k": 200, "cluster_of_pairs": 100, "unused": 0}
    ),
    facts={"command": "python tune.py --shape 4352,3840,3072,128", "seed": "0"},
)

# ---- numbers --------------------------------------------------------------------------------------------------------


def test_order_winner_and_default() -> None:
    assert [one.number for one in ranked(SIX)] == [2, 4, 3, 0, 5]
    winner, runner_up = winner_and_runner_up(FULL)
    assert (winner, runner_up) == (SIX[2], SIX[4])
    assert default_trial(SIX) is SIX[0]


def test_a_stated_winner_is_kept() -> None:
    winner, runner_up = winner_and_runner_up(sweep(SIX, winner=SIX[4]))
    assert (winner, runner_up) == (SIX[4], SIX[2])


def test_best_candidates_begin_with_the_winner() -> None:
    """Trial 4 won by other means, although 2 is faster by its nominal time."""
    assert [one.number for one in order(sweep(SIX), SIX[4], SIX[2])] == [4, 2, 3, 0, 5]
    places = {
        one["number"]: one["rank"] for one in Page(render_html(sweep(SIX, winner=SIX[4]))).record["trials"]
    }
    assert places == {4: 1, 2: 2, 3: 3, 0: 4, 5: 5, 1: None}


def test_the_same_config_is_ranked_once() -> None:
    again = trial(6, 21.0, config=stages(6))
    assert [one.number for one in ranked([*SIX, again])] == [2, 4, 3, 0, 5]


def test_only_the_best_kind_counts() -> None:
    measured = dataclasses.replace(SIX[5], kind=Kind.MEASURED)
    simulated = dataclasses.replace(SIX[3], kind=Kind.SIMULATED)
    assert timed([*SIX[:3], measured, simulated]) == [measured]
    assert timed([*SIX[:3], simulated]) == [simulated]


@pytest.mark.parametrize("us", [math.nan, math.inf, 0.0, -1.0])
def test_a_time_that_is_none_does_not_count(us: float) -> None:
    odd = dataclasses.replace(SIX[3], us=us)
    assert odd not in timed([*SIX[:3], odd])
    group = next(group for group in failures([odd]))
    assert (group.status, group.count) == ("no time", 1)
    assert str(us) in group.reason


def test_convergence() -> None:
    # places count from 1 and include the failed second one
    assert convergence(SIX) == [(1, 30.0), (3, 20.0)]


def test_times_per_value_by_hand() -> None:
    assert varying_knobs(timed(SIX)) == ["num_ab_stage", "lora_schedule"]
    groups = {group.value: group for group in times_per_value(SIX, "num_ab_stage")}
    assert list(groups) == ["3", "4", "6"]  # 5 failed
    four = groups["4"]  # 30 and 40
    assert (four.count, four.low, four.median, four.high) == (2, 30.0, 35.0, 40.0)
    assert (four.quartile_1, four.quartile_3) == (32.5, 37.5)
    three = groups["3"]
    assert (three.count, three.low, three.quartile_1, three.median, three.high) == (1, 24.0, 24.0, 24.0, 24.0)


def test_values_are_in_numeric_order() -> None:
    trials = [trial(i, 20.0 + i, config=stages(count)) for i, count in enumerate([10, 2, 9])]
    assert [group.value for group in times_per_value(trials, "num_ab_stage")] == ["2", "9", "10"]


def test_failures_are_grouped_by_status_and_reason_without_numbers() -> None:
    found = [(group.status, group.count, group.reason) for group in failures(ILLEGAL)]
    assert found == [
        ("illegal", 2, "split_k: every split needs a k-tile, got 16"),
        ("illegal", 1, "cluster_of_pairs: use 2x1"),
    ]
    assert [(group.status, group.count) for group in failures(SIX)] == [("compile_timeout", 1)]


def test_differences() -> None:
    assert differences(SIX[5].resolved, SIX[2].resolved) == {"num_ab_stage": "4", "lora_schedule": "tail"}


def test_terms_must_add_up() -> None:
    assert time_terms(SIX[2]) == {"mma": 12.0, "launch": 8.0}
    assert time_terms(dataclasses.replace(SIX[2], evidence={"mma": 12.0, "clock_mhz": 1850.0})) == {}
    assert time_terms(SIX[0]) == {}
    assert time_terms(dataclasses.replace(SIX[2], kind=Kind.MEASURED)) == {}


def test_tflops_by_hand() -> None:
    # 2 * 4352 * 3072 * (3840 + 128) = 106 099 113 984 operations in 20 us
    assert tflops(PROBLEM, 20.0) == pytest.approx(5304.9557)


def test_bytes_by_hand() -> None:
    # act and wgt: 3840 / 2 bytes and 3840 / 16 scales a row = 2160; LoRA: 2 * 128 = 256; 4352 + 3072 = 7424 rows
    # y: 4352 * 3072 * 2 = 26 738 688; wcscale and bias: 8 * 3072 = 24 576
    assert dram_bytes(PROBLEM) == 7424 * 2416 + 26_738_688 + 24_576
    # 256x128 tiles: 17 * 24 = 408, each 384 rows
    assert fill_bytes(BASE, PROBLEM) == 408 * 384 * 2416
    # 128x64: 34 * 48 = 1632 of 192 rows
    assert fill_bytes(BASE.replace(mma_tiler_mn=(128, 64)), PROBLEM) == 1632 * 192 * 2416
    # edges count whole: M = 17 takes one tile of 256 rows
    few_rows = GemmProblem(m=17, k=3840, n=3072, r=0)
    assert fill_bytes(BASE, few_rows) == 24 * 384 * 2160
    # swapped: N = 3072 runs along the tile's 256 rows, M = 17 takes one column of tiles
    assert fill_bytes(BASE.replace(swap_ab=True), few_rows) == 12 * 384 * 2160


def test_points_and_roofs_by_hand() -> None:
    [point] = points(PROBLEM, [SIX[2]])
    assert point.intensity == pytest.approx(106_099_113_984 / (408 * 384 * 2416))
    assert point.group == "pair"
    dram, fill, l2, tensor = roofs(GemmProblem(m=4352, k=3840, n=3072, r=0), DEVICE_CLASSES["b200"], 148)
    assert (dram.tera, dram.per_byte) == (7.7, True)
    assert fill.tera == pytest.approx(80 * 148 * 1.85e9 * 1e-12)
    assert tensor.tera == pytest.approx(32768 * 148 * 1.85e9 * 1e-12)  # 8972 TFLOP/s at 1.85 GHz
    assert dram.at(100.0) == pytest.approx(770.0)
    assert l2.tera == pytest.approx(100 * 148 * 1.85e9 * 1e-12)
    # R = 128: the LoRA part runs at a quarter of the rate, so the mix of 3840 and 128 columns does 3968 in the time of
    # 3840 + 4 * 128 = 4352
    alone, mixed = roofs(PROBLEM, DEVICE_CLASSES["b200"], 148)[3:]
    assert (alone.tera, mixed.tera) == (pytest.approx(tensor.tera), pytest.approx(tensor.tera * 3968 / 4352))


@pytest.mark.parametrize(
    ("name", "sms", "tb_s", "sparse_tflops"),
    [
        ("h200", 132, 4.8, 1979),
        ("h100", 132, 3.35, 1979),
        ("h100-pcie", 114, 2.0, 1513),
        ("h100-nvl", 132, 3.9, 1671),
    ],
)
def test_roofs_are_those_of_the_data_sheet(name: str, sms: int, tb_s: float, sparse_tflops: float) -> None:
    """The sheets state half precision with sparsity, which doubles it."""
    dram, tensor = roofs(PROBLEM, DEVICE_CLASSES[name], sms)
    assert (dram.tera, dram.per_byte, dram.kind) == (pytest.approx(tb_s), True, "published")
    assert (tensor.tera, tensor.per_byte, tensor.kind) == (
        pytest.approx(sparse_tflops / 2),
        False,
        "published",
    )
    assert roofs(PROBLEM, DEVICE_CLASSES[name], sms // 2)[1].tera == pytest.approx(sparse_tflops / 4)


def test_roofs_of_a_class_that_is_not_shipped() -> None:
    """Memory as its card said; tensor cores of the same generation, SM by SM; nothing of what nobody knows."""
    own = DeviceClass(
        name="nvidia-gh200",
        arch=SM90A,
        sm_count=66,
        dram_bytes_s=4e12,
        l2_bytes=30 << 20,
        kind=READ,
        source="card",
    )
    dram, tensor = roofs(PROBLEM, own, 66)
    assert (dram.tera, dram.kind, dram.source) == (4.0, "read from the card", "card")
    assert (tensor.tera, tensor.kind) == (pytest.approx(1979 / 4), "assumed")
    [tensor] = roofs(PROBLEM, dataclasses.replace(own, dram_bytes_s=None), 66)
    assert not tensor.per_byte
    assert roofs(PROBLEM, None, 108) == ()


def test_a_page_takes_roofs_and_l2_from_the_class() -> None:
    """An H100 is not drawn under the memory of an H200; pages of older trials, which name a class alone, as well."""
    trials = hopper_trials()
    pages = {
        name: render_html(sweep(trials, arch=SM90A, device=name, sm_count=132)) for name in ("h100", "h200")
    }
    assert "DRAM 3.35 TB/s (published)" in pages["h100"] and "DRAM 4.8 TB/s (published)" in pages["h200"]
    assert (
        "the L2 of class h100 has 50 MiB" in pages["h100"]
        and "the L2 of class h200 has 60 MiB" in pages["h200"]
    )
    own = dataclasses.replace(
        DEVICE_CLASSES["h200"], name="nvidia-gh200", dram_bytes_s=4.02e12, l2_bytes=None
    )
    fields = {"arch": SM90A, "device": "nvidia-gh200", "sm_count": 132}
    assert "DRAM 4.02 TB/s" in render_html(sweep(trials, device_class=own, **fields))
    assert "No roofs are known for nvidia-gh200." in render_html(sweep(trials, **fields))


def test_bytes_of_the_hopper_kernels_by_hand() -> None:
    # 256x128 tiles of 4352 x 3072: 17 * 24 = 408 of 384 rows with 2160 bytes of K and 256 of R
    config = RingConfig.parse("tile_mnk=256x128x128 consumer_warpgroups=2 register_operand=act")
    assert fill_bytes(config, PROBLEM) == 408 * 384 * 2416
    # y.T: 3072 rows in 48 tiles of 64, M = 17 in two columns of 16
    few_rows = GemmProblem(m=17, k=3840, n=3072, r=0)
    swapped = RingConfig.parse("tile_mnk=64x16x128 consumer_warpgroups=1 register_operand=wgt")
    assert fill_bytes(swapped, few_rows) == 48 * 2 * 80 * 2160


def test_points_are_coloured_by_kernel_or_by_cluster() -> None:
    pair, single = str(BASE), str(BASE.replace(mma_tiler_mn=(128, 128), cluster_shape_mn=(1, 1)))
    both = [trial(0, 9.0, config=pair, resolved=pair), trial(1, 8.0, config=single, resolved=single)]
    assert groups(both) == {"clusters of CTAs": "pair", "single CTAs": "single"}
    kernels = [f"kernel={name}" for name in ("sm90a_ring", "sm90a_expand")]
    several = [
        trial(number, 9.0, arch="sm_90a", config=text, resolved=text) for number, text in enumerate(kernels)
    ]
    assert list(groups(several)) == ["sm90a_expand", "sm90a_ring"]


def test_importance_finds_the_knob_that_matters() -> None:
    chance = random.Random(0)
    trials = []
    for place in range(60):
        config = BASE.replace(
            num_ab_stage=chance.choice([2, 3, 4]),
            raster_order=chance.choice(["m", "n"]),
            epi_tile_n=chance.choice([16, 32, 64]),
        )
        trials.append(trial(place, 100.0 / config.num_ab_stage + 0.01 * config.epi_tile_n, config=config))
    importance = knob_importance(trials)
    assert list(importance.shares)[0] == "num_ab_stage"
    assert importance.shares["num_ab_stage"] > 0.9
    assert set(importance.shares) == {"num_ab_stage", "raster_order", "epi_tile_n"}
    assert sum(importance.shares.values()) == pytest.approx(1.0)
    assert "random forest" in importance.note


@pytest.mark.parametrize("trials", [[], SIX, [trial(i, 20.0, config=stages(i)) for i in range(1, 13)]])
def test_importance_says_when_it_cannot_tell(trials: list[Trial]) -> None:
    importance = knob_importance(trials)
    assert importance.shares == {} and importance.note


# ---- files ----------------------------------------------------------------------------------------------------------


def test_report_folder() -> None:
    assert report_folder(Path("r"), "b200", PROBLEM) == Path("r/b200/svdquant_gemm/4352x3840x3072x128")
    other = dataclasses.replace(PROBLEM, lora_dtype="bf16")
    assert report_folder(Path("r"), "b200", other).name == "4352x3840x3072x128-bf16-fp16"


def test_csv_reads_back(tmp_path: Path) -> None:
    files = write_report(tmp_path / "new" / "folder", FULL)
    rows = list(csv.DictReader(io.StringIO(files.csv.read_text())))
    assert [row["number"] for row in rows] == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
    ]  # illegal points are in the Parquet file
    assert [row["us"] for row in rows] == ["30", "", "20", "24", "20.5", "40"]
    assert [row["num_ab_stage"] for row in rows] == ["4", "5", "6", "3", "6", "4"]
    assert rows[1]["status"] == "compile_timeout" and rows[1]["reason"] == "no result after 60 s"
    assert rows[2]["evidence.mma"] == "12" and rows[0]["evidence.mma"] == ""
    assert "cubin_sha256" not in rows[0]


def test_csv_of_awkward_text() -> None:
    awkward = 'a, "quoted"\nreason'
    [row] = csv.DictReader(io.StringIO(trials_csv([trial(0, None, Status.FAILED, reason=awkward)])))
    assert row["reason"] == awkward


def test_parquet_reads_back(tmp_path: Path) -> None:
    files = write_report(tmp_path, FULL)
    assert read_trials(files.parquet) == [*SIX, *ILLEGAL]


def test_parquet_of_no_trials(tmp_path: Path) -> None:
    assert read_trials(write_report(tmp_path, sweep([])).parquet) == []


def test_not_a_parquet_file(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("hello")
    for name in ("t.parquet", "none.parquet"):
        with pytest.raises(InputError, match="cannot read trials") as caught:
            read_trials(tmp_path / name)
        assert "\n" not in str(caught.value)


# ---- pages ----------------------------------------------------------------------------------------------------------

VOID = {"meta", "br", "link", "wbr"}
STYLE = asset("pages.css").decode()


class Page(HTMLParser):
    """Checks that tags nest; collects attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words = ""
        self.data = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.data += data
        else:
            self.words += data

    @property
    def tags(self) -> list[str]:
        return [tag for tag, _ in self.elements]

    @property
    def attributes(self) -> list[tuple[str, str]]:
        return [pair for _, attributes in self.elements for pair in attributes.items()]

    @property
    def record(self) -> dict[str, Any]:
        """What the page's script draws and lists."""
        return json.loads(self.data)


SHARED = [
    "../../assets/pages.css",
    "../../assets/uplot.min.js",
    "../../problems.js",
    "../../assets/pages.js",
    "../../index.html",
]


def assert_offline(text: str) -> Page:
    """Nothing but the device's own files is asked for, and nothing runs but what is in them."""
    page = Page(text)
    assert not {"img", "iframe", "object", "use", "image", "style"} & set(page.tags)
    names = ("src", "href", "xlink:href", "srcset", "data")
    assert [value for name, value in page.attributes if name in names] == SHARED
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    scripts = [attributes for tag, attributes in page.elements if tag == "script"]
    assert all("src" in one or one["type"] == "application/json" for one in scripts)
    assert not re.search(r"https?:|url\(|@import|//", text)
    assert "nan" not in re.findall(r'(?:[xy][12]?|c[xy]|width|height|d)="([^"]*)"', text)
    return page


def test_page_shows_the_numbers() -> None:
    page = assert_offline(render_html(FULL))
    for figure in (
        "20 µs",  # the winner
        "19 – 22 µs",  # its interval
        "5\u2009305",  # useful TFLOP/s
        "1.50×",  # default 30 us
        "5 of 6",  # trials with a time
        "+2.5%",  # runner-up 20.5 us
        "232448",  # SMEM limit in the budget table
        "1,000 points, 250 distinct legal kernels",
        "20.0%",  # split_k rejects 200 of 1000
        "no result after 60 s",
        "split_k 2, cluster_of_pairs 1",
    ):
        assert figure in page.words, figure
    assert "unused" not in page.words
    assert page.tags.count("svg") == 2  # a panel for each of two knobs; the script draws the rest
    places = {attributes.get("id") for _, attributes in page.elements}
    assert {"convergence", "roofline", "coordinates", "trials", "controls", "data"} <= places


def test_every_time_names_its_kind() -> None:
    for kind in Kind:
        trials = [dataclasses.replace(one, kind=kind) if one.us else one for one in SIX]
        others = {str(other) for other in Kind} - {str(kind)}
        if kind is not Kind.MEASURED:
            text = render_html(sweep(trials))
            # "measured" also labels roofs, whatever the times are
            assert not [other for other in others - {"measured"} if f"{other} time" in text]
            assert Page(text).record["kind"] == str(kind)
        assert f"20 us, {kind}" in render_markdown(sweep(trials))


def test_markdown_shows_the_numbers() -> None:
    text = render_markdown(FULL)
    for figure in (
        "# svdquant_gemm 4352,3840,3072,128 on b200",
        "**20 us, modelled**, interval 19 to 22 us, 5\u2009305 useful TFLOP/s (trial 2)",
        "1.50x as fast as the default rule, modelled",
        "runner-up: trial 4, 20.5 µs modelled (+2.5%), `lora_schedule=tail`",
        "| mma | 12.000 | 60.0% |",
        "accumulators",
        "| compile_timeout | 1 | no result after 60 s | #1 |",
        "| 2 | split_k: every split needs a k-tile, got 16 |",
        "| split_k | 200 |",
    ):
        assert figure in text, figure


FAILED = [trial(i, None, Status.COMPILE_FAILED, reason=f"error {i}") for i in range(3)]
AWKWARD = {
    "no trials": [],
    "all failed": FAILED,
    "only illegal points": ILLEGAL,
    "one trial": SIX[2:3],
    "one and a failure": [FAILED[0], SIX[2]],
    "equal times": [trial(i, 20.0, config=stages(i + 1)) for i in range(3)],
    "a time that is not a number": [dataclasses.replace(SIX[2], us=math.nan), *SIX[3:]],
    "only that": [dataclasses.replace(SIX[2], us=math.nan)],
    "far apart": [trial(0, 1.5), trial(1, 1e6, config=stages(3)), trial(2, 3.0, config=stages(2))],
}


@pytest.mark.parametrize("trials", AWKWARD.values(), ids=AWKWARD)
def test_awkward_sweeps(tmp_path: Path, trials: list[Trial]) -> None:
    files = write_report(tmp_path, sweep(trials))
    page = assert_offline(files.html.read_text())
    usable = bool(timed(trials))
    assert ("No winner" in page.words) is not usable
    assert ("**No winner**" in files.markdown.read_text()) is not usable
    assert len(read_trials(files.parquet)) == len(trials)


def test_all_failed_shows_the_count_per_status() -> None:
    page = assert_offline(render_html(sweep([*FAILED, SIX[1]])))
    assert "None of the 4 trials has a time" in page.words
    assert "compile_failed3error 0" in page.words  # three cells side by side


def test_without_lora() -> None:
    problem = GemmProblem(m=128, k=16384, n=7168, r=0)
    config = BASE.replace(num_lora_stage=0)
    trials = [dataclasses.replace(trial(0, 9.0, config=config), problem=str(problem))]
    page = assert_offline(render_html(sweep(trials, problem=problem)))
    assert "R=0" in page.words and "9 µs" in page.words


def hopper_trials() -> list[Trial]:
    config = "kernel=sm90a_ring tile_mnk=256x128x128 consumer_warpgroups=2 register_operand=act num_ab_stage="
    fields = {"kind": Kind.MEASURED, "low_us": 199.0, "high_us": 210.0, "device": "h200", "arch": "sm_90a"}
    return [trial(i, 200.0 + i, config=f"{config}{i + 2}", **fields) for i in range(3)]


def test_page_of_an_h200() -> None:
    page = assert_offline(render_html(sweep(hopper_trials(), arch=SM90A, device="h200", sm_count=132)))
    assert page.record["roof"]["lines"][0]["label"] == "DRAM 4.8 TB/s (published)"
    assert "single CTAs" in page.words
    assert page.record["kind"] == "measured"


def test_every_class_of_a_page_has_a_style() -> None:
    """Apart from those that only carry a size or a place."""
    page = Page(render_html(FULL))
    used = {one for name, value in page.attributes if name == "class" for one in value.split()}
    styled = set(re.findall(r"\.([a-z][\w-]*)", STYLE))
    assert used <= styled, used - styled


def test_dark_pages_define_every_colour() -> None:
    light, dark = re.findall(r":root\{([^}]*)\}", STYLE)
    names = [set(re.findall(r"--([\w-]+):", side)) for side in (light, dark)]
    assert names[0] == names[1]
    assert set(re.findall(r"var\(--([\w-]+)\)", STYLE)) <= names[0]


def test_roofline_names_runner_up_and_default() -> None:
    """By hand: trial 4 is 20.5 us; it differs from the winner, trial 2, in the schedule alone."""
    record = Page(render_html(FULL)).record
    assert record["marked"] == [2, 4, 0]
    roles = {one["number"]: one.get("role") for one in record["trials"]}
    assert (roles[4], roles[0]) == ("runner-up", "default")
    assert record["roof"]["operations"] == 106_099_113_984
    schedule = record["knobs"].index("lora_schedule")
    spelled = {one["number"]: record["values"][schedule][one["k"][schedule]] for one in record["trials"]}
    assert (spelled[4], spelled[2]) == ("tail", "interleave")


def test_filtered_points_are_neither_failures_nor_illegal() -> None:
    reason = "prefilter: modelled at 90 us, more than 1.75 x the best modelled 30 us"
    filtered = [trial(-1, None, Status.FILTERED, resolved="", reason=reason)] * 2
    whole = sweep([*SIX, *ILLEGAL, *filtered])
    page = Page(render_html(whole))
    assert "5 of 6" in page.words
    assert f"2 legal proposals, never compiled; the first: {reason}." in page.words
    assert "3, never compiled: split_k 2, cluster_of_pairs 1." in page.words
    assert f"never compiled: 2; the first: {reason}." in render_markdown(whole)
    assert "| filtered | 2 |" in render_markdown(whole)


def test_every_status_has_a_meaning() -> None:
    assert set(MEANS) == set(Status)


def test_statuses_are_counted() -> None:
    page = Page(render_html(FULL))
    assert "statustrialsmeaningok5nothing speaks against itillegal3a rule rejects it" in page.words
    assert "| illegal | 3 | a rule rejects it; never compiled |" in render_markdown(FULL)


def test_text_is_escaped() -> None:
    nasty = "<script>alert('x')</script> & \"y\""
    trials = [*SIX, trial(6, None, Status.FAILED, reason=nasty)]
    text = render_html(sweep(trials, facts={nasty: nasty}))
    page = assert_offline(text)
    assert nasty in page.words  # in the table of failures
    assert page.record["trials"][-1]["reason"] == nasty
    assert "alert('x')" not in page.tags and text.count("<script") == 4 == text.count("</script")


def test_sections_of_other_modules() -> None:
    section = Section(title="Timeline", body="<p>body</p>", markdown="words")
    assert "<h2>Timeline</h2><p>body</p>" in render_html(sweep(SIX, sections=(section,)))
    assert "## Timeline\n\nwords" in render_markdown(sweep(SIX, sections=(section,)))


def many_trials(count: int) -> list[Trial]:
    chance = random.Random(1)
    trials = []
    for place in range(count):
        config = BASE.replace(
            mma_tiler_mn=chance.choice([(m, n) for m in (128, 256) for n in (64, 128, 192, 256)]),
            mma_tiler_k=chance.choice([128, 256]),
            cluster_shape_mn=chance.choice([(m, n) for m in (1, 2, 4) for n in (1, 2, 4)]),
            num_ab_stage=chance.randint(1, 14),
            num_c_stage=chance.randint(1, 8),
            num_lora_stage=chance.randint(0, 3),
            swizzle_size=chance.choice([1, 2, 4, 8]),
            split_k=chance.choice([1, 2, 4, 8, 16]),
            prefetch_dist=chance.choice([0, 2, 4, 8]),
            use_pdl=chance.random() < 0.5,
        )
        us = chance.uniform(20, 200)
        parts = [chance.random() for _ in range(13)]
        evidence = {f"term_number_{i}": us * part / sum(parts) for i, part in enumerate(parts)}
        build = {
            "cubin_sha256": f"{chance.getrandbits(256):064x}",
            "registers": 128,
            "smem_bytes": 200000 + place,
        }
        if chance.random() < 0.1:
            reason = f"ptxas error at line {place}: {'long reason ' * 30}{chance.choice('abcdefgh')}"
            trials.append(
                trial(place, None, Status.COMPILE_FAILED, config=config, reason=reason, build=build)
            )
        else:
            trials.append(trial(place, us, config=config, evidence=evidence, build=build))
    return trials


def test_page_of_a_thousand_trials_is_small(tmp_path: Path) -> None:
    illegal = [
        dataclasses.replace(ILLEGAL[0], reason=f"rule_{chr(97 + i % 26)}: {'why ' * 60}") for i in range(2000)
    ]
    files = write_report(tmp_path, sweep([*many_trials(1000), *illegal], budget=BUDGET))
    assert_offline(files.html.read_text())
    assert files.html.stat().st_size < 500_000


def test_twenty_shapes_of_200_trials_take_less_than_4_mb(tmp_path: Path) -> None:
    """All of results/ is to stay below 5 MB."""
    files = write_report(tmp_path, sweep([*many_trials(200), *ILLEGAL * 100], budget=BUDGET))
    assert sum(path.stat().st_size for path in vars(files).values()) < 200_000


# ---- drawing --------------------------------------------------------------------------------------------------------


def test_linear_scale_and_ticks() -> None:
    scale = Scale(0, 100, 10, 210, ticks=5)
    assert (scale(0), scale(50), scale(100)) == (10, 110, 210)
    assert scale.ticks == [0, 20, 40, 60, 80, 100]
    assert scale(1000) == 210  # beyond the range: at the edge


def test_log_scale_and_ticks() -> None:
    scale = Scale(1, 100, 0, 200, log=True, ticks=9)
    assert scale(10) == pytest.approx(100)
    assert scale.ticks == [1, 2, 5, 10, 20, 50, 100]
    assert Scale(1, 100, 0, 200, log=True, ticks=5).ticks == [1, 3, 10, 30, 100]
    assert Scale(20, 50, 0, 200, log=True, ticks=6).ticks == [20, 25, 30, 35, 40, 45, 50]
    with pytest.raises(ValueError, match="above 0"):
        Scale(0, 1, 0, 1, log=True)


def test_scale_of_one_value() -> None:
    assert Scale(5, 5, 0, 100)(5) == 50
    assert Scale(5, 5, 0, 100, log=True)(5) == pytest.approx(50)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (1, "1"),
        (0.125, "0.125"),
        (27.541, "27.5"),
        (3852.4, "3\u2009852"),
        (200000, "200\u2009000"),
        (100, "100"),
    ],
)
def test_number(value: float, text: str) -> None:
    assert number(value) == text


def test_escape() -> None:
    assert escape('<a href="x">\'&') == "&lt;a href=&quot;x&quot;&gt;&#x27;&amp;"
