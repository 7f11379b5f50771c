"""The worker on a card with kernels that are right. A kernel's oracle is float64 on the card, whose own is the CPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.gpu.objects import RIGHT, Entry
from tuner.card.card_worker import CardWorker
from tuner.card.worker.bench import QUICK, FinalsOptions, sets_needed
from tuner.card.worker.launch import max_active_clusters, object_bytes
from tuner.devices.card import CudaDevice
from tuner.devices.probe import probe_cuda
from tuner.devices.select import select_device
from tuner.trials.outcome import Kind

pytestmark = pytest.mark.gpu


def test_the_card_is_what_torch_sees(worker: CardWorker) -> None:
    card = probe_cuda()[0]
    health = worker.health
    assert (health.name, health.uuid, health.sm_count) == (card.name, card.uuid, card.sm_count)
    assert health.compute_capability == card.compute_capability
    assert 0 < health.free_bytes <= health.total_bytes
    assert health.driver != "unknown" and health.policy != "unknown"


@pytest.mark.parametrize(
    "problem", [GemmProblem.parse("130,480,72,32"), GemmProblem.parse("1,96,8,0")], ids=str
)
def test_the_oracle_on_the_card_is_the_one_on_the_cpu(problem: GemmProblem) -> None:
    here = make_operands(problem, 5, device="cuda")
    there = Operands(problem=problem, **{name: tensor.cpu() for name, tensor in here.tensors().items()})
    torch.testing.assert_close(here.reference().cpu(), there.reference(), rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(here.tolerance(split_k=2).cpu(), there.tolerance(split_k=2), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_candidate_passes_with_ragged_problems_too(
    worker: CardWorker, objects: dict[str, Entry], name: str
) -> None:
    case, ragged = objects[name].case, objects[name].ragged
    assert len(ragged) >= 2
    reports = worker.check(objects[name].candidate, [case, *ragged], repeats=10, seed=3)
    assert [report.problem for report in reports] == [str(one.problem) for one in (case, *ragged)]
    assert all(report.launches == 14 and 0 < report.max_ratio <= 1 for report in reports)
    assert reports[0].elements == case.problem.m * case.problem.n


@pytest.mark.alone
def test_times_of_a_candidate_and_of_two_in_turns(worker: CardWorker, objects: dict[str, Entry]) -> None:
    """The bound is physics: no kernel beats the tensor cores' dense fp16 rate of the chip, 989 TFLOP/s on an H200."""
    entry = objects["large"]
    samples = worker.time(entry.candidate, entry.case, QUICK)
    timing = samples.timing()
    floor_us = entry.case.problem.flops / 989e12 * 1e6
    assert timing.kind is Kind.MEASURED and floor_us < timing.us < 50 * floor_us
    bytes_per_set = sum(
        tensor.nbytes for tensor in make_operands(entry.case.problem, 0, device="cuda").tensors().values()
    )
    assert samples.sets == sets_needed(bytes_per_set, worker.health.l2_bytes)
    both = worker.finals([(entry.candidate, entry.case)] * 2, FinalsOptions(rounds=8))
    first, second = (one.timing().us for one in both)
    assert first == pytest.approx(second, rel=0.05), "the same kernel twice"


def test_a_device_of_the_card_judges(objects: dict[str, Entry]) -> None:
    device = select_device("cuda:0")
    assert isinstance(device, CudaDevice) and device.kind is Kind.MEASURED
    try:
        assert probe_cuda()[0].name in device.judge and "driver" in device.judge
    finally:
        device.close()


def test_an_object_is_what_was_compiled(objects: dict[str, Entry]) -> None:
    for entry in objects.values():
        assert object_bytes(entry.candidate)
        assert dataclasses.replace(entry.candidate).record() == entry.candidate.record()


def test_clusters_that_the_card_holds(objects: dict[str, Entry]) -> None:
    """Of CTAs that have an SM each (more than half of its shared memory) no more than there are SMs."""
    sms = probe_cuda()[0].sm_count
    problem = objects["plain"].case.problem
    assert max_active_clusters(objects["plain"].candidate, problem, 0, sms) == sms
    octets = dataclasses.replace(objects["fault-octets"].candidate, cluster_size=8)
    assert 0 < max_active_clusters(octets, problem, 0, sms) <= sms // 8
    meant = objects["clusters"].candidate
    assert meant.cluster_size == 2
    assert max_active_clusters(meant, objects["clusters"].case.problem, 0, sms) == sms // 2, (
        "TPCs are pairs of SMs"
    )
