"""Plain and bulk accesses of global memory: sectors, L2, DRAM and SMs that hold several CTAs, counted by hand."""

from __future__ import annotations

import dataclasses

import pytest

from kernel_space.core.arch import SM100A
from kernel_space.machine.clock.estimate import TimedRun, simulate_launch
from kernel_space.machine.clock.occupancy import ctas_per_sm, l1_sectors, quarter_loads
from tests.machine.clock.timed_cases import clock, launch
from tests.machine.ptx import HEADER

BASE = 0x7F0000000000
SHARED = "mov.u32 %r1, smem;\n"
LOAD, STORE = "ld.global.v4.b32 {%r10, %r11, %r12, %r13}, [%d1];\n", "st.global.b32 [%d1], %r10;\n"
COMMIT = "cp.async.commit_group;\n"
USE = "add.f32 %r44, %r10, %r10;\n"  # of what LOAD brings
STRONG = LOAD.replace("ld.global", "ld.relaxed.gpu.global")
WORK = "fma.rn.f32 %r40, %r41, %r42, %r43;\n"


def at(stride: int, *, base: int = BASE) -> str:
    """%d1: the address of a thread, ``stride`` bytes behind that of the one before."""
    return f"mov.u32 %r2, %tid.x;\nmul.wide.u32 %d2, %r2, {stride};\nadd.u64 %d1, %d2, {base};\n"


def run(
    body: str, *, warps: int = 1, ctas: int = 1, sms: int = 1, resident: int = 1, cold: bool = False,
    tensors: dict[int, int] | None = None, **known: float,
) -> TimedRun:  # fmt: skip
    shape = dataclasses.replace(launch(block=32 * warps), grid=(ctas, 1, 1))
    text = HEADER.format(params=".param .align 128 .b8 map[128]", body=body)
    return simulate_launch(
        shape, text, clock(**known), sm_count=sms, places=sms * resident, resident=resident, cold=cold, tensors=tensors
    )  # fmt: skip


def cycles(body: str, **options: object) -> float:
    """Rounded: what is free takes 1e-12 cycles a byte."""
    return round(float(run(body, **options).cycles[0]), 6)  # type: ignore[arg-type]


# -- sectors ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("access", "sectors"),
    [
        (at(16) + LOAD, 16),
        (at(4) + STORE, 4),
        (at(64) + LOAD, 32),
        (at(0) + LOAD, 1),
        (at(4, base=BASE + 16) + STORE, 5),
        (f"mov.u64 %d1, {BASE};\n" + LOAD, 1),
        (at(16) + "setp.lt.u32 %p1, %r2, 8;\n@%p1 " + LOAD, 4),
        (at(16) + "setp.ge.u32 %p1, %r2, 32;\n@%p1 " + LOAD, 0),
        (at(16) + "setp.ge.u32 %p1, %r2, 8;\n@%p1 bra END;\n" + LOAD + "END:\n", 4),
        (at(2) + "st.global.b16 [%d1], %h1;\n", 2),
        (at(8) + "ld.global.b64 %d3, [%d1];\n", 8),
    ],
    ids=["16 B a lane", "4 B a lane", "strided", "one address", "unaligned", "uniform", "guarded", "nobody", "branch",
         "2 B a lane", "8 B a lane"],
)  # fmt: skip
def test_a_warp_takes_the_sectors_that_its_lanes_touch(access: str, sectors: int) -> None:
    assert run(access).plain == sectors * 32


def test_loops_walk_over_addresses() -> None:
    body = at(16) + "mov.b32 %r3, 0;\nMORE:\n" + LOAD
    body += "add.u64 %d1, %d1, 512;\nadd.u32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r3, 5;\n@%p1 bra MORE;\n"
    done = run(body, cold=True)
    assert (done.plain, done.dram) == (5 * 512, 5 * 512)


# -- when a warp waits -----------------------------------------------------------------------------------------
def test_a_warp_waits_where_it_uses_what_it_loads() -> None:
    """Latency 100, 7 a data instruction: the load, two pieces of work, then 7 for the use. A copy is none."""
    known = {"global_load": 100, "vector": 7}
    assert cycles(at(16) + LOAD + WORK * 2 + USE, **known) == 100 + 7
    assert cycles(at(16) + LOAD + USE + WORK * 2, **known) == 100 + 3 * 7
    copied = at(16) + LOAD + "mov.b32 %r20, %r10;\n" + WORK * 2 + "add.f32 %r44, %r20, %r20;\n"
    assert cycles(copied, **known) == 100 + 7
    assert cycles(at(16) + LOAD + WORK * 20, **known) == 21 * 7


