"""Probes of bulk tensor stores and reductions, and of plain bulk copies."""

from __future__ import annotations

from typing import Any

from kernel_space.selfcheck.text import bits
from kernel_space.selfcheck.text.async_text import AsyncCopy
from kernel_space.selfcheck.text.probe import MapSpec, Probe, seeded_bytes
from kernel_space.selfcheck.text.tensor_maps import DTYPES, footprint

_WAIT = "cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;"
_INTEGER_OPS = ("add", "min", "max", "and", "or", "xor", "inc", "dec")
_PLAIN_REDUCTIONS = (
    ("add", "u32"), ("add", "s32"), ("add", "u64"), ("min", "s32"), ("max", "u32"), ("max", "s64"), ("inc", "u32"),
    ("dec", "u32"), ("and", "b32"), ("or", "b64"), ("xor", "b32"), ("add", "f32"), ("add", "f64"),
    ("add.noftz", "f16"), ("add.noftz", "bf16"), ("min", "f16"), ("max", "bf16"),
)  # fmt: skip


def probes() -> list[Probe]:
    return [*_stores(), *_ragged(), *_tensor_reductions(), *_lanes(), *_bulk(), *_bulk_reductions()]


def matrix(dtype: str, row_bytes: int, rows: int, box: tuple[int, int], **options: Any) -> MapSpec:
    size = DTYPES[dtype][1]
    return MapSpec(
        buffer="out",
        dtype=dtype,
        dims=(row_bytes * 8 // size, rows),
        strides=(row_bytes,),
        box=(box[0] * 8 // size, box[1]),
        **options,
    )


def store(
    name: str, asks: str, spec: MapSpec, at: tuple[int, ...], *, how: str = "", lanes: int = 1, data: bytes = b"",
    old: bytes = b"",
) -> Probe:  # fmt: skip
    """Store or reduce a box from shared memory into a tensor over the output buffer."""
    opcode = (
        f"cp.reduce.async.bulk.tensor.{len(at)}d.global.shared::cta.{how}.tile.bulk_group"
        if how
        else (f"cp.async.bulk.tensor.{len(at)}d.global.shared::cta.tile.bulk_group")
    )
    size = spec.offset + sum(dim * step for dim, step in zip(spec.dims[1:], spec.strides, strict=True)) + 64
    if not spec.strides:
        size = spec.dims[0] * DTYPES[spec.dtype][1] // 8 + 64
    region = -(-footprint(spec) // 16) * 16
    return AsyncCopy(
        name=f"tma_store.{name}",
        asks=asks,
        issue=f"{opcode} [%map0, {{{', '.join(map(str, at))}}}], [%r0];",
        finish=_WAIT,
        region=region,
        lanes=lanes,
        fill="input",
        inputs=_repeat(data, region) if data else seeded_bytes(f"tma_store.{name}", region),
        output=_repeat(old, size) if old else seeded_bytes(f"tma_store.{name}/old", size),
        maps=(spec,),
        dump=False,
    ).probe()


def _repeat(data: bytes, size: int) -> bytes:
    return (data * (size // len(data) + 1))[:size]


def _stores() -> list[Probe]:
    found = []
    for swizzle in (0, 32, 64, 128):
        spec = matrix("uint8", 256, 14, (swizzle or 64, 10), swizzle=swizzle)
        found.append(store(f"swizzle_{swizzle}", f"store of a box under swizzle {swizzle}", spec, (48, 2)))
    short = matrix("uint8", 256, 14, (48, 10), swizzle=128)
    found.append(store("short_row.48_of_128", "rows narrower than the swizzle's span", short, (48, 2)))
    cases = {"past_last_column": (32, 2), "past_last_row": (0, 9), "corner": (40, 10), "all_outside": (48, 0),
             "all_far": (8, 1 << 20)}  # fmt: skip
    for name, at in cases.items():
        spec = matrix("float16", 96, 12, (64, 8), swizzle=64)
        found.append(
            store(f"oob.{name}", f"box at {at} of a 48 x 12 matrix: elements outside are dropped", spec, at)
        )
    line = MapSpec(buffer="out", dtype="uint32", dims=(80,), strides=(), box=(48,))
    cube = MapSpec(
        buffer="out", dtype="uint16", dims=(32, 6, 5), strides=(64, 384), box=(16, 4, 3), swizzle=32
    )
    five = MapSpec(
        buffer="out", dtype="uint8", dims=(16, 3, 3, 3, 3), strides=(16, 48, 144, 432), box=(16, 2, 2, 2, 2)
    )
    found.append(store("rank.1d_out_of_bounds", "16 of 48 words behind the end", line, (48,)))
    found.append(store("rank.3d_out_of_bounds", "row and plane out of bounds", cube, (8, 3, 3)))
    found.append(store("rank.5d", "box 16 x 2 x 2 x 2 x 2", five, (0, 1, 0, 1, 1)))
    for dtype in ("float32_ftz", "tfloat32", "bfloat16"):
        found.append(
            store(f"type.{dtype}", f"do bits of {dtype} pass", matrix(dtype, 64, 8, (64, 8)), (0, 0))
        )
    return found


def _ragged() -> list[Probe]:
    """Rows that end inside 16 bytes: where does a store stop?"""
    found = []
    for dtype, elements in (("uint8", 1), ("uint8", 15), ("uint8", 37), ("float16", 19), ("float32", 9)):
        box = 64 * 8 // DTYPES[dtype][1]
        spec = MapSpec(buffer="out", dtype=dtype, dims=(elements, 4), strides=(64,), box=(box, 3))
        asks = f"rows of {elements} {dtype} in a pitch of 64 bytes: up to which byte is written"
        found.append(store(f"ragged.{dtype}_{elements}", asks, spec, (0, 1)))
        if dtype != "uint8":
            asks = f"the same for an added box of {dtype}"
            found.append(store(f"ragged.add_{dtype}_{elements}", asks, spec, (0, 1), how="add"))
    return found


def _tensor_reductions() -> list[Probe]:
    ints, floats = bits.words(bits.INT_EDGES), bits.words(bits.F32_EDGES)
    old_ints, old_floats = (
        bits.words(reversed(bits.INT_EDGES)),
        bits.words(bits.F32_EDGES[7:] + bits.F32_EDGES[:7]),
    )
    found = []
    for how in _INTEGER_OPS:
        dtype = "int32" if how in ("min", "max") else "uint32"
        spec = matrix(dtype, 128, 6, (64, 6))
        found.append(
            store(
                f"reduce.{how}.{dtype}",
                f"{how} of {dtype} edges",
                spec,
                (4, 1),
                how=how,
                data=ints,
                old=old_ints,
            )
        )
    for dtype in ("float32", "float16", "bfloat16", "float32_ftz", "float64"):
        spec = matrix(dtype, 128, 6, (64, 6))
        asks = f"add of {dtype}: denormals, rounding, NaN bits"
        found.append(store(f"reduce.add.{dtype}", asks, spec, (0, 1), how="add", data=floats, old=old_floats))
    for dtype in ("float16", "bfloat16"):
        spec = matrix(dtype, 128, 6, (64, 6))
        for how in ("min", "max"):
            asks = f"{how} of {dtype} with NaN and signed zeros"
            found.append(
                store(f"reduce.{how}.{dtype}", asks, spec, (0, 1), how=how, data=floats, old=old_floats)
            )
    outside = matrix("uint32", 96, 6, (64, 6))
    found.append(store("reduce.out_of_bounds", "elements outside are dropped", outside, (12, 3), how="add"))
    return found


def _lanes() -> list[Probe]:
    spec = matrix("uint32", 128, 6, (64, 4))
    return [
        store("lanes.store_32", "32 lanes store the same box", spec, (4, 1), lanes=32),
        store("lanes.reduce_32", "32 lanes add the same box: 32 times", spec, (4, 1), how="add", lanes=32),
    ]


def _bulk() -> list[Probe]:
    """``cp.async.bulk`` without a tensor map."""
    load = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    peer = "mapa.shared::cluster.u32 %r4, %r3, %r5;\nmapa.shared::cluster.u32 %r6, %r1, %r5;"
    return [
        AsyncCopy(
            name="bulk.load",
            asks="80 bytes to offset 48",
            issue=f"add.u32 %r3, %r0, 48;\n{load} [%r3], [%in], 80, [%r1];",
            region=192,
            expect=80,
            inputs=seeded_bytes("bulk.load", 96),
        ).probe(),
        AsyncCopy(
            name="bulk.load_multicast",
            asks="rank r's 64 bytes to both CTAs at the same offset",
            cluster=2,
            region=192,
            issue=f"mad.lo.u32 %r3, %r2, 64, %r0;\nmad.wide.u32 %q0, %r2, 64, %in;\nmov.u16 %h0, 3;\n"
            f"{load}.multicast::cluster [%r3], [%q0], 64, [%r1], %h0;",
            expect=128,
            inputs=seeded_bytes("bulk.multicast", 128),
        ).probe(),
        AsyncCopy(
            name="bulk.to_peer",
            asks="shared to shared of the other CTA, its barrier counts",
            cluster=2,
            region=192,
            fill="input",
            issue="xor.b32 %r5, %r2, 1;\nadd.u32 %r3, %r0, 64;\n" + peer + "\nmad.lo.u32 %r8, %r2, 16, %r0;\n"
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r4], [%r8], 48, [%r6];",
            expect=48,
            inputs=seeded_bytes("bulk.to_peer", 192),
        ).probe(),
        AsyncCopy(
            name="bulk.store",
            asks="96 bytes from offset 16 to offset 32",
            region=128,
            fill="input",
            dump=False,
            issue="add.u32 %r3, %r0, 16;\nadd.u64 %q0, %out, 32;\n"
            "cp.async.bulk.global.shared::cta.bulk_group [%q0], [%r3], 96;",
            finish=_WAIT,
            inputs=seeded_bytes("bulk.store", 128),
            output=seeded_bytes("bulk.store/old", 160),
        ).probe(),
    ]


def _bulk_reductions() -> list[Probe]:
    found = []
    for how, kind in _PLAIN_REDUCTIONS:
        floating = kind in ("f16", "bf16", "f32", "f64")
        edges = bits.F32_EDGES if floating else bits.INT_EDGES
        opcode = f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{how}.{kind}"
        found.append(
            AsyncCopy(
                name=f"bulk_reduce.{how}.{kind}",
                asks=f"{opcode} of edges",
                issue=f"{opcode} [%out], [%r0], 256;",
                finish=_WAIT,
                region=256,
                fill="input",
                dump=False,
                inputs=_repeat(bits.words(edges), 256),
                output=_repeat(bits.words(edges[5:] + edges[:5]), 272),
            ).probe()
        )
    return found
