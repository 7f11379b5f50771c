"""A retime with a compiler that is a stand-in: which rows, which candidates, what it leaves, how it is stopped."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kernel_space.build.key import kernel_source_hash
from kernel_space.core.arch import SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import FakeDevice, FakePool, fake_us, small_space
from tests.tables.test_dispatch import CURRENT, MEASURED, SIMULATED, STALE, row
from tests.tune.test_driver import PROBLEM, SPACE, run
from tuner.search.progress import Progress
from tuner.space.published import published_config
from tuner.space.space import SearchSpace
from tuner.stages.record import current
from tuner.tables.dispatch import DispatchTable
from tuner.tables.merge import choose, outdated_reason, stale_reason
from tuner.tables.row import Row
from tuner.trials.candidate import Listed
from tuner.trials.outcome import Origin, Outcome, Status, Timing
from tuner.trials.parquet import read_facts, read_trials
from tuner.tune.driver import TuneOptions, TuneResult, tune
from tuner.tune.retime import Outdated, candidates_of, outdated_rows, table_of_device
from tuner.tune.retimed import LOG, PAGE, Retimed, log_retime, render

SPACE_48 = small_space(**SPACE)
OLD, NEW = "fake", "fake of another day"


class TodaysPool(FakePool):
    """Its kernels are of today's sources, so that a row is stale by its judge alone."""

    def submit(self, config: KernelConfigSm100a, *more: Any) -> concurrent.futures.Future[Any]:
        future = super().submit(config, *more)
        if (compiled := future.result().compiled) is not None:
            compiled.source_hash = kernel_source_hash(kernel(GemmProblem.operator, "sm100a"))
        return future


@dataclasses.dataclass(kw_only=True)
class OtherTimes(FakeDevice):
    """The judge of another day: its times are ``fake_us`` by ``factors``, 1 where there is none."""

    judge: str = NEW
    factors: dict[str, float] = dataclasses.field(default_factory=dict)

    def us(self, resolved: str) -> float:
        return fake_us(resolved) * self.factors.get(resolved, 1.0)

    def found(self, legal: Legal) -> Outcome:
        self.timed.append(str(legal.config))
        us = self.us(str(legal.config))
        return Outcome(status=Status.OK, timing=Timing(kind=self.kind, us=us, low_us=us, high_us=us))


def kernels() -> list[str]:
    """All of the small space, the fastest first."""
    legal = SPACE_48.legal_points(PROBLEM, SM100A)
    return sorted((str(one.config) for one in legal), key=fake_us)


def resolved(config: Any) -> str:
    legal = legalize(config, PROBLEM, SM100A)
    assert isinstance(legal, Legal)
    return str(legal.config)


DEFAULT = resolved(SearchSpace.load(GemmProblem.operator, SM100A).default(PROBLEM))
PUBLISHED = resolved(published_config(PROBLEM, SM100A).config)  # type: ignore[union-attr]


def tuned(out: Path) -> TuneResult:
    """All 48 kernels, by the old judge."""
    return run(out, device=FakeDevice(judge=OLD), space=SPACE_48, pool=TodaysPool())


def rows_now(out: Path, device: Any, **more: Any) -> list[Outdated]:
    return outdated_rows(table_of_device(out, device), current(device), **more)


def retime(out: Path, device: Any, pool: Any = None, *, runners_up: int = 3, **options: Any) -> TuneResult:
    """The row of ``PROBLEM``."""
    (one,) = [one for one in table_of_device(out, device).rows.values() if one.key.problem == PROBLEM]
    chosen = candidates_of(one, out, device, runners_up=runners_up, say=print)
    options = {"out": out, "jobs": 2, "count_space": False, "retimes": True, **options}
    return tune(
        PROBLEM,
        device,
        TuneOptions(**options),
        pool=pool or TodaysPool(),
        search=Listed(chosen),
        progress=Progress(stream=io.StringIO(), terminal=False),
    )


def own_row(out: Path) -> Row:
    (found,) = DispatchTable.load(out / "b200", arch=SM100A).own(PROBLEM)
    return found


# -- which rows --


