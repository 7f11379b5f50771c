"""A whole tune on a card, with culprits among its candidates. Compiles, so it needs the DSL and Optuna there."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cutlass")
pytest.importorskip("optuna")

from kernel_space.core.arch import SM90A, Arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.gpu.conftest import LAUNCH_LIMIT_S
from tests.gpu.objects import Entry
from tuner.card.card_worker import CardWorker
from tuner.card.worker_process import worker_command
from tuner.compile.pool import CompilePool
from tuner.devices.card import CudaDevice
from tuner.devices.select import select_device
from tuner.space.space import SearchSpace
from tuner.trials.outcome import Kind, Status
from tuner.tune.driver import TuneOptions, TuneResult, tune

pytestmark = pytest.mark.gpu

PROBLEM = GemmProblem.parse("333,480,264,0")
CULPRITS = {"swizzle_size=4": "fault-stores_behind_y", "swizzle_size=8": "fault-waits"}
VERDICTS = {"swizzle_size=4": Status.ILLEGAL_ACCESS, "swizzle_size=8": Status.DEADLOCK}


class Pool:
    """Compiles, but hands out the object of a fault for a culprit."""

    def __init__(self, pool: CompilePool, objects: dict[str, Entry]) -> None:
        self._pool, self._objects = pool, objects

    def submit(
        self, config: KernelConfig, problem_class: ProblemClass, arch: Arch
    ) -> concurrent.futures.Future[Any]:
        future = self._pool.submit(config, problem_class, arch)
        fault = next((fault for knob, fault in CULPRITS.items() if knob in str(config)), None)
        if fault is None:
            return future
        result, candidate = future.result(), self._objects[fault].candidate
        swapped = {
            **{field: getattr(result.compiled, field) for field in FIELDS},
            "object_path": Path(candidate.object_path),
            "object_sha256": candidate.object_sha256,
            "prefix": candidate.prefix,
            "arguments": candidate.arguments,
        }
        other: concurrent.futures.Future[Any] = concurrent.futures.Future()
        other.set_result(
            SimpleNamespace(
                status=result.status,
                reason="",
                seconds=result.seconds,
                compiled=SimpleNamespace(**swapped),
            )
        )
        return other


FIELDS = ("key", "cubin_sha256", "source_hash", "dsl_version", "variant", "resources")


@pytest.fixture(scope="module")
def pool(objects: dict[str, Entry], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with CompilePool(os.cpu_count() or 1, 60.0, tmp_path_factory.mktemp("cache")) as compiling:
        yield Pool(compiling, objects)


def space() -> SearchSpace:
    """Two rasters times three swizzles; the default rule's candidate comes on top."""
    whole = SearchSpace.load(GemmProblem.operator, SM90A).restrict({"kernel": ("sm90a_ring",)})
    first = {name: knob.choices[:1] for name, knob in whole.knobs.items()}
    return whole.restrict({**first, "raster_order": ("m", "n"), "swizzle_size": ("1", "4", "8")})


def run(pool: Pool, out: Path) -> TuneResult:
    chosen = select_device("cuda:0")
    assert isinstance(chosen, CudaDevice)
    command = worker_command(0, "--launch-limit", str(LAUNCH_LIMIT_S))
    device = dataclasses.replace(chosen, worker=CardWorker(0, chosen.card.uuid, command=command))
    try:
        return tune(
            PROBLEM, device, TuneOptions(out=out, jobs=2, count_space=False), pool=pool, space=space()
        )
    finally:
        device.close()


def test_a_tune_among_culprits_finds_a_winner_and_skips_them_the_next_time(
    pool: Pool, tmp_path: Path
) -> None:
    first = run(pool, tmp_path)
    assert first.winner is not None and first.winner.kind is Kind.MEASURED
    assert "54 launches each bitwise equal" in first.winner.validation, "the winner is launched more often"
    for trial in first.trials:
        expected = next((status for knob, status in VERDICTS.items() if knob in trial.resolved), Status.OK)
        assert trial.status is expected, f"{trial.resolved}: {trial.reason}"
    culprits = [trial for trial in first.trials if not trial.ok]
    assert len(culprits) == 4
    second = run(pool, tmp_path)
    assert (second.fresh, second.known) == (0, len(first.trials))
    assert second.winner is not None and second.winner.us == pytest.approx(first.winner.us, rel=0.1)
