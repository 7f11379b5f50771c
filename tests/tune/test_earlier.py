"""What earlier visits leave for the next one to know: from reports and journals, by whose time and whose sources."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kernel_space.build.key import kernel_source_hash
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.trials.test_study import IDENTITY
from tuner.devices.device import Device
from tuner.devices.select import select_device
from tuner.report.write import report_folder, trials_parquet
from tuner.trials.final_order import FINAL, PLACE
from tuner.trials.outcome import Kind, Status, Trial
from tuner.trials.study import Identity, Study
from tuner.tune.earlier import Earlier, earlier_visits, supersedes

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
KERNEL = "kernel=sm100a"
TODAY = kernel_source_hash(kernel("svdquant_gemm", "sm100a"))
BF16 = {"lora_dtype": "bf16", "out_dtype": "bf16"}


@pytest.fixture(scope="module")
def device() -> Device:
    return select_device("b200", probe=lambda: [])


def trial(name: str, us: float | None = None, kind: Kind | None = None, **changes: object) -> Trial:
    """Of the made-up config ``name``; with a time it is good."""
    plain = Trial(
        number=0, op="svdquant_gemm", problem=str(PROBLEM), options=PROBLEM.options, device="b200", arch="sm_100a",
        config=f"asked {name}", resolved=f"{KERNEL} {name}", status=Status.OK, kind=kind, us=us, low_us=us, high_us=us,
        build={"source_hash": TODAY}, finished="2026-01-01",
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)


def known(*names: str) -> set[str]:
    return {f"{KERNEL} {name}" for name in names}


def measured(name: str, us: float, **changes: object) -> Trial:
    return trial(name, us, Kind.MEASURED, **changes)


def refused(name: str, status: Status, **changes: object) -> Trial:
    return trial(name, status=status, **{"build": {}, **changes})


def beside_the_report(results: Path, *trials: Trial) -> None:
    folder = report_folder(results, "b200", PROBLEM)
    folder.mkdir(parents=True)
    (folder / "trials.parquet").write_bytes(trials_parquet(trials))


def in_a_journal(results: Path, judge: str, *trials: Trial, identity: Identity = IDENTITY) -> Path:
    study = Study(results / ".studies", dataclasses.replace(identity, judge=judge))
    for one in trials:
        study.append(one)
    return study.path


def test_without_results(tmp_path: Path, device: Device) -> None:
    assert earlier_visits(tmp_path, PROBLEM, device) == Earlier()


def test_reports_and_journals_of_all_visits_count(tmp_path: Path, device: Device) -> None:
    """A merged visit whose row did not stand left its journal only."""
    beside_the_report(tmp_path, measured("a", 3.0), measured("b", 1.0))
    in_a_journal(tmp_path, "one card", measured("c", 2.0), refused("d", Status.WRONG_RESULT))
    in_a_journal(tmp_path, "another card", measured("e", 4.0), refused("f", Status.TIMED_OUT))
    found = earlier_visits(tmp_path, PROBLEM, device)
    assert found.best == ("asked b", "asked c", "asked a", "asked e")
    assert found.known == known("a", "b", "c", "d", "e"), "a timeout of the worker is tried again"


def test_a_simulated_time_is_something_to_start_from_and_settles_nothing(
    tmp_path: Path, device: Device
) -> None:
    simulated = [trial(name, us, Kind.SIMULATED) for name, us in (("slow", 3.0), ("fast", 1.0))]
    beside_the_report(tmp_path, *simulated, refused("racing", Status.RACE))
    in_a_journal(tmp_path, "a card", measured("real", 20.0))
    found = earlier_visits(tmp_path, PROBLEM, device)
    assert found.best == ("asked real", "asked fast", "asked slow")
    assert found.known == known("real", "racing")


def test_other_sources_of_the_kernel_are_a_start_and_nothing_that_is_known(
    tmp_path: Path, device: Device
) -> None:
    old = {"source_hash": "of another day"}
    beside_the_report(tmp_path, measured("a", 1.0, build=old), refused("b", Status.COMPILE_FAILED))
    in_a_journal(tmp_path, "a card", measured("c", 2.0), refused("d", Status.COMPILE_FAILED))
    found = earlier_visits(tmp_path, PROBLEM, device)
    assert found.best == ("asked a", "asked c") and found.known == known("c", "d")


def test_of_two_verdicts_the_later_stands(tmp_path: Path, device: Device) -> None:
    beside_the_report(tmp_path, measured("a", 1.0), measured("b", 2.0))
    in_a_journal(tmp_path, "a card", refused("a", Status.RACE, finished="2026-01-02"))
    in_a_journal(tmp_path, "b card", refused("b", Status.RACE, finished="2025-12-31"))
    found = earlier_visits(tmp_path, PROBLEM, device)
    assert found.best == ("asked b",) and found.known == known("a", "b")


def test_a_final_of_slow_ones_does_not_hide_the_fast_ones_of_another_visit(
    tmp_path: Path, device: Device
) -> None:
    slow = [
        measured(name, us, evidence={FINAL: "2026-01-02", PLACE: place}, finished="2026-01-02")
        for name, us, place in (("slow", 33.0, 1), ("slower", 34.0, 2))
    ]
    beside_the_report(tmp_path, measured("fast", 21.0, evidence={FINAL: "2026-01-01", PLACE: 1}))
    in_a_journal(tmp_path, "a card", *slow)
    assert earlier_visits(tmp_path, PROBLEM, device).best == ("asked fast", "asked slow", "asked slower")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # (final, finished, ok) of the one that stands, then of the other
        (("", "2", True), ("", "1", True)),
        (("2", "2", True), ("1", "9", True)),
        (("1", "1", True), ("", "9", True)),
        (("", "9", False), ("2", "2", True)),
        (("", "9", True), ("", "2", False)),
    ],
)
def test_which_of_two_trials_stands(one: tuple[str, str, bool], other: tuple[str, str, bool]) -> None:
    def made(final: str, finished: str, ok: bool) -> Trial:
        evidence = {FINAL: final} if final else {}
        status = Status.OK if ok else Status.RACE
        return measured("a", 1.0, evidence=evidence, finished=finished, status=status)

    assert supersedes(made(*one), made(*other)) and not supersedes(made(*other), made(*one))


def test_other_problems_and_torn_ends_are_left_out(tmp_path: Path, device: Device) -> None:
    other = dataclasses.replace(IDENTITY, options=BF16)
    in_a_journal(tmp_path, "a card", measured("x", 1.0, options=BF16), identity=other)
    path = in_a_journal(tmp_path, "a card", measured("a", 1.0))
    with path.open("a") as file:
        file.write('{"number": 1, "prob')
    assert earlier_visits(tmp_path, PROBLEM, device).best == ("asked a",)


def test_damage_in_a_journal_costs_its_line(
    tmp_path: Path, device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    path = in_a_journal(tmp_path, "a card", measured("a", 1.0), measured("b", 2.0))
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1].replace('"us"', '"speed"'), lines[2]]))
    assert len(earlier_visits(tmp_path, PROBLEM, device).best) == 1
    said = capsys.readouterr().err
    assert f"{path}: passed over damaged line 2" in said and said.count("\n") == 1
    path.write_text(lines[1])
    with pytest.raises(InputError, match="no journal of trials") as error:
        earlier_visits(tmp_path, PROBLEM, device)
    assert "\n" not in str(error.value)
