"""What ``auto`` takes: by the times of rows, read here from the committed table itself."""

from __future__ import annotations

import json
import math
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from kernel_space.core.errors import InputError
from kernel_space.core.registry import operator
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.staged.config import StagedConfig
from tuner.devices.classes import DEVICE_CLASSES
from tuner.layers import activations
from tuner.layers.activations import decide, decide_for, decide_on
from tuner.runtime import SVDQuantLinear
from tuner.runtime.choice import expected
from tuner.tables.distance import nearness_order
from tuner.tables.gain import translated_us

TABLE = Path(__file__).resolve().parents[2] / "results" / "h200" / "dispatch.json"


def rows_of(m: int) -> dict[str, dict[str, Any]]:
    """Of both operators at m,3840,3072,128 in bf16."""
    sizes = {"m": m, "k": 3840, "n": 3072, "r": 128, "dtype": "bf16"}
    rows = json.loads(TABLE.read_text())["rows"]
    return {row["op"]: row for row in rows if row["problem"] == sizes}


@pytest.mark.parametrize("m", [1, 16, 64, 128, 256, 1024, 4352])
def test_the_faster_one_and_16_bits_where_nobody_can_tell(m: int) -> None:
    found = rows_of(m)
    nvfp4, half = (found[op]["time_us"] for op in ("svdquant_linear", "svdquant_linear_16bit"))
    cards = {row["evidence"]["card"] for row in found.values()}
    margin = 1.05 if len(cards) == 1 else 1.1
    problem = LinearProblem(m=m, k=3840, n=3072, r=128, dtype="bf16")
    decision = decide_for(problem, DEVICE_CLASSES["h200"], has_peaks=False)
    assert decision.activations == ("16bit" if half <= margin * nvfp4 else "nvfp4")
    assert f"{nvfp4:.4g} us" in decision.reason and f"{half:.4g} us" in decision.reason


def test_both_are_taken_somewhere() -> None:
    sizes = [(4352, 3072, 9216), (64, 3840, 3072)]
    problems = [LinearProblem(m=m, k=k, n=n, r=128, dtype="bf16") for m, k, n in sizes]
    assert [decide_for(one, DEVICE_CLASSES["h200"], has_peaks=False).activations for one in problems] == [
        "nvfp4",
        "16bit",
    ]


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    asked: LinearProblem,
    rows: dict[str, tuple[LinearProblem, float]],
    *,
    has_peaks: bool = True,
    **cards: str,
) -> activations.Decision:
    """On an H100 whose table would launch these rows, by operator, in one launch each, of ``cards``."""

    def choice(library: object, problem: LinearProblem) -> object:
        if problem.operator not in rows:
            return None
        known, us = rows[problem.operator]
        evidence = {"card": cards[problem.operator]} if problem.operator in cards else {}
        row = types.SimpleNamespace(
            time_us=us, kind="measured", evidence=evidence, key=types.SimpleNamespace(problem=known)
        )
        return types.SimpleNamespace(row=row, launched=problem, config=None)

    monkeypatch.setattr(activations, "choice_of", choice)
    monkeypatch.setattr(expected, "efforts", lambda config, problems, rates: None)
    library: Any = None
    return decide_on(library, DEVICE_CLASSES["h100"], asked, has_peaks=has_peaks)


def test_a_row_of_other_sizes_counts_by_the_waves_of_its_tiles() -> None:
    """Tiles of 96 columns: 128 for N = 12288, one wave of 132 SMs, 299 for N = 28672, three, with K 4 / 3 as long."""
    known, asked = (
        HalfLinearProblem(m=1, k=k, n=n, r=0, dtype="bf16") for k, n in ((3072, 12288), (4096, 28672))
    )
    config = StagedConfig(tile_mnk=(64, 96, 128), split_k=1, num_ab_stage=6, num_dq_stage=3, num_x_stage=4)
    row = types.SimpleNamespace(time_us=15.0, key=types.SimpleNamespace(problem=known))
    choice: Any = types.SimpleNamespace(row=row, launched=asked, config=config)
    found = expected.us_of(choice, DEVICE_CLASSES["h200"])
    assert 0.8 * 4 * 15.0 < found <= 4 * 15.0


@pytest.mark.parametrize(
    ("m", "known", "wanted"), [(256, 512, "16bit"), (512, 1024, "fp8"), (256, 256, "fp8")]
)
def test_of_few_rows_fp8_is_believed_where_it_was_timed(
    monkeypatch: pytest.MonkeyPatch, m: int, known: int, wanted: str
) -> None:
    """What a launch does for each weight, however few rows x has, a time of more rows says nothing of."""
    asked, timed = (LinearProblem(m=one, k=3840, n=3072, r=128, dtype="bf16") for one in (m, known))
    rows = {
        "svdquant_linear_fp8": (activations.as_kind("fp8", timed), 20.0),
        "svdquant_linear_16bit": (activations.as_kind("16bit", asked), 25.0),
    }
    assert chosen(monkeypatch, asked, rows).activations == wanted


