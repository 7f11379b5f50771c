"""Each part of the clock alone: a few instructions whose time is counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

from kernel_space.machine.clock.estimate import TimedRun, simulate_launch
from kernel_space.machine.values.faults import Unsupported
from tests.machine.clock.timed_cases import BOX_BYTES, ONE_MMA, clock, launch, run_ring
from tests.machine.ptx import HEADER

MAP = ".param .align 128 .b8 map[128]"
WORK = "fma.rn.f32 %r40, %r41, %r42, %r43;\n"
LOAD = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{more} "
    "[%r1+1024], [map, {{%r4, %r4}}], [%r1]{mask};\n"
)
STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [map, {%r4, %r4}], [%r1+1024];\n"


def run(
    body: str, *, warps: int = 1, ctas: int = 1, clusters: int = 1, places: int = 1, **known: float
) -> TimedRun:
    shape = dataclasses.replace(launch(block=32 * warps), cluster=(ctas, 1, 1), grid=(ctas * clusters, 1, 1))
    text = HEADER.format(params=MAP, body=body)
    return simulate_launch(shape, text, clock(**known), sm_count=ctas * places, places=places)


def cycles(body: str, **options: float) -> float:
    return float(run(body, **options).cycles[0])  # type: ignore[arg-type]


INIT = "mov.u32 %r1, smem;\nmbarrier.init.shared.b64 [%r1], 1;\nmov.b32 %r4, 0;\n"
WAIT = "mov.b32 %r20, 0;\nW: mbarrier.try_wait.parity.shared.b64 %p3, [%r1], %r20;\n@!%p3 bra W;\n"


def test_a_phase_ends_with_its_latest_event() -> None:
    """Bytes that land at 956 count although the arrival, at 10, is the last event of the phase to be issued."""
    elected = "elect.sync %r11|%p4, -1;\n@!%p4 bra NEXT;\n" + LOAD.format(more="", mask="")
    arrive = "mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 16384;\nNEXT:\n"
    body = INIT + elected + WORK * 5 + arrive + WAIT
    assert cycles(body, tma_latency=700, fill_narrow=64, vector=2) == 700 + BOX_BYTES / 64


def test_loads_that_stand_together_share_one_latency() -> None:
    """Four shared loads: one latency of 20 and four issues. A global load among them is waited for at the end alone."""
    shared = "ld.shared.f32 %r2, [%r1];\n"
    assert cycles("mov.u32 %r1, smem;\n" + shared * 4, vector=2, shared_load=20) == 20 + 4 * 2
    mixed = shared * 2 + "ld.global.f32 %r3, [%d1];\n" + shared
    assert cycles("mov.u32 %r1, smem;\n" + mixed, vector=2, shared_load=20, global_load=100) == pytest.approx(
        100
    )
    assert cycles("mov.u32 %r1, smem;\n" + mixed, vector=2, shared_load=20, global_load=9) == 20 + 4 * 2


def test_l2_share_limits_a_ring() -> None:
    """16384 B at 8 B/clk of this SM's share: 2048 cycles a step, whatever the stages."""
    taken = [run_ring(4, steps, clock(l2_rate=8.0, mma=1)).cycles[0] for steps in (8, 24)]
    assert (taken[1] - taken[0]) / 16 == 2048


def test_stores_go_one_after_the_other() -> None:
    """Two stores of 256 cycles each; ``.read`` waits for both, the full wait for the way to memory as well."""
    stores = (
        "mov.u32 %r1, smem;\nmov.b32 %r4, 0;\nelect.sync %r11|%p4, -1;\n@!%p4 bra NEXT;\n"
        + STORE * 2
        + "NEXT:\n"
    )
    read = stores + "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group.read 0;\n"
    full = stores + "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;\n"
    assert cycles(read, fill_narrow=64, store_latency=100) == 512
    assert cycles(full, fill_narrow=64, store_latency=100) == 512 + 100
    assert cycles(read, fill_narrow=1e12, store_latency=100) == pytest.approx(100)


def test_a_younger_store_may_still_be_pending() -> None:
    """wait_group.read 1 after two groups waits for the first only."""
    one = (
        "elect.sync %r11|%p4, -1;\n@!%p4 bra NEXT{n};\n"
        + STORE.replace("{", "{{").replace("}", "}}")
        + "NEXT{n}:\n"
    )
    body = "mov.u32 %r1, smem;\nmov.b32 %r4, 0;\n" + "".join(
        one.format(n=n) + "cp.async.bulk.commit_group;\n" for n in (1, 2)
    )
    assert cycles(body + "cp.async.bulk.wait_group.read 1;\n", fill_narrow=64) == 256


def test_a_share_of_the_stored_bytes_blocks_loads() -> None:
    """A store of 256 cycles at time 0 holds a quarter of them against the load that follows it."""
    elected = "elect.sync %r11|%p4, -1;\n@!%p4 bra NEXT;\n" + STORE + LOAD.format(more="", mask="")
    body = INIT + elected + "mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 16384;\nNEXT:\n" + WAIT
    assert cycles(body, fill_narrow=64, store_share=0.25) == 64 + 256


