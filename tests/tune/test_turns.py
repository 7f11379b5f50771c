"""Whose problem it is, among tuners that share a folder of results."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.cli.tune import tune as cli_tune
from tuner.trials.outcome import Kind
from tuner.tune import turns
from tuner.tune.driver import TuneOptions
from tuner.tune.turns import in_turn

A, B, C = (GemmProblem.parse(f"{m},512,256,32") for m in (1, 2, 3))


def other_tuner(out: Path, problem: GemmProblem) -> subprocess.Popen[bytes]:
    """A process that has its turn until it is killed."""
    program = (
        "import sys, time; from pathlib import Path\n"
        "from kernel_space.operators.svdquant_gemm.problem import GemmProblem\n"
        "from tuner.tune.turns import in_turn\n"
        "turns = in_turn([GemmProblem.parse(sys.argv[2])], Path(sys.argv[1]), 'h200')\n"
        "next(turns); print('mine', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(out), str(problem)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None and process.stdout.readline() == b"mine\n"
    return process


def test_alone_it_is_the_order_given(tmp_path: Path) -> None:
    said: list[str] = []
    assert list(in_turn([B, A, C], tmp_path, "h200", say=said.append)) == [B, A, C]
    assert list(in_turn([], tmp_path, "h200")) == [] and not said


def test_what_another_process_is_at_comes_when_that_ends(tmp_path: Path) -> None:
    said: list[str] = []
    process = other_tuner(tmp_path, A)
    mine = in_turn([A, B, C], tmp_path, "h200", say=said.append)
    assert [next(mine), next(mine)] == [B, C] and not said
    rest: list[GemmProblem] = []
    thread = threading.Thread(target=lambda: rest.extend(mine))
    thread.start()
    time.sleep(5 * turns.POLL_S)
    assert not rest and said == [f"other tuners are at {A}: waiting for them"]
    process.kill()
    thread.join(30)
    assert rest == [A] and len(said) == 1
    process.communicate()


def test_what_is_free_again_comes_before_later_ones(tmp_path: Path) -> None:
    theirs = in_turn([A], tmp_path, "h200")
    assert next(theirs) == A
    mine = in_turn([A, B, C], tmp_path, "h200")
    assert next(mine) == B
    theirs.close()
    assert [next(mine), next(mine)] == [A, C]


def test_nobody_waits_longer_than_he_may(tmp_path: Path) -> None:
    theirs = in_turn([A], tmp_path, "h200")
    assert next(theirs) == A
    deadline = time.monotonic() + 3 * turns.POLL_S
    assert list(in_turn([A, B], tmp_path, "h200", deadline=deadline)) == [B]
    assert time.monotonic() >= deadline


def test_other_folders_and_devices_are_other_problems(tmp_path: Path) -> None:
    theirs = in_turn([A], tmp_path / "one", "h200")
    assert next(theirs) == A
    now = time.monotonic()
    assert list(in_turn([A], tmp_path / "two", "h200", deadline=now)) == [A]
    assert list(in_turn([A], tmp_path / "one", "b200", deadline=now)) == [A]
    bf16 = GemmProblem.parse(str(A), lora_dtype="bf16", out_dtype="bf16")
    assert list(in_turn([A, bf16], tmp_path / "one", "h200", deadline=now)) == [bf16]


@pytest.mark.parametrize("end", ["asked for the next", "closed", "failed"])
def test_a_turn_ends(end: str, tmp_path: Path) -> None:
    """However it does, no descriptor stays open."""
    before = len(os.listdir("/proc/self/fd"))
    theirs = in_turn([A], tmp_path, "h200")
    assert next(theirs) == A
    if end == "asked for the next":
        assert next(theirs, None) is None
    elif end == "closed":
        theirs.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            theirs.throw(KeyboardInterrupt)
    assert list(in_turn([A], tmp_path, "h200", deadline=time.monotonic())) == [A]
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(("kind", "order"), [(Kind.MEASURED, [B, A]), (Kind.SIMULATED, [A, B])])
def test_a_tune_takes_turns_on_a_card_only(
    kind: Kind, order: list[GemmProblem], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated trials of several tuners add up in one journal: they hold no finals."""
    pool = SimpleNamespace(start=lambda arch: None)
    monkeypatch.setattr(cli_tune, "CompilePool", lambda *settings: contextlib.nullcontext(pool))
    monkeypatch.setattr(
        cli_tune, "tune", lambda problem, *rest, **more: SimpleNamespace(problem=problem, stopped="")
    )
    theirs = in_turn([A], tmp_path, "h200")
    assert next(theirs) == A
    device = SimpleNamespace(name="h200", arch=SM90A, kind=kind)
    mine = cli_tune._tune_all([A, B], device, TuneOptions(out=tmp_path), None)
    found = [next(mine).problem]
    theirs.close()
    assert [*found, *(result.problem for result in mine)] == order
