"""The mirror, read back by Optuna: as many trials, their knobs and times; kills, damage, a disk that refuses."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import importlib.util
import io
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from kernel_space.core.arch import SM90A, SM100A
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.cli.test_check import WinnerDevice
from tests.fakes import FakeDevice, FakePool, small_space
from tuner.search.mirror import FILE_NAME, Mirror
from tuner.search.progress import Progress
from tuner.space.space import SearchSpace
from tuner.stages.journal import STUDY_FOLDER
from tuner.trials.outcome import Kind, Status, Trial
from tuner.tune.driver import TuneOptions, TuneResult, tune

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
SPACE = {"cluster_shape_mn": "2x1 2x2", "lora_schedule": "interleave tail", "use_pdl": "false true"}
KERNEL = "kernel=sm100a mma_tiler_mn=256x128 mma_tiler_k=256 num_ab_stage={} use_pdl={}"


def tuned(out: Path, device: Any = None, **more: Any) -> TuneResult:
    return tune(
        PROBLEM,
        device or FakeDevice(),
        TuneOptions(out=out, jobs=2, count_space=False),
        space=small_space(**SPACE),
        **{"pool": FakePool(), "progress": Progress(stream=io.StringIO(), terminal=False), **more},
    )


def studies(out: Path) -> dict[str, list[optuna.trial.FrozenTrial]]:
    """As Optuna reads the file that a tune left below ``out``, or the file itself."""
    path = out / STUDY_FOLDER / FILE_NAME if out.is_dir() else out
    storage = JournalStorage(JournalFileBackend(str(path)))
    names = optuna.get_all_study_names(storage)
    return {name: optuna.load_study(study_name=name, storage=storage).trials for name in names}


def trial(stages: int, us: float | None = 5.0, pdl: str = "false", **changes: Any) -> Trial:
    config = KERNEL.format(stages, pdl)
    about = {"op": "svdquant_gemm", "problem": str(PROBLEM), "options": PROBLEM.options, "device": "b200"}
    given: dict[str, Any] = {
        "number": stages,
        "arch": "sm_100a",
        "config": config,
        "resolved": config,
        "us": us,
    }
    given |= {"status": Status.OK, "kind": Kind.SIMULATED, "finished": "2026-01-02T03:04:05+00:00"}
    return Trial(**{**about, **given, **changes})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / FILE_NAME


def mirror(path: Path, said: list[str] | None = None) -> Mirror:
    say = [] if said is None else said
    return Mirror(path, "one", SearchSpace.load("svdquant_gemm", SM100A), say=say.append)


def test_a_tune_leaves_a_study_that_optuna_reads(tmp_path: Path) -> None:
    result = tuned(tmp_path)
    ((name, trials),) = studies(tmp_path).items()
    assert name == f"b200 svdquant_gemm {result.journal.stem}"
    assert len(trials) == len(result.trials) > 4
    assert {one.user_attrs["config"]: one.value for one in trials} == {
        one.resolved: one.us for one in result.trials
    }
    assert {one.state for one in trials} == {TrialState.COMPLETE}
    storage = JournalStorage(JournalFileBackend(str(tmp_path / STUDY_FOLDER / FILE_NAME)))
    best = optuna.load_study(study_name=name, storage=storage).best_trial
    assert result.winner is not None and best.user_attrs["config"] == result.winner.resolved
    wanted = dict(item.split("=") for item in result.winner.resolved.split())
    assert {knob: str(value) for knob, value in best.params.items()}.items() <= wanted.items()
    assert {"kernel", "cluster_shape_mn", "lora_schedule", "use_pdl"} <= set(best.params)


def test_another_run_repeats_no_trial_and_another_problem_is_another_study(tmp_path: Path) -> None:
    first = tuned(tmp_path)
    again = tuned(tmp_path)
    assert again.known == len(first.trials)
    ((_, trials),) = studies(tmp_path).items()
    assert len(trials) == len(first.trials)


def test_a_mirror_that_was_lost_is_made_again(tmp_path: Path) -> None:
    result = tuned(tmp_path)
    (tmp_path / STUDY_FOLDER / FILE_NAME).unlink()
    tuned(tmp_path)
    ((_, trials),) = studies(tmp_path).items()
    assert len(trials) == len(result.trials)


def test_a_winner_that_a_check_refutes_is_no_best_trial(tmp_path: Path) -> None:
    """Its trial was finished with a time; the check comes later."""
    order = sorted(tuned(tmp_path / "first").trials, key=lambda one: one.us or 0.0)
    device = WinnerDevice(verdicts={order[0].resolved: Status.RACE})
    result = tuned(tmp_path / "second", device)
    ((_, trials),) = studies(tmp_path / "second").items()
    states = {one.user_attrs["config"]: (one.state, one.user_attrs["status"]) for one in trials}
    assert states[order[0].resolved] == (TrialState.FAIL, "race")
    assert len(trials) == len(result.trials)


def test_knobs_times_and_facts(path: Path) -> None:
    made = mirror(path)
    made.keep([trial(4, 5.0, compile_seconds=1.0, time_seconds=2.0)])
    made.add(trial(5, None, "true", status=Status.DEADLOCK, reason="stuck"))
    good, bad = studies(path)["one"]
    assert (good.value, good.state, bad.value, bad.state) == (5.0, TrialState.COMPLETE, None, TrialState.FAIL)
    assert good.params == {
        "kernel": "sm100a", "mma_tiler_mn": "256x128", "mma_tiler_k": 256, "num_ab_stage": 4, "use_pdl": "false",
    }  # fmt: skip
    assert (bad.user_attrs["status"], bad.user_attrs["reason"]) == ("deadlock", "stuck")
    assert good.user_attrs["kind"] == "simulated" and "reason" not in good.user_attrs
    finished = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert good.datetime_complete is not None
    assert good.datetime_complete.astimezone(datetime.UTC) == finished
    assert good.duration == datetime.timedelta(seconds=3)


def test_values_outside_of_the_choices_break_no_study(path: Path) -> None:
    """A neighbour's config may have a number that the space does not, or a word; Optuna refuses other categories."""
    made = mirror(path)
    texts = (KERNEL.format(31, "true"), KERNEL.format(4, "maybe"), KERNEL.format(5, "true"))
    made.keep([trial(number, config=text, resolved=text) for number, text in enumerate(texts)])
    assert [one.params.get("num_ab_stage") for one in studies(path)["one"]] == [31, 4, 5]
    assert [one.params.get("use_pdl") for one in studies(path)["one"]] == ["true", None, "true"]


