"""A search from empty results comes near the best that is known. Times are kept in files; what lacks is simulated."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bench_search import CLOSE, Curve, close_us, committed, reached, searched
from benchmarks.search_jobs import Run
from benchmarks.search_times import FOLDER, Times
from benchmarks.search_ways import NotKnown
from kernel_space.core.arch import SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.devices.classes import DEVICE_CLASSES

B200 = DEVICE_CLASSES["b200"]
PROBLEM = GemmProblem.parse("17,3840,3072,64")


def legal(text: str) -> Legal:
    return Legal(KernelConfigSm100a.parse(text), None)  # type: ignore[arg-type] # nobody looks at the budget


def curve(*best: float) -> Curve:
    return Curve(problem=PROBLEM, way="search", seed=0, best=best, whole=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", ["1,3840,3072,128", "128,7168,4096,0", "17,3840,3072,64", "4352,3840,3072,128"]
)
def test_two_of_three_searches_from_nothing_come_within_one_percent(shape: str, tmp_path: Path) -> None:
    """A minute from files of today's clock; ten or so after it has changed, until they are made again. A search that is
    near has shown what is asked, so it ends there.
    """
    ((problem, row),) = committed("svdquant_gemm", [shape])
    kept = Times(problem, B200)
    times = Times(problem, B200, tmp_path) if kept.closed else kept
    known = legalize(parse_config(problem.operator, SM100A, row), problem, SM100A)
    assert isinstance(known, Legal) and times.us(known)
    runs = [Run(problem=problem, way="search", seed=seed) for seed in range(3)]
    curves = [searched(run, times, 200, enough=lambda: close_us(times, known)) for run in runs]
    assert reached(curves, times.best_us), [one.best[-1] / times.best_us for one in curves]


def test_a_curve_says_when_it_was_near() -> None:
    one = curve(12.0, 10.2, 10.09, 10.0)
    assert (one.after(2), one.after(60), one.within(CLOSE * 10), one.within(9.9)) == (10.2, 10.0, 3, None)
    late = curve(12.0, 10.2)
    assert reached([one, one, late], 10.0) and not reached([one, late, late], 10.0)


def test_times_are_kept_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Legal] = []

    def simulated(self: Times, one: Legal) -> float | None:
        asked.append(one)
        return None if one.config.fields()["split_k"] == "2" else 7.25

    monkeypatch.setattr(Times, "_simulated", simulated)
    first, second = legal("num_ab_stage=3"), legal("num_ab_stage=3 split_k=2")
    times = Times(PROBLEM, B200, tmp_path)
    assert [times.us(first), times.us(second), times.us(first)] == [7.25, None, 7.25] and len(asked) == 2
    again = Times(PROBLEM, B200, tmp_path, closed=True)
    assert [again.us(first), again.us(second)] == [7.25, None] and again.best_us == 7.25 and len(asked) == 2
    with pytest.raises(NotKnown):
        again.us(legal("num_ab_stage=3 split_k=4"))


def test_times_of_another_clock_are_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Times, "_simulated", lambda self, one: 7.25)
    one = legal("num_ab_stage=3")
    Times(PROBLEM, B200, tmp_path).us(one)
    (path,) = tmp_path.iterdir()
    path.write_text(path.read_text().replace("clock ", "clock 0", 1))
    old = Times(PROBLEM, B200, tmp_path)
    assert old.closed and old.us(one) == 7.25
    renewed = Times(PROBLEM, B200, tmp_path, renew=True)
    assert not renewed.closed and renewed.known == {}
    path.write_text("# simulated on b200, clock 1\nsm100a 1 2\tfast\n")
    with pytest.raises(InputError, match="line 2"):
        Times(PROBLEM, B200, tmp_path)


def test_shipped_times_are_of_problems_of_the_table() -> None:
    files = {path.name for path in FOLDER.glob("*.tsv")}
    table = {Times(problem, B200, closed=True).path.name for problem, _ in committed(None, [])}
    assert files and files <= table
