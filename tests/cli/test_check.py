"""``tune.py check``, and checks inside a tune: their order, what is kept, what the row and the report say."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from kernel_space.build.build import build
from kernel_space.core.arch import SM100A
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import Answer, FakeDevice, FakePool, fake_us, small_space
from tuner.cli.main import main
from tuner.devices.abilities import Abilities
from tuner.devices.select import select_device
from tuner.search.progress import Progress
from tuner.simulated import machine_check
from tuner.simulated.check_worker import CheckDied, CheckPool
from tuner.simulated.machine_check import CANDIDATE, CHECKED, FULL, MachineChecker, Task
from tuner.stages.run import LEADERS
from tuner.tables.dispatch import DispatchTable
from tuner.trials.answer import answered
from tuner.trials.outcome import Kind, Outcome, Status
from tuner.tune.driver import TuneOptions, TuneResult, tune

PROBLEM = GemmProblem.parse("300,544,200,64")
CONFIG = "mma_tiler_mn=128x64 cluster_shape_mn=1x1 num_ab_stage=3 epi_tile_n=32"
# 3 tiles x 2 rasters x 2 = 12 kernels
SPACE = {
    "mma_tiler_mn": "256x128 256x256 256x192",
    "cluster_shape_mn": "2x1",
    "raster_order": "m n",
    "use_pdl": "false true",
}


def check(*options: str) -> int:
    return main(["check", "--shape", str(PROBLEM), "--config", CONFIG, *options])


def checked_json(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, dict[str, Any]]:
    code = check(*options, "--json")
    return code, json.loads(capsys.readouterr().out)["results"][0]


# -- the command --


def test_right_kernel_exits_with_0_and_says_what_ran(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--schedule", "eager") == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.strip())
    assert lines["verdict"] == "OK" and lines["schedules"] == "eager OK"
    assert lines["errors"].startswith("0 of ") and "warp-instructions" in lines["simulated"]


def test_json_holds_every_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked_json(capsys)
    assert code == 0 and found["ok"] and found["injected"] is None
    (candidate,) = found["checks"]
    names = [run["name"] for run in candidate["schedules"]]
    assert names == ["eager", "random", "slow_tma", "slow_tensor", "slow_epilogue"]
    assert candidate["same_under_all_schedules"] is True and candidate["race_checking"] is True
    assert candidate["outputs"]["y"]["bad"] == 0 and 0 < candidate["outputs"]["y"]["max_ratio"] < 1
    assert len({run["outputs_sha256"] for run in candidate["schedules"]}) == 1


def test_full_adds_the_shape_itself(capsys: pytest.CaptureFixture[str]) -> None:
    code, found = checked_json(capsys, "--schedule", "eager", "--full")
    assert code == 0 and [one["shape"] for one in found["checks"]][1] == str(PROBLEM)
    assert found["checks"][1]["race_checking"] is False


def test_seed_changes_the_operands(capsys: pytest.CaptureFixture[str]) -> None:
    first, same, other = (
        checked_json(capsys, "--schedule", "random", "--seed", seed)[1]["checks"][0]["schedules"][0][
            "outputs_sha256"
        ]
        for seed in ("1", "1", "2")
    )
    assert first == same != other


def test_injected_deadlock_exits_with_1_and_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert check("--inject", "ab_producer_parity") == 1
    out = capsys.readouterr().out
    assert "verdict    DEADLOCK" in out and "injected   ab_producer_parity" in out
    assert "tma_warp" in out and "ab_empty[0]" in out


def test_injections_are_listed_without_a_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--inject", "list"]) == 0
    assert "ab_producer_parity: " in capsys.readouterr().out


@pytest.mark.slow
def test_kernels_for_hopper_run_in_the_machine_too(capsys: pytest.CaptureFixture[str]) -> None:
    problem = ["--op", "smooth_lora_down", "--shape", "5,160,0", "--config", "kernel=smooth_rows"]
    assert main(["check", "--device", "h200", *problem, "--schedule", "eager", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)["results"]
    assert record["checks"][0]["status"] == "OK" and record["checks"][0]["race_checking"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--schedule", "fast"], "--schedule must be all, eager, random"),
        (["--inject", "nothing"], "unknown mutation 'nothing'"),
        (["--inject", "ride_expects_a_full_stage"], "--inject ride_expects_a_full_stage does not apply"),
        (["--seed", "x"], "must be a whole number"),
        (["--device", "h200"], "sm_90a"),
        (["--trace", "/"], "--trace must name a file in a folder that exists, got /"),
        (["--trace", "/etc/passwd/trace.json"], "--trace must name a file"),
    ],
)
def test_bad_input_is_one_line_and_2(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(*options) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""


def test_trace_has_a_track_per_role_and_engine(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert check("--schedule", "random", "--trace", str(path)) == 0
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    tracks = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    assert {
        "epilogue0",
        "epilogue3",
        "mma_warp",
        "tma_warp",
        "TMA loads",
        "tensor pipe",
        "bulk stores",
    } <= set(tracks.values())
    slices = [event for event in events if event["ph"] == "X"]
    waits = {event["name"] for event in slices if event["name"].startswith("wait ")}
    assert {"wait ab_full[0]", "wait acc_full[0]"} <= waits
    loads = {event["name"] for event in slices if event["name"].startswith("load -> ")}
    assert {"load -> ab_full[0]", "load -> ab_full[2]"} <= loads
    assert "not time" in document["otherData"]["axis"]
    for track in tracks:
        spans = sorted(
            (one["ts"], one["ts"] + one["dur"]) for one in slices if (one["pid"], one["tid"]) == track
        )
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in itertools.pairwise(spans)), tracks[track]


def test_trace_of_a_deadlock_shows_the_waits_that_never_ended(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert check("--schedule", "eager", "--inject", "ab_producer_parity", "--trace", str(path)) == 1
    names = {event["name"] for event in json.loads(path.read_text())["traceEvents"]}
    assert "wait ab_empty[0]" in names


# -- verdicts of a tune --


def built_task(kind: str = CANDIDATE) -> Task:
    legal = legalize(KernelConfigSm100a.parse(CONFIG), PROBLEM, SM100A)
    assert isinstance(legal, Legal)
    return Task(
        kind=kind,
        compiled=build(legal.config, PROBLEM.problem_class, SM100A),
        config=legal.config,
        problem=PROBLEM,
    )


def test_verdict_is_kept_and_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    task = built_task()
    task.path.unlink(missing_ok=True)
    first = MachineChecker(1).check(task).result()
    assert first.ok and first.reason.startswith(f"{CHECKED}: M,K,N,R=") and "5 schedules" in first.reason
    record = json.loads(task.path.read_text())
    assert record["cubin_sha256"] == task.compiled.cubin_sha256

    def never(self: CheckPool, task: Task) -> None:
        raise AssertionError("checked again")

    monkeypatch.setattr(CheckPool, "submit", never)
    assert MachineChecker(1).check(task).result() == first


def test_verdict_belongs_to_cubin_version_and_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    task = built_task()
    other_cubin = dataclasses.replace(task, compiled=dataclasses.replace(task.compiled, cubin_sha256="0"))
    larger = dataclasses.replace(task, problem=dataclasses.replace(PROBLEM, m=4096))
    paths = {task.path, other_cubin.path, dataclasses.replace(task, kind=FULL).path}
    assert len(paths) == 3
    assert larger.path == task.path, "the exercising problem does not depend on M"
    assert dataclasses.replace(larger, kind=FULL).path not in paths
    monkeypatch.setattr("kernel_space.check.version.check_version", lambda operator: "another machine")
    assert task.path not in paths


def test_damaged_verdict_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    task = built_task()
    task.path.write_text('{"status": "ok"')
    checker = MachineChecker(1)
    monkeypatch.setattr(checker.pool, "submit", lambda task: _answered({"status": "race", "text": "made up"}))
    assert checker.check(task).result() == Outcome(status=Status.RACE, reason="made up")
    assert json.loads(task.path.read_text())["status"] == "race"
    task.path.unlink()


def _answered(value: Any) -> Any:
    from concurrent.futures import Future

    future: Future[Any] = Future()
    future.set_result(value)
    return future


def dies(task: Any) -> None:
    """What a segmentation fault of the machine would do to the worker."""
    if task == "die":
        os.kill(os.getpid(), signal.SIGSEGV)


def test_worker_that_dies_is_no_verdict_and_the_next_check_works() -> None:
    pool = CheckPool(1, f"{__name__}:dies")
    with pytest.raises(CheckDied, match="died .SIGSEGV"):
        pool.submit("die").result(timeout=60)
    assert pool.submit("live").result(timeout=60) is None


def test_dead_worker_fails_the_candidate_but_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    task = built_task()
    task.path.unlink(missing_ok=True)
    checker = MachineChecker(1)
    checker.pool = CheckPool(1, f"{__name__}:dies_always")
    outcome = checker.check(task).result()
    assert outcome.status is Status.FAILED and "died" in outcome.reason and not task.path.exists()


def dies_always(task: Any) -> None:
    os._exit(3)


# -- order in a tune --


@dataclasses.dataclass(kw_only=True)
class WinnerDevice(FakeDevice):
    """Also runs the winner's full problem, and has several checks at a time."""

    abilities: Abilities = Abilities(at_once=True, checks_winner=True)
    full_verdicts: dict[str, Status] = dataclasses.field(default_factory=dict)
    full: list[str] = dataclasses.field(default_factory=list)

    def checked(self, legal: Legal) -> Outcome:
        outcome = super().checked(legal)
        return dataclasses.replace(outcome, reason=outcome.reason or f"{CHECKED}: small problem")

    def check_full(self, compiled: Any, legal: Legal, problem: GemmProblem) -> Answer:
        self.full.append(str(legal.config))
        status = self.full_verdicts.get(str(legal.config), Status.OK)
        reason = f"full problem {problem} once" if status is Status.OK else "wrong"
        return answered(lambda: Outcome(status=status, reason=reason))