def test_rows_of_other_sizes_count_by_bytes_and_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 rows move the bytes of one and a little: a row of M = 1 says so, where operations would say 64 times."""
    one, many = (LinearProblem(m=m, k=4096, n=4096, r=0, dtype="bf16") for m in (1, 64))
    weights = 4096 * 4096 * (1 / 2 + 1 / 16)
    x, y = 64 * 4096 * 2, 64 * 4096 * 2
    bound = [1e6 * moved / 3.35e12 for moved in (weights, weights + x + y + 64 * 4096 * (1 / 2 + 1 / 16))]
    expected = 10.0 * (bound[1] + 1.4) / (bound[0] + 1.4)
    # A time that is expected of other sizes counts for less than one that was measured at these.
    for other, wanted in ((1.14 * expected, "16bit"), (1.25 * expected, "nvfp4")):
        rows = {"svdquant_linear": (one, 10.0), "svdquant_linear_16bit": (many, other)}
        found = chosen(monkeypatch, many, rows)
        assert found.activations == wanted
        told = float(found.reason.split(" us expected here")[0].rsplit(" ", 1)[1])
        assert told == pytest.approx(expected, rel=0.03)  # smooth, bias and other vectors besides


# Found by bench_layer on an H200 (docs/evidence/results_h200.md): 16 bits were 1.08 to 1.52 times as fast.
@pytest.mark.parametrize("shape", ["16,12288,3072,128", "64,12288,3072,128", "16,15360,3840,128"])
def test_a_row_of_these_sizes_is_believed_before_one_of_others(shape: str) -> None:
    problem = LinearProblem.parse(shape, dtype="bf16")
    assert decide_for(problem, DEVICE_CLASSES["h200"]).activations == "16bit"


@pytest.mark.parametrize("op", ["svdquant_linear", "svdquant_linear_16bit"])
def test_a_row_says_of_the_next_what_was_measured(op: str) -> None:
    """Every row of the H200 by its nearest other one: within 17 % in the root mean square, and nearer than by
    operations. The oracle is the row's own time."""
    h200 = DEVICE_CLASSES["h200"]
    rows = [row for row in json.loads(TABLE.read_text())["rows"] if row["op"] == op]
    times = {LinearProblem(**row["problem"]): row["time_us"] for row in rows}

    def error(expected: float, us: float) -> float:
        return math.log(expected / us) ** 2

    by_bound, by_operations = [], []
    for problem, us in times.items():
        others = [
            one for one in times if one != problem and one.dtype == problem.dtype
        ]  # kernels may serve one alone
        known = min(others, key=lambda one: nearness_order(problem, one))
        by_bound.append(error(translated_us(times[known], known, problem, h200, launches=2), us))
        larger = math.prod(getattr(problem, name) / getattr(known, name) for name in "mkn")
        by_operations.append(error(times[known] * larger, us))
    assert sum(by_bound) < min(sum(by_operations), len(times) * math.log(1.17) ** 2)


@pytest.mark.parametrize(
    ("shape", "nvfp4", "half"),
    [("1,3840,3072", 10.2, 7.76), ("64,3840,3072", 13.4, 11.4)]
    + [("512,3072,9216", 89.5, 67.7)]
    + [("64,3072,3072", 12.6, 10.2), ("128,3072,12288", 42.2, 29.2)],
)
def test_what_an_h100_measured_as_faster_by_a_fifth(shape: str, nvfp4: float, half: float) -> None:
    """Microseconds of whole layers there (docs/evidence/results_h100.md)."""
    problem = LinearProblem.parse(f"{shape},128", dtype="bf16")
    found = decide_for(problem, DEVICE_CLASSES["h100"], has_peaks=False)
    assert found.activations == ("nvfp4" if nvfp4 < half else "16bit"), found.reason


def test_nvfp4_where_no_16_bit_kernel_is_and_without_a_card() -> None:
    problem = LinearProblem(m=1024, k=3840, n=3072, r=128, dtype="bf16")
    assert decide_for(problem, DEVICE_CLASSES["b200"]).activations == "nvfp4"
    assert decide(problem, torch.device("cpu"), has_peaks=True).activations == "nvfp4"


