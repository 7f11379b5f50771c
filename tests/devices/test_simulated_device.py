"""The simulated devices: what a time is, what a fault or an unknown instruction becomes, what makes a time stale."""

from __future__ import annotations

import dataclasses
import io
import math
import os
import shutil
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from kernel_space.build.build import CompiledKernel, build
from kernel_space.core.arch import SM90A, SM100A, SM103A
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import FakeDevice, small_space
from tuner.devices.select import select_device
from tuner.devices.simulated import Chip, SimulatedDevice, TimeTask, simulated_outcome
from tuner.search.progress import Progress
from tuner.simulated.check_worker import CheckPool
from tuner.simulated.constants import hash as simulation_hash
from tuner.simulated.machine_check import MachineChecker
from tuner.simulated.time import simulate
from tuner.stages.record import current
from tuner.tables.dispatch import DispatchTable
from tuner.trials.outcome import Kind, Outcome, Status
from tuner.trials.rank_stability import faster_in, ranked, times_of
from tuner.tune.driver import TuneOptions, tune

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
B200 = Chip(name="b200", arch=SM100A, sm_count=148)


@pytest.fixture(scope="module")
def legal() -> Legal:
    found = legalize(KernelConfigSm100a.parse("mma_tiler_mn=256x128"), PROBLEM, SM100A)
    assert isinstance(found, Legal)
    return found


@pytest.fixture(scope="module")
def compiled(legal: Legal) -> CompiledKernel:
    return build(legal.config, PROBLEM.problem_class, SM100A)


def with_ptx(compiled: CompiledKernel, folder: Path, old: str, new: str) -> CompiledKernel:
    """The same kernel with another PTX beside it."""
    shutil.copytree(compiled.directory, folder, dirs_exist_ok=True)
    assert old in compiled.ptx
    (folder / "kernel.ptx").write_text(compiled.ptx.replace(old, new))
    return dataclasses.replace(compiled, directory=folder)


# -- the time --


def test_blackwell_classes_without_a_card_are_simulated() -> None:
    for name, arch in (("b200", SM100A), ("b300", SM103A)):
        device = select_device(name, probe=list)
        assert isinstance(device, SimulatedDevice) and device.abilities.at_once
        assert (
            device.arch == arch
            and device.kind is Kind.SIMULATED
            and not device.abilities.checks_every_candidate
        )
        assert simulation_hash.simulation_hash() in device.judge and " check " in device.judge


def test_time_comes_from_a_worker_and_is_the_clock_s(compiled: CompiledKernel, legal: Legal) -> None:
    """The same numbers as a run in this process; terms are the only numbers, and add up."""
    device = SimulatedDevice(name="b200", arch=SM100A, sm_count=148, checker=MachineChecker(1))
    outcome = device.time(compiled, legal, PROBLEM).result()
    assert outcome.ok and outcome.timing is not None and outcome.timing.kind is Kind.SIMULATED
    here = simulate(compiled, legal.config, PROBLEM, B200)
    timing = outcome.timing
    assert (timing.us, timing.low_us, timing.high_us) == (here.us, here.low_us, here.high_us)
    numbers = [value for value in timing.evidence.values() if isinstance(value, float)]
    assert math.isclose(sum(numbers), timing.us, rel_tol=1e-3)
    assert timing.evidence["bound"] == here.bound
    # 2MNK / (148 SMs x 32768 FLOP/clk) at 1.965 GHz is 10.8 us: no kernel can be faster.
    assert timing.low_us > 10.8


def test_a_check_that_is_running_is_not_begun_again(
    compiled: CompiledKernel, legal: Legal, tmp_path: Path
) -> None:
    """Two leaders may be the same kernel."""
    compiled = dataclasses.replace(compiled, directory=tmp_path)  # where its verdict is kept
    running: list[Future[dict[str, str]]] = []
    checker = MachineChecker(1)
    checker.pool.submit = lambda task: running.append(Future()) or running[-1]  # type: ignore[method-assign]
    device = SimulatedDevice(name="b200", arch=SM100A, sm_count=148, checker=checker)
    futures = [device.check_full(compiled, legal, PROBLEM) for _ in range(2)]
    assert len(running) == 1 and not any(future.done() for future in futures)
    running[0].set_result({"status": "race", "text": "made up"})
    assert [future.result(timeout=0).status for future in futures] == [Status.RACE] * 2
    assert device.check_full(compiled, legal, PROBLEM).result(timeout=0).reason == "made up", "is kept"
    assert len(list(tmp_path.iterdir())) == 1 == len(running)


# -- what has no time --


def test_ptx_that_the_clock_does_not_know_is_unsupported(
    compiled: CompiledKernel, legal: Legal, tmp_path: Path
) -> None:
    other = with_ptx(compiled, tmp_path, "tcgen05.commit.cta_group::2", "tcgen05.commission.cta_group::2")
    outcome = simulated_outcome(other, legal, PROBLEM, B200)
    assert outcome.status is Status.UNSUPPORTED and outcome.timing is None
    assert "tcgen05.commission" in outcome.reason and "line" in outcome.reason


