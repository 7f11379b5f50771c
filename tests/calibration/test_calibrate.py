"""Calibration by measured times: a round trip with a hidden set of constants, refusals, files, the command."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kernel_space.build.build import build
from kernel_space.build.key import kernel_source_hash
from kernel_space.core.arch import SM100A, SM103A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.compiled_cases import resolved
from tests.trials.test_rank_stability import trial
from tests.trials.test_study import IDENTITY
from tuner.calibration.calibrate import FEWEST, Calibration, Row, calibrate
from tuner.calibration.measured_trials import read_measured
from tuner.cli.main import main
from tuner.devices.simulated import Chip
from tuner.report.write import trials_csv, trials_parquet
from tuner.simulated.constants import hash as simulation_hash
from tuner.simulated.constants import sets as clock_sets
from tuner.simulated.constants import store as calibration_store
from tuner.simulated.constants import witness as clock_witness
from tuner.simulated.constants.sets import ConstantSets, admissible_pool, admissible_sets, calibration_file
from tuner.simulated.constants.store import calibrated_sets, write_calibration
from tuner.simulated.time import simulate
from tuner.trials.outcome import Kind, Trial
from tuner.trials.study import Study

CHIP = Chip(name="b200", arch=SM100A, sm_count=148)
TILES = ("mma_tiler_mn=256x256", "mma_tiler_mn=128x128")
MEASURED = ("4352,3840,3072,128", "4352,15360,3840,128", "1024,3840,3072,128", "256,3840,3072,128")
HELD_OUT = ("2048,3840,15360,128", "512,10240,3072,128")
HIDDEN = 700  # number in the pool of the set that makes the "measured" times; it is not among the choices
NOISE = 0.01

TODAY = kernel_source_hash(kernel("svdquant_gemm", "sm100a"))


def times(text: str, shape: str) -> np.ndarray:
    """Simulated microseconds under every set of the pool."""
    config, problem = resolved(text, shape)
    compiled = build(config, problem.problem_class, SM100A)
    return simulate(compiled, config, problem, CHIP, sets=admissible_pool()).sets_us


@pytest.fixture(scope="module")
def cases() -> dict[tuple[str, str], np.ndarray]:
    return {(text, shape): times(text, shape) for text in TILES for shape in (*MEASURED, *HELD_OUT)}


@pytest.fixture(scope="module")
def found(cases: dict[tuple[str, str], np.ndarray]) -> Calibration:
    return calibrate(measured_rows(cases), choices(), about="of a test")


def choices() -> ConstantSets:
    pool = admissible_pool()
    return pool.take([number for number in range(pool.count) if number != HIDDEN])


def measured_rows(cases: dict[tuple[str, str], np.ndarray], noise: float = 0.04) -> list[Row]:
    generator = np.random.default_rng(1)
    return [
        Row(
            label=f"{shape} {text}",
            us=float(cases[text, shape][HIDDEN] * np.exp(generator.normal(0.0, NOISE))),
            noise=noise,
            simulated_us=np.delete(cases[text, shape], HIDDEN),
        )
        for text in TILES
        for shape in MEASURED
    ]


# -- the round trip --


def test_intervals_narrow_and_cover_what_was_held_out(
    cases: dict[tuple[str, str], np.ndarray], found: Calibration
) -> None:
    """The hidden set's own times of other shapes are the oracle."""
    pool = choices()
    before, after = [], []
    for text in TILES:
        for shape in HELD_OUT:
            config, problem = resolved(text, shape)
            compiled = build(config, problem.problem_class, SM100A)
            truth = cases[text, shape][HIDDEN]
            new = simulate(compiled, config, problem, CHIP, sets=found.sets)
            all_us = np.delete(cases[text, shape], HIDDEN)
            assert new.low_us <= truth <= new.high_us, (text, shape)
            before.append(np.log(all_us.max() / all_us.min()) + 2 * pool.discrepancy)
            after.append(np.log(new.high_us / new.low_us))
    assert np.mean(after) < 0.6 * np.mean(before)


def test_survivors_reproduce_every_row_and_the_others_do_not(
    cases: dict[tuple[str, str], np.ndarray], found: Calibration
) -> None:
    rows = measured_rows(cases)
    by_hand = [
        number
        for number in range(choices().count)
        if all(1 / (1 + row.noise) <= row.simulated_us[number] / row.us <= 1 + row.noise for row in rows)
    ]
    assert found.survivors == len(by_hand) and FEWEST <= len(by_hand) < found.pool / 4
    clocks = choices().values["clock_ghz"][by_hand]
    assert set(found.sets.values["clock_ghz"]) <= set(clocks)


