"""Probes of clusters: shared addresses, remote memory and barriers, multicast."""

from __future__ import annotations

from kernel_space.selfcheck.text.async_text import AsyncCopy
from kernel_space.selfcheck.text.probe import MapSpec, Probe, seeded_bytes
from kernel_space.selfcheck.text.ptx_text import per_thread

_MEET = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"
_LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
_EXCHANGE = f"""\
        mov.u32 %r0, room;
        mov.u32 %r1, %cluster_ctarank;
        xor.b32 %r2, %r1, 1;
        mad.lo.u32 %r3, %thread, 4, %r0;
        mad.lo.u32 %r4, %r1, 1000, %thread;
        st.shared.b32 [%r3], %r4;
        mapa.shared::cluster.u32 %r5, %r3, %r2;
        st.shared::cluster.b32 [%r5+128], %r4;
        {_MEET}
        ld.shared::cluster.b32 %x, [%r5];
        ld.shared.b32 %y, [%r3+128];
        {_MEET}"""
_GENERIC = f"""\
        mov.u32 %r0, room;
        mov.u32 %r1, %cluster_ctarank;
        xor.b32 %r2, %r1, 1;
        mad.lo.u32 %r3, %thread, 4, %r0;
        cvt.u64.u32 %q0, %r3;
        cvta.shared.u64 %q1, %q0;
        mapa.u64 %q2, %q1, %r2;
        mad.lo.u32 %r4, %r1, 1000, %thread;
        st.b32 [%q1], %r4;
        {_MEET}
        ld.b32 %x, [%q2];
        {_MEET}"""
_ATOMIC = f"""\
        mov.u32 %r0, room;
        mov.u32 %r1, %cluster_ctarank;
        mov.u32 %r6, 0;
        mapa.shared::cluster.u32 %r5, %r0, %r6;
        mov.u32 %x, 0;
        @%lead st.shared.b32 [%r0], %r1;
        {_MEET}
        atom.relaxed.cluster.shared::cluster.add.u32 %r7, [%r5], 3;
        {_MEET}
        ld.shared.b32 %x, [%r0];"""
_TWO_CTAS = f"""\
        mov.u32 %r0, room;
        mov.u32 %r1, %cluster_ctarank;
        mad.lo.u32 %r3, %thread, 4, %r0;
        mad.lo.u32 %r4, %r1, 1000, %thread;
        st.shared.b32 [%r3], %r4;
        {_MEET}
        and.b32 %r2, %thread, 1;
        mapa.shared::cluster.u32 %r5, %r3, %r2;
        ld.shared::cluster.b32 %x, [%r5];
        {_MEET}"""


def probes() -> list[Probe]:
    return [*_addresses(), *_remote_memory(), *_remote_barriers(), *_multicast()]


def _addresses() -> list[Probe]:
    static = """\
        mov.u32 %x, first;
        mov.u32 %y, dynamic;
        mov.u64 %q1, first;
        cvta.shared.u64 %q0, %q1;
        cvt.u32.u64 %z, %q0;
        isspacep.shared %p0, %q0;
        isspacep.global %p1, %q0;
        isspacep.global %p2, %out;
        selp.u32 %r0, 1, 0, %p0;
        selp.u32 %r1, 2, 0, %p1;
        selp.u32 %r2, 4, 0, %p2;
        or.b32 %w, %r0, %r1;
        or.b32 %w, %w, %r2;"""
    mapped = """\
        mov.u32 %r0, first;
        mov.u32 %r1, %cluster_ctarank;
        xor.b32 %r2, %r1, 1;
        mov.u32 %x, %r0;
        mapa.shared::cluster.u32 %y, %r0, %r2;
        getctarank.shared::cluster.u32 %z, %y;
        mapa.shared::cluster.u32 %r3, %y, %r1;
        cvt.u64.u32 %q0, %r0;
        cvta.shared.u64 %q1, %q0;
        mapa.u64 %q2, %q1, %r2;
        cvt.u32.u64 %w, %q2;
        sub.u32 %r4, %r3, %r0;
        add.u32 %z, %z, %r4;"""
    shared = ".shared .align 8 .b64 first;"
    return [
        per_thread("shared_address.own", "static variable, dynamic array, generic address; no cluster", static, words=4,
                   shared=shared, smem_bytes=64),
        per_thread("shared_address.own_in_cluster", "the same in clusters of 2", static, words=4, shared=shared,
                   smem_bytes=64, grid=4, cluster=2),
        per_thread("shared_address.mapa", "own address, mapa to the peer, getctarank, mapa of a generic one", mapped,
                   words=4, shared=shared, grid=4, cluster=2),
        per_thread("shared_address.mapa_four", "the same in a cluster of 4", mapped, words=4, shared=shared, grid=4,
                   cluster=4),
    ]  # fmt: skip


def _remote_memory() -> list[Probe]:
    shared = ".shared .align 16 .b8 room[256];"
    plain = [
        ("exchange", _EXCHANGE, 2),
        ("generic", _GENERIC, 1),
        ("atomic", _ATOMIC, 1),
        ("lanes_of_two_ctas", _TWO_CTAS, 1),
    ]
    # The first stores of "exchange" may come before the peer has begun; the bytes are those of a card, on which it had.
    found = [per_thread(f"cluster.{name}", f"remote shared memory: {name}", code, words=words, shared=shared, grid=2,
                        cluster=2, race_free=name != "exchange") for name, code, words in plain]  # fmt: skip
    return [*found, _remote_store_async()]