def tuned(out: Path, device: Any, **options: Any) -> TuneResult:
    return tune(
        PROBLEM,
        device,
        TuneOptions(**{"out": out, "jobs": 2, "count_space": False, **options}),
        pool=FakePool(),
        space=small_space(**SPACE),
        progress=Progress(stream=io.StringIO(), terminal=False),
    )


def order_of_times() -> list[str]:
    points = small_space(**SPACE).legal_points(PROBLEM, SM100A)
    return sorted((str(legal.config) for legal in points), key=fake_us)


def test_only_leaders_are_checked_and_only_the_winner_in_full(tmp_path: Path) -> None:
    order = order_of_times()
    assert len(order) == 12 > LEADERS
    device = WinnerDevice()
    result = tuned(tmp_path, device)
    assert device.validated == order[:LEADERS] and device.full == order[:1]
    assert result.winner is not None
    assert result.winner.validation == f"{CHECKED}: small problem; then full problem {PROBLEM} once"


def test_winner_that_fails_in_full_makes_room(tmp_path: Path) -> None:
    order = order_of_times()
    device = WinnerDevice(verdicts={order[1]: Status.DEADLOCK}, full_verdicts={order[0]: Status.WRONG_RESULT})
    result = tuned(tmp_path, device)
    assert device.full == [order[0], order[2]]
    assert device.validated == order, "two failed, so all twelve were asked"
    assert result.winner is not None and result.winner.resolved == order[2]
    assert result.counts == {Status.OK: 10, Status.WRONG_RESULT: 1, Status.DEADLOCK: 1}
    row = DispatchTable.load(tmp_path / "b200").lookup(PROBLEM).row
    assert row is not None and row.config == order[2] and row.kind is Kind.SIMULATED