def test_errors_shrink_and_narrowed_constants_are_named(found: Calibration) -> None:
    assert found.error_after < found.error_before
    assert found.error_after < 3 * NOISE
    assert found.sets.discrepancy == found.error_after and found.sets.about == "of a test"
    assert found.narrowed
    for one in found.narrowed:
        assert one.after[1] - one.after[0] < 0.75 * (one.before[1] - one.before[0])


def test_best_set_comes_first(cases: dict[tuple[str, str], np.ndarray], found: Calibration) -> None:
    rows = measured_rows(cases)
    squares = sum(np.log(row.simulated_us / row.us) ** 2 for row in rows)
    worst = np.max([np.abs(np.log(row.simulated_us / row.us)) for row in rows], axis=0)
    best = int(np.argmin(np.where(worst <= np.log(1.04), squares, np.inf)))
    assert found.sets.values["tma_latency"][0] == choices().values["tma_latency"][best]


# -- what is refused --


def test_contradictory_times_are_refused(cases: dict[tuple[str, str], np.ndarray]) -> None:
    rows = measured_rows(cases)
    rows[2] = dataclasses.replace(rows[2], us=rows[2].us * 1.5)
    with pytest.raises(InputError) as error:
        calibrate(rows, choices())
    words = str(error.value)
    assert "\n" not in words and f"all {len(rows)} measured times" in words and "--noise 0." in words
    assert rows[2].label in words and "even alone" in words
    stated = float(words.rpartition("--noise ")[2].rstrip(")"))
    wider = [dataclasses.replace(row, noise=stated + 0.1) for row in rows]
    assert calibrate(wider, choices()).survivors >= FEWEST


def test_one_time_alone_is_enough_to_choose(cases: dict[tuple[str, str], np.ndarray]) -> None:
    assert calibrate(measured_rows(cases)[:1], choices()).survivors > FEWEST


# -- the file --


@pytest.fixture
def own_calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "calibrations"
    monkeypatch.setattr(clock_sets, "CALIBRATIONS", folder)
    monkeypatch.setattr(simulation_hash, "CALIBRATIONS", folder)
    _forget()
    yield folder
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    for kept in (admissible_sets, simulation_hash.simulation_hash, simulation_hash.machine_hash):
        kept.cache_clear()


def test_calibration_takes_the_place_of_the_sets_and_enters_the_hash(
    own_calibrations: Path, found: Calibration
) -> None:
    before = simulation_hash.simulation_hash()
    published = admissible_sets(SM100A)
    write_calibration(SM100A, found.sets, {"date": "today"})
    _forget()
    sets = admissible_sets(SM100A)
    assert simulation_hash.simulation_hash() != before
    assert sets.count == found.sets.count and sets.about == "of a test"
    assert sets.discrepancy == pytest.approx(found.error_after, abs=1e-4)
    for name, values in found.sets.values.items():
        assert sets.values[name] == pytest.approx(values, rel=1e-5)
    other = admissible_sets(SM103A)
    assert other.count == published.count and "published" not in other.about, "b300 has none of its own"
    calibration_file(SM100A).unlink()
    _forget()
    assert admissible_sets(SM100A).about == published.about


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pool": "0"}, "chosen from other sets"),
        ({"arch": "sm_103a"}, "chosen from other sets"),
        (
            {"machine": "0", "witness": {"pair": [1.0], "split": [1.0]}},
            "answers otherwise (pair took 1 cycles",
        ),
        ({"values": None}, "is no calibration"),
    ],
)
def test_calibration_of_something_else_is_refused(
    own_calibrations: Path, found: Calibration, change: dict[str, object], message: str
) -> None:
    path = write_calibration(SM100A, found.sets, {})
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message.replace("(", r"\(")) as error:
        calibrated_sets(SM100A)
    assert "run tune.py calibrate again" in str(error.value) and "\n" not in str(error.value)


def test_other_sources_that_answer_the_same_keep_a_calibration(
    own_calibrations: Path, found: Calibration
) -> None:
    path = write_calibration(SM100A, found.sets, {})
    path.write_text(json.dumps(json.loads(path.read_text()) | {"machine": "0"}))
    assert calibrated_sets(SM100A).count == found.sets.count


# -- stored sets --