def test_loads_behind_branches_are_outstanding_together() -> None:
    """Each behind its own guard, used at the end: one latency, not three. In a loop that uses each: three."""
    guarded = "".join(
        f"@%p1 bra L{n};\nld.global.b32 %r{10 + n}, [%d1+{128 * n}];\nL{n}:\n" for n in range(3)
    )
    body = (
        at(4)
        + "setp.ge.u32 %p1, %r2, 32;\n"
        + guarded
        + "".join(f"add.f32 %r4{n}, %r1{n}, %r1{n};\n" for n in range(3))
    )
    assert cycles(body, global_load=100) == 100
    loop = at(16) + "mov.b32 %r3, 0;\nMORE:\n" + LOAD + USE
    loop += "add.u64 %d1, %d1, 512;\nadd.u32 %r3, %r3, 1;\nsetp.lt.u32 %p1, %r3, 3;\n@%p1 bra MORE;\n"
    assert cycles(loop, global_load=100) == 300


# -- L1 --------------------------------------------------------------------------------------------------------
def test_l1_holds_what_was_loaded() -> None:
    """The second load finds its sectors: latency 39, no byte of L2; one that others must be seen by does not."""
    again = at(16) + LOAD + USE + LOAD
    found = run(again, global_load=100, l1_load=39)
    assert (found.plain, found.cycles[0]) == (512, pytest.approx(139))
    past = run(at(16) + STRONG + USE + STRONG, global_load=100, l1_load=39)
    assert (past.plain, past.cycles[0]) == (1024, pytest.approx(200))


def test_a_sector_on_its_way_is_not_asked_for_again() -> None:
    """Eight loads of 2 bytes, 16 apart between lanes: 16 sectors once, eight times through L1. 16 B/clk: 8 x 32."""
    body = (
        at(16)
        + "".join(f"ld.global.b16 %h{n}, [%d1+{2 * n}];\n" for n in range(1, 8))
        + "ld.global.b16 %h0, [%d1];\n"
    )
    done = run(body, l1_rate=16.0, global_load=100)
    assert (done.plain, done.cycles[0]) == (512, 8 * 512 / 16)
    assert cycles(body, global_load=300, l1_rate=16.0) == 512 / 512 * 300


def test_another_warp_waits_for_the_same_bytes() -> None:
    """Both warps load one sector: the second's come when the first's do, not 39 after it asks."""
    body = "mov.u64 %d1, " + f"{BASE};\n" + LOAD + USE
    assert cycles(body, warps=2, global_load=100, l1_load=39) == 100


def test_l1_is_what_shared_memory_leaves() -> None:
    """256 KiB of an SM for two CTAs: 128 each, less 100 and the system's 1: 27 KiB are 864 sectors."""
    assert l1_sectors(100 * 1024, 2) == 864
    assert l1_sectors(227 * 1024, 1) == 28 * 1024 // 32
    assert l1_sectors(100 * 1024, 4) == 0


# -- L2 and DRAM -----------------------------------------------------------------------------------------------
def test_loads_wait_for_their_share_of_l2() -> None:
    """4 x 512 B at 8 B/clk and the latency of the last."""
    body = at(16) + (LOAD + "add.u64 %d1, %d1, 512;\n") * 4
    assert cycles(body, l2_rate=8.0, global_load=100) == 4 * 512 / 8 + 100
    assert cycles(body, fill_narrow=16.0, global_load=100) == 4 * 512 / 16 + 100
    assert cycles(body, global_load=100) == pytest.approx(100)


def test_a_warp_does_not_wait_for_what_another_asks_for_later() -> None:
    """Each loads 512 B twice, at 8 B/clk and a latency of 100: 0-64 and 64-128, then from 164 and from 228 on."""
    body = at(16) + LOAD + USE + "add.u64 %d1, %d1, 4096;\n" + LOAD
    assert cycles(body, warps=2, l2_rate=8.0, global_load=100) == 228 + 64 + 100


def test_stores_are_posted_but_done_at_the_end() -> None:
    """The warp's last instruction is at 1; 128 B at 2 B/clk leave at 64."""
    assert cycles(at(4) + STORE + "mov.u32 %r9, %ctaid.x;\n", l2_rate=2.0) == 64