def test_rows_of_another_judge_are_outdated_and_say_so(tmp_path: Path) -> None:
    tuned(tmp_path)
    assert rows_now(tmp_path, FakeDevice(judge=OLD)) == []
    (one,) = rows_now(tmp_path, FakeDevice(judge=NEW))
    assert (
        one.problem == PROBLEM
        and one.reason.startswith("model fake oracle ")
        and "fake of anot" in one.reason
    )
    (fresh,) = rows_now(tmp_path, FakeDevice(judge=OLD), fresh_too=True)
    assert fresh.reason == ""
    assert rows_now(tmp_path, FakeDevice(judge=NEW), operator="svdquant_linear") == []


def test_a_problem_without_a_row_and_a_table_without_rows_are_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no row in .*b200, so nothing can be retimed; tune first"):
        table_of_device(tmp_path, FakeDevice())
    assert list(tmp_path.iterdir()) == []
    tuned(tmp_path)
    other = dataclasses.replace(PROBLEM, m=17)
    with pytest.raises(InputError, match=f"no row of {other}; tune it first"):
        rows_now(tmp_path, FakeDevice(), problems=[PROBLEM, other])


def test_another_driver_outdates_a_measured_row_but_leaves_the_merge_rule_alone() -> None:
    now = dataclasses.replace(CURRENT, driver="590.1")
    measured = row(MEASURED, evidence={"driver": "580.2"})
    assert outdated_reason(measured, now) == "driver 580.2, now 590.1"
    assert stale_reason(measured, now) == ""
    assert outdated_reason(row(MEASURED, evidence={"driver": "580.2"}, **STALE), now) == (
        "kernel source src-0, now src-1, driver 580.2, now 590.1"
    )
    same = row(MEASURED, evidence={"driver": "590.1"})
    silent, simulated = row(MEASURED), row(SIMULATED, evidence={"driver": "580.2"})
    assert [outdated_reason(one, now) for one in (same, silent, simulated)] == ["", "", ""]
    assert outdated_reason(measured, CURRENT) == outdated_reason(measured, None) == ""
    assert choose(measured, row(MEASURED, 10, date="2026-01-01"), now).recorded == (
        choose(measured, row(MEASURED, 10, date="2026-01-01"), CURRENT).recorded
    )


# -- which candidates --


def test_the_row_its_references_then_the_next_best(tmp_path: Path) -> None:
    tuned(tmp_path)
    chosen = candidates_of(own_row(tmp_path), tmp_path, FakeDevice(judge=NEW), runners_up=3, say=print)
    best = kernels()
    others = [one for one in best[1:] if one not in (DEFAULT, PUBLISHED)][:3]
    assert [one.resolved for one in chosen] == [best[0], DEFAULT, PUBLISHED, *others]
    assert [one.number for one in chosen] == list(range(6))
    origins = [one.origin for one in chosen[:4]]
    assert origins == [Origin.NEIGHBOUR, Origin.DEFAULT, Origin.PUBLISHED, Origin.NEIGHBOUR]
    none = candidates_of(own_row(tmp_path), tmp_path, FakeDevice(judge=NEW), runners_up=0, say=print)
    assert [one.resolved for one in none] == [best[0], DEFAULT, PUBLISHED]


def test_a_row_that_has_the_default_is_the_default(tmp_path: Path) -> None:
    tuned(tmp_path)
    default = dataclasses.replace(own_row(tmp_path), config=DEFAULT)
    chosen = candidates_of(default, tmp_path, FakeDevice(judge=NEW), runners_up=1, say=print)
    assert (chosen[0].resolved, chosen[0].origin) == (DEFAULT, Origin.DEFAULT)
    assert len({one.resolved for one in chosen}) == len(chosen) == 3


def test_what_cannot_be_read_or_is_illegal_is_said_in_one_line(tmp_path: Path) -> None:
    tuned(tmp_path)
    there = own_row(tmp_path)
    assert there.runner_up is not None
    illegal = there.runner_up.config.replace("num_ab_stage=", "num_ab_stage=9")
    second = dataclasses.replace(there.runner_up, config=illegal)
    broken = dataclasses.replace(there, config=f"{there.config} speed=9", runner_up=second)
    said: list[str] = []
    chosen = candidates_of(broken, tmp_path, FakeDevice(judge=NEW), runners_up=3, say=said.append)
    best = [one for one in kernels() if one not in (DEFAULT, PUBLISHED)]
    assert [one.resolved for one in chosen] == [DEFAULT, PUBLISHED, *best[:3]]
    (line,) = said
    assert line.startswith("left out: the row's config: unknown knob 'speed'") and line.endswith(
        "; and 1 more"
    )


