"""Probes of tensor memory: allocation, ld, st, cp, shift (need a B200)."""

from __future__ import annotations

from kernel_space.selfcheck.text import tensor_text as text
from kernel_space.selfcheck.text.async_text import AsyncCopy
from kernel_space.selfcheck.text.probe import MapSpec, Probe, Target, seeded_bytes
from kernel_space.selfcheck.text.ptx_text import per_thread

# (shape, multiplier, registers per thread)
_SHAPES = (
    ("32x32b", 1, 1), ("32x32b", 8, 8), ("16x64b", 1, 1), ("16x64b", 4, 4), ("16x128b", 1, 2), ("16x128b", 4, 8),
    ("16x256b", 1, 4), ("16x256b", 2, 8), ("16x32bx2", 1, 1), ("16x32bx2", 4, 4),
)  # fmt: skip
_SPLIT = ", 8"  # columns between the two halves of 16x32bx2
# (shape with its spread, bytes per row, rows)
_COPIES = (
    ("128x256b", 32, 128), ("4x256b", 32, 4), ("128x128b", 16, 128), ("64x128b.warpx2::02_13", 16, 64),
    ("64x128b.warpx2::01_23", 16, 64), ("32x128b.warpx4", 16, 32),
)  # fmt: skip
_COLUMNS = 32


def probes() -> list[Probe]:
    return [
        *_loads(),
        *_stores(),
        *_packed(),
        *_copies(),
        _shift(),
        _allocator(),
        *_pair_routing(),
        _cancel(),
    ]


def _split(shape: str) -> str:
    return _SPLIT if shape == "16x32bx2" else ""


def _loads() -> list[Probe]:
    """Which lane and column lands in which register. Only 32x32b covers all 32 lanes of a warp."""
    found = []
    for shape, times, count in _SHAPES:
        for lane in (0, 16) if shape != "32x32b" else (0,):
            opcode = f"tcgen05.ld.sync.aligned.{shape}.x{times}.b32"
            body = "\n".join(
                [
                    text.set_columns(_COLUMNS),
                    f"add.u32 %r6, %r5, {lane << 16};",
                    f"{opcode} {text.registers(count)}, [%r6]{_split(shape)};",
                    "tcgen05.wait::ld.sync.aligned;",
                    text.dump_registers(count),
                ]
            )
            found.append(
                text.TensorProbe(
                    name=f"tmem.ld.{shape}.x{times}.lane_{lane}",
                    asks=f"register i of thread t under {shape}.x{times}",
                    body=body,
                    columns=count,
                    dump="bar.sync 0;",
                ).probe()
            )
    return found


def _stores() -> list[Probe]:
    found = []
    for shape, times, count in _SHAPES:
        values = "".join(f"or.b32 %r{20 + n}, %r9, {0xAB0000 + n};\n" for n in range(count))
        opcode = f"tcgen05.st.sync.aligned.{shape}.x{times}.b32"
        body = "\n".join(
            [
                text.set_columns(_COLUMNS),
                "shl.b32 %r9, %thread, 8;",
                values,
                f"{opcode} [%r5]{_split(shape)}, {text.registers(count)};",
                "tcgen05.wait::st.sync.aligned;",
            ]
        )
        asks = f"where {shape}.x{times} puts register i of thread t, and that it leaves the rest alone"
        found.append(
            text.TensorProbe(name=f"tmem.st.{shape}.x{times}", asks=asks, body=body, columns=_COLUMNS).probe()
        )
    return found


def _packed() -> list[Probe]:
    load = "\n".join(
        [
            text.set_columns(_COLUMNS),
            f"tcgen05.ld.sync.aligned.32x32b.x4.pack::16b.b32 {text.registers(4)}, [%r5];",
        ]
    )
    load += "\ntcgen05.wait::ld.sync.aligned;\n" + text.dump_registers(4)
    store = "\n".join(
        [
            text.set_columns(_COLUMNS),
            "mov.u32 %r20, 0x11112222;\nmov.u32 %r21, 0x33334444;",
            "tcgen05.st.sync.aligned.32x32b.x2.unpack::16b.b32 [%r5], {%r20, %r21};",
            "tcgen05.wait::st.sync.aligned;",
        ]
    )
    return [
        text.TensorProbe(
            name="tmem.ld.pack_16b",
            asks="two columns in one register",
            body=load,
            columns=4,
            dump="bar.sync 0;",
        ).probe(),
        text.TensorProbe(
            name="tmem.st.unpack_16b", asks="one register in two columns", body=store, columns=_COLUMNS
        ).probe(),
    ]


