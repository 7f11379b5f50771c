"""The timing protocol on a card of arithmetic: what is replayed in which order, when it is warm, what counts."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from tests.card.fake_card import FakeGpu, FakeTelemetry, nvml_library
from tuner.card.samples.samples import Samples, State
from tuner.card.worker.bench import (
    FULL,
    QUICK,
    Fidelity,
    FinalsOptions,
    interleave,
    sets_needed,
    time_launches,
)
from tuner.card.worker.telemetry import Telemetry, reason_names
from tuner.trials.outcome import Kind

STEADY = FakeTelemetry(lambda: State(sm_mhz=1700, memory_mhz=3201, celsius=60, watts=600.0))
MB = 10**6


def steady(cycles: float) -> tuple[FakeGpu, object]:
    gpu = FakeGpu()
    return gpu, gpu.candidate("a", lambda index: cycles)


# -- one candidate --


def test_a_known_cost_comes_out() -> None:
    """170,000 cycles at 1000 MHz are 170 us."""
    gpu, launch = steady(170_000)
    samples = time_launches(launch, 5, QUICK, STEADY, gpu=gpu)
    assert samples.us == pytest.approx([170.0] * len(samples.us))
    timing = samples.timing()
    assert timing.kind is Kind.MEASURED and timing.us == pytest.approx(170.0)
    assert timing.evidence["sm_mhz"] == 1700 and timing.evidence["samples"] == len(samples.us) >= 7
    assert timing.evidence["card"] == STEADY.uuid


def test_every_set_is_walked_and_weighs_the_same() -> None:
    """Set i costs i + 1 thousand cycles: the time of a launch is their mean, 3 us for five sets."""
    gpu = FakeGpu()
    launch = gpu.candidate("a", lambda index: 1000.0 * (index + 1))
    samples = time_launches(launch, 5, QUICK, STEADY, gpu=gpu)
    assert samples.us == pytest.approx([3.0] * len(samples.us))
    assert gpu.orders[-1] == [0, 1, 2, 3, 4] * (len(gpu.orders[-1]) // 5)
    assert samples.launches * 3.0 >= QUICK.replay_ms * 1000 and samples.launches % 5 == 0


def test_a_graph_is_as_long_as_it_must_be_and_no_longer() -> None:
    gpu, launch = steady(900_000)  # 0.9 ms each
    assert time_launches(launch, 3, QUICK, STEADY, gpu=gpu).launches == 3
    gpu, launch = steady(10)  # 10 ns each: 80,000 launches would be needed
    assert time_launches(launch, 3, QUICK, STEADY, gpu=gpu).launches == 510


def test_cheap_timing_is_cheap_and_full_timing_is_long() -> None:
    gpu, launch = steady(20_000)
    quick = time_launches(launch, 4, QUICK, STEADY, gpu=gpu)
    assert quick.gpu_ms < 20 and gpu.now_ms < 25
    full = time_launches(launch, 4, FULL, STEADY, gpu=gpu)
    assert full.gpu_ms >= FULL.gpu_ms + FULL.warm_up_ms and len(full.us) >= FULL.least_samples


def test_nothing_is_on_its_way_when_the_time_is_told() -> None:
    """Whoever checks the next candidate writes the outputs that the last replay may still write."""
    gpu, launch = steady(20_000)
    time_launches(launch, 4, QUICK, STEADY, gpu=gpu)
    assert gpu.in_flight == 0
    with pytest.raises(ZeroDivisionError):
        time_launches(launch, 4, QUICK, FakeTelemetry(lambda: State(sm_mhz=1 // 0)), gpu=gpu)
    assert gpu.in_flight == 0


def test_warm_up_lasts_until_the_clock_stands() -> None:
    """The clock falls from 1980 to 1700 MHz within 400 ms, as a card under load does, and then stays."""
    gpu = FakeGpu(mhz=lambda ms: max(1700.0, 1980.0 - 0.7 * ms))
    telemetry = FakeTelemetry(lambda: State(sm_mhz=int(gpu.mhz(gpu.now_ms))))
    launch = gpu.candidate("a", lambda index: 170_000.0)
    samples = time_launches(launch, 4, FULL, telemetry, gpu=gpu)
    assert samples.settled is True and 400 < samples.warm_up_ms < 700
    assert samples.us == pytest.approx([100.0] * len(samples.us))


def test_warm_up_of_a_card_that_never_settles_is_bounded_and_said() -> None:
    gpu = FakeGpu(mhz=lambda ms: 1700.0 + 200.0 * math.sin(ms / 20))
    telemetry = FakeTelemetry(lambda: State(sm_mhz=int(gpu.mhz(gpu.now_ms))))
    samples = time_launches(gpu.candidate("a", lambda index: 170_000.0), 4, FULL, telemetry, gpu=gpu)
    assert samples.settled is False and samples.warm_up_ms < FULL.settle_ms + 60
    assert samples.timing().evidence["settled"] is False


def test_sets_exceed_three_times_the_l2() -> None:
    l2 = 60 * MB
    assert sets_needed(45 * MB, l2) == 5  # 4 x 45 = 180 = 3 x 60: not more than three times
    assert sets_needed(7 * MB, l2) * 7 * MB > 3 * l2
    assert (sets_needed(10**9, l2), sets_needed(100, l2)) == (2, 64)


# -- finalists --


def test_rounds_hold_each_finalist_once_in_changing_order() -> None:
    gpu = FakeGpu()
    launches = [gpu.candidate(name, lambda index: 100_000.0) for name in "abc"]
    options = FinalsOptions(rounds=12, seed=3, warm_up_ms=5.0)
    found = interleave(launches, 4, options, STEADY, gpu=gpu)
    assert [len(samples.us) for samples in found] == [12, 12, 12]
    warm = found[0].warm_up_ms
    taken = gpu.replayed[-37:-1]  # one more is always on its way
    rounds = [tuple(taken[start : start + 3]) for start in range(0, 36, 3)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds) and len(set(rounds)) > 3
    assert warm >= 5.0 and gpu.in_flight == 0


def test_a_drifting_clock_meets_all_of_a_round() -> None:
    """b costs 1 % more than a. The clock wanders by 15 %, but within a round the ratio stays."""
    gpu = FakeGpu(mhz=lambda ms: 1700.0 + 130.0 * math.sin(ms / 100))
    launches = [gpu.candidate("a", lambda index: 100_000.0), gpu.candidate("b", lambda index: 101_000.0)]
    a, b = interleave(launches, 4, FinalsOptions(rounds=200, warm_up_ms=1.0), STEADY, gpu=gpu)
    ratios = [second / first for first, second in zip(a.us, b.us, strict=True)]
    assert max(a.us) / min(a.us) > 1.1
    assert all(abs(ratio - 1.01) < 0.006 for ratio in ratios)


def test_same_seed_same_order() -> None:
    def orders(seed: int) -> list[str]:
        gpu = FakeGpu()
        launches = [gpu.candidate(name, lambda index: 100_000.0) for name in "abcd"]
        interleave(launches, 4, FinalsOptions(rounds=6, seed=seed), STEADY, gpu=gpu)
        return gpu.replayed

    assert orders(1) == orders(1) != orders(2)


# -- which samples count --


def samples_of(us: list[float], states: list[State]) -> Samples:
    return Samples(
        protocol="p",
        us=tuple(us),
        states=tuple(states),
        launches=10,
        sets=5,
        warm_up_ms=1.0,
        settled=None,
        gpu_ms=3.0,
    )


def test_throttled_samples_are_marked_and_left_out() -> None:
    good, hot = (
        State(sm_mhz=1700, reasons=("sw_power_cap",)),
        State(sm_mhz=900, reasons=("hw_thermal_slowdown",)),
    )
    samples = samples_of([100.0] * 6 + [190.0] * 3, [good] * 6 + [hot] * 3)
    assert samples.used == (0, 1, 2, 3, 4, 5)
    evidence = samples.timing().evidence
    assert (evidence["throttled_samples"], evidence["throttled_used"], evidence["samples_used"]) == (
        3,
        False,
        6,
    )
    assert evidence["clock_reasons"] == "hw_thermal_slowdown 3 of 9, sw_power_cap 6 of 9"
    assert evidence["sm_mhz"] == 1700 and samples.timing().us == 100.0


def test_with_too_few_others_throttled_samples_count_and_that_is_said() -> None:
    hot = State(reasons=("sw_thermal_slowdown",))
    samples = samples_of([100.0] * 4 + [110.0] * 4, [State()] * 4 + [hot] * 4)
    assert len(samples.used) == 8 and samples.timing().evidence["throttled_used"] is True


def test_a_full_power_card_is_no_throttled_card() -> None:
    state = State(reasons=("gpu_idle", "sw_power_cap"))
    assert not state.throttled and State(reasons=("sw_power_cap", "hw_slowdown")).throttled


def test_samples_survive_json() -> None:
    samples = samples_of([1.0, 2.0], [State(sm_mhz=1, reasons=("a", "b")), State(watts=1.5)])
    assert Samples.from_record(json.loads(json.dumps(dataclasses.asdict(samples)))) == samples
    for record in ({}, {**dataclasses.asdict(samples), "us": []}, {**dataclasses.asdict(samples), "more": 1}):
        with pytest.raises(Exception, match="not the record of samples"):
            Samples.from_record(record)


def test_fidelities_travel_as_dicts() -> None:
    assert Fidelity(**json.loads(json.dumps(dataclasses.asdict(FULL)))) == FULL
    options = FinalsOptions(rounds=4)
    assert FinalsOptions(**json.loads(json.dumps(dataclasses.asdict(options)))) == options


# -- telemetry --


def test_telemetry_reads_the_card() -> None:
    telemetry = Telemetry("1234", open_library=lambda name: nvml_library())
    assert (telemetry.missing, telemetry.driver) == ("", "580.159.04")
    assert telemetry.read() == State(
        sm_mhz=1755, memory_mhz=3201, celsius=61, watts=690.123, reasons=("sw_power_cap",)
    )


def test_power_of_this_moment_is_preferred() -> None:
    """``nvmlDeviceGetPowerUsage`` is a mean over a second."""

    def fields(code: int, kind: int = 1) -> object:
        def write(handle: object, count: int, out: object) -> int:
            assert (count, out._obj.field_id) == (1, 186)
            out._obj.kind, out._obj.code, out._obj.value = kind, code, 698_000
            return 0

        return write

    for function, watts in ((fields(0), 698.0), (fields(3), 690.123), (fields(0, kind=2), 690.123)):
        library = nvml_library(nvmlDeviceGetFieldValues=function)
        assert Telemetry("1234", open_library=lambda name, library=library: library).read().watts == watts


def test_a_number_that_a_card_does_not_tell_is_none() -> None:
    telemetry = Telemetry(
        "GPU-1234", open_library=lambda name: nvml_library(nvmlDeviceGetPowerUsage=lambda *arguments: 3)
    )
    assert telemetry.missing == "" and telemetry.read().watts is None and telemetry.read().sm_mhz == 1755


def test_older_drivers_name_the_reasons_otherwise() -> None:
    def old(handle: object, out: object) -> int:
        out._obj.value = 0x60
        return 0

    library = nvml_library(
        nvmlDeviceGetCurrentClocksEventReasons=None, nvmlDeviceGetCurrentClocksThrottleReasons=old
    )
    state = Telemetry("1234", open_library=lambda name: library).read()
    assert state.reasons == ("hw_thermal_slowdown", "sw_thermal_slowdown") and state.throttled


def refuse(name: str) -> object:
    raise OSError("no such file")


@pytest.mark.parametrize(
    ("library", "said"),
    [
        (refuse, "libnvidia-ml.so.1 cannot be loaded"),
        (lambda name: nvml_library(nvmlInit_v2=lambda: 9), "nvmlInit_v2 returned NVML error 9"),
        (
            lambda name: nvml_library(nvmlDeviceGetCurrentClocksEventReasons=None),
            "NVML has no nvmlDeviceGetCurrentClocksEventReasons",
        ),
    ],
)
def test_missing_telemetry_is_said_in_the_evidence(library: object, said: str) -> None:
    telemetry = Telemetry("1234", open_library=library)
    assert said in telemetry.missing
    gpu, launch = steady(20_000)
    evidence = time_launches(launch, 4, QUICK, telemetry, gpu=gpu).timing().evidence
    assert said in evidence["telemetry"] and evidence["sm_mhz"] is None


def test_a_card_that_nvml_does_not_know_is_missing() -> None:
    assert "NVML error 6" in Telemetry("other", open_library=lambda name: nvml_library()).missing


def test_a_watch_gives_each_span_its_own_state() -> None:
    values = iter(range(100))
    telemetry = Telemetry("1234", open_library=lambda name: nvml_library())
    telemetry.read = lambda: State(sm_mhz=next(values), reasons=(f"r{next(values)}",))
    with telemetry.watching(period_s=60.0) as watch:
        watch._times[0] = 10.0
        for when in (20.0, 30.0, 40.0):
            watch.look()
            watch._times[-1] = when
        assert watch.between(12.0, 18.0).sm_mhz == 0, "nobody looked: the state before"
        assert watch.between(1.0, 2.0).sm_mhz == 0, "before the first look"
        assert watch.between(15.0, 35.0) == State(sm_mhz=4, reasons=("r3", "r5")), "every reason seen within"


def test_reason_names() -> None:
    assert reason_names(0) == () and reason_names(0x204) == ("reason_0x200", "sw_power_cap")