def test_damaged_trials_cost_what_they_held(tmp_path: Path) -> None:
    result = tuned(tmp_path)
    result.report.parquet.write_bytes(b"PAR")
    said: list[str] = []
    chosen = candidates_of(own_row(tmp_path), tmp_path, FakeDevice(judge=NEW), runners_up=3, say=said.append)
    best = kernels()
    assert {best[0], best[1], DEFAULT} <= {one.resolved for one in chosen}  # row, its runner-up, default
    assert len(said) == 1 and "earlier visits are passed over: cannot read trials" in said[0]


# -- what it leaves --


def test_only_the_list_is_compiled_and_the_row_is_of_today(tmp_path: Path) -> None:
    tuned(tmp_path)
    best, pool = kernels(), TodaysPool()
    device = OtherTimes(factors={best[0]: 2.0})  # the winner is slow now
    result = retime(tmp_path, device, pool)
    assert len(pool.submitted) == 6 == result.fresh and result.known == 0
    fastest = min(pool.submitted, key=device.us)
    found = own_row(tmp_path)
    assert found.config == fastest != best[0] and result.winner is not None
    assert found.time_us == pytest.approx(device.us(fastest), rel=1e-5)
    assert rows_now(tmp_path, device) == []
    done = Retimed.of(Outdated(row=row(SIMULATED, 20.0, config=best[0]), reason="r"), result, 6)
    assert done.winner_changed and done.config_us == pytest.approx(2 * fake_us(best[0]))
    assert done.ratio == pytest.approx(device.us(fastest) / 20.0, rel=1e-5)


def test_the_page_keeps_the_sweep_and_renews_what_was_judged_again(tmp_path: Path) -> None:
    before = {trial.resolved: trial for trial in read_trials(tuned(tmp_path).report.parquet)}
    device = OtherTimes(factors={one: 3.0 for one in before})
    result = retime(tmp_path, device)
    after = read_trials(result.report.parquet)
    again = set(device.timed)
    assert [trial.resolved for trial in after[:48]] == list(before), "in the order of the sweep"
    for trial in after:
        old = before.get(trial.resolved)
        factor = 3.0 if trial.resolved in again and old else 1.0
        assert trial.us == pytest.approx(fake_us(trial.resolved) * factor)
        if old is not None:
            assert (trial.number, trial.seed) == (old.number, old.seed)
    assert {trial.resolved for trial in after} == set(before) | again
    assert len({trial.number for trial in after}) == len(after)
    facts = read_facts(result.report.parquet)
    assert facts["retimed"].startswith(f"6 of {len(after)} candidates on ")
    assert facts["search"] == "seed 0, 48 new and 0 known trials"
    assert result.winner is not None and result.winner.resolved in again
    said = result.report.markdown.read_text().partition("## Winner")[2].partition("\n## ")[0]
    assert result.winner.resolved in said.replace("\n", " ")


def test_without_a_sweep_the_page_is_of_the_retime(tmp_path: Path) -> None:
    tuned(tmp_path).report.parquet.unlink()
    for journal in (tmp_path / ".studies").rglob("*.jsonl"):
        journal.unlink()
    result = retime(tmp_path, OtherTimes())
    assert len(read_trials(result.report.parquet)) == result.fresh == 4  # row, runner-up, default, published
    assert "retimed" not in read_facts(result.report.parquet)


def test_a_wrong_row_makes_way(tmp_path: Path) -> None:
    tuned(tmp_path)
    best = kernels()
    device = OtherTimes(verdicts={best[0]: Status.WRONG_RESULT})
    result = retime(tmp_path, device)
    assert own_row(tmp_path).config == best[1]
    done = Retimed.of(Outdated(row=row(SIMULATED, config=best[0]), reason="r"), result, 6)
    assert (done.config_us, done.config_status) == (None, "wrong_result")


# -- stopped --


