"""The class of a real card, and the numbers that its driver tells."""

from __future__ import annotations

import pytest
import torch

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.classes import DEVICE_CLASSES, class_of
from tuner.devices.probe import card_at, probe_cuda
from tuner.devices.select import select_device
from tuner.runtime import explain
from tuner.runtime.state import class_of_card

pytestmark = pytest.mark.gpu

BYTES = 1 << 30
COPIES = 20


def test_the_driver_and_torch_tell_of_one_card() -> None:
    for card in probe_cuda():
        properties = torch.cuda.get_device_properties(card.index)
        assert (card.name, card.sm_count) == (properties.name, properties.multi_processor_count)
        assert card.l2_bytes == properties.L2_cache_size
        clock, width = (getattr(properties, name, None) for name in ("memory_clock_rate", "memory_bus_width"))
        if clock and width:  # in kHz and bits; CUDA 13 has no clock there
            assert card.dram_bytes_s == pytest.approx(2 * clock * 1e3 * width / 8)


def test_the_card_is_of_the_class_of_its_product() -> None:
    """A whole card of a shipped product is that class; the device, the run time and ``explain`` agree on it."""
    card = card_at(0)
    found = class_of(card)
    assert found is not None and found == class_of_card(0)
    shipped = {product: one for one in DEVICE_CLASSES.values() for product in one.products}
    if card.name in shipped and card.sm_count == shipped[card.name].sm_count:
        assert found is shipped[card.name]
        assert card.l2_bytes == found.l2_bytes
    else:
        assert found.name not in DEVICE_CLASSES
    device = select_device("cuda:0")
    assert (device.name, device.sm_count) == (found.name, card.sm_count)
    if found.name == "h200":  # whose table is part of the repository
        assert explain(GemmProblem.parse("4352,3840,3072,128"), "cuda:0").borrowed == ""


@pytest.mark.alone
def test_a_copy_is_as_fast_as_the_memory_that_the_driver_tells_of() -> None:
    """Every byte is read and written. Never faster than the memory, and of a large copy at least half as fast."""
    bandwidth = card_at(0).dram_bytes_s
    if bandwidth is None:
        pytest.skip("the driver does not tell the memory's clock")
    source = torch.empty(BYTES, dtype=torch.uint8, device="cuda:0").fill_(1)
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    target.copy_(source)
    start.record()
    for _ in range(COPIES):
        target.copy_(source)
    end.record()
    end.synchronize()
    reached = 2 * BYTES * COPIES / (start.elapsed_time(end) * 1e-3)
    assert 0.5 * bandwidth < reached < 1.02 * bandwidth
