"""``CudaDevice`` and a whole tune on it, with workers that have no card and lose themselves where they are told to."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.core.arch import SM90A, Arch
from kernel_space.core.arguments import Argument
from kernel_space.core.config import KernelConfig
from kernel_space.core.errors import InputError
from kernel_space.core.problem import ProblemClass
from kernel_space.core.rules import Legal
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests import fakes
from tests.card.fake_card_worker import FREE, UUID
from tests.operators.svdquant_gemm import candidates
from tuner.card.card_worker import CardLost, CardWorker, Limits
from tuner.card.worker.bench import FinalsOptions
from tuner.devices.card import CudaDevice, bytes_needed
from tuner.devices.classes import Card, class_of
from tuner.devices.recorded import recorded_names
from tuner.space.space import SearchSpace
from tuner.tables.dispatch import DispatchTable
from tuner.trials.outcome import Kind, Outcome, Status, Trial
from tuner.tune.driver import TuneOptions, TuneResult, tune

PROBLEM = GemmProblem.parse("256,3840,3072,128")
CARD = Card(index=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132, uuid=UUID)
LIMITS = Limits(start_s=60, health_s=30, case_s=0.5, time_s=0.5, final_s=0.5, attempts=2, pause_s=0.01)


def compiled(config: KernelConfig) -> Any:
    return SimpleNamespace(**vars(fakes.compiled(config)), prefix="k", arguments=(Argument("y", "pointer"),))


class Pool:
    """Compiles at once."""

    def submit(
        self, config: KernelConfig, problem_class: ProblemClass, arch: Arch
    ) -> concurrent.futures.Future[Any]:
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        future.set_result(
            SimpleNamespace(status=Status.OK, reason="", compiled=compiled(config), seconds=0.1, host="")
        )
        return future


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., CudaDevice]]:
    made: list[CudaDevice] = []

    def make(card: Card = CARD) -> CudaDevice:
        command = [sys.executable, "-m", "tests.card.fake_card_worker", str(tmp_path)]
        worker = CardWorker(0, UUID, limits=LIMITS, command=command, lock_folder=tmp_path)
        device_class = class_of(card)
        assert device_class is not None
        made.append(dataclasses.replace(CudaDevice.of_card(device_class, card), worker=worker))
        return made[-1]

    yield make
    for device in made:
        device.close()


def legal(text: str = "") -> Legal:
    return candidates.legal(f"{candidates.RING} {text}", PROBLEM)


def deeds(scratch: Path, by_knob: dict[str, str]) -> None:
    """A candidate whose config has the knob does the deed."""
    (scratch / "deeds").write_text(json.dumps(by_knob))


def asked(scratch: Path) -> list[str]:
    return [line.split(" ", 1)[1] for line in (scratch / "log").read_text().splitlines()]


# -- one candidate


def test_a_candidate_is_checked_and_timed_and_the_judge_names_what_decides(
    make: Callable[[], CudaDevice], tmp_path: Path
) -> None:
    device, one = make(), legal()
    assert device.judge.startswith("Fake card, driver 580.1, CUDA 13.0, power limit 700 W; ")
    outcome = device.check(compiled(one.config), one, PROBLEM).result()
    assert outcome.ok and "checked on Fake card against the oracle" in outcome.reason
    timed = device.time(compiled(one.config), one, PROBLEM).result()
    assert timed.ok and timed.timing is not None and timed.timing.kind is Kind.MEASURED
    assert timed.timing.us == 13.0, "the median of 10, 11, ... 16"
    assert asked(tmp_path) == ["health", "check", "time"]


def test_a_winner_is_checked_on_ragged_problems(make: Callable[[], CudaDevice]) -> None:
    one = legal()
    outcome = make().check_full(compiled(one.config), one, PROBLEM).result()
    assert outcome.ok
    assert "253,3808,3064,128" in outcome.reason and "1,96,8,128" in outcome.reason


@pytest.mark.parametrize(
    ("deed", "status"), [("launch:hang", Status.DEADLOCK), ("compare:wrong", Status.WRONG_RESULT)]
)
def test_a_fault_is_an_outcome(
    make: Callable[[], CudaDevice], tmp_path: Path, deed: str, status: Status
) -> None:
    deeds(tmp_path, {"split_k=1": deed})
    device, one = make(), legal()
    assert device.check(compiled(one.config), one, PROBLEM).result().status is status
    final = device.interleave([(compiled(one.config), one)], PROBLEM, FinalsOptions(rounds=2)).result()
    assert isinstance(final, Outcome) and final.status is status


def test_a_problem_that_does_not_fit_is_said_before_anything_runs(
    make: Callable[[], CudaDevice], tmp_path: Path
) -> None:
    (tmp_path / "free").write_text(str(3 << 30))
    large = GemmProblem.parse("4352,15360,3840,128")
    one = legal()
    with pytest.raises(InputError, match="3072 of 144384 MiB are free; end what else uses the card"):
        make().check(compiled(one.config), one, large).result()
    assert asked(tmp_path) == ["health"]
    assert bytes_needed(PROBLEM, 60 << 20) < FREE


# -- a whole tune


def space() -> SearchSpace:
    """Six legal candidates: three split_k times two rasters. The default rule's comes on top."""
    whole = SearchSpace.load(GemmProblem.operator, SM90A).restrict({"kernel": ("sm90a_ring",)})
    first = {name: knob.choices[:1] for name, knob in whole.knobs.items()}
    named = {"tile_mnk": ("128x64x128",), "split_k": ("1", "2", "3"), "raster_order": ("m", "n")}
    return whole.restrict({**first, **named})


