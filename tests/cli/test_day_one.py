"""``day-one`` without a card: what its steps are, what happens when one fails, hangs or is done already.

Its commands are stand-ins that print what the real ones print, but in the first test, where the real ones find no card.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.registry import operator_names
from tuner.cli.day import one as day_one
from tuner.cli.day import process as day_process
from tuner.cli.day import steps as day_steps
from tuner.cli.day.steps import STEPS, usual_problems
from tuner.cli.main import COMMANDS, main, parser_of
from tuner.cli.options.day_one import SHARES
from tuner.devices.classes import Card

CARD = Card(index=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, uuid="1-2")
DOCUMENTS: dict[str, Any] = {
    "selfcheck": {"counts": {"agree": 93, "differ": 2}, "new_differences": []},
    "tune": {"results": [{"shape": "16,64,64,16", "winner": {"us": 5.0}, "default": {"margin": 0.25}}]},
    "calibrate": {"rows": 9, "survivors": 3, "pool": 80, "error_before": 0.31, "error_after": 0.07},
    "peers": {
        "results": [
            {
                "rows": [
                    {"peer": "svdquant_gemm", "op": "svdquant_gemm", "problem": "16,64,64,16", "us": 5.0},
                    {"peer": "slow", "op": "svdquant_gemm", "problem": "16,64,64,16", "us": 20.0},
                    {"peer": "cuBLAS", "op": "svdquant_gemm", "problem": "16,64,64,16", "us": 7.5},
                ]
            }
        ]
    },
}
DOCUMENTS["measure"] = DOCUMENTS["tune"]
STAND_IN = """
import json, pathlib, sys, time
name, rest = sys.argv[1], sys.argv[2:]
with open(sys.argv[0] + "ran", "a") as file:
    file.write(name + chr(10))
plan = json.loads(pathlib.Path(sys.argv[0] + "plan").read_text())
print("working in", pathlib.Path.home(), file=sys.stderr, flush=True)
if name == "tune":
    out = pathlib.Path(rest[rest.index("--out") + 1]) / "b200" / "x" / "y"
    out.mkdir(parents=True, exist_ok=True)
    (out / "trials.parquet").touch()
how = plan.get(name, "fine")
if how == "hang":
    time.sleep(60)
if how == "fail":
    print("error: the card is gone", file=sys.stderr)
    sys.exit(2)
