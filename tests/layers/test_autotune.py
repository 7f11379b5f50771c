"""``svdquant_autotune`` without a card: the real tune on what a real layer meets, with a device that is made up.

The CPU's reference computes the layer; which problems are tuned, in which order and in which time, and that the tables
are looked at anew, does not depend on who times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kernel_space.core.arch import SM90A, SM100A
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tests.fakes import CHECKS_ALL, FakeDevice, FakePool
from tests.layers.test_linear import linear_of
from tuner.compile import pool as pool_module
from tuner.devices.classes import DEVICE_CLASSES
from tuner.devices.select import select_device
from tuner.layers import autotune
from tuner.runtime import InputError, SVDQuantLinear, state, svdquant_autotune, use_table
from tuner.tables.dispatch import DispatchTable
from tuner.tune import driver
from tuner.tune.turns import in_turn

pytestmark = pytest.mark.filterwarnings("ignore:.* on cpu is the torch reference")
B200 = DEVICE_CLASSES["b200"]


def problem(m: int, n: int = 72) -> LinearProblem:
    return LinearProblem(m=m, k=160, n=n, r=16, dtype="bf16")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's, empty."""
    monkeypatch.setenv("SVDQUANT_TUNE_RESULTS", str(tmp_path / "results"))
    return tmp_path / "results"


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, results: Path) -> Iterator[FakeDevice]:
    device = FakeDevice(abilities=CHECKS_ALL)
    monkeypatch.setattr(autotune, "_device", lambda: device)
    monkeypatch.setattr(pool_module, "CompilePool", lambda *options: contextlib.nullcontext(FakePool()))
    state.reload_tables()
    yield device
    monkeypatch.undo()
    state.reload_tables()


@pytest.fixture(scope="module")
def layer() -> SVDQuantLinear:
    return SVDQuantLinear.from_linear(linear_of(72, 160), rank=16)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """(problem, seconds) of every tune; none is held."""
    found: list[tuple[str, float]] = []

    def tune(problem: Any, device: Any, options: Any, *, pool: Any) -> Any:
        found.append((str(problem), options.timeout_s))
        return SimpleNamespace(winner=SimpleNamespace(us=3.0), stopped="")

    monkeypatch.setattr(driver, "tune", tune)
    return found


@pytest.mark.slow
def test_what_a_model_meets_has_rows_afterwards(
    made_up: FakeDevice, results: Path, layer: SVDQuantLinear
) -> None:
    """And the process looks them up from then on; a second time nothing is left to tune."""
    assert not state.active()[0].library(B200).table.own(problem(3))
    with torch.no_grad(), svdquant_autotune(budget_s=60, trials=2) as found:
        layer(torch.randn(3, 160))
        assert not found.tuned, "not before the block ends"
    assert [one.problem for one in found.tuned] == [problem(3)] and found.tuned[0].us is not None
    rows = DispatchTable.load(results / "b200" / "dispatch.json").own(problem(3))
    assert rows and rows[0].time_us == pytest.approx(found.tuned[0].us, abs=1e-3)
    assert state.active()[0].library(B200).table.own(problem(3)), "without a new process"
    assert "svdquant_linear 3,160,72,16" in str(found)
    with torch.no_grad(), svdquant_autotune(budget_s=60) as again:
        layer(torch.randn(3, 160))
    assert again.tuned == [] and str(again) == "nothing was left to tune"


def test_the_most_valuable_first_and_a_share_of_what_is_left(
    made_up: FakeDevice, asked: list[tuple[str, float]], layer: SVDQuantLinear
) -> None:
    """Calls decide among alike problems: 5 of m=3, 1 of m=4, 2 of m=5; each has a third of 90 s, less its reserve."""
    tables = state.active()[0]
    with torch.no_grad(), svdquant_autotune(budget_s=90) as found:
        for m in (4, 3, 3, 5, 3, 5, 3, 3):
            layer(torch.randn(m, 160))
    assert [name for name, _ in asked] == ["3,160,72,16", "5,160,72,16", "4,160,72,16"]
    assert [one.calls for one in found.tuned] == [5, 2, 1]
    assert state.active()[0] is not tables, "they are looked at anew"
    # Nothing takes time here, so that what the first left goes to the others: 90 / 3, 90 / 2, 90.
    assert [seconds for _, seconds in asked] == pytest.approx([22, 37, 82], abs=2)