def test_a_first_touch_comes_from_dram() -> None:
    body = at(16) + STRONG + USE + STRONG
    known = {"global_load": 100, "tma_latency": 50, "tma_latency_cold": 350}
    assert cycles(body, cold=True, **known) == (100 + 300) + 100
    assert cycles(body, **known) == 2 * 100


def test_dram_serves_all_ctas_of_the_chip() -> None:
    """512 B of each of 10 CTAs at 4 B/clk of the chip."""
    done = run(at(16) + LOAD, ctas=10, sms=10, cold=True, dram_rate=4.0, global_load=100)
    assert (done.dram, done.cycles[0]) == (5120, 5120 / 4 + 100)


def test_a_tensor_passes_dram_once() -> None:
    """All 10 CTAs read the same 512 B of a tensor of 512."""
    done = run(at(16) + LOAD, ctas=10, sms=10, cold=True, tensors={BASE: 512}, dram_rate=4.0)
    assert (done.dram, done.cycles[0]) == (512, pytest.approx(128))


def test_writes_pass_dram_and_are_read_from_l2() -> None:
    body = at(16) + "st.global.v4.b32 [%d1], {%r10, %r11, %r12, %r13};\nadd.u64 %d1, %d1, 512;\n" + LOAD
    done = run(body, cold=True, dram_rate=4.0)
    assert (done.plain, done.dram, done.cycles[0]) == (1024, 512, pytest.approx(128))


def test_tma_waits_for_plain_bytes_and_launches_for_both() -> None:
    """A bulk load of 4 KiB and 512 B of plain loads share DRAM at 4 B/clk: 4608 B end at 1152."""
    bulk = (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1+1024], [%d3], 4096, [%r1];\n"
    )
    body = SHARED + f"mov.u64 %d3, {BASE + (1 << 32)};\n" + "mbarrier.init.shared.b64 [%r1], 1;\n" + at(16)
    body += "elect.sync %r11|%p4, -1;\n@!%p4 bra NEXT;\n" + bulk
    body += "mbarrier.arrive.expect_tx.shared.b64 %d5, [%r1], 4096;\nNEXT:\n" + LOAD
    body += "mov.b32 %r20, 0;\nW: mbarrier.try_wait.parity.shared.b64 %p3, [%r1], %r20;\n@!%p3 bra W;\n"
    done = run(body, cold=True, dram_rate=4.0)
    assert (done.filled, done.plain, done.dram) == (4096, 512, 4608)
    assert done.cycles[0] == pytest.approx(1152)
    assert cycles(body, l2_rate=64.0) == pytest.approx(4096 / 64)


def test_reads_and_writes_disturb_one_another() -> None:
    """512 B each way at 4 B/clk take 256; a copy that is left 0.8 of the rate 320. Reads alone lose nothing."""
    both = at(16) + LOAD + "st.global.v4.b32 [%d1+65536], {%r10, %r11, %r12, %r13};\n"
    known = {"cold": True, "dram_rate": 4.0, "dram_mixed": 0.8}
    assert cycles(both, **known) == pytest.approx(320)
    assert cycles(at(16) + LOAD + LOAD.replace("[%d1]", "[%d1+65536]"), **known) == pytest.approx(256)


def test_bulk_stores_pass_dram() -> None:
    store = "cp.async.bulk.global.shared::cta.bulk_group [%d3], [%r1+1024], 4096;\n"
    body = SHARED + f"mov.u64 %d3, {BASE};\nelect.sync %r11|%p4, -1;\n@!%p4 bra NEXT;\n" + store + "NEXT:\n"
    done = run(body, ctas=3, sms=3, cold=True, dram_rate=4.0)
    assert (done.stored, done.dram, done.cycles[0]) == (4096, 3 * 4096, 3 * 4096 / 4)


# -- cp.async --------------------------------------------------------------------------------------------------
COPY = "cp.async.cg.shared.global [%r1], [%d1], 16;\n"


def test_copies_come_while_the_warp_works() -> None:
    """Latency 100; one work of 17 behind it. Waiting for all but one group waits for the first of two alone."""
    body = SHARED + at(16) + COPY + COMMIT + WORK
    assert run(body).plain == 512
    assert cycles(body, global_load=100, vector=17) == 17
    assert cycles(body + "cp.async.wait_group 0;\n", global_load=100, vector=17) == 100
    assert cycles(body + "cp.async.wait_all;\n", global_load=100, vector=17) == 100
    slow = SHARED + at(16) + (COPY + COMMIT) * 2 + "bar.sync 0;\n" + WORK + "cp.async.wait_group 1;\n"
    assert cycles(slow, global_load=100, vector=17) == 100


