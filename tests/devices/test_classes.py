"""Device classes: which class a card is of, by what its driver tells; numbers as data sheets have them."""

from __future__ import annotations

import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_space.core.arch import SM90A, SM100A
from kernel_space.core.errors import InputError
from tuner.devices import probe
from tuner.devices.card import CudaDevice
from tuner.devices.classes import DEVICE_CLASSES, READ, Card, class_of, is_class_name, siblings
from tuner.devices.select import AbsentDevice, select_device
from tuner.trials.outcome import Kind

HOPPER, BLACKWELL, ULTRA = (9, 0), (10, 0), (10, 3)


def card(name: str, capability: tuple[int, int] = HOPPER, sms: int = 132, **told: Any) -> Card:
    return Card(index=0, name=name, compute_capability=capability, sm_count=sms, **told)


def of_memory(khz: int, bits: int) -> float:
    """Bytes per second of DDR memory."""
    return 2 * khz * 1000 * bits / 8


# Name, SMs, kHz and bits of the memory as device queries show them; TB/s as NVIDIA prints them.
WHOLE = [
    ("NVIDIA H200", HOPPER, 132, of_memory(3_201_000, 6144), "h200", 4.8, 60),
    ("NVIDIA H100 80GB HBM3", HOPPER, 132, of_memory(2_619_000, 5120), "h100", 3.35, 50),
    ("NVIDIA H100 PCIe", HOPPER, 114, of_memory(1_593_000, 5120), "h100-pcie", 2.0, 50),
    ("NVIDIA H100 NVL", HOPPER, 132, of_memory(2_619_000, 6144), "h100-nvl", 3.9, 60),
    ("NVIDIA B200", BLACKWELL, 148, of_memory(3_996_000, 7680), "b200", 7.7, 126.5),
    ("NVIDIA B200", BLACKWELL, 148, of_memory(3_996_000, 8192), "b200", 7.7, 126.5),  # an older driver
    ("NVIDIA B300 SXM6 AC", ULTRA, 148, of_memory(3_996_000, 7680), "b300", 7.7, 126.5),
]


@pytest.mark.parametrize(("product", "capability", "sms", "memory", "name", "tb_s", "l2_mib"), WHOLE)
@pytest.mark.parametrize("told", [True, False])
def test_products_are_their_classes(
    product: str,
    capability: tuple[int, int],
    sms: int,
    memory: float,
    name: str,
    tb_s: float,
    l2_mib: float,
    told: bool,
) -> None:
    """Also with a driver that does not tell of the memory."""
    found = class_of(card(product, capability, sms, dram_bytes_s=memory if told else None))
    assert found is DEVICE_CLASSES[name]
    assert (found.sm_count, found.l2_bytes) == (sms, l2_mib * 2**20)
    assert found.dram_bytes_s == pytest.approx(tb_s * 1e12)
    assert found.arch.compute_capability == capability


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (card("NVIDIA GH200 480GB"), "nvidia-gh200-480gb"),
        (card("NVIDIA H20", sms=78), "nvidia-h20"),
        (card("NVIDIA H800"), "nvidia-h800"),
        (card("NVIDIA H200 NVL"), "nvidia-h200-nvl"),
        (card("NVIDIA GB200", BLACKWELL, 152), "nvidia-gb200"),
        # slices: of the memory's width too, or of the SMs alone
        (card("NVIDIA H100 80GB HBM3 MIG 1g.10gb", sms=16), "nvidia-h100-80gb-hbm3-mig-1g-10gb"),
        (card("NVIDIA H200", sms=60), "nvidia-h200-60sm"),
        (card("NVIDIA H200", sms=60, dram_bytes_s=4.9e12), "nvidia-h200-60sm-4900gbs"),
        (card("NVIDIA H200", dram_bytes_s=2.4e12), "nvidia-h200-132sm-2400gbs"),
        # names that are not names of files, or those of others
        (card("H200"), "h200-card"),
        (card("../../etc/NVIDIA\x00 H\u00e9"), "etc-nvidia-h"),
        (card("\u30c6\u30b9\u30c8", sms=8), "card-8sm"),
        (card("x" * 300), "x" * 63),
    ],
)
def test_every_other_card_has_a_class_of_its_own(of: Card, name: str) -> None:
    found = class_of(of)
    assert found is not None and found.name == name and is_class_name(name)
    assert found.name not in DEVICE_CLASSES and found.kind == READ
    assert (found.sm_count, found.dram_bytes_s, found.l2_bytes) == (of.sm_count, of.dram_bytes_s, of.l2_bytes)


def test_a_name_with_another_capability_is_no_class() -> None:
    assert class_of(card("NVIDIA H200", (8, 0))) is None
    found = class_of(card("NVIDIA H200", BLACKWELL))
    assert found is not None and found.name == "nvidia-h200-132sm" and found.arch == SM100A