def _copies() -> list[Probe]:
    """Without swizzle; core matrices of 8 rows x 16 bytes. Under cta_group 2 both CTAs have an image of their own."""
    found = []
    for shape, width, rows in _COPIES:
        for group in (1, 2):
            groups = max(1, rows // 8)
            lbo, sbo = 128, 128 * width // 16
            image = seeded_bytes(f"cp {shape} {group}", group * max(1024, groups * sbo))
            name = shape.replace("::", "_")
            issue = [
                text.descriptor("%q10", 0, lbo, sbo),
                f"tcgen05.cp.cta_group::{group}.{shape} [%r4], %q10;",
                text.commit(group),
            ]
            body = "\n".join(
                [
                    text.set_columns(_COLUMNS),
                    text.hand_over(group),
                    text.in_leader(issue, "ISSUED", group),
                    text.await_commit(),
                ]
            )
            asks = f"tcgen05.cp.cta_group::{group}.{shape}: lane and column of every byte, and whose shared memory"
            found.append(
                text.TensorProbe(
                    name=f"tmem.cp.{name}.group_{group}",
                    asks=asks,
                    body=body,
                    columns=_COLUMNS,
                    image=image,
                    group=group,
                ).probe()
            )
    return [*found, *_unpacking_copies()]


def _unpacking_copies() -> list[Probe]:
    found = []
    for source in ("b4x16_p64", "b6x16_p32"):
        issue = [
            text.descriptor("%q10", 0, 128, 256),
            f"tcgen05.cp.cta_group::1.128x256b.b8x16.{source} [%r4], %q10;",
            text.commit(1),
        ]
        body = "\n".join(
            [
                text.set_columns(_COLUMNS),
                text.hand_over(),
                text.in_leader(issue, "ISSUED"),
                text.await_commit(),
            ]
        )
        found.append(
            text.TensorProbe(
                name=f"tmem.cp.unpack.{source}",
                asks=f"16 packed elements of {source} to bytes",
                body=body,
                columns=_COLUMNS,
                image=seeded_bytes(source, 8192),
            ).probe()
        )
    return found


def _shift() -> Probe:
    issue = ["tcgen05.shift.cta_group::1.down [%r4];", text.commit(1)]
    body = "\n".join(
        [
            text.set_columns(_COLUMNS),
            text.hand_over(),
            text.in_leader(issue, "ISSUED"),
            text.await_commit(),
        ]
    )
    return text.TensorProbe(
        name="tmem.shift",
        asks="rows move down by one: which columns, and the last row",
        body=body,
        columns=_COLUMNS,
    ).probe()


def _allocator() -> Probe:
    """Addresses that a sequence of allocations gets. One warp; nothing else uses the SM's tensor memory."""
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r3], {};\nld.shared.b32 %{}, [%r3];\n"
    free = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %{}, {};\n"
    code = "mov.u32 %r3, slot;\n"
    code += (
        alloc.format(32, "x") + alloc.format(128, "y") + alloc.format(32, "r20") + alloc.format(256, "r21")
    )
    code += free.format("y", 128) + alloc.format(64, "z") + free.format("x", 32) + alloc.format(32, "w")
    code += "shl.b32 %r22, %r20, 16;\nor.b32 %x, %x, %r22;\nshl.b32 %r22, %r21, 16;\nor.b32 %r23, %y, %r22;\n"
    code += free.format("r20", 32) + free.format("r21", 256) + free.format("z", 64) + free.format("w", 32)
    code += "mov.u32 %y, %r23;"
    asks = "columns given to 32, 128, 32, 256; after freeing 128: 64; after freeing the first 32: 32"
    return per_thread(
        "tmem.allocator", asks, code, words=4, shared=".shared .align 4 .b32 slot;", target=Target.SM100A
    )


def _pair_routing() -> list[Probe]:
    """TMA loads with .cta_group::2: which CTA's barrier counts the bytes of each destination."""
    spec = MapSpec(buffer="in", dtype="uint8", dims=(128, 16), strides=(128,), box=(64, 4), swizzle=64)
    opcode = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    leader = "and.b32 %r4, %r1, 0xFEFFFFFF;\n"
    plain = f"{leader}mul.lo.u32 %r5, %r2, 4;\n{opcode}.cta_group::2 [%r0], [%map0, {{16, %r5}}], [%r4];"
    both = (
        f"{leader}mad.lo.u32 %r3, %r2, 256, %r0;\nmul.lo.u32 %r5, %r2, 4;\nmov.u16 %h0, 3;\n"
        f"{opcode}.multicast::cluster.cta_group::2 [%r3], [%map0, {{16, %r5}}], [%r4], %h0;"
    )
    own = both.replace(leader, "mov.u32 %r4, %r1;\n")
    cases = (
        ("plain", "each CTA loads 256 bytes and signals rank 0", plain, 512),
        (
            "multicast_leader",
            "both load for both and name rank 0's barrier: 1024 bytes there, none at rank 1",
            both,
            1024,
        ),
        ("multicast_own", "both load for both and name their own barrier: 512 bytes at each", own, 512),
    )
    return [
        AsyncCopy(
            name=f"pair_routing.{name}",
            asks=asks,
            issue=issue,
            region=1024,
            expect=expect,
            in_vain=name != "multicast_own",
            cluster=2,
            maps=(spec,),
            inputs=seeded_bytes(f"pair {name}", 2048),
            target=Target.SM100A,
        ).probe()
        for name, asks, issue, expect in cases
    ]


def _cancel() -> Probe:
    """A grid of one CTA has nothing to cancel: 16 bytes arrive that say so."""
    issue = (
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r0], [%r1];"
    )
    query = """\
{ .reg .b128 %answer; .reg .b64 %low, %high;
ld.shared.v2.b64 {%low, %high}, [%r0];
mov.b128 %answer, {%low, %high};
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p25, %answer;
selp.u32 %r250, 1, 0, %p25;
bar.sync 0;
@%lead st.shared.v4.b32 [%r0], {%r250, %r250, %r250, %r250};
}
bar.sync 0;"""
    return AsyncCopy(
        name="launch.try_cancel",
        asks="try_cancel with no CTA left",
        issue=issue,
        region=16,
        expect=16,
        after=query,
        target=Target.SM100A,
    ).probe()