def test_kernels_of_one_space_share_a_study(path: Path) -> None:
    """Their knobs of one name have other choices."""
    space = SearchSpace.load("svdquant_gemm", SM90A)
    made = Mirror(path, "one", space, say=lambda line: None)
    for number, (name, kernel) in enumerate(space.kernels.items()):
        knobs = " ".join(f"{knob}={one.choices[-1]}" for knob, one in kernel.knobs.items())
        made.add(trial(number, config=f"kernel={name} {knobs}", resolved=f"kernel={name} {knobs}"))
    found = studies(path)["one"]
    assert [one.params["kernel"] for one in found] == list(space.kernels) and len(found) > 1


def test_only_what_the_journal_holds_is_kept(path: Path) -> None:
    made = mirror(path)
    made.keep([trial(4), trial(5)])
    made.add(trial(6))
    made.add(dataclasses.replace(trial(4), us=4.0))
    made.keep([dataclasses.replace(trial(4), us=4.0), trial(6)])
    values = {one.user_attrs["number"]: one.value for one in studies(path)["one"]}
    assert values == {4: 4.0, 6: 5.0}


def test_two_tuners_at_one_problem_leave_each_trial_once(path: Path) -> None:
    """Each knows of the other's by the journal alone, and the one that ends first makes the study anew."""
    one, other = mirror(path), mirror(path)
    one.keep([])
    other.keep([])
    one.add(trial(4))
    other.add(trial(4))
    other.add(trial(5))
    one.keep([trial(4), trial(5)])
    other.add(trial(6))
    other.keep([trial(4), trial(5), trial(6)])
    assert [one.user_attrs["number"] for one in studies(path)["one"]] == [4, 5, 6]