class StopsAt(TodaysPool):
    """Raises as Ctrl-C would instead of the candidate of this number."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def submit(self, *task: Any) -> concurrent.futures.Future[Any]:
        if sum(self.submitted.values()) == self.number:
            self.number = -1
            raise KeyboardInterrupt
        return super().submit(*task)


@pytest.mark.parametrize("how", ["interrupted", "timeout"])
def test_stopped_it_leaves_the_row_and_the_next_one_goes_on(how: str, tmp_path: Path) -> None:
    page = tuned(tmp_path).report.html
    shown = page.read_bytes()
    table = (tmp_path / "b200" / "dispatch.json").read_bytes()
    if how == "interrupted":
        stopped = retime(tmp_path, OtherTimes(), StopsAt(5), jobs=1)
    else:
        stopped = retime(tmp_path, OtherTimes(), timeout_s=1e-9)
    assert stopped.stopped == how and stopped.decision is None
    assert (tmp_path / "b200" / "dispatch.json").read_bytes() == table and page.read_bytes() == shown
    assert len(rows_now(tmp_path, OtherTimes())) == 1, "it is still to be retimed"
    rest = retime(tmp_path, OtherTimes())
    assert (rest.fresh, rest.known) == (6 - stopped.fresh, stopped.fresh)
    assert (stopped.fresh > 0) == (how == "interrupted")
    assert rows_now(tmp_path, OtherTimes()) == []


# -- the log --


def record(**changes: Any) -> Retimed:
    base = Retimed(
        op="svdquant_gemm", problem="64,128,256,0", options={"lora_dtype": "fp16"}, since="2026-01-02", reason="dsl",
        kind_before="measured", us_before=100.0, config_before="a=1", config_us=101.0, config_status="ok",
        kind_after="measured", us_after=101.0, config_after="a=1", candidates=3, stopped="", table="row recorded",
        seconds=1.5, date="2026-02-03",
    )  # fmt: skip
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("us", "kind", "again"),
    [
        (102.9, "measured", False),
        (103.0, "measured", False),
        (103.1, "measured", True),
        (300.0, "simulated", False),
        (None, "", True),
    ],
)
def test_slower_by_more_than_three_percent_is_searched_again(
    us: float | None, kind: str, again: bool
) -> None:
    one = record(us_after=us, kind_after=kind, config_after="a=1" if us else "")
    assert one.search_again is again
    assert ("search again" in one.verdict) is again
    page = render("h200", [one])
    command = "    tune.py --device h200 --op svdquant_gemm --shape 64,128,256,0 --option lora_dtype=fp16"
    assert (command in page) is again


def test_the_log_has_the_last_retime_of_each_row(tmp_path: Path) -> None:
    said: list[str] = []
    first, second = record(), record(problem="128,128,256,0", config_after="a=2")
    for one in (first, second, dataclasses.replace(first, us_after=90.0)):
        log_retime(tmp_path, "h200", one, say=said.append)
    rows = json.loads((tmp_path / "h200" / LOG).read_text())["rows"]
    assert sorted((one["problem"], one["us_after"]) for one in rows) == [
        ("128,128,256,0", 101.0),
        ("64,128,256,0", 90.0),
    ]
    page = (tmp_path / "h200" / PAGE).read_text()
    assert "0.9000" in page and "was a=1\n    now a=2" in page and not said


def test_threads_that_log_at_once_lose_nothing(tmp_path: Path) -> None:
    def log(m: int) -> None:
        log_retime(tmp_path, "h200", record(problem=f"{m},128,256,0"), say=print)

    threads = [threading.Thread(target=log, args=(m,)) for m in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = json.loads((tmp_path / "h200" / LOG).read_text())["rows"]
    assert {one["problem"] for one in rows} == {f"{m},128,256,0" for m in range(1, 9)}
    page = (tmp_path / "h200" / PAGE).read_text()
    assert all(f"svdquant_gemm {m},128,256,0" in page for m in range(1, 9))


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"version": 9, "rows": []}', '{"version": 1, "rows": [{"op": 3}]}']
)
def test_a_log_that_is_none_makes_way(content: str, tmp_path: Path) -> None:
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / LOG).write_text(content)
    said: list[str] = []
    log_retime(tmp_path, "h200", record(), say=said.append)
    assert len(said) == 1 and "a new log begins" in said[0]
    assert (tmp_path / "h200" / f"{LOG}.damaged-1").read_text() == content
    assert len(json.loads((tmp_path / "h200" / LOG).read_text())["rows"]) == 1


def test_a_bad_number_in_a_record_is_bad_input() -> None:
    good = dataclasses.asdict(record())
    assert Retimed.from_record(good) == record()
    for bad in ({"us_before": "fast"}, {"us_before": 0}, {"op": None}, {"options": [1]}):
        with pytest.raises(InputError):
            Retimed.from_record({**good, **bad})
