"""Devices: which one is chosen for what is plugged in."""

from __future__ import annotations

import pytest

from kernel_space.core.arch import SM90A, SM100A, SM103A
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.fakes import FakeDevice
from tuner.devices import select as select_module
from tuner.devices.card import CudaDevice
from tuner.devices.classes import Card
from tuner.devices.probe import probe_cuda
from tuner.devices.select import AbsentDevice, register, select_device
from tuner.trials.outcome import Kind, Status

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
B200 = Card(index=0, name="NVIDIA B200", compute_capability=(10, 0), sm_count=148)
B300 = Card(index=1, name="NVIDIA B300 SXM6 AC", compute_capability=(10, 3), sm_count=148)
H200 = Card(index=0, name="NVIDIA H200", compute_capability=(9, 0), sm_count=132)
A100 = Card(index=0, name="NVIDIA A100", compute_capability=(8, 0), sm_count=108)


@pytest.fixture
def legal() -> Legal:
    found = legalize(KernelConfigSm100a(), PROBLEM, SM100A)
    assert isinstance(found, Legal)
    return found


def no_cards() -> list[Card]:
    return []


# -- choosing --


def test_auto_without_a_card_is_the_simulated_b200() -> None:
    device = select_device("auto", probe=no_cards)
    assert (device.name, device.arch, device.sm_count, device.kind) == ("b200", SM100A, 148, Kind.SIMULATED)
    assert device.note == ""


@pytest.mark.parametrize(("card", "name", "arch"), [(B200, "b200", SM100A), (B300, "b300", SM103A)])
def test_the_card_picks_class_and_kernel(card: Card, name: str, arch: object) -> None:
    device = select_device("auto", probe=lambda: [card])
    assert (device.name, device.arch, device.sm_count) == (name, arch, card.sm_count)


def test_hopper_is_picked_once_it_has_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select_module, "has_space", lambda operator, arch: True)
    device = select_device("auto", probe=lambda: [H200])
    assert (device.name, device.arch) == ("h200", SM90A)


def test_a_card_is_judged_by_itself_and_nothing_is_started_until_it_is_asked() -> None:
    for name in ("auto", "cuda:0"):
        device = select_device(name, probe=lambda: [B200])
        assert isinstance(device, CudaDevice)
        assert (device.kind, device.abilities.works_alone, device.worker.started) == (Kind.MEASURED, True, 0)
        assert device.note.startswith("cuda:0 (NVIDIA B200, compute capability 10.0, 148 SMs)")
    assert select_device("b200", probe=lambda: [B200]).kind is Kind.SIMULATED, "a class asks for the machine"


def test_registered_device_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select_module, "_measuring", {})
    register("b300", lambda device_class, card: FakeDevice(name=device_class.name, sm_count=card.sm_count))
    chosen = select_device("cuda:1", probe=lambda: [B200, B300])
    assert isinstance(chosen, FakeDevice) and (chosen.name, chosen.sm_count) == ("b300", 148)
    assert select_device("b300", probe=lambda: [B300]).kind is Kind.SIMULATED, "a class asks for the machine"
    assert isinstance(select_device("auto", probe=lambda: [B300, B200]), FakeDevice)


def test_auto_passes_over_cards_without_a_kernel() -> None:
    mixed = select_device("auto", probe=lambda: [A100, B300])
    assert mixed.name == "b300"
    device = select_device("auto", probe=lambda: [A100])
    assert device.name == "b200" and device.note.startswith("no kernel here runs on cuda:0 (NVIDIA A100")


@pytest.mark.parametrize(
    ("name", "cards", "message"),
    [
        ("cuda:0", [], "cuda:0 is not there (visible cards: none); use --device b200 for simulated times"),
        ("cuda:2", [B200, B300], "cuda:2 is not there (visible cards: cuda:0 (NVIDIA B200, compute"),
        (
            "cuda:0",
            [A100],
            "a card needs compute capability 10.0 (b200) or 10.3 (b300), got cuda:0 (NVIDIA A100",
        ),
        ("b100", [], "--device must be auto, b200, b300"),
        ("cuda", [], "--device must be auto, b200, b300"),
        ("cuda:-1", [], "--device must be auto, b200, b300"),
    ],
)
def test_bad_device_is_one_clear_line(
    name: str, cards: list[Card], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select_module, "has_space", lambda operator, arch: arch.tmem_columns > 0)
    with pytest.raises(InputError) as error:
        select_device(name, probe=lambda: cards)
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_probe_agrees_with_torch() -> None:
    import torch

    cards = probe_cuda()
    assert len(cards) == (torch.cuda.device_count() if torch.cuda.is_available() else 0)


# -- a class without card and simulator --


def test_class_without_card_and_simulator_times_nothing(
    legal: Legal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select_module, "has_space", lambda operator, arch: True)
    device = select_device("h200", probe=no_cards)
    assert isinstance(device, AbsentDevice) and device.arch == SM90A
    outcome = device.time(None, legal, PROBLEM).result()
    assert outcome.status is Status.UNSUPPORTED and outcome.timing is None and "cuda:N" in outcome.reason
    assert device.check(None, legal, PROBLEM).result().reason.startswith("not validated: ")
