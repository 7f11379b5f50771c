"""Clocked runs of small pipelines against schedules worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_space.machine.clock.chip import TimedDeadlock
from kernel_space.machine.clock.estimate import simulate_launch
from kernel_space.machine.values.faults import ProtocolError, Unsupported
from tests.machine.clock.timed_cases import BOX_BYTES, clock, launch, ring, run_ring
from tests.machine.ptx import HEADER


def test_one_load_and_one_mma() -> None:
    """start 100, TMA 700 + 16384 B / 64 = 256, wake 30, MMA 64, commit 136, wake 30, drain 500."""
    ticks = clock(start=100, tma_latency=700, fill_narrow=64, wake=30, mma=64, overhead=136, drain=500)
    run = run_ring(1, 1, ticks)
    assert run.cycles[0] == 100 + 700 + 256 + 30 + 64 + 136 + 30 + 500


def test_account_of_one_load_and_one_mma() -> None:
    ticks = clock(start=100, tma_latency=700, fill_narrow=64, wake=30, mma=64, overhead=136, drain=500)
    run = run_ring(1, 1, ticks)
    assert run.account == {"prologue": 1086.0, "tensor: mma f16": 64.0, "epilogue exposed": 136.0 + 30 + 500}
    assert (run.filled, run.stored, run.rounds) == (BOX_BYTES, 0, 1)


def period(stages: int, *, mma: float, mmas: int, latency: float, rate: float) -> float:
    """Steady cycles per step, measured between two run lengths that are multiples of the stages."""
    ticks = clock(tma_latency=latency, fill_narrow=rate, wake=30, mma=mma, overhead=136)
    short, long = 4 * stages, 12 * stages
    taken = [run_ring(stages, steps, ticks, mmas=mmas).cycles[0] for steps in (short, long)]
    return (taken[1] - taken[0]) / (long - short)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(
    ("mma", "mmas", "latency", "rate"),
    [(64, 4, 700, 64), (128, 4, 700, 64), (16, 1, 300, 16), (16, 2, 2000, 128)],
)
def test_period_of_a_ring(stages: int, mma: float, mmas: int, latency: float, rate: float) -> None:
    """max(tensor core, round trip / stages, bytes / bandwidth)."""
    fill = BOX_BYTES / rate
    round_trip = latency + fill + 30 + mmas * mma + 136 + 30
    expected = max(mmas * mma, round_trip / stages, fill)
    assert period(stages, mma=mma, mmas=mmas, latency=latency, rate=rate) == pytest.approx(expected)


def test_scalar_instructions_limit_the_ring() -> None:
    """With everything else free, a step costs the MMA warp its surviving instructions: hand-counted from RING.

    MMA warp: shl, add, (wait), MMA 4, commit 1, then add setp selp xor selp add setp bra = 15; TMA warp: shl, add, add,
    xor, (wait), expect 1, TMA 3, then 8 = 16.
    """
    ticks = clock(issue=10, mma=1)
    taken = [run_ring(4, steps, ticks).cycles[0] for steps in (16, 48)]
    assert (taken[1] - taken[0]) / 32 == pytest.approx(160)


def test_kind_of_wait_is_named() -> None:
    """Two stages, latency bound: 8 steps, the pipe idles a full period less one MMA between steps but the first."""
    ticks = clock(tma_latency=1000, mma=50)
    run = run_ring(1, 8, ticks)
    assert run.account["wait: tma parameter 0"] == pytest.approx(7 * 1000)
    assert run.account["tensor: mma f16"] == 8 * 50


def test_cold_runs_meet_the_dram_floor_and_pay_its_latency() -> None:
    """64 distinct boxes at 8 B/clk: 2048 cycles each; the last box also has its way from L2."""
    warm = run_ring(4, 64, clock(tma_latency=500, tma_latency_cold=900, mma=1))
    cold = run_ring(4, 64, clock(tma_latency=500, tma_latency_cold=900, dram_rate=8.0, mma=1), cold=True)
    assert warm.cycles[0] < 64 * BOX_BYTES / 8
    assert cold.cycles[0] == pytest.approx(64 * BOX_BYTES / 8 + 500 + 1, abs=1)


def test_a_tensor_passes_dram_once() -> None:
    """4 boxes are the whole tensor: what follows is in L2."""
    ticks = clock(tma_latency=500, tma_latency_cold=900, dram_rate=8.0, mma=1)
    run = simulate_launch(
        launch(map_bytes=4 * BOX_BYTES), ring(2, 40, 1), ticks, sm_count=1, places=1, cold=True
    )  # fmt: skip
    by_hand = 4 * BOX_BYTES / 8 + 500 + 1 + (36 / 2) * 501  # 18 turns of two slots: latency and one MMA each
    assert run.cycles[0] == pytest.approx(by_hand, rel=0.01)


def test_every_set_of_constants_is_run_on_its_own() -> None:
    """A vector of sets gives what each set alone gives."""
    mixed = clock(tma_latency=700, fill_narrow=64, mma=64, overhead=136, wake=30, sets=3)
    mixed.tma_latency[:] = (700, 300, 1500)
    mixed.fill_narrow[:] = (64, 32, 128)
    together = run_ring(3, 30, mixed).cycles
    for number, (latency, rate) in enumerate(((700, 64), (300, 32), (1500, 128))):
        alone = clock(tma_latency=latency, fill_narrow=rate, mma=64, overhead=136, wake=30)
        assert together[number] == pytest.approx(run_ring(3, 30, alone).cycles[0])


def test_more_stages_are_never_slower() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        latency, rate, mma = random.uniform(100, 2000), random.uniform(8, 128), random.uniform(10, 200)
        ticks = clock(tma_latency=latency, fill_narrow=rate, mma=mma, overhead=136, wake=20)
        taken = [run_ring(stages, 24, ticks).cycles[0] for stages in (1, 2, 3, 4, 6, 8)]
        assert all(more <= less + 1e-6 for less, more in zip(taken, taken[1:], strict=False))


def test_a_missing_commit_is_a_deadlock() -> None:
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r8+64];"
    text = ring(2, 8).replace(commit, "")
    with pytest.raises(TimedDeadlock, match="CTA 0 warp 0, CTA 0 warp 1"):
        simulate_launch(launch(), text, clock(), sm_count=1, places=1)


def test_too_many_arrivals_are_an_error() -> None:
    body = """
    mov.u32 %r1, smem;
    mbarrier.init.shared.b64 [%r1], 1;
    mbarrier.arrive.shared.b64 %d1, [%r1], 2;
    """
    text = HEADER.format(params=".param .align 128 .b8 map[128]", body=body)
    with pytest.raises(ProtocolError, match="more arrivals"):
        simulate_launch(launch(block=32), text, clock(), sm_count=1, places=1)


def test_dynamic_tile_schedulers_are_refused() -> None:
    body = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];"
    text = HEADER.format(params=".param .align 128 .b8 map[128]", body=body)
    with pytest.raises(Unsupported, match="dynamic tile scheduler"):
        simulate_launch(launch(), text, clock(), sm_count=1, places=1)


def test_branches_on_global_data_are_refused() -> None:
    body = """
    ld.global.u32 %r1, [%d1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra OVER;
    bar.sync 0;
    OVER:
    """
    text = HEADER.format(params=".param .align 128 .b8 map[128]", body=body)
    with pytest.raises(Unsupported, match="global memory"):
        simulate_launch(launch(), text, clock(), sm_count=1, places=1)


def test_data_cost_cycles_but_are_not_computed() -> None:
    """A loop of 10 rounds with 3 data instructions and a shared load (latency 20), counted by hand."""
    body = """
    mov.b32 %r1, 0;
    mov.u32 %r9, smem;
    AGAIN:
    ld.shared.f32 %r2, [%r9];
    fma.rn.f32 %r3, %r2, %r2, %r2;
    fma.rn.f32 %r4, %r3, %r2, %r2;
    st.shared.f32 [%r9], %r4;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p1, %r1, 10;
    @%p1 bra AGAIN;
    """
    text = HEADER.format(params=".param .align 128 .b8 map[128]", body=body)
    run = simulate_launch(
        launch(block=32), text, clock(vector=2, issue=3, shared_load=20), sm_count=1, places=1
    )  # fmt: skip
    assert run.cycles[0] == 10 * (20 + 4 * 2 + 3 * 3) + 3  # and the return
    assert run.account == {"executing": run.cycles[0]}
