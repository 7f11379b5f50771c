"""A whole tune with a compiler that is a stand-in: results, resume, interruption, kills, two tuners at once."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import parse_config
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import CHECKS_ALL, FakeDevice, FakePool, fake_us, small_space
from tuner.compile.pool import WorkerError
from tuner.report.write import read_trials
from tuner.search.progress import Progress
from tuner.search.window import WINDOW
from tuner.stages.run import LEADERS
from tuner.tables.dispatch import DispatchTable
from tuner.trials.outcome import Kind, Origin, Status, Trial
from tuner.tune.driver import TuneOptions, TuneResult, tune

ROOT = Path(__file__).resolve().parents[2]
PROBLEM = GemmProblem.parse("4352,3840,3072,128")
# 3 tiles x 2 clusters x 2 schedules x 2 rasters x 2 = 48 kernels: all are tried
SPACE = {
    "mma_tiler_mn": "256x128 256x256 256x192",
    "cluster_shape_mn": "2x1 2x2",
    "lora_schedule": "interleave tail",
    "raster_order": "m n",
    "use_pdl": "false true",
}


class Journalist(FakePool):
    """Raises once, as the user's Ctrl-C would, when the given number of candidates has come."""

    def __init__(self, stop_at: int) -> None:
        super().__init__()
        self.stop_at = stop_at

    def submit(self, *args: Any) -> concurrent.futures.Future[Any]:
        if sum(self.submitted.values()) == self.stop_at:
            self.stop_at = -1
            raise KeyboardInterrupt
        return super().submit(*args)


def run(out: Path, *, device: Any = None, pool: Any = None, space: Any = None, **options: Any) -> TuneResult:
    return tune(
        PROBLEM,
        device or FakeDevice(),
        TuneOptions(**{"out": out, "jobs": 2, "count_space": False, **options}),
        pool=pool or FakePool(),
        space=space,
        progress=Progress(stream=io.StringIO(), terminal=False),
    )


def sequence(result: TuneResult) -> list[tuple[int, str, str, float | None]]:
    trials = sorted(result.trials, key=lambda trial: trial.number)
    return [(trial.number, trial.config, str(trial.status), trial.us) for trial in trials]


def journal_lines(result: TuneResult) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.journal.read_bytes().splitlines()]


# -- what a tune leaves --


def test_tune_finds_the_best_and_writes_it_down(tmp_path: Path) -> None:
    space, pool = small_space(**SPACE), FakePool()
    result = run(tmp_path, space=space, pool=pool, count_space=True)
    kernels = [str(legal.config) for legal in space.legal_points(PROBLEM, SM100A)]
    assert len(kernels) == 48
    best = min(kernels, key=fake_us)
    assert result.winner is not None and result.winner.resolved == best
    assert result.runner_up is not None and result.runner_up.resolved == sorted(kernels, key=fake_us)[1]
    assert result.default is not None and result.default.origin is Origin.DEFAULT
    assert result.legal is not None and str(result.legal.config) == best
    assert (result.fresh, result.known, result.stopped, result.planned) == (48, 0, "", 48)
    assert result.counts == {Status.OK: 48} and result.space is not None and result.space.legal == 48
    assert max(pool.submitted.values()) == 1, "compiled once each"
    row = DispatchTable.load(tmp_path / "b200").lookup(PROBLEM).row
    assert row is not None and row.config == best and row.kind is Kind.SIMULATED
    assert row.runner_up is not None and row.runner_up.config == result.runner_up.resolved
    assert row.object is not None and row.object.sha256 == row.cubin_sha256
    assert {trial.resolved for trial in read_trials(result.report.parquet)} == set(kernels)
    assert all(path.is_file() for path in vars(result.report).values())