@pytest.mark.parametrize(
    "name", ["", ".", "..", "h200/x", "H200", "-h200", "h200-", "h 200", "h200\n", "x" * 65]
)
def test_names_that_are_no_folder_are_no_class(name: str) -> None:
    assert not is_class_name(name)


def test_siblings_by_sms_and_bandwidth() -> None:
    """Doublings from an H100: NVL log2(3.9/3.35) = 0.22, H200 0.52, PCIe log2(3.35/2) + log2(132/114) = 0.96."""
    assert [one.name for one in siblings(DEVICE_CLASSES["h100"])] == ["h100-nvl", "h200", "h100-pcie"]
    assert siblings(DEVICE_CLASSES["b300"]) == [], "objects of sm_100a are not those of sm_103a"
    slow = class_of(card("NVIDIA H20", sms=110, dram_bytes_s=2.1e12))
    unknown = class_of(card("NVIDIA X", sms=114))
    assert slow is not None and unknown is not None
    assert siblings(slow)[0].name == siblings(unknown)[0].name == "h100-pcie"


# -- what is selected --


@pytest.mark.parametrize("name", ["h100", "h100-pcie", "h100-nvl"])
def test_an_absent_class_is_as_the_h200(name: str) -> None:
    device, h200 = select_device(name, probe=list), select_device("h200", probe=list)
    assert isinstance(device, AbsentDevice) and isinstance(h200, AbsentDevice)
    assert (device.name, device.arch, device.kind) == (name, SM90A, Kind.MEASURED)
    assert device.sm_count == DEVICE_CLASSES[name].sm_count
    assert device.refusal == h200.refusal.replace("h200", name)


@pytest.mark.parametrize(
    ("of", "name"),
    [(card("NVIDIA H100 80GB HBM3"), "h100"), (card("NVIDIA GH200 480GB"), "nvidia-gh200-480gb")],
)
@pytest.mark.parametrize("asked", ["auto", "cuda:0"])
def test_a_card_measures_under_its_own_name(of: Card, name: str, asked: str) -> None:
    device = select_device(asked, probe=lambda: [of])
    assert isinstance(device, CudaDevice)
    assert (device.name, device.device_class.name, device.sm_count) == (name, name, 132)
    assert ("results go to nvidia-gh200-480gb" in device.note) == (name != "h100")


def test_a_name_nobody_recorded_is_one_line() -> None:
    with pytest.raises(
        InputError, match="--device must be auto, b200, b300, h200, h100, .* got 'nvidia-gh200'"
    ):
        select_device("nvidia-gh200", probe=list)


def test_classes_are_light_to_import() -> None:
    code = (
        "import sys, tuner.devices.classes, tuner.devices.probe; "
        "print([name for name in sys.modules if name.split('.')[0] in ('torch', 'cutlass', 'optuna', 'numpy')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- what the driver is asked --


class Driver:
    """libcuda by hand: attributes by number, as cuda.h has them."""

    def __init__(self, attributes: dict[int, int]) -> None:
        self.attributes = attributes
        self.asked_of: set[int] = set()

    def cuInit(self, flags: int) -> int:
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = 40 + index
        return 0

    def cuDeviceGetAttribute(self, value: Any, number: int, device: Any) -> int:
        self.asked_of.add(device.value)
        if number not in self.attributes:
            return 1  # CUDA_ERROR_INVALID_VALUE
        value._obj.value = self.attributes[number]
        return 0


def read(monkeypatch: pytest.MonkeyPatch, attributes: dict[int, int]) -> tuple[Card, Driver]:
    import torch

    properties = SimpleNamespace(
        name="NVIDIA H100 NVL", major=9, minor=0, multi_processor_count=132, uuid="GPU-1", L2_cache_size=1
    )
    driver = Driver(attributes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(probe, "_driver", lambda: driver)
    return probe.card_at(1), driver


def test_memory_and_l2_are_read_from_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """36, 37, 38: CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, _GLOBAL_MEMORY_BUS_WIDTH, _L2_CACHE_SIZE. An H100 NVL."""
    found, driver = read(monkeypatch, {36: 2_619_000, 37: 6144, 38: 62914560})
    assert found.dram_bytes_s == pytest.approx(4.0228e12, rel=1e-4)
    assert (found.l2_bytes, found.index, found.sm_count) == (60 * 2**20, 1, 132)
    assert driver.asked_of == {41}
    assert re.fullmatch(r"cuda:1 \(NVIDIA H100 NVL, compute capability 9\.0, 132 SMs\)", str(found))


@pytest.mark.parametrize("attributes", [{}, {36: 0, 37: 6144}, {37: 6144}])
def test_what_the_driver_does_not_tell_is_none(
    monkeypatch: pytest.MonkeyPatch, attributes: dict[int, int]
) -> None:
    found, _ = read(monkeypatch, attributes)
    assert (found.dram_bytes_s, found.l2_bytes) == (None, None)
    assert class_of(found) is DEVICE_CLASSES["h100-nvl"]