@pytest.mark.parametrize(
    ("activations", "arch", "wanted"),
    [
        ("auto", "sm_90a", [("svdquant_linear", 600), ("svdquant_linear_fp8", 600), ("svdquant_linear", 9)]),
        ("auto", "sm_100a", [("svdquant_linear", 600), ("svdquant_linear", 9)]),
        ("nvfp4", "sm_90a", [("svdquant_linear", 600), ("svdquant_linear", 9)]),
    ],
)
def test_what_auto_may_take_is_tuned_too(
    activations: str,
    arch: str,
    wanted: list[tuple[str, int]],
    made_up: FakeDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """FP8, from some hundred rows, on a card that has kernels of it, and where nobody asked for another kind."""
    tuned: list[Any] = []

    def tune(problem: Any, device: Any, options: Any, *, pool: Any) -> Any:
        tuned.append(problem)
        return SimpleNamespace(winner=SimpleNamespace(us=3.0), stopped="")

    monkeypatch.setattr(driver, "tune", tune)
    made_up.arch = {"sm_90a": SM90A, "sm_100a": SM100A}[arch]
    layer = SVDQuantLinear.from_linear(torch.nn.Linear(160, 72), rank=16, activations=activations)
    with torch.no_grad(), svdquant_autotune(budget_s=90) as found:
        for m in (9, 600, 600):
            layer(torch.randn(m, 160))
    assert sorted((one.operator, one.m) for one in tuned) == sorted(wanted)
    assert {one.problem.operator: one.calls for one in found.tuned if one.problem == tuned[-1]}
    assert all(one.calls == (1 if one.problem.m == 9 else 2) for one in found.tuned)  # type: ignore[attr-defined]  # of a layer
    assert len(found.seen.problems) == 2, "what ran"


def test_what_there_is_no_time_for_is_said(
    made_up: FakeDevice,
    asked: list[tuple[str, float]],
    layer: SVDQuantLinear,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def tune(problem: Any, device: Any, options: Any, *, pool: Any) -> Any:
        nonlocal now
        now += options.timeout_s + autotune.RESERVE_S
        asked.append((str(problem), options.timeout_s))
        return SimpleNamespace(winner=SimpleNamespace(us=3.0), stopped="")

    monkeypatch.setattr(driver, "tune", tune)
    monkeypatch.setattr(autotune.time, "monotonic", lambda: now)
    with torch.no_grad(), svdquant_autotune(budget_s=30) as found:
        for m in (3, 3, 4):
            layer(torch.randn(m, 160))
    assert asked == [("3,160,72,16", pytest.approx(12))], "20 s at least, or it finds nothing"
    assert [one.reason for one in found.tuned] == ["", "no time was left for it"]


def test_what_another_tuner_is_at_is_left_to_it(
    made_up: FakeDevice, asked: list[tuple[str, float]], results: Path, layer: SVDQuantLinear
) -> None:
    with contextlib.closing(in_turn([problem(3)], results, "b200")) as others:
        next(others)
        with torch.no_grad(), svdquant_autotune(budget_s=1) as found:
            for m in (3, 3, 4):
                layer(torch.randn(m, 160))
    assert [name for name, _ in asked] == ["4,160,72,16"]
    assert {str(one.problem): one.reason for one in found.tuned} == {
        "4,160,72,16": "",
        "3,160,72,16": "another tuner was at it until the time was over",
    }


def test_an_error_of_the_model_tunes_nothing(made_up: FakeDevice, asked: list[tuple[str, float]]) -> None:
    with pytest.raises(ZeroDivisionError), svdquant_autotune(budget_s=30):
        _ = 1 / 0
    assert asked == []


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf"), "600"])
def test_a_budget_is_seconds(made_up: FakeDevice, budget: Any) -> None:
    with (
        pytest.raises(InputError, match="budget_s must be a number of seconds above 0"),
        svdquant_autotune(budget),
    ):
        raise AssertionError("the model does not run")


def test_not_within_another_table(made_up: FakeDevice, results: Path) -> None:
    (results / "b200").mkdir(parents=True)
    (results / "b200" / "dispatch.json").write_text('{"schema": 2, "arch": "sm_100a", "rows": []}\n')
    other = results.rename(results.with_name("other"))
    with (
        use_table(other),
        pytest.raises(InputError, match="use_table launches from elsewhere"),
        svdquant_autotune(9),
    ):
        raise AssertionError("the model does not run")


def test_without_a_card_or_compiler_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="needs a card, and torch sees none"), svdquant_autotune(9):
        raise AssertionError("the model does not run")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("tuner.tune.needs.toolchain", refuse)
    with pytest.raises(InputError, match="the DSL is not here here: pip install"), svdquant_autotune(9):
        raise AssertionError("the model does not run")


def refuse() -> None:
    raise InputError("the DSL is not here; install it")


@pytest.mark.slow
def test_with_compiler_and_clock(
    results: Path, layer: SVDQuantLinear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulated B200 in the card's place, everything else real."""
    monkeypatch.setattr(autotune, "_device", lambda: select_device("b200"))
    state.reload_tables()
    with torch.no_grad(), svdquant_autotune(budget_s=120, trials=1) as found:
        layer(torch.randn(3, 160))
    (one,) = found.tuned
    assert one.us is not None, one.reason
    choice = state.active()[0].choice(problem(3), B200)
    assert (choice.source, choice.problem) == ("exact", problem(3)), "its object is launched"