def test_illegal_points_are_counted_and_never_compiled(tmp_path: Path) -> None:
    pool = FakePool()
    result = run(tmp_path, pool=pool, trials=40, seed=2)
    left_out = [trial.status for trial in result.illegal]
    assert left_out.count(Status.ILLEGAL) == result.counts[Status.ILLEGAL] > 0
    assert left_out.count(Status.FILTERED) == result.counts[Status.FILTERED] > 0
    assert set(left_out) == {Status.ILLEGAL, Status.FILTERED}
    assert sum(pool.submitted.values()) == 40 == len(result.trials)
    for trial in result.illegal:
        legal = legalize(KernelConfigSm100a.parse(trial.config), PROBLEM, SM100A)
        assert isinstance(legal, Legal) == (trial.status is Status.FILTERED)


def test_nothing_compiles_if_nothing_can(tmp_path: Path) -> None:
    def verdict(config: KernelConfigSm100a) -> Status:
        return Status.COMPILE_FAILED if config.use_pdl else Status.COMPILE_TIMEOUT

    result = run(tmp_path, space=small_space(**SPACE), pool=FakePool(verdict))
    assert result.winner is None and result.decision is None
    assert result.failure_summary() == (
        "no candidate of 4352,3840,3072,128 on b200 could be used: 24 compile_failed, 24 compile_timeout"
    )
    assert not (tmp_path / "b200" / "dispatch.json").exists()
    assert result.report.markdown.is_file()


def test_a_bug_in_a_compile_worker_loses_nothing_that_was_found(tmp_path: Path) -> None:
    class Breaks(FakePool):
        def submit(self, *task: Any) -> concurrent.futures.Future[Any]:
            future = super().submit(*task)
            if len(self.submitted) < 12:
                return future
            broken: concurrent.futures.Future[Any] = concurrent.futures.Future()
            broken.set_exception(WorkerError("ARGUMENTS differ"))
            return broken

    with pytest.raises(WorkerError, match="ARGUMENTS differ"):
        run(tmp_path, trials=40, pool=Breaks())
    (row,) = DispatchTable.load(tmp_path / "b200", arch=SM100A).rows.values()
    whole = run(tmp_path / "whole", trials=40)
    best = min(trial.us for trial in whole.trials if trial.number < 11 and trial.us)
    assert row.time_us == pytest.approx(best, rel=1e-5)


def test_neighbours_winner_is_tried_right_after_the_default(tmp_path: Path) -> None:
    first = run(tmp_path, space=small_space(**SPACE))
    other = tune(
        dataclasses.replace(PROBLEM, m=4096),
        FakeDevice(),
        TuneOptions(out=tmp_path, jobs=1, trials=5, count_space=False),
        pool=FakePool(),
        progress=Progress(stream=io.StringIO()),
    )
    origins = [trial.origin for trial in other.trials]
    assert origins == [Origin.DEFAULT, Origin.NEIGHBOUR, Origin.PUBLISHED, *[Origin.SAMPLED] * 2]
    published = parse_config(GemmProblem.operator, SM100A, other.trials[2].resolved)
    assert (published.mma_tiler_mn, published.num_ab_stage) == ((256, 128), 4)  # type: ignore[attr-defined]
    assert first.winner is not None and other.trials[1].resolved == first.winner.resolved


def test_the_problems_own_winner_is_tried_again_without_its_journal(tmp_path: Path) -> None:
    """As after a change of the kernel's sources, or in a clone, which has the table but no journals."""
    first = run(tmp_path, space=small_space(**SPACE))
    shutil.rmtree(tmp_path / ".studies")
    again = run(tmp_path, trials=3, seed=5)
    assert first.winner is not None
    assert first.winner.resolved in {trial.resolved for trial in again.trials[:2]}


# -- the same trials --


@pytest.mark.slow
def test_same_seed_same_trials_for_one_and_two_jobs(tmp_path: Path) -> None:
    one, two = (run(tmp_path / str(jobs), jobs=jobs, trials=45, seed=2) for jobs in (1, 2))
    assert sequence(one) == sequence(two) and len(one.trials) == 45