def test_a_barrier_learns_of_copies() -> None:
    body = SHARED + "mbarrier.init.shared.b64 [%r1], 32;\n" + at(16) + COPY
    body += "cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];\n"
    body += "mov.b32 %r20, 0;\nW: mbarrier.try_wait.parity.shared.b64 %p3, [%r1], %r20;\n@!%p3 bra W;\n"
    assert cycles(body, global_load=100) == 100


# -- what data decide --------------------------------------------------------------------------------------------
def test_a_gather_counts_as_lanes_side_by_side() -> None:
    """The address of the second load is what the first one found."""
    done = run(at(8) + "ld.global.b64 %d3, [%d1];\nld.global.b32 %r10, [%d3];\n", cold=True)
    assert (done.plain, done.dram) == (256 + 128, 256 + 128)


def test_what_data_guard_is_charged() -> None:
    """By a guard, by a branch: nobody knows, so both hold."""
    found = at(16) + LOAD + "setp.ne.u32 %p1, %r10, 0;\n"
    assert run(found + "@%p1 " + STORE).plain == 512 + 512
    assert run(found + "@%p1 bra END;\n" + STORE + "END:\n").plain == 512 + 512


# -- several CTAs of an SM ---------------------------------------------------------------------------------------
def test_ctas_of_an_sm_share_its_l2() -> None:
    """512 B of each CTA at 8 B/clk: one, four side by side, six where two SMs hold four each."""
    taken = [cycles(at(16) + LOAD, ctas=n, resident=4, l2_rate=8.0) for n in (1, 4)]
    assert taken == [64, 256]
    done = run(at(16) + LOAD, ctas=6, sms=2, resident=4, l2_rate=8.0)
    assert (done.share, done.rounds, done.cycles[0]) == (3, 1, 192)


def test_ctas_of_an_sm_share_its_issue_slots() -> None:
    """Eight warps are idle half of the time: 100 instructions of 4 cycles. 32 warps of 101, with ``ret``, are not."""
    body = WORK * 100
    assert cycles(body, ctas=8, resident=8, warps=1, vector=4) == 400
    assert cycles(body, ctas=32, resident=32, warps=1, vector=4) == 32 * 101 / 4


@pytest.mark.parametrize(
    ("warps", "ctas", "loads"),
    [
        ([1, 2, 3, 4, 5], 1, [6, 2, 3, 4]),
        ([7], 6, [14, 14, 7, 7]),
        ([1, 2], 2, [1, 2, 1, 2]),
        ([1, 1, 1, 9], 3, [3, 3, 3, 27]),
    ],
    ids=["the fifth warp joins the first", "one warp each", "two by two", "every fourth"],
)
def test_warps_go_to_schedulers_in_turn(warps: list[float], ctas: int, loads: list[float]) -> None:
    assert quarter_loads(warps, ctas) == loads


def test_one_warp_has_one_scheduler_and_its_special_functions() -> None:
    """100 instructions and ``ret`` that depend on nothing: 101 slots of its scheduler. 8 clocks for an exponential."""
    assert cycles(WORK * 100) == 101
    assert cycles("ex2.approx.ftz.f32 %f1, %f1;\n" * 100) == 800


def test_rounds_overlap_where_memory_is_busy() -> None:
    """Latency 100 and 64 cycles of L2; the second round begins as the first ends, the chip moves 512 B in 64."""
    body = at(16) + LOAD
    assert cycles(body, ctas=4, resident=4, l2_rate=8.0, global_load=100) == 356
    assert cycles(body, ctas=10, resident=4, l2_rate=8.0, global_load=100) == 356 + 1.5 * 256
    assert cycles(body, ctas=10, resident=4, global_load=100) == 300


@pytest.mark.parametrize(
    ("threads", "smem", "registers", "ctas"),
    [(32, 0, 16, 32), (1024, 0, 32, 2), (128, 0, 116, 4), (256, 0, 255, 1), (128, 100 * 1024, 32, 2),
     (384, 227 * 1024, 168, 1)],
    ids=["32 CTAs", "64 warps", "registers", "255 registers", "shared memory", "all of it"],
)  # fmt: skip
def test_what_fits_an_sm(threads: int, smem: int, registers: int, ctas: int) -> None:
    """Known values of the occupancy calculator; the last fills an SM whatever else it takes."""
    assert ctas_per_sm(threads=threads, smem_bytes=smem, registers=registers, arch=SM100A) == ctas