def test_stored_sets_are_those_of_this_machine() -> None:
    """Fails when a change of the machine changes its answers: run benchmarks.calibrate_clock, docs/timing.md."""
    stored = clock_sets.stored_document()
    values = {name: np.array(items)[: clock_witness.SETS] for name, items in stored["values"].items()}
    assert clock_witness.changes(stored["witness"], ConstantSets(values).clock) == ""


def test_restating_keeps_the_sets(tmp_path: Path) -> None:
    clock_sets.restate_sets(clock_sets.kept_sets(), {"pair": [1.0], "split": [2.0]}, tmp_path / "sets.json")
    before, after = (
        json.loads(clock_sets.STORED.read_text()),
        json.loads((tmp_path / "sets.json").read_text()),
    )
    assert after["witness"] == {"pair": [1.0], "split": [2.0]}
    assert after["machine"] == simulation_hash.machine_hash()
    assert {name for name in before if before[name] != after[name]} <= {"witness", "machine"}


def test_sets_of_another_machine_are_called_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other sources are no reason for doubt, other answers are."""
    monkeypatch.setattr(clock_sets, "machine_hash", lambda: "another")
    _forget_doubt()
    assert clock_sets.doubt_about_sets() == "", "other sources, same answers"
    monkeypatch.setattr(clock_witness, "TOLERANCE", 0.0)
    monkeypatch.setattr(clock_witness, "simulate_launch", _slower(clock_witness.simulate_launch))
    _forget_doubt()
    doubt = clock_sets.doubt_about_sets()
    assert (
        doubt.startswith("STALE, the machine answers otherwise since: pair took ")
        and "calibrate_clock" in doubt
    )
    admissible_sets.cache_clear()
    assert "STALE" in admissible_sets(SM100A).about
    monkeypatch.undo()
    _forget_doubt()
    assert "STALE" not in admissible_sets(SM100A).about


def _slower(run: object) -> object:
    def slower(*args: object, **options: object) -> object:
        done = run(*args, **options)  # type: ignore[operator]
        cycles = done.cycles * 1.001
        return dataclasses.replace(
            done, cycles=cycles, account={name: value * 1.001 for name, value in done.account.items()}
        )

    return slower


def _forget_doubt() -> None:
    for kept in (clock_sets.doubt_about_sets, admissible_sets):
        kept.cache_clear()


def test_pool_holds_the_stored_sets() -> None:
    pool, sets = admissible_pool(), admissible_sets()
    assert pool.count > 10 * sets.count
    for name, values in sets.values.items():
        assert values[0] == pytest.approx(pool.values[name][0], rel=1e-5), "the nominal set is first"
        distance = np.abs(pool.values[name][:, None] - values).min(axis=0)
        assert (distance <= 1e-5 * np.abs(values)).all(), "the others are members"
    assert admissible_pool(SM103A).values["clock_ghz"].max() < pool.values["clock_ghz"].max()


# -- reading --


def measured_trial(number: int, us: float, text: str, shape: str = MEASURED[0]) -> Trial:
    config, problem = resolved(text, shape)
    return trial(
        number, us, problem=str(problem), config=str(config), resolved=str(config), kind=Kind.MEASURED,
        us=us, low_us=us / 1.02, high_us=us * 1.03, evidence={"samples": 40},
        build={"source_hash": TODAY, "dsl_version": "4", "cubin_sha256": "c"},
    )  # fmt: skip


def test_journal_parquet_and_csv_say_the_same(tmp_path: Path) -> None:
    trials = [
        measured_trial(0, 30.0, TILES[0]),
        measured_trial(1, 40.0, TILES[1]),
        dataclasses.replace(measured_trial(2, 20.0, "mma_tiler_mn=256x128"), kind=Kind.SIMULATED),
    ]
    folder = tmp_path / "b200" / "svdquant_gemm" / "4352x3840x3072x128"
    folder.mkdir(parents=True)
    (folder / "trials.csv").write_text(trials_csv(trials))
    (folder / "trials.parquet").write_bytes(trials_parquet(trials))
    journal = Study(tmp_path, IDENTITY)
    for one in trials:  # as on a card, where each is announced before it runs
        with journal.attempt(one.resolved):
            pass
        with contextlib.suppress(KeyboardInterrupt), journal.attempt(one.resolved):
            raise KeyboardInterrupt
        journal.append(one)
    journal.recall("x", lambda: 1)
    assert {"identity", "attempt", "given_up", "note"} <= {
        key for line in journal.path.read_text().splitlines() for key in json.loads(line)
    }
    for path in (folder / "trials.csv", folder / "trials.parquet", journal.path):
        found = read_measured([path])
        assert [(one.us, one.config) for one in found] == [
            (30.0, trials[0].resolved),
            (40.0, trials[1].resolved),
        ]
        assert {(one.device, one.problem) for one in found} == {("b200", GemmProblem.parse(MEASURED[0]))}
        assert found[0].noise == pytest.approx(0.03, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("trials.txt", "", "trials are read from"),
        ("trials.csv", "us\n1\n", "needs a column kind"),
        (
            "trials.csv",
            "kind,us,problem,config,device\nmodelled,3,1,1,1\n",
            "none of the 1 trials was measured",
        ),
        ("trials.csv", "kind,us,config,device\nmeasured,3,split_k=1,b200\n", "needs a column problem"),
        ("trials.csv", 'kind,us,problem,config,device\nmeasured,x,"1,2,3,4",,b200\n', "could not convert"),
        ("trials.jsonl", "{\n", "line 1 is no JSON"),
        ("trials.jsonl", '{"number": 1}\n{"number": 2}\n', "is no journal of trials"),
        ("trials.jsonl", "1\n", "is no journal of trials"),
        ("trials.jsonl", '{"identity": {}}\n{"number": 1}\n', "line 1 is no line that says whose trials"),
        ("trials.jsonl", '{"identity": {}}\n[]\n', "is no journal of trials"),
        ("gone.csv", None, "cannot read"),
    ],
)
def test_bad_file_is_one_line(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message) as error:
        read_measured([tmp_path / name])
    assert "\n" not in str(error.value)


def test_two_kinds_of_device_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "trials.csv"
    row = 'measured,3,"256,3840,3072,128"'
    path.write_text(f"kind,us,problem,config,device\n{row},split_k=1,b200\n{row},split_k=2,b300\n")
    with pytest.raises(InputError, match="one kind of device at a time, got b200, b300"):
        read_measured([path])


# -- the command --


def table(path: Path, rows: list[tuple[str, str, float]], device: str = "b200") -> Path:
    with path.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["kind", "device", "problem", "config", "us"])
        for text, shape, us in rows:
            config, problem = resolved(text, shape)
            writer.writerow(["measured", device, problem, config, f"{us:.5g}"])
    return path


def test_command_writes_a_file_that_times_use(
    own_calibrations: Path,
    cases: dict[tuple[str, str], np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [(text, shape, float(cases[text, shape][HIDDEN])) for text in TILES for shape in MEASURED]
    path = str(table(tmp_path / "trials.csv", rows))
    assert main(["calibrate", path, "--noise", "0.04", "--dry-run"]) == 0
    assert "not written" in capsys.readouterr().out and not own_calibrations.exists()
    assert main(["calibrate", path, "--noise", "0.04", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["survivors"] >= FEWEST and said["rows"] == len(rows)
    assert Path(said["file"]) == calibration_file(SM100A)
    _forget()
    assert admissible_sets(SM100A).about.startswith(f"sets calibrated with {len(rows)} measured times")


def test_command_refuses_contradictions_with_one_line(
    own_calibrations: Path,
    cases: dict[tuple[str, str], np.ndarray],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [(text, shape, float(cases[text, shape][HIDDEN])) for text in TILES for shape in MEASURED]
    rows[3] = (*rows[3][:2], rows[3][2] * 2)
    path = str(table(tmp_path / "trials.csv", rows))
    assert main(["calibrate", path]) == 2
    captured = capsys.readouterr()
    error = captured.err.strip().splitlines()[-1]
    assert "sets of constants reproduce all 8 measured times" in error and captured.out == ""
    assert not own_calibrations.exists()


def test_command_needs_a_simulated_kind_of_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(table(tmp_path / "trials.csv", [(TILES[0], MEASURED[0], 30.0)], device="h200"))
    assert main(["calibrate", path]) == 2
    assert "kernel must be one of sm90a_ring" in capsys.readouterr().err, "the tile's kernel is one of b200"


def test_pool_of_another_draw_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    document = clock_sets.stored_document()
    shifted = {**document["pool"], "seed": 1}
    monkeypatch.setattr(clock_sets, "stored_document", lambda: document | {"pool": shifted})
    admissible_pool.cache_clear()
    with pytest.raises(InputError, match="comes out otherwise"):
        admissible_pool(SM100A)
    monkeypatch.undo()
    admissible_pool.cache_clear()
    assert calibration_store.pool_hash()