def run(device: CudaDevice, out: Path, **options: Any) -> TuneResult:
    return tune(
        PROBLEM,
        device,
        TuneOptions(out=out, jobs=1, count_space=False, **options),
        pool=Pool(),
        space=space(),
    )


def by_knobs(result: TuneResult) -> dict[str, Trial]:
    def short(trial: Trial) -> str:
        knobs = dict(item.split("=") for item in trial.resolved.split())
        return f"{knobs['split_k']}{knobs['raster_order']}"

    return {short(trial): trial for trial in result.trials if "tile_mnk=128x64x128" in trial.resolved}


def test_culprits_cost_a_trial_each_and_are_skipped_on_resume(
    make: Callable[[], CudaDevice], tmp_path: Path
) -> None:
    out = tmp_path / "results"
    deeds(
        tmp_path,
        {
            "raster_order=n swizzle_size=1 ctas_per_sm=1 split_k=2": "launch:hang",
            "raster_order=n swizzle_size=1 ctas_per_sm=1 split_k=3": "launch:segfault",
            "raster_order=n swizzle_size=1 ctas_per_sm=1 split_k=1": "launch:killed",
        },
    )
    result = run(make(), out)
    found = by_knobs(result)
    assert {name: trial.status for name, trial in found.items()} == {
        "1m": Status.OK,
        "2m": Status.OK,
        "3m": Status.OK,
        "1n": Status.WORKER_LOST,
        "2n": Status.DEADLOCK,
        "3n": Status.FAILED,
    }
    assert result.winner is not None and "raster_order=m" in result.winner.resolved
    assert found["1m"].validation.startswith("checked on Fake card")
    before = asked(tmp_path).count("check")
    deeds(tmp_path, {})
    again = run(make(), out)
    assert again.winner is not None and again.known == 6 and again.fresh == 1
    checks = asked(tmp_path).count("check") - before
    assert checks <= 2, "the one that may be the machine's fault, and the winner"
    assert by_knobs(again)["1n"].status is Status.OK


@pytest.mark.parametrize(
    ("product", "name", "bandwidth"),
    [
        ("NVIDIA H100 80GB HBM3", "h100", "DRAM 3.35 TB/s (published)"),
        ("NVIDIA GH200 480GB", "nvidia-gh200-480gb", "DRAM 4.02 TB/s (read from the card)"),
    ],
)
def test_results_lie_under_the_name_of_the_card(
    make: Callable[..., CudaDevice], tmp_path: Path, product: str, name: str, bandwidth: str
) -> None:
    """An H200 was tuned there before: nothing of its is touched, and its row defends nothing against another card's."""
    out = tmp_path / "results"
    assert run(make(), out).winner is not None
    before = contents(out, "h200")
    read = 4.0228e12 if name != "h100" else 3.352e12
    result = run(make(dataclasses.replace(CARD, name=product, dram_bytes_s=read)), out)
    assert result.winner is not None and result.known == 0, "trials of another card answer for nothing here"
    assert contents(out, "h200") == before
    [row] = DispatchTable.load(out / name).rows.values()
    assert row.protocol.startswith(f"measured on {name}, ")
    [page] = (out / name).glob("*/*/report.html")
    assert bandwidth in page.read_text()
    assert list((out / ".studies" / name / "svdquant_gemm").glob("*.jsonl"))
    assert recorded_names(out) == ([] if name == "h100" else [name])


def contents(out: Path, name: str) -> dict[str, bytes]:
    """Of table, reports and journals of a class."""
    files = [*(out / name).rglob("*"), *(out / ".studies" / name).rglob("*")]
    found = {str(path): path.read_bytes() for path in files if path.is_file()}
    assert any(path.endswith("dispatch.json") for path in found)
    return found


def test_a_card_that_is_lost_ends_the_tune_with_a_whole_journal(
    make: Callable[[], CudaDevice], tmp_path: Path
) -> None:
    out = tmp_path / "results"
    deeds(tmp_path, {"split_k=2": "launch:sicken"})
    with pytest.raises(CardLost, match="must pass its self test but did not in 2 fresh processes"):
        run(make(), out)
    deeds(tmp_path, {})
    (tmp_path / "sick").write_text("0")
    result = run(make(), out)
    assert result.winner is not None
    assert result.known >= 1, "what was measured before the card was lost counts"
    statuses = {name: trial.status for name, trial in by_knobs(result).items()}
    assert Status.ILLEGAL_ACCESS in statuses.values(), "the culprit stays the culprit"