def test_resume_compiles_nothing_twice_and_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", trials=45)
    run(tmp_path / "parts", trials=30)
    pool = FakePool()
    rest = run(tmp_path / "parts", trials=45, pool=pool)
    assert (rest.fresh, rest.known) == (15, 30)
    assert sequence(rest) == sequence(whole)
    evaluated = {trial.resolved for trial in rest.trials if trial.number >= 30}
    assert {config for config, _ in pool.submitted.items()} - evaluated <= {
        trial.resolved for trial in rest.trials if trial.validation
    }, "others are fetched again only to be validated or shipped"


def test_resume_starts_from_the_neighbours_of_the_first_run(tmp_path: Path) -> None:
    """A problem tuned in between is a new neighbour; it must not turn a resumed search into another one."""
    before = run(tmp_path, trials=20)
    tune(
        dataclasses.replace(PROBLEM, m=4096),
        FakeDevice(),
        TuneOptions(out=tmp_path, trials=10, seed=7, count_space=False),
        pool=FakePool(),
        progress=Progress(stream=io.StringIO()),
    )
    after = run(tmp_path, trials=20)
    assert after.fresh == 0 and sequence(after) == sequence(before)


def test_space_is_counted_once_for_the_same_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space = small_space(**SPACE)
    first = run(tmp_path, space=space, count_space=True)
    monkeypatch.setattr("tuner.space.count.count", lambda *_: pytest.fail("counted before"))
    assert run(tmp_path, space=space, count_space=True).space == first.space
    with pytest.raises(pytest.fail.Exception, match="counted before"):
        run(tmp_path, space=small_space(**{**SPACE, "swizzle_size": "1 2"}), count_space=True)


def test_without_resume_everything_is_evaluated_again_and_nothing_lost(tmp_path: Path) -> None:
    run(tmp_path, trials=10)
    again = run(tmp_path, trials=10, resume=False)
    assert (again.fresh, again.known) == (10, 0)
    assert sum(line.get("validation") == "" for line in journal_lines(again)) == 20


def test_another_seed_adds_to_the_journal(tmp_path: Path) -> None:
    first = run(tmp_path, trials=20, seed=0)
    second = run(tmp_path, trials=20, seed=1)
    assert {trial.resolved for trial in first.trials} < {trial.resolved for trial in second.trials}
    assert second.winner is not None and first.winner is not None
    assert (second.winner.us or 0) <= (first.winner.us or 0)


def test_failures_of_a_busy_machine_are_tried_again(tmp_path: Path) -> None:
    space = small_space(**SPACE)
    bad = FakePool(lambda config: Status.COMPILE_CRASHED if config.use_pdl else Status.COMPILE_FAILED)
    run(tmp_path, space=space, pool=bad)
    pool = FakePool()
    result = run(tmp_path, space=space, pool=pool)
    assert result.counts == {Status.OK: 24, Status.COMPILE_FAILED: 24}
    assert (result.fresh, result.known) == (24, 24)


def test_new_kernel_source_starts_a_new_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = run(tmp_path, trials=5)
    monkeypatch.setattr("tuner.stages.journal.space_source_hash", lambda kernels: "another")
    after = run(tmp_path, trials=5)
    assert after.journal != before.journal and before.journal.is_file() and after.known == 0


# -- validation --


def test_wrong_leader_does_not_win(tmp_path: Path) -> None:
    space = small_space(**SPACE)
    order = sorted((str(legal.config) for legal in space.legal_points(PROBLEM, SM100A)), key=fake_us)
    device = FakeDevice(verdicts={order[0]: Status.WRONG_RESULT, order[2]: Status.RACE})
    result = run(tmp_path, space=space, device=device)
    assert result.winner is not None and result.winner.resolved == order[1]
    assert result.winner.validation == "passed"
    assert device.validated == order[: LEADERS + 2], "in order of time, until ten stand"
    assert result.counts == {Status.OK: 46, Status.WRONG_RESULT: 1, Status.RACE: 1}
    again = FakeDevice(verdicts=device.verdicts)
    assert run(tmp_path, space=space, device=again).winner == result.winner
    assert not again.validated, "a verdict is kept"


