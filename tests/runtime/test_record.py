"""``record_problems``: calls counted, what served them, and a file that ``tune.py`` reads."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from kernel_space.core.stand_in import StandIn
from kernel_space.operators.svdquant_linear.problem import LinearProblem
from tests.layers.test_linear import linear_of
from tests.runtime import test_any_operator as any_operator
from tuner.cli.options.shapes import read_shapes
from tuner.runtime import SVDQuantLinear, caller, launch, quantize_act, record, record_problems
from tuner.runtime.record import Met

pytestmark = pytest.mark.filterwarnings("ignore:.* on cpu is the torch reference")


def problem(m: int, n: int = 72) -> LinearProblem:
    return LinearProblem(m=m, k=160, n=n, r=16, dtype="bf16")


def test_calls_of_a_model_are_counted() -> None:
    first, second = (SVDQuantLinear.from_linear(linear_of(n, 160), rank=16) for n in (72, 160))
    with torch.no_grad(), record_problems() as seen:
        for m in (3, 17, 3):
            first(torch.randn(m, 160))
        second(torch.randn(2, 5, 160))
        quantize_act(torch.randn(6, 160), None, None)
        first(torch.randn(0, 160))
    first(torch.randn(3, 160))
    counts = {(one.operator, str(one)): met.calls for one, met in seen.problems.items()}
    assert counts == {
        ("svdquant_linear", "3,160,72,16"): 2,
        ("svdquant_linear", "17,160,72,16"): 1,
        ("svdquant_linear", "10,160,160,16"): 1,
        ("nvfp4_quantize", "6,160,0"): 1,
    }
    assert {met.fallback for met in seen.problems.values()} == {"torch reference"}
    assert str(seen).splitlines()[0].split() == [
        "2",
        "x",
        "svdquant_linear",
        "3,160,72,16",
        "torch",
        "reference",
    ]
    assert not record.listening()


@pytest.mark.slow
def test_calls_of_compiled_code_are_counted() -> None:
    layer = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        compiled(torch.randn(4, 160))
        with record_problems() as seen:
            for _ in range(3):
                compiled(torch.randn(4, 160))
    assert seen.problems == {problem(4): Met(calls=3, fallback="torch reference")}


made = any_operator.made  # the CPU as a card


def test_calls_that_went_the_short_way_are_seen_and_go_it_again(
    made: any_operator.Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, x = any_operator.NAME, any_operator.x_of(5, 8)
    real = made.plan

    def plan(tables: Any, one: Any, device: Any) -> Any:
        found = real(one)
        found.choice.source = "exact"
        return found

    monkeypatch.setattr(caller, "plan_for", plan)
    quick = caller.caller_of(name).quick

    def run() -> None:
        assert any_operator.right(x, launch(name, "5,8", {"x": x}))

    for _ in range(2):
        run()
    assert len(quick.calls) == 1
    with record_problems() as seen:
        for _ in range(3):
            run()
        assert not len(quick.calls)
    assert [(str(one), met.calls, met.fallback) for one, met in seen.problems.items()] == [("5,8", 3, "")]
    for _ in range(2):
        run()
    assert len(quick.calls) == 1 and len(made.seen) == 7


def test_a_call_that_is_adapted_is_one_call(
    made: any_operator.Object, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = any_operator.Problem(m=6, k=4)

    def wider(tensors: Any) -> dict[str, torch.Tensor]:
        return {"x": torch.nn.functional.pad(tensors["x"], (0, 0, 0, 1))}

    def plan(tables: Any, one: Any, device: Any) -> Any:
        if one.m == 6:
            return made.plan(one)
        stand_in = StandIn(problem=wide, adapt=wider, note="M padded to 6")
        return SimpleNamespace(
            choice=SimpleNamespace(is_padded=True, stand_in=stand_in, source="nearest M 6")
        )

    monkeypatch.setattr(caller, "plan_for", plan)
    with record_problems() as seen:
        for _ in range(2):
            launch(any_operator.NAME, "5,4", {"x": any_operator.x_of(5, 4)})
    found = [(str(one), met.calls, met.fallback) for one, met in seen.problems.items()]
    assert found == [("5,4", 2, "nearest M 6, M padded to 6")]


def test_one_inside_another_and_other_threads() -> None:
    layer = SVDQuantLinear.from_linear(linear_of(72, 160), rank=16)

    def run() -> None:
        with torch.no_grad():
            layer(torch.randn(3, 160))

    with record_problems() as outer:
        run()
        with record_problems() as inner:
            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert (outer.problems[problem(3)].calls, inner.problems[problem(3)].calls) == (5, 4)


def test_it_ends_with_an_error() -> None:
    with pytest.raises(RuntimeError), record_problems():
        raise RuntimeError
    assert not record.listening()


def served(source: str, launched: LinearProblem, asked: LinearProblem, note: str = "") -> SimpleNamespace:
    stand_in = SimpleNamespace(problem=launched, note=note)
    choice = SimpleNamespace(source=source, stand_in=stand_in, is_padded=launched != asked)
    return SimpleNamespace(choice=choice)


def test_what_served_a_call() -> None:
    seen = record.Seen()
    wide = LinearProblem(m=9, k=160, n=72, r=32, dtype="bf16")
    seen.note(problem(9), served("exact", problem(9), problem(9)))
    seen.note(problem(8), served("nearest M 9", problem(8), problem(8)))
    seen.note(problem(7), served("any shape of R=32", wide, problem(7), "R padded to 32"))
    assert [met.fallback for met in seen.problems.values()] == [
        "",
        "nearest M 9",
        "any shape of R=32, R padded to 32",
    ]


def test_a_saved_file_is_what_tune_reads(tmp_path: Path) -> None:
    seen = record.Seen()
    seen.problems = {
        problem(3): Met(calls=2, fallback="torch reference"),
        problem(17): Met(calls=40, fallback=""),
    }
    seen.save(tmp_path / "shapes.yaml")
    document = yaml.safe_load((tmp_path / "shapes.yaml").read_text())
    assert document["problems"] == [
        {"op": "svdquant_linear", "shape": "17,160,72,16", "dtype": "bf16", "calls": 40},
        {
            "op": "svdquant_linear",
            "shape": "3,160,72,16",
            "dtype": "bf16",
            "calls": 2,
            "fallback": "torch reference",
        },
    ]
    read = list(read_shapes(tmp_path / "shapes.yaml", "svdquant_gemm", lambda kind: {}))
    assert [(entry.problem, entry.calls) for entry in read] == [(problem(17), 40), (problem(3), 2)]


def test_nothing_met_is_a_file_too(tmp_path: Path) -> None:
    record.Seen().save(tmp_path / "shapes.yaml")
    assert yaml.safe_load((tmp_path / "shapes.yaml").read_text()) == {"problems": []}
    assert str(record.Seen()) == "no problem was met"


def test_a_file_that_tune_can_read_however_much_was_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = record.Seen()
    fallback = "nearest layer 4352,3840,3072,128, R padded to 128"
    seen.problems = {
        LinearProblem(m=m, k=15360, n=13824, r=128, dtype="bf16"): Met(calls=m, fallback=fallback)
        for m in range(1, 1001)
    }
    seen.save(tmp_path / "shapes.yaml")
    read = list(read_shapes(tmp_path / "shapes.yaml", "svdquant_gemm", lambda kind: {}))
    assert [entry.calls for entry in read] == list(range(1000, 600, -1))
    assert "600 are left out" in capsys.readouterr().err