def test_named_barrier_waits_for_the_slowest_warp() -> None:
    """Warp 1 works 50 instructions of 2 cycles; both leave 7 cycles after it has come."""
    slow = (
        "mov.u32 %r50, %tid.x;\nsetp.lt.u32 %p20, %r50, 32;\n@%p20 bra MEET;\n"
        + WORK * 50
        + "cp.async.bulk.commit_group;\n"
    )
    assert cycles(slow + "MEET:\nbar.sync 1, 64;\n" + WORK, warps=2, vector=2, named_barrier=7) == 100 + 7 + 2


def test_cluster_barrier_waits_for_the_slowest_cta() -> None:
    slow = "mov.u32 %r50, %cluster_ctarank;\nsetp.eq.u32 %p20, %r50, 0;\n@%p20 bra MEET;\n" + WORK * 50
    meet = "cp.async.bulk.commit_group;\nMEET:\nbarrier.cluster.arrive;\nbarrier.cluster.wait;\n"
    assert cycles(slow + meet + WORK, ctas=2, vector=2, cluster_barrier=40) == 100 + 40 + 2


def test_a_remote_arrival_takes_its_way() -> None:
    """CTA 1 arrives on the barrier of CTA 0 after 20 cycles of work and 150 of way; CTA 0 wakes 30 later."""
    body = INIT + "barrier.cluster.arrive;\nbarrier.cluster.wait;\nmov.u32 %r50, %cluster_ctarank;\n"
    body += "setp.eq.u32 %p20, %r50, 0;\n@%p20 bra WAITS;\n" + WORK * 10
    body += "elect.sync %r11|%p4, -1;\n@!%p4 bra END;\nmapa.shared::cluster.u32 %r6, %r1, 0;\n"
    body += (
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];\nbra END;\nWAITS:\n" + WAIT + "END:\n"
    )
    assert cycles(body, ctas=2, vector=2, remote_arrive=150, wake=30) == 20 + 150 + 30


def test_asynchronous_stores_complete_on_the_other_barrier() -> None:
    """CTA 0 waits for 128 bytes. 32 lanes of CTA 1 store 4 each: instruction 11 of 2 cycles, 150 away. Wakes in 30."""
    body = INIT + "mov.u32 %r50, %cluster_ctarank;\nsetp.eq.u32 %p20, %r50, 0;\n"
    body += "elect.sync %r11|%p4, -1;\n@!%p4 bra MEET;\n"
    body += "mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 128;\nMEET:\n"
    body += "barrier.cluster.arrive;\nbarrier.cluster.wait;\n@%p20 bra WAITS;\n" + WORK * 10
    body += "mapa.shared::cluster.u32 %r6, %r1, 0;\nst.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 "
    body += "[%r6+1024], %r9, [%r6];\nbra END;\nWAITS:\n" + WAIT + "END:\n"
    assert cycles(body, ctas=2, vector=2, remote_arrive=150, wake=30) == 11 * 2 + 150 + 30


def test_multicast_fills_both_ctas_once_for_one_request() -> None:
    """CTA 0 loads for both: latency 700 and 50 for two receivers, 256 cycles into each at the same time."""
    body = INIT + "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
    body += "mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 512;\n"  # 32 lanes: 16384 bytes
    body = body.replace("[%r1], 1;", "[%r1], 32;")
    body += "mov.u32 %r50, %cluster_ctarank;\nsetp.ne.u32 %p20, %r50, 0;\n@%p20 bra WAITS;\n"
    body += "mov.b16 %h1, 3;\nelect.sync %r11|%p4, -1;\n@!%p4 bra WAITS;\n"
    body += LOAD.format(more=".multicast::cluster", mask=", %h1") + "WAITS:\n" + WAIT
    done = run(body, ctas=2, tma_latency=700, fill_narrow=64, multicast_wait=50)
    assert done.cycles[0] == 700 + 50 + 256
    assert done.filled == BOX_BYTES


def test_what_a_neighbour_sends_later_does_not_hold_up_a_load() -> None:
    """Both CTAs load a box for themselves, then one for both, and wait for their own: latency 700 and 256 cycles.

    Warps run from wait to wait, so one CTA's box for both, which arrives from 750 on, is seen before the other's own.
    """
    body = INIT.replace("[%r1], 1;", "[%r1], 32;") + "mbarrier.init.shared.b64 [%r1+8], 1;\n"
    body += "barrier.cluster.arrive;\nbarrier.cluster.wait;\n"
    body += "mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 512;\n"  # 32 lanes: 16384 bytes
    body += "mov.b16 %h1, 3;\nelect.sync %r11|%p4, -1;\n@!%p4 bra LOADED;\n"
    body += LOAD.format(more="", mask="").replace("shared::cluster", "shared::cta")
    body += LOAD.format(more=".multicast::cluster", mask=", %h1").replace("[%r1]", "[%r1+8]") + "LOADED:\n"
    assert cycles(body + WAIT, ctas=2, tma_latency=700, fill_narrow=64, multicast_wait=50) == 700 + 256