def test_deadlock_in_the_clocked_run_is_a_deadlock(
    compiled: CompiledKernel, legal: Legal, tmp_path: Path
) -> None:
    """Barriers that expect 4 arrivals more than come."""
    line = next(line for line in compiled.ptx.splitlines() if "mbarrier.init" in line)
    count = line.rpartition(",")[2].strip(" ;")
    other = with_ptx(compiled, tmp_path, line, line.replace(f"{count};", "77;"))
    outcome = simulated_outcome(other, legal, PROBLEM, B200)
    assert outcome.status is Status.DEADLOCK and "asleep" in outcome.reason


def kills_itself(task: TimeTask) -> Outcome:
    os._exit(5)


def sleeps(task: TimeTask) -> None:
    time.sleep(60)


@pytest.mark.parametrize(
    ("function", "limit_s", "status", "words"),
    [
        pytest.param("kills_itself", 60.0, Status.FAILED, "exit code 5", marks=pytest.mark.slow),
        ("sleeps", 0.5, Status.TIMED_OUT, "within 0.5 s"),
    ],
)
def test_worker_that_dies_or_hangs_costs_one_candidate(
    compiled: CompiledKernel,
    legal: Legal,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    limit_s: float,
    status: Status,
    words: str,
) -> None:
    monkeypatch.setattr("tuner.devices.simulated.LIMIT_S", limit_s)
    checker = MachineChecker(1)
    checker.pool = CheckPool(1, f"{__name__}:{function}")
    device = SimulatedDevice(name="b200", arch=SM100A, sm_count=148, checker=checker)
    outcome = device.time(compiled, legal, PROBLEM).result()
    assert outcome.status is status and words in outcome.reason
    checker.pool = MachineChecker(1).pool
    monkeypatch.undo()
    assert device.time(compiled, legal, PROBLEM).result().ok


# -- what a time depends on --


def test_judge_changes_with_machine_constants_and_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the sources hashes like the sources, and a change in any part of it differently."""
    root = Path(simulation_hash.__file__).resolve().parents[3]
    for name in ("kernel_space", "tuner"):
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(simulation_hash, "_ROOT", tmp_path)
    monkeypatch.setattr(
        simulation_hash, "SETS_FILE", tmp_path / "tuner" / "simulated" / "constants" / "clock_sets.json"
    )

    def hashed() -> str:
        simulation_hash.machine_hash.cache_clear()
        simulation_hash.simulation_hash.cache_clear()
        return simulation_hash.simulation_hash()

    try:
        seen = {hashed()}
        for name in (
            "kernel_space/machine/clock/engines.py",
            "kernel_space/machine/ptx/parse.py",
            "kernel_space/machine/clock/constants.py",
            "tuner/simulated/constants/clock.py",
            "tuner/simulated/constants/clock_sets.json",
            "tuner/simulated/time.py",
        ):
            before = len(seen)
            change = "changed = True\n" if name.endswith(".py") else "\n"
            (tmp_path / name).write_text((tmp_path / name).read_text() + change)
            seen.add(hashed())
            assert len(seen) == before + 1, name
        (tmp_path / "tuner" / "report" / "write.py").write_text("")
        assert hashed() in seen, "a report decides no time"
    finally:
        monkeypatch.undo()
        simulation_hash.machine_hash.cache_clear()
        simulation_hash.simulation_hash.cache_clear()


def test_a_card_ages_simulated_rows_by_the_same_judge() -> None:
    """Otherwise every simulated row would be stale to a machine with a card, whatever made it."""
    card = FakeDevice(kind=Kind.MEASURED)
    models = current(card).models
    assert models[Kind.SIMULATED] == select_device("b200", probe=list).judge
    assert Kind.SIMULATED not in current(FakeDevice(arch=SM90A, name="h200", kind=Kind.MEASURED)).models


# -- a tune --


@pytest.mark.slow
def test_tune_is_simulated_end_to_end(tmp_path: Path) -> None:
    problem = GemmProblem.parse("300,544,200,64")
    device = select_device("b200", probe=list)
    result = tune(
        problem,
        device,
        TuneOptions(out=tmp_path, jobs=2, count_space=False),
        space=small_space(
            mma_tiler_mn="256x128 128x64 128x128", cluster_shape_mn="2x1", use_pdl="false true"
        ),
        progress=Progress(stream=io.StringIO(), terminal=False),
    )
    order = ranked(result.trials)
    assert result.winner is not None and result.winner == order[0] and result.winner.kind is Kind.SIMULATED
    assert len(times_of(result.winner)) >= 64 and "full problem" in result.winner.validation
    row = DispatchTable.load(tmp_path / "b200").lookup(problem).row
    assert (
        row is not None
        and row.kind is Kind.SIMULATED
        and row.provenance.model.startswith(f"{device.judge} oracle ")
    )
    assert row.runner_up is not None and row.runner_up.slower_in == pytest.approx(
        faster_in(order[0], order[1]) or 0.0, abs=1e-4
    )