def _remote_store_async() -> Probe:
    """st.async writes to the peer and completes bytes on the peer's barrier."""
    return AsyncCopy(
        name="cluster.st_async",
        asks="st.async of 16 bytes to the peer",
        cluster=2,
        region=64,
        expect=16,
        issue="""\
            xor.b32 %r3, %r2, 1;
            mapa.shared::cluster.u32 %r4, %r0, %r3;
            mapa.shared::cluster.u32 %r5, %r1, %r3;
            add.u32 %r6, %r2, 0x600;
            st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%r4+16], {%r6, %r2, %r6, %r6}, [%r5];""",
    ).probe()


def _remote_barriers() -> list[Probe]:
    wait = """\
        mov.u32 %r30, 0;
        POLL:
        mbarrier.test_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r1], 0;
        @%p1 bra OVER;
        nanosleep.u32 2000;
        add.u32 %r30, %r30, 1;
        setp.lt.u32 %p2, %r30, 1000;
        @%p2 bra POLL;
        OVER:
        selp.u32 %x, 1, 0, %p1;"""
    arrive = f"""\
        mov.u32 %r1, barrier;
        mov.u32 %r2, %cluster_ctarank;
        @%lead mbarrier.init.shared::cta.b64 [%r1], COUNT;
        fence.mbarrier_init.release.cluster;
        {_MEET}
        mov.u32 %r3, 0;
        mapa.shared::cluster.u32 %r4, %r1, %r3;
        mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r4];
        {wait}
        {_MEET}"""
    expect = f"""\
        mov.u32 %r1, barrier;
        mov.u32 %r2, %cluster_ctarank;
        @%lead mbarrier.init.shared::cta.b64 [%r1], 1;
        fence.mbarrier_init.release.cluster;
        {_MEET}
        xor.b32 %r3, %r2, 1;
        mapa.shared::cluster.u32 %r4, %r1, %r3;
        @%lead mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r4], 32;
        @%lead mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r4], 32;
        {wait}
        {_MEET}"""
    shared = ".shared .align 8 .b64 barrier;"
    cases = (
        (
            "all_lanes",
            "both CTAs arrive on rank 0 with 32 lanes each: count 64 completes there only",
            arrive,
            "64",
        ),
        ("one_short", "the same with a count of 65: completes nowhere", arrive, "65"),
        ("expect", "expect_tx and complete_tx on the peer's barrier", expect, "1"),
    )
    return [per_thread(f"remote_arrive.{name}", asks, code.replace("COUNT", count), shared=shared, grid=2, cluster=2,
                       in_vain=True)
            for name, asks, code, count in cases]  # fmt: skip


def _multicast() -> list[Probe]:
    spec = MapSpec(buffer="in", dtype="uint8", dims=(128, 16), strides=(128,), box=(64, 8), swizzle=64)
    half = MapSpec(buffer="in", dtype="uint8", dims=(128, 16), strides=(128,), box=(64, 4), swizzle=64)
    both = f"mad.lo.u32 %r3, %r2, 256, %r0;\nmul.lo.u32 %r4, %r2, 4;\nmov.u16 %h0, 3;\n{_LOAD}.multicast::cluster" \
           " [%r3], [%map0, {16, %r4}], [%r1], %h0;"  # fmt: skip
    one = f"setp.ne.u32 %p5, %r2, 0;\n@%p5 bra NOT_MINE;\nmov.u16 %h0, MASK;\n{_LOAD}.multicast::cluster" \
          " [%r0], [%map0, {32, 2}], [%r1], %h0;\nNOT_MINE:"  # fmt: skip
    peer = f"xor.b32 %r5, %r2, 1;\nmapa.shared::cluster.u32 %r3, %r0, %r5;\nmapa.shared::cluster.u32 %r4, %r1, %r5;\n" \
           f"mad.lo.u32 %r6, %r2, 4, 1;\n{_LOAD} [%r3], [%map0, {{0, %r6}}], [%r4];"  # fmt: skip
    cases = (
        ("halves_to_both", "each CTA loads half of the box for both", both, half, 512),
        ("mask_3", "rank 0 loads for both", one.replace("MASK", "3"), spec, 512),
        (
            "mask_2",
            "rank 0 loads for rank 1 only: rank 0's barrier stays open",
            one.replace("MASK", "2"),
            spec,
            512,
        ),
        ("mask_1", "rank 0 loads for itself only", one.replace("MASK", "1"), spec, 512),
        (
            "to_peer",
            "a load without multicast into the peer's memory, on the peer's barrier",
            peer,
            spec,
            512,
        ),
    )
    return [
        AsyncCopy(name=f"multicast.{name}", asks=asks, issue=issue, region=1024, expect=expect, cluster=2,
                  maps=(tensor,), in_vain=name in ("mask_1", "mask_2"),
                  inputs=seeded_bytes(f"multicast.{name}", 2048)).probe()
        for name, asks, issue, tensor, expect in cases
    ]  # fmt: skip