def test_a_change_of_kind_costs_once() -> None:
    """f16, f16, tf32: two changes of nothing but kind would be one change of 40 cycles, and three MMAs of 64."""
    mma = (
        "mov.b32 %r30, 0;\n"
        + ONE_MMA
        + "\n"
        + ONE_MMA
        + "\n"
        + ONE_MMA.replace("kind::f16", "kind::tf32")
        + "\n"
    )
    body = INIT + "elect.sync %r11|%p4, -1;\n@!%p4 bra NEXT;\n" + mma
    body += "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];\nNEXT:\n" + WAIT
    assert cycles(body, kind_switch=40, mma=64, overhead=100) == 3 * 64 + 40 + 100


def test_a_scale_factor_copy_occupies_the_pipe() -> None:
    copies = "tcgen05.cp.cta_group::1.32x128b.warpx4 [%r30], %d1;\n" * 4
    body = INIT + "elect.sync %r11|%p4, -1;\n@!%p4 bra NEXT;\n" + copies
    body += "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];\nNEXT:\n" + WAIT
    assert cycles(body, sf_copy=12, overhead=100) == 4 * 12 + 100


def test_tmem_loads_take_latency_and_columns() -> None:
    load = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {%r60, %r61, %r62, %r63}, [%r30];\n"
    assert cycles(load * 3, tmem_latency=50, tmem_column=2.5) == 3 * (50 + 4 * 2.5)


def test_a_grid_larger_than_the_chip_runs_in_rounds() -> None:
    """5 clusters on 2 places: 3 rounds of 20 cycles."""
    done = run(WORK * 10, clusters=5, places=2, vector=2)
    assert (done.rounds, done.cycles[0], done.active_sms) == (3, 60, 2)


def test_fewer_active_sms_have_more_of_l2() -> None:
    """L2 gives 8 B/clk to each of 148 SMs, so 148 x 8 to one alone: 16384 B are 13.8 cycles, behind the port's 256."""
    elected = "elect.sync %r11|%p4, -1;\n@!%p4 bra NEXT;\n" + LOAD.format(more="", mask="")
    body = INIT + elected + "mbarrier.arrive.expect_tx.shared.b64 %d1, [%r1], 16384;\nNEXT:\n" + WAIT
    text = HEADER.format(params=MAP, body=body)
    ticks = clock(l2_rate=8.0, fill_narrow=64)
    assert simulate_launch(launch(block=32), text, ticks, sm_count=148, places=148).cycles[0] == 256
    assert simulate_launch(launch(block=32), text, ticks, sm_count=1, places=1).cycles[0] == 2048


@pytest.mark.parametrize(
    ("meet", "behind"),
    [("bar.sync 1, 64;\n", 1), ("barrier.cluster.arrive;\nbarrier.cluster.wait;\n", 2)],
    ids=["named", "cluster"],
)
def test_who_is_last_may_differ_between_sets(meet: str, behind: int) -> None:
    """Warp 0 adds 20 times, warp 1 works on data 20 times; in one set the first takes longer, in the other the second.

    Before: %tid, setp, branch. A turn of the loop: add, setp, branch. Both arrive with one instruction more.
    """
    body = "mov.u32 %r50, %tid.x;\nsetp.ge.u32 %p20, %r50, 32;\n@%p20 bra DATA;\n"
    body += (
        "mov.b32 %r1, 0;\nMORE:\nadd.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, 20;\n@%p1 bra MORE;\nbra MEET;\n"
    )
    body += "DATA:\n" + WORK * 20 + f"cp.async.bulk.commit_group;\nMEET:\n{meet}"
    ticks = clock(sets=2)
    ticks.issue[:], ticks.vector[:] = (1.0, 10.0), (10.0, 1.0)
    text = HEADER.format(params=MAP, body=body)
    done = simulate_launch(launch(block=64), text, ticks, sm_count=1, places=1).cycles
    assert done[0] == 3 + (20 * 10 + 1) + 1 + behind  # data is slow; 1: commit_group
    assert done[1] == 10 * (3 + 20 * 3 + 1 + behind)  # instructions are slow


def test_a_branch_on_the_clock_register_is_refused() -> None:
    """Each set of constants would have its own."""
    body = "mov.u32 %r1, %clock;\nsetp.gt.u32 %p1, %r1, 100;\n@%p1 bra END;\nbar.sync 0;\nEND:"
    with pytest.raises(Unsupported, match="%clock"):
        run(body)


@pytest.mark.parametrize("end", ["ret;", "bar.sync 0;\nret;"], ids=["exits", "arrives"])
def test_a_barrier_of_all_threads_waits_for_a_warp_until_it_exits(end: str) -> None:
    """64 more instructions of 2 cycles before the other warp's end are 128 more cycles, and the barrier costs 30."""

    def waited(work: int, barrier: float) -> float:
        body = (
            "mov.u32 %r1, %tid.x;\nsetp.gt.u32 %p1, %r1, 31;\n@!%p1 bra STAYS;\n"
            f"{WORK * work}{end}\nSTAYS: bar.sync 0;\n"
        )
        return cycles(body, warps=2, vector=2, named_barrier=barrier)

    assert waited(128, 30) - waited(64, 30) == 128
    assert waited(64, 30) - waited(64, 0) == 30