def test_resumed_tune_asks_for_no_candidate_again(tmp_path: Path) -> None:
    first = tuned(tmp_path, WinnerDevice())
    again = WinnerDevice()
    second = tuned(tmp_path, again)
    assert not again.validated and second.winner == first.winner


def test_row_and_report_say_what_was_checked_and_what_the_times_are(tmp_path: Path) -> None:
    result = tuned(tmp_path, WinnerDevice())
    row = DispatchTable.load(tmp_path / "b200").lookup(PROBLEM).row
    assert row is not None
    assert row.evidence["checked"] == f"{CHECKED}: small problem; then full problem {PROBLEM} once"
    markdown = result.report.markdown.read_text()
    assert f"numerical check: {row.evidence['checked']}; its time is simulated" in markdown
    assert "its time is simulated" in result.report.html.read_text()


def test_tune_that_ends_before_its_checks_says_so(tmp_path: Path) -> None:
    class Slow(FakeDevice):
        def found(self, legal: Legal) -> Outcome:
            time.sleep(0.2)
            return super().found(legal)

    result = tuned(tmp_path, Slow(), timeout_s=0.5)
    assert result.stopped == "timeout" and result.winner is not None and result.winner.validation == ""
    row = DispatchTable.load(tmp_path / "b200").lookup(PROBLEM).row
    assert row is not None and row.evidence["checked"].startswith("not checked: ")
    assert "numerical check: not checked" in result.report.markdown.read_text()


