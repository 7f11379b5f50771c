"""The timing protocol on a card, against oracles that are not its own clock: cycles over the SM clock that NVML reads,
bytes over bandwidth, and a candidate against itself."""

from __future__ import annotations

import statistics

import pytest
import torch

from tuner.card.samples.samples import Samples
from tuner.card.samples.statistics import compare
from tuner.card.worker.bench import FULL, QUICK, FinalsOptions, interleave, sets_needed, time_launches
from tuner.card.worker.telemetry import Telemetry
from tuner.finals.decision import RESOLUTION, decide

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card"),
]
CYCLES = 100_000


@pytest.fixture(scope="module")
def telemetry() -> Telemetry:
    return Telemetry(str(torch.cuda.get_device_properties(0).uuid))


def sleeper(cycles: int) -> object:
    return lambda index: torch.cuda._sleep(cycles)


def test_a_spinning_kernel_takes_its_cycles(telemetry: Telemetry) -> None:
    """``_sleep`` spins until ``clock64`` has advanced; NVML's SM clock turns cycles into time. Launch: 1 to 4 us."""
    assert telemetry.missing == "" and telemetry.driver
    samples = time_launches(sleeper(CYCLES), 2, FULL, telemetry)
    clock = statistics.median(state.sm_mhz for state in samples.states)
    assert CYCLES / clock < samples.interval.median < CYCLES / clock * 1.03 + 5
    assert samples.settled is True and len(samples.us) >= FULL.least_samples
    state = samples.states[-1]
    assert 1000 < state.sm_mhz <= 2000 and 20 < state.celsius < 95 and 50 < state.watts < 750
    assert samples.interval.high / samples.interval.low < 1.01


def test_one_percent_is_seen_and_nothing_is_not(telemetry: Telemetry) -> None:
    launches = [sleeper(CYCLES), sleeper(CYCLES * 101 // 100), sleeper(CYCLES)]
    first, slower, same = interleave(launches, 2, FinalsOptions(rounds=30, settle_ms=500.0), telemetry)
    found = compare(first.us, slower.us)
    assert 1.005 < found.ratio < 1.015 and found.p_value < 1e-4
    assert abs(compare(first.us, same.us).ratio - 1) < RESOLUTION
    times = {"first": first.us, "slower": slower.us, "same": same.us}
    sizes = {name: (1, name) for name in times}
    assert decide(times, "same", sizes).winner == "same"


def copier(count: int, elements: int) -> tuple[object, int]:
    sets = [(torch.ones(elements, device="cuda"), torch.empty(elements, device="cuda")) for _ in range(count)]
    return (lambda index: sets[index][1].copy_(sets[index][0])), 8 * elements


def test_rotated_operands_come_from_memory_and_resident_ones_from_cache(telemetry: Telemetry) -> None:
    """16 MB read and written: from DRAM at most at the 4.8 TB/s of the H200's data sheet, from L2 faster."""
    elements = 2 * 1024 * 1024
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    count = sets_needed(8 * elements, l2)
    launch, moved = copier(count, elements)
    rotated = time_launches(launch, count, QUICK, telemetry)
    launch, _ = copier(1, elements)
    resident = time_launches(launch, 1, QUICK, telemetry)
    assert moved / rotated.interval.median / 1e6 < 4.8
    assert resident.interval.median < 0.8 * rotated.interval.median


def test_cheap_timings_are_cheap_and_agree_with_full_ones(telemetry: Telemetry) -> None:
    a = torch.randn(2048, 2048, device="cuda", dtype=torch.bfloat16)

    def launch(index: int) -> None:
        torch.mm(a, a)

    quick: Samples = time_launches(launch, 2, QUICK, telemetry)
    full = time_launches(launch, 2, FULL, telemetry)
    assert quick.gpu_ms < 30
    assert quick.interval.median == pytest.approx(full.interval.median, rel=0.15)
