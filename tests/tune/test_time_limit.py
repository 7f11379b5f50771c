"""``--timeout`` holds whatever a tune waits for: devices that never answer. ``--json-lines`` tells what a tune does."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.fakes import Answer, FakeDevice, FakePool, small_space
from tuner.cli.tune.events import Events
from tuner.devices.abilities import Abilities
from tuner.search.progress import Progress, State
from tuner.stages.run import TIMED_OUT
from tuner.trials.outcome import Status
from tuner.tune.driver import TuneOptions, TuneResult, tune

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
SPACE = {
    "cluster_shape_mn": "2x1 2x2",
    "lora_schedule": "interleave tail",
    "raster_order": "m n",
    "use_pdl": "false true",
}
LIMIT_S, SLACK_S = 1.5, 3.0
KERNELS = 1 + len(list(small_space(**SPACE).legal_points(PROBLEM, SM100A)))  # and the default


@dataclasses.dataclass(kw_only=True)
class Silent(FakeDevice):
    """Has several candidates at a time; never answers a request of the kind ``silent``."""

    abilities: Abilities = Abilities(at_once=True, checks_winner=True)
    silent: str = ""

    def time(self, compiled: Any, legal: Any, problem: GemmProblem) -> Answer:
        return Answer() if self.silent == "time" else super().time(compiled, legal, problem)

    def check(self, compiled: Any, legal: Any, problem: GemmProblem) -> Answer:
        return Answer() if self.silent == "check" else super().check(compiled, legal, problem)

    def check_full(self, compiled: Any, legal: Any, problem: GemmProblem) -> Answer:
        return Answer() if self.silent == "check_full" else super().check(compiled, legal, problem)


class SilentPool(FakePool):
    def submit(self, *args: Any) -> concurrent.futures.Future[Any]:
        return concurrent.futures.Future()


def tuned(
    out: Path, device: FakeDevice, pool: Any = None, progress: Progress | None = None, **options: Any
) -> TuneResult:
    return tune(
        PROBLEM,
        device,
        TuneOptions(**{"out": out, "jobs": 2, "count_space": False, **options}),
        pool=pool or FakePool(),
        space=small_space(**SPACE),
        progress=progress or Progress(stream=io.StringIO(), terminal=False),
    )


@pytest.mark.parametrize("silent", ["time", "check", "check_full"])
def test_no_stage_waits_beyond_the_limit(silent: str, tmp_path: Path) -> None:
    """What was found until then is written down: the times, where only checks are missing."""
    tuned(tmp_path / "first", Silent())  # what is imported and read once
    start = time.monotonic()
    result = tuned(tmp_path / "second", Silent(silent=silent), timeout_s=LIMIT_S)
    assert LIMIT_S <= time.monotonic() - start < LIMIT_S + SLACK_S
    assert result.stopped == TIMED_OUT
    assert (result.winner is None) == (silent == "time")
    assert result.counts.get(Status.OK, 0) == (0 if silent == "time" else KERNELS)


def test_the_look_for_points_to_begin_with_ends_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And half a look is not what later runs of the seed begin with."""
    looks: list[int] = []

    def endless(*_: object, check_time: Callable[[], None], **__: object) -> None:
        looks.append(0)
        while True:
            check_time()
            time.sleep(0.01)

    monkeypatch.setattr("tuner.tune.prepare.promising", endless)
    for number in (1, 2):
        start = time.monotonic()
        result = tuned(tmp_path, Silent(), timeout_s=LIMIT_S)
        assert time.monotonic() - start < LIMIT_S + SLACK_S and result.stopped == TIMED_OUT
        assert result.fresh == 0 and len(looks) == number


def test_a_compiler_that_never_answers(tmp_path: Path) -> None:
    start = time.monotonic()
    result = tuned(tmp_path, Silent(), pool=SilentPool(), timeout_s=LIMIT_S)
    assert time.monotonic() - start < LIMIT_S + SLACK_S and result.stopped == TIMED_OUT


def test_without_a_limit_nobody_leaves(tmp_path: Path) -> None:
    result = tuned(tmp_path, Silent())
    assert result.stopped == "" and result.winner is not None and "full" not in result.winner.reason


def test_the_first_word_comes_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()

    def load(*_: object) -> None:
        raise RuntimeError(stream.getvalue())

    monkeypatch.setattr("tuner.tune.driver.SearchSpace.load", load)
    with pytest.raises(RuntimeError, match="^4352: getting ready\n$"):
        tune(
            PROBLEM,
            FakeDevice(),
            TuneOptions(out=tmp_path),
            progress=Progress("4352", stream=stream, terminal=False),
        )


def test_events_tell_stages_trials_and_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert KERNELS > 4
    result = tuned(tmp_path, Silent(), progress=Events(PROBLEM))
    said = capsys.readouterr()
    events = [json.loads(line) for line in said.out.splitlines()]
    assert said.err == "" and all({"event", "problem", "date"} <= set(one) for one in events)
    assert {one["problem"] for one in events} == {str(PROBLEM)}
    stages = [one["name"] for one in events if one["event"] == "stage"]
    assert stages == ["getting ready", "candidates", "check leaders", "check the winner"]
    latest = {one["config"]: one["us"] for one in events if one["event"] == "trial"}
    assert latest == {trial.resolved: trial.us for trial in result.trials} and len(latest) == KERNELS
    states = [one for one in events if one["event"] == "progress"]
    assert states[-1]["done"] == KERNELS


def test_states_come_a_second_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = itertools.count(start=0.0, step=0.25)
    monkeypatch.setattr("tuner.cli.tune.events.time.monotonic", lambda: next(clock))
    events = Events()
    for _ in range(20):
        events.update(State())
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(shown) in (4, 5) and {one["problem"] for one in shown} == {""}