def test_row_of_a_config_found_wrong_does_not_stay(tmp_path: Path) -> None:
    """A faster row of an earlier tune, which checked less, gives way to a slower one that is right."""
    order = order_of_times()
    before = tuned(tmp_path, FakeDevice())
    assert before.winner is not None and before.winner.resolved == order[0]
    after = tuned(tmp_path, WinnerDevice(judge="stricter", verdicts={order[0]: Status.RACE}))
    assert after.winner is not None and after.winner.resolved == order[1]
    row = DispatchTable.load(tmp_path / "b200").lookup(PROBLEM).row
    assert row is not None and row.config == order[1]


# -- devices --


def test_misuse_and_live_lock_have_a_status() -> None:
    from kernel_space.check.validate import CheckStatus

    for status in CheckStatus:
        assert Status(machine_check.STATUS.get(status) or Status[status])


@pytest.mark.slow
def test_tune_checks_real_kernels(tmp_path: Path) -> None:
    device = select_device("b200", probe=list)
    result = tune(
        PROBLEM,
        device,
        TuneOptions(out=tmp_path, jobs=2, trials=12, count_space=False),
        progress=Progress(stream=io.StringIO(), terminal=False),
    )
    assert result.winner is not None
    assert result.winner.validation.startswith(f"{CHECKED}: M,K,N,R=")
    assert f"; then full problem {PROBLEM} once" in result.winner.validation
    checked = [trial for trial in result.trials if trial.validation]
    assert len(checked) == LEADERS and all(trial.ok for trial in checked)


# -- an operator from outside --


def test_stranger_s_operator_is_checked_and_named_by_its_outputs(capsys: pytest.CaptureFixture[str]) -> None:
    outside = ["check", "--op", "rowstats", "--shape", "21,136", "--config", "rows=4", "--schedule", "eager"]
    assert main(outside) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line.strip()]
    errors = [rest[0] for label, *rest in lines if label == "errors"]
    assert errors == ["y: 0 of 4624 elements differ", "count: 0 of 31 elements differ"]
    assert main([*outside, "--json"]) == 0
    (candidate,) = json.loads(capsys.readouterr().out)["results"][0]["checks"]
    assert set(candidate["outputs"]) == {"y", "count"} and candidate["also"] == ["21,136", "9,196"]
    assert [run["shape"] for run in candidate["schedules"]] == ["21,136", "9,196", "1,4"]


def test_kernel_without_mutations_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    outside = ["check", "--op", "rowstats", "--shape", "21,136", "--inject"]
    assert main([*outside, "no_ab_full_wait"]) == 2
    assert capsys.readouterr().err.strip().endswith("kernels that bring mutations, rowstats/rows brings none")
    assert main([*outside, "list"]) == 2
    assert capsys.readouterr().err.strip() == "error: no kernel of rowstats brings mutations for --inject"
