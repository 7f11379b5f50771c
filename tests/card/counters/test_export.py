"""The profiler's export against what was written into it; medians, call by call; MFU by hand."""

from __future__ import annotations

import io
from pathlib import Path

import pandas
import pytest

from kernel_space.core.arch import SM90A, SM100A, SM103A
from kernel_space.core.errors import InputError
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.card.counters.exports import ABSENT, COUNTED, export
from tuner.card.counters.calls import by_call
from tuner.card.counters.export import Profiled, read_export
from tuner.card.counters.quantities import CLOCK, COUNTERS, QUANTITIES
from tuner.card.counters.utilization import describe_rates, least_cycles, mfu

# ``documented_form`` is made by hand; the others are what ``profile --keep`` left on a card.
STORED = sorted((Path(__file__).resolve().parents[2] / "data" / "ncu").glob("*.csv"))
PROBLEM = GemmProblem.parse("4352,3840,3072,128")


def test_every_launch_is_read_whatever_stands_around_the_table() -> None:
    found = read_export(export(3))
    assert [one.kernel for one in found] == ["kernel_a(int, float)"] * 3, "a comma in a name parts no columns"
    assert [one.counted["gpu__time_duration.sum"] for one in found] == [30.0, 31.0, 32.0], "ns are us"
    assert {one.counted["smsp__inst_issued.sum"] for one in found} == {1234567.0}, "commas between thousands"
    assert {one.counted["sm__cycles_elapsed.avg.per_second"] for one in found} == {1.5e9}
    assert all(ABSENT not in one.counted for one in found) and set(COUNTED) <= set(found[0].counted)


@pytest.mark.parametrize(
    ("unit", "value", "us"),
    [
        ("nsecond", "1,500", 1.5),
        ("us", "1.5", 1.5),
        ("usecond", "1.5", 1.5),
        ("ms", "2", 2e3),
        ("second", "0.5", 5e5),
    ],
)
def test_units_of_every_version(unit: str, value: str, us: float) -> None:
    text = f'"ID","Kernel Name","gpu__time_duration.sum"\n"","","{unit}"\n"0","k","{value}"\n'
    assert read_export(text)[0].counted == {"gpu__time_duration.sum": pytest.approx(us)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "before it begins"),
        ("==ERROR== Failed\n", "ends with '==ERROR== Failed'"),
        ('"ID","Kernel Name","a__b"\n"","","%"\n', "table is empty"),
        ('"ID","Kernel Name","a__b"\n"","","%"\n"0","k"\n', "must have 3 columns, one has 2"),
    ],
)
def test_what_is_no_export_is_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_export(text)


def test_a_chip_without_a_counter_has_no_value() -> None:
    (one,) = by_call([Profiled(kernel="k", counted={"gpu__time_duration.sum": 3.0})], 1).kernels
    assert one.values == {
        quantity.key: 3.0 if quantity.key == "duration_us" else None for quantity in QUANTITIES
    }
    assert by_call([Profiled(kernel="k", counted={})], 1).cycles is None


def test_medians_go_over_calls_and_kernels_of_a_call_stay_apart() -> None:
    found = by_call(read_export(export(6, kernels=("quantize", "gemm"))), 3)
    assert [one.kernel for one in found.kernels] == ["quantize", "gemm"]
    # Launches take 30, 31 ... 35 us in turns: 30 32 34 and 31 33 35.
    assert [one.values["duration_us"] for one in found.kernels] == [32.0, 33.0]
    assert found.duration_us == 65.0 and found.cycles == pytest.approx(65.0 * 1500)
    assert [one.values["sm_clock_ghz"] for one in found.kernels] == [1.5, 1.5]
    assert [one.values["hmma_active_pct"] for one in found.kernels] == [50.0, 50.0], "by its name on Hopper"


@pytest.mark.parametrize(("launches", "calls"), [(5, 2), (1, 2), (4, 2)])
def test_calls_must_be_alike(launches: int, calls: int) -> None:
    with pytest.raises(InputError, match=f"{calls} calls must be the same kernels each"):
        by_call(read_export(export(launches, kernels=("a", "b", "c"))), calls)


def test_every_counter_is_asked_for_once() -> None:
    assert len(COUNTERS) == len(set(COUNTERS)) and set(COUNTED) | {ABSENT} <= set(COUNTERS)


def test_mfu_by_hand() -> None:
    """2 M N K at the NVFP4 rate and 2 M N R at the half rate; on Hopper all at the half rate."""
    nvfp4, half = 2 * 4352 * 3072 * 3840, 2 * 4352 * 3072 * 128
    assert least_cycles(PROBLEM, SM100A, 148) == pytest.approx((nvfp4 / 32768 + half / 8192) / 148, rel=1e-3)
    assert least_cycles(PROBLEM, SM103A, 148) == pytest.approx((nvfp4 / 49152 + half / 8192) / 148, rel=1e-3)
    hopper = least_cycles(PROBLEM, SM90A, 132)
    assert hopper == pytest.approx((nvfp4 + half) / 4096 / 132, rel=1e-3)
    # An H200 at 1.83 GHz does 989.5 TFLOP/s by its data sheet (1979 with sparsity).
    assert (nvfp4 + half) / (hopper / 1.83e9) == pytest.approx(1979e12 / 2, rel=1e-3)
    assert mfu(PROBLEM, SM90A, 132, 2 * hopper) == pytest.approx(0.5)
    assert mfu(PROBLEM, SM90A, 132, None) is None


def test_what_uses_no_tensor_core_has_no_mfu() -> None:
    problem = QuantizeProblem.parse("64,3840,0")
    assert mfu(problem, SM90A, 132, 1000.0) is None and describe_rates(problem, SM90A, 132) == ""


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_stored_exports_say_what_another_reader_finds_in_them(path: Path) -> None:
    """Every quantity has a value, and that of the duration is the column's by pandas."""
    text = path.read_text()
    table = pandas.read_csv(
        io.StringIO(text[text.index('"ID",') :]), thousands=",", dtype=str, on_bad_lines="skip"
    )
    launches = table[table["ID"].str.fullmatch(r"\d+", na=False)]
    found = read_export(text)
    assert [one.kernel for one in found] == list(launches["Kernel Name"])
    unit = table["gpu__time_duration.sum"][0]
    expected = (
        launches["gpu__time_duration.sum"].str.replace(",", "").astype(float)
        * {"ns": 1e-3, "us": 1.0}[unit[:2]]
    )
    assert [one.counted["gpu__time_duration.sum"] for one in found] == pytest.approx(list(expected))
    missing = {
        quantity.key for one in found for quantity in QUANTITIES if quantity.value(one.counted) is None
    }
    assert not missing
    assert all(0 < (CLOCK.value(one.counted) or 0) < 3 for one in found), "GHz"
    shares = [
        value
        for one in found
        for quantity in QUANTITIES
        if quantity.unit == "%" and (value := quantity.value(one.counted))
    ]
    assert shares and all(0 <= share <= 100 for share in shares)
