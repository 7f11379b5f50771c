"""A clock whose every number is known, and small pipelines whose schedule can be worked out by hand."""

from __future__ import annotations

import numpy as np

from kernel_space.launch.capture import Launch
from kernel_space.launch.tensor_map import ELEMENT_TYPES, TensorMap
from kernel_space.machine.clock.clock import Clock
from kernel_space.machine.clock.estimate import TimedRun, simulate_launch
from tests.machine.ptx import HEADER

FIELDS = (
    "issue", "vector", "spin", "shared_load", "global_load", "l1_load", "fence_proxy", "fence_gpu", "wake",
    "remote_arrive", "named_barrier", "cluster_barrier", "tmem_alloc", "tensor_map", "tma_latency", "tma_latency_cold",
    "multicast_wait", "store_latency", "store_share", "sf_copy", "kind_switch", "tmem_latency", "tmem_column", "start",
    "drain",
)  # fmt: skip
RATES = ("l1_rate", "fill_narrow", "fill_wide", "l2_rate", "dram_rate")
FREE = 1e12  # bytes per cycle: never the limit


def clock(*, mma: float = 64.0, overhead: float = 0.0, sets: int = 1, **known: float) -> Clock:
    """Everything is free but what is named; ``mma``: cycles of any MMA, ``overhead``: end of an MMA -> its commit."""
    one = np.ones(sets)
    values = {name: one * known.get(name, 0.0) for name in FIELDS}
    values |= {name: one * known.get(name, FREE) for name in RATES}
    values["dram_mixed"] = one * known.get("dram_mixed", 1.0)
    return Clock(
        **values,
        mma_overhead={1: one * overhead, 2: one * overhead},
        mma_cycles=lambda group, m, n: one * mma,
    )


BOX = (64, 128)  # f16: 16 KiB
BOX_BYTES = 16384
FULL, EMPTY, DONE = 0, 64, 128  # offsets of the barriers

# Warp 0 loads one box per step, warp 1 runs MMAS on it. An empty barrier is waited for with parity 1 at first.
RING = """
.reg .pred %q<8>;
mov.u32 %r1, smem;
mov.u32 %r2, %tid.x;
shr.u32 %r3, %r2, 5;
setp.ne.u32 %p1, %r2, 0;
@%p1 bra READY;
{inits}
mbarrier.init.shared.b64 [%r1+128], 1;
READY:
bar.sync 0;
mov.b32 %r4, 0;
mov.b32 %r5, 0;
mov.b32 %r6, 0;
setp.ne.u32 %p2, %r3, 0;
@%p2 bra MMA;
LOAD:
shl.b32 %r7, %r5, 3;
add.u32 %r8, %r1, %r7;
add.u32 %r9, %r8, 64;
xor.b32 %r10, %r6, 1;
W0: mbarrier.try_wait.parity.shared.b64 %p3, [%r9], %r10;
@!%p3 bra W0;
elect.sync %r11|%p4, -1;
@!%p4 bra LOADED;
mbarrier.arrive.expect_tx.shared.b64 %d1, [%r8], 16384;
cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [%r1+1024], [map, {{%r4, %r4}}], [%r8];
LOADED:
add.u32 %r5, %r5, 1;
setp.eq.u32 %p5, %r5, {stages};
selp.b32 %r12, 1, 0, %p5;
xor.b32 %r6, %r6, %r12;
selp.b32 %r5, 0, %r5, %p5;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p6, %r4, {steps};
@%p6 bra LOAD;
bra END;
MMA:
shl.b32 %r7, %r5, 3;
add.u32 %r8, %r1, %r7;
W1: mbarrier.try_wait.parity.shared.b64 %p3, [%r8], %r6;
@!%p3 bra W1;
elect.sync %r11|%p4, -1;
@!%p4 bra RAN;
{mmas}
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r8+64];
RAN:
add.u32 %r5, %r5, 1;
setp.eq.u32 %p5, %r5, {stages};
selp.b32 %r12, 1, 0, %p5;
xor.b32 %r6, %r6, %r12;
selp.b32 %r5, 0, %r5, %p5;
add.u32 %r4, %r4, 1;
setp.lt.u32 %p6, %r4, {steps};
@%p6 bra MMA;
elect.sync %r11|%p4, -1;
@!%p4 bra WAIT;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1+128];
WAIT:
mov.b32 %r20, 0;
W2: mbarrier.try_wait.parity.shared.b64 %p3, [%r1+128], %r20;
@!%p3 bra W2;
END:
"""
ONE_MMA = "tcgen05.mma.cta_group::1.kind::f16 [0], %d2, %d3, %r30, {%r31, %r31, %r31, %r31}, %p8;"


def ring(stages: int, steps: int, mmas: int = 1) -> str:
    """PTX of the two-warp pipeline."""
    inits = [
        f"mbarrier.init.shared.b64 [%r1+{base + 8 * slot}], 1;"
        for slot in range(stages)
        for base in (FULL, EMPTY)
    ]
    body = RING.format(inits="\n".join(inits), stages=stages, steps=steps, mmas="\n".join([ONE_MMA] * mmas))
    return HEADER.format(params=".param .align 128 .b8 map[128]", body=body)


def launch(*, block: int = 64, map_bytes: int = 1 << 30) -> Launch:
    """One CTA with one descriptor of 16 KiB boxes over a tensor of ``map_bytes``."""
    f16 = next(kind for kind in ELEMENT_TYPES if kind.name == "F16")
    rows = map_bytes // (2 * BOX[0])
    tensor = TensorMap(
        address=1 << 40, element_type=f16, dims=(BOX[0], rows), strides=(128,), box=BOX, element_strides=(1, 1),
        interleave_bytes=0, swizzle_bytes=128, swizzle_atom_bytes=16, l2_promotion_bytes=0, oob_fill_nan=False,
        round_to_tf32=False, is_large=True,
    )  # fmt: skip
    return Launch(
        kernel_name="kernel", grid=(1, 1, 1), cluster=(1, 1, 1), block=(block, 1, 1), smem_bytes=200_000,
        params=(bytes(128),), tensor_maps={0: tensor}, attributes={}, stream=0,
    )  # fmt: skip


def run_ring(stages: int, steps: int, ticks: Clock, *, mmas: int = 1, cold: bool = False) -> TimedRun:
    return simulate_launch(launch(), ring(stages, steps, mmas), ticks, sm_count=1, places=1, cold=cold)