def test_eager_device_validates_every_candidate(tmp_path: Path) -> None:
    device = FakeDevice(abilities=CHECKS_ALL, kind=Kind.MEASURED)
    result = run(tmp_path, space=small_space(**SPACE), device=device)
    assert len(device.validated) == 48 and all(trial.validation == "passed" for trial in result.trials)


# -- ends before the end --


def test_ctrl_c_keeps_everything_found(tmp_path: Path) -> None:
    result = run(tmp_path, pool=Journalist(stop_at=20), trials=45)
    assert result.stopped == "interrupted" and 16 <= len(result.trials) <= 20
    assert result.winner is not None and result.decision is not None and result.decision.recorded
    row = DispatchTable.load(tmp_path / "b200").lookup(PROBLEM).row
    assert row is not None and row.config == result.winner.resolved
    whole = run(tmp_path / "whole", trials=45)
    assert sequence(run(tmp_path, trials=45)) == sequence(whole)


def test_timeout_keeps_everything_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = FakePool()

    def clock() -> float:
        late = sum(pool.submitted.values()) >= 12
        return time.monotonic() + (1000.0 if late else 0.0)

    monkeypatch.setattr("tuner.stages.run.time", SimpleNamespace(monotonic=clock))
    result = run(tmp_path, pool=pool, trials=45, timeout_s=600.0)
    assert result.stopped == "timeout" and 8 <= len(result.trials) <= 16
    assert result.winner is not None and result.decision is not None and result.decision.recorded


def test_hanging_compilation_does_not_hold_up_the_timeout(tmp_path: Path) -> None:
    class Hangs(FakePool):
        def submit(self, *args: Any) -> concurrent.futures.Future[Any]:
            return concurrent.futures.Future()

    result = run(tmp_path, pool=Hangs(), timeout_s=1.0)
    assert result.stopped == "timeout" and result.winner is None and result.trials == ()


# -- bad places --


def test_out_below_a_file_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file; choose another path"):
        run(tmp_path / "file" / "results")


def test_damaged_table_is_set_aside_before_the_search(tmp_path: Path) -> None:
    (tmp_path / "b200").mkdir()
    table = tmp_path / "b200" / "dispatch.json"
    table.write_text("{")
    result = run(tmp_path, trials=5)
    assert result.decision is not None and result.decision.recorded
    assert table.with_name("dispatch.json.damaged-1").read_text() == "{"


def test_table_of_another_version_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "b200").mkdir()
    (tmp_path / "b200" / "dispatch.json").write_text('{"schema": 99, "rows": []}')
    pool = FakePool()
    with pytest.raises(InputError, match="schema 99"):
        run(tmp_path, pool=pool)
    assert not pool.submitted


# -- processes --

PROGRAM = """
import concurrent.futures, os, sys, threading, time
from pathlib import Path
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.fakes import CHECKS_ALL, FakeDevice, FakePool
from tuner.tune.driver import TuneOptions, tune

out, log, trials, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

class SlowPool(FakePool):
    def __init__(self):
        super().__init__()
        self.workers = concurrent.futures.ThreadPoolExecutor(2)

    def submit(self, config, problem_class, arch):
        def work():
            time.sleep(0.01)
            with open(log, "a") as file:
                file.write(f"{config}\\n")
            return FakePool.submit(self, config, problem_class, arch).result()
        return self.workers.submit(work)

if peers := [Path(f"{name}.ready") for name in sys.argv[5:]]:  # to begin together, however long imports took
    Path(f"{log}.ready").touch()
    while not all(peer.exists() for peer in peers):
        time.sleep(0.01)
options = TuneOptions(out=out, jobs=2, trials=trials, seed=seed, count_space=False)
result = tune(GemmProblem.parse("4352,3840,3072,128"), FakeDevice(), options, pool=SlowPool())
print(result.fresh, result.known)
"""