print(json.dumps(plan["documents"][name]))
"""


class Machine:
    """A card, and commands that do as ``plan`` says; ``ran``: their names in order."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base, self.folder = f"{folder}/", folder / "day"
        self.plan: dict[str, Any] = {}
        self.device = SimpleNamespace(
            name="b200", arch=SM100A, sm_count=148, kind="measured", driver="580.1", card=CARD
        )
        monkeypatch.setattr(day_one, "cuda_device", lambda name: self.device)
        monkeypatch.setattr(day_steps, "missing_to_tune", lambda: "")
        script = folder / "stand_in.py"
        script.write_text(STAND_IN.replace("sys.argv[0]", repr(self.base)))
        monkeypatch.setattr(
            day_one, "command_of", lambda arguments: [sys.executable, str(script), *arguments]
        )

    def day(self, *options: str) -> int:
        Path(f"{self.base}plan").write_text(json.dumps({"documents": DOCUMENTS, **self.plan}))
        return main(["day-one", "--shape", "16,64,64,16", "--folder", str(self.folder), "--quiet", *options])

    @property
    def ran(self) -> list[str]:
        path = Path(f"{self.base}ran")
        return path.read_text().split() if path.exists() else []

    @property
    def steps(self) -> dict[str, Any]:
        return json.loads((self.folder / "day-one.json").read_text())["steps"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_a_good_day(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.day() == 0
    assert machine.ran == ["selfcheck", "tune", "calibrate", "peers"]
    said = {name: (step["status"], step["what"]) for name, step in machine.steps.items()}
    assert said == {
        "selfcheck": ("done", "93 agree, 2 differ; no new difference(s)"),
        "measure": ("done", "16,64,64,16: 5.00 us, default +25.0%"),
        "calibrate": (
            "done",
            "9 times, 3 of 80 sets of constants survive, error 31.0% before and 7.0% after",
        ),
        "peers": ("done", "16,64,64,16: best peer cuBLAS 7.50 us (1.50 x ours)"),
    }
    page = (machine.folder / "summary.md").read_text()
    assert "| peers | done | 16,64,64,16: best peer cuBLAS 7.50 us (1.50 x ours) |" in page
    assert str(Path.home()) not in (machine.folder / "selfcheck.log").read_text(), (
        "the folder is to be shared"
    )
    assert json.loads((machine.folder / "peers.json").read_text()) == DOCUMENTS["peers"]
    assert "done: 93 agree" in capsys.readouterr().out


def test_what_fails_is_said_and_the_rest_goes_on_and_again_only_that_runs(machine: Machine) -> None:
    machine.plan = {"tune": "fail"}
    assert machine.day() == 1
    assert machine.ran == ["selfcheck", "tune", "calibrate", "peers"]
    assert machine.steps["measure"]["status"] == "failed"
    assert machine.steps["measure"]["what"] == "exit code 2: the card is gone"
    assert (
        "| measure | failed | exit code 2: the card is gone |" in (machine.folder / "summary.md").read_text()
    )
    machine.plan = {}
    assert machine.day() == 0
    assert machine.ran[4:] == ["tune"], "what was done is kept"
    assert list(machine.steps) == ["selfcheck", "measure", "calibrate", "peers"]
    assert machine.day("--again") == 0 and machine.ran[5:] == ["selfcheck", "tune", "calibrate", "peers"]


def test_a_step_without_an_end_costs_its_budget(machine: Machine) -> None:
    machine.plan = {"selfcheck": "hang"}
    start = time.monotonic()
    assert machine.day("--budget", "selfcheck=1") == 1
    assert time.monotonic() - start < 90
    assert machine.steps["selfcheck"] | {"date": "", "seconds": 0} == {
        "status": "out of time",
        "what": "ended after 1 s",
        "date": "",
        "seconds": 0,
    }
    assert [machine.steps[name]["status"] for name in ("measure", "calibrate", "peers")] == ["done"] * 3


def test_an_interrupted_day_goes_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    real = day_one.run_step

    def interrupted(command: Any, folder: Path, name: str, *rest: Any) -> Any:
        if name == "measure":
            raise KeyboardInterrupt
        return real(command, folder, name, *rest)

    monkeypatch.setattr(day_one, "run_step", interrupted)
    assert machine.day() == 130
    assert list(machine.steps) == ["selfcheck"]
    monkeypatch.setattr(day_one, "run_step", real)
    assert machine.day() == 0
    assert machine.ran == ["selfcheck", "tune", "calibrate", "peers"]


def test_an_interrupted_step_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what it started itself."""
    begun = tmp_path / "begun"
    script = (
        "import pathlib, subprocess, sys, time\n"
        f"child = subprocess.Popen(['sleep', '60'])\npathlib.Path({str(begun)!r}).write_text(str(child.pid))\n"
        "time.sleep(60)"
    )

    def impatient(process: Any, limit_s: float) -> bool:
        while not begun.is_file() or not begun.read_text():
            time.sleep(0.01)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(day_process, "_ends_within", impatient)
    with pytest.raises(KeyboardInterrupt):
        day_process.run_step([sys.executable, "-c", script], tmp_path, "step", 60.0, lambda line: None)
    pid = int(begun.read_text())
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "zombie" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline, "still running"
        time.sleep(0.05)


def test_a_spent_budget_begins_nothing(machine: Machine) -> None:
    assert machine.day("--budget", "0.01") == 1
    assert machine.ran == []
    assert {step["what"] for step in machine.steps.values()} >= {"the budget was spent before it began"}


def test_what_does_not_apply_is_no_failure(machine: Machine) -> None:
    """Hopper has no simulator, so nothing to calibrate."""
    machine.device.arch, machine.device.name = SM90A, "h200"
    assert machine.day() == 0
    assert machine.ran == ["selfcheck", "tune", "peers"]
    assert machine.steps["calibrate"]["status"] == "skipped"
    assert "h200 has nothing to calibrate" in machine.steps["calibrate"]["what"]


def test_without_a_compiler_objects_are_measured(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day_steps, "missing_to_tune", lambda: "the DSL is not installed")
    assert machine.day() == 1
    assert "compile-only where it is, and day-one --objects DIR" in machine.steps["measure"]["what"]
    assert machine.day("--objects", "objects", "--again") == 1, "and calibrate has no trials"
    assert machine.ran.count("measure") == 1 and machine.steps["measure"]["status"] == "done"


def test_the_folder_of_another_card_is_left_alone(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.day() == 0
    before = (machine.folder / "day-one.json").read_text()
    machine.device.driver = "999.9"
    assert machine.day() == 2
    assert "take another --folder" in capsys.readouterr().err
    assert (machine.folder / "day-one.json").read_text() == before


def test_a_record_that_somebody_edited_does_no_harm(machine: Machine) -> None:
    assert machine.day() == 0
    path = machine.folder / "day-one.json"
    record = json.loads(path.read_text())
    record["steps"]["selfcheck"] = {"status": "done"}
    record["steps"]["rm"] = {"status": "done", "what": "", "date": "", "seconds": 0.0}
    path.write_text(json.dumps(record))
    assert machine.day() == 0
    assert machine.ran[4:] == ["selfcheck"] and "rm" not in machine.steps


def test_budgets_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 s of which 30 are for one step: 70 to the others by their shares 20, 50, 15; what is not used goes on."""
    now = 1000.0
    monkeypatch.setattr(day_one.time, "monotonic", lambda: now)
    budget = day_one._Budget([("", 100.0), ("peers", 30.0)])
    assert budget.seconds("selfcheck") == pytest.approx(70 * 20 / 85)
    now += 5
    assert budget.seconds("measure") == pytest.approx(65 * 50 / 65)
    now += 40
    assert budget.seconds("calibrate") == pytest.approx(25)
    assert budget.seconds("peers") == 30
    assert sum(SHARES.values()) == pytest.approx(1) and list(SHARES) == [step.name for step in STEPS]
    assert day_one.BUDGET_S + day_process.GRACE_S <= 900, "a day one takes at most 15 minutes"


def test_every_operator_with_an_example_has_usual_problems() -> None:
    for op in operator_names():
        if (op_kind := day_steps.registry.operator(op).problem).example:
            assert op_kind.parse(op_kind.example) in usual_problems(op)
    assert [str(one) for one in usual_problems("svdquant_gemm")] == [
        f"{m},3840,3072,128" for m in (16, 256, 4352)
    ]


def test_arguments_are_those_that_the_commands_take(machine: Machine, tmp_path: Path) -> None:
    """Each step's command line is read by the command's own parser."""
    trials = tmp_path / "results" / "b200" / "x" / "y"
    trials.mkdir(parents=True)
    (trials / "trials.parquet").touch()
    for objects in (None, tmp_path):
        visit = day_steps.Visit(
            device=machine.device,  # type: ignore[arg-type]  # a stand-in
            problems=usual_problems("svdquant_gemm"),
            folder=tmp_path,
            objects=objects,
            operators=(str(tmp_path),),
        )
        for step in STEPS:
            name, *arguments = step.arguments(visit, 100.0)
            assert name in COMMANDS and parser_of(name).parse_args(arguments).json


@pytest.mark.slow
def test_real_commands_find_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = day_one.command_of
    machine = Machine(tmp_path, monkeypatch)
    monkeypatch.setattr(day_one, "command_of", real)
    assert machine.day() == 1
    what = {name: step["what"] for name, step in machine.steps.items()}
    assert {step["status"] for step in machine.steps.values()} == {"failed"}
    assert "GPU" in what["selfcheck"] or "driver" in what["selfcheck"]
    assert "cuda:0 is not there" in what["measure"] and "cuda:0 is not there" in what["peers"]