@pytest.mark.filterwarnings("ignore:svdquant_linear")
def test_16_bits_are_closer_to_the_layer_in_plain_torch_too() -> None:
    torch.manual_seed(0)
    linear = torch.nn.Linear(96, 40)
    x = torch.randn(9, 96)
    layer = SVDQuantLinear.from_linear(linear, rank=16)
    exact = linear(x).detach()
    errors = {}
    for layer.activations in ("nvfp4", "16bit"):
        errors[layer.activations] = float((layer(x) - exact).norm() / exact.norm())
    assert errors["16bit"] < 0.9 * errors["nvfp4"], errors


def own(op: str, problem: LinearProblem) -> LinearProblem:
    """The same call by another operator."""
    return operator(op).problem.parse(str(problem), dtype=problem.dtype)  # type: ignore[return-value]  # of a layer


NAMES = {"svdquant_linear": "nvfp4", "svdquant_linear_16bit": "16bit", "svdquant_linear_fp8": "fp8"}


@pytest.mark.parametrize(
    ("nvfp4", "half", "fp8", "wanted"),
    [
        (100, 90, 60, "fp8"),  # the fastest
        (60, 90, 100, "nvfp4"),
        (100, 60, 90, "16bit"),
        (100, 62.9, 60, "16bit"),  # within 5 %: the most accurate
        (100, 63.1, 60, "fp8"),
        (60, 100, 62.9, "fp8"),
        (60, 100, 63.1, "nvfp4"),
        (60, 62.9, 60, "16bit"),
        (100, 110, 104, "fp8"),  # 16 bits are not within 5 % of the fastest, only of the second
        (60, 60, 60, "16bit"),
        (None, 90, 60, "fp8"),  # without a row of one or two
        (100, None, 60, "fp8"),
        (100, 90, None, "16bit"),
        (None, None, 60, "fp8"),
        (None, 90, None, "16bit"),
        (100, None, None, "nvfp4"),
        (None, None, None, "nvfp4"),
    ],
)
def test_the_fastest_of_three_and_the_most_accurate_where_nobody_can_tell(
    nvfp4: float | None, half: float | None, fp8: float | None, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = LinearProblem(m=4352, k=3072, n=3072, r=128, dtype="bf16")
    times = dict(zip(NAMES, (nvfp4, half, fp8), strict=True))
    rows = {op: (own(op, asked), us) for op, us in times.items() if us is not None}
    found = chosen(monkeypatch, asked, rows)
    assert found.activations == wanted
    for op, us in times.items():
        assert (f"{NAMES[op]} measured" in found.reason) == (us is not None)
        assert us is None or f"{us:.4g} us" in found.reason
    without = {op: row for op, row in rows.items() if op != "svdquant_linear_fp8"}
    bare = chosen(monkeypatch, asked, rows, has_peaks=False)
    assert bare == chosen(monkeypatch, asked, without) and bare.activations != "fp8"


def test_rows_of_two_cards_are_further_apart_before_they_say_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each against the fastest one: 8 % are nothing between two cards, and something on one."""
    asked = LinearProblem(m=4352, k=3072, n=3072, r=128, dtype="bf16")
    half, fp8 = "svdquant_linear_16bit", "svdquant_linear_fp8"
    rows = {half: (own(half, asked), 64.8), fp8: (own(fp8, asked), 60.0)}
    other = chosen(monkeypatch, asked, rows, svdquant_linear_16bit="a", svdquant_linear_fp8="b")
    same = chosen(monkeypatch, asked, rows, svdquant_linear_16bit="a", svdquant_linear_fp8="a")
    assert (other.activations, same.activations) == ("16bit", "fp8")


@pytest.mark.parametrize(
    ("taken", "m", "wanted"), [("nvfp4", 512, 1), ("16bit", 4352, 1), ("16bit", 511, 0), ("fp8", 4352, 0)]
)
def test_what_a_tune_tries_besides(taken: str, m: int, wanted: int) -> None:
    problem = LinearProblem(m=m, k=3072, n=96, r=16, activation="silu")
    found = activations.alternatives(taken, problem)
    assert [one.operator for one in found] == ["svdquant_linear_fp8"] * wanted
    assert all((one.sizes, one.options) == (problem.sizes, problem.options) for one in found)


def test_another_word_is_refused() -> None:
    with pytest.raises(InputError, match="activations must be one of auto, nvfp4, 16bit, fp8, got 'int8'"):
        SVDQuantLinear(64, 16, rank=16, activations="int8")
    layer = SVDQuantLinear(64, 16, rank=16)
    layer.activations = "int8"
    with pytest.raises(InputError, match="activations must be one of"):
        layer(torch.zeros(1, 64))