def test_choices_that_have_changed_make_the_study_anew(path: Path) -> None:
    space = SearchSpace.load("svdquant_gemm", SM100A)
    fewer = space.restrict(
        {**{name: knob.choices for name, knob in space.knobs.items()}, "use_pdl": ("true",)}
    )
    Mirror(path, "one", fewer, say=lambda line: None).keep([trial(4, pdl="true")])
    mirror(path).keep([trial(4, pdl="true"), trial(5, pdl="false")])
    assert [one.params["use_pdl"] for one in studies(path)["one"]] == ["true", "false"]


@pytest.mark.slow
def test_the_dashboard_opens_it(tmp_path: Path) -> None:
    """Optuna's own, started as a user starts it: its page loads, and its interface lists the study and its trials."""
    result = tuned(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from optuna_dashboard._cli import main; main()"]
    storage = str(tmp_path / STUDY_FOLDER / FILE_NAME)
    with subprocess.Popen([*command, storage, "--port", str(port)], stdout=subprocess.DEVNULL) as server:
        try:
            page = answer(f"http://127.0.0.1:{port}/dashboard", server)
            assert "<title>Optuna Dashboard" in page
            (study,) = json.loads(answer(f"http://127.0.0.1:{port}/api/studies", server))["study_summaries"]
            assert study["study_name"] == f"b200 svdquant_gemm {result.journal.stem}"
            about = json.loads(answer(f"http://127.0.0.1:{port}/api/studies/{study['study_id']}", server))
            assert len(about["trials"]) == len(result.trials)
        finally:
            server.terminate()


def answer(url: str, server: subprocess.Popen[bytes]) -> str:
    """What the server says, which takes seconds to start."""
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=30) as page:
                return page.read().decode()
        except OSError:
            assert server.poll() is None and time.monotonic() < deadline
            time.sleep(0.2)


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_line_that_a_kill_tore_costs_its_trial_alone(path: Path, cut: int) -> None:
    mirror(path).keep([trial(4), trial(5)])
    data = path.read_bytes()
    path.write_bytes(data[:-cut])
    said: list[str] = []
    made = mirror(path, said)
    made.keep([trial(4), trial(5), trial(6)])
    assert sorted(one.user_attrs["number"] for one in studies(path)["one"]) == [4, 5, 6]
    assert said == []


def test_a_file_that_is_none_of_optunas_is_kept_aside(path: Path) -> None:
    path.write_text('{"mine": 1}\nnot json\n{}\n')
    said: list[str] = []
    mirror(path, said).keep([trial(4)])
    assert len(studies(path)["one"]) == 1
    assert path.with_name(f"{FILE_NAME}.damaged").read_text().startswith('{"mine": 1}')
    assert len(said) == 1 and "kept as optuna.journal.damaged" in said[0]


def test_a_disk_that_refuses_the_mirror_is_told_once_and_the_tune_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, logs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JournalFileBackend, "append_logs", full)
    stream = io.StringIO()
    result = tuned(tmp_path, progress=Progress(stream=stream, terminal=False))
    assert result.winner is not None and result.stopped == ""
    assert stream.getvalue().count("no mirror for optuna-dashboard any more") == 1
    assert "No space left" in stream.getvalue()


def test_a_link_in_its_place_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / STUDY_FOLDER).mkdir()
    (tmp_path / STUDY_FOLDER / FILE_NAME).symlink_to(tmp_path / "precious")
    assert tuned(tmp_path).winner is not None
    assert (tmp_path / "precious").read_text() == "mine"


def test_without_optuna_there_is_no_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    without = lambda name, *more: None if name == "optuna" else find(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    assert tuned(tmp_path).winner is not None
    assert not (tmp_path / STUDY_FOLDER / FILE_NAME).exists()