def start(
    out: Path, log: Path, trials: int, seed: int = 0, peers: Sequence[Path] = ()
) -> subprocess.Popen[str]:
    """``peers``: logs of those that it begins with, its own among them."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(out), str(log), str(trials), str(seed), *map(str, peers)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command_line(out: Path, cache: Path) -> subprocess.Popen[str]:
    """A real tune of a small problem with a compile cache of its own; stderr is the progress."""
    options = ["--shape", "128,2048,7168,0", "--trials", "24", "--jobs", "2", "--json", "--out", str(out)]
    return subprocess.Popen(
        [sys.executable, "tune.py", *options],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def complete_trials(out: Path) -> list[Trial]:
    lines = [line for path in out.rglob("*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    return [
        Trial.from_record({name: value for name, value in record.items() if name != "crc"})
        for record in map(json.loads, lines)
        if "number" in record
    ]


def kill_in_the_middle(process: subprocess.Popen[str], out: Path, at_least: int) -> list[Trial]:
    deadline = time.monotonic() + 120
    while len(complete_trials(out)) < at_least and process.poll() is None:
        assert time.monotonic() < deadline, f"{len(complete_trials(out))} trials only"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    return complete_trials(out)


@pytest.mark.slow
def test_kill_twice_then_resume(tmp_path: Path) -> None:
    """No trial lost, none evaluated twice beyond those in flight, the same trials as without kills, no stall."""
    out, log, trials = tmp_path / "killed", tmp_path / "log", 45
    once = kill_in_the_middle(start(out, log, trials), out, 10)
    twice = kill_in_the_middle(start(out, log, trials), out, 25)
    assert 10 <= len(once) < len(twice) < trials
    assert twice[: len(once)] == once
    last = start(out, log, trials)
    output, errors = last.communicate(timeout=120)  # a stall would not end
    assert last.returncode == 0, errors
    assert output.split() == [str(trials - len(twice)), str(len(twice))]
    undisturbed = run(tmp_path / "undisturbed", trials=trials)
    resumed = run(out, trials=trials)
    assert resumed.fresh == 0 and sequence(resumed) == sequence(undisturbed)
    compiled = log.read_text().splitlines()
    in_flight_at_both_kills, leaders_again = 2 * 2 * 2, LEADERS + 1
    assert trials <= len(compiled) <= trials + in_flight_at_both_kills + leaders_again


@pytest.mark.slow
def test_two_tuners_of_one_problem(tmp_path: Path) -> None:
    """Each tries what it tries alone, to the last candidates, which depend on times told."""
    each = WINDOW + 4  # fewer than there is a look around for
    alone = [run(tmp_path / f"alone{seed}", trials=each, seed=seed) for seed in (0, 1)]
    logs = [tmp_path / f"log{seed}" for seed in (0, 1)]
    processes = [start(tmp_path / "both", log, each, seed, logs) for seed, log in enumerate(logs)]
    for process in processes:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    trials = {trial.resolved: trial for trial in complete_trials(tmp_path / "both")}
    best = min((trial for trial in trials.values() if trial.ok), key=lambda trial: trial.us or 0)
    row = DispatchTable.load(tmp_path / "both" / "b200").lookup(PROBLEM).row
    assert row is not None and row.config == best.resolved
    for result in alone:
        assert {trial.resolved for trial in result.trials} <= set(trials)


@pytest.mark.slow
def test_kill_a_real_tune_twice_then_resume(tmp_path: Path) -> None:
    out, cache = tmp_path / "out", tmp_path / "cache"
    once = kill_in_the_middle(command_line(out, cache), out, 4)
    twice = kill_in_the_middle(command_line(out, cache), out, 12)
    assert 4 <= len(once) < len(twice) < 24 and twice[: len(once)] == once
    output, _ = command_line(out, cache).communicate(timeout=240)
    [result] = json.loads(output)["results"]
    assert result["trials"]["known"] == len(twice) and result["trials"]["new"] == 24 - len(twice)
    trials = {trial.resolved: trial for trial in complete_trials(out)}
    assert len(trials) == 24 and all(trial.status is Status.OK for trial in trials.values())
    assert [trials[trial.resolved].us for trial in twice] == [trial.us for trial in twice]
    row = DispatchTable.load(out / "b200").lookup(GemmProblem.parse("128,2048,7168,0")).row
    assert row is not None and row.config == result["winner"]["config"]
