"""Probes of ``cp.async.bulk.tensor`` from global to shared memory."""

from __future__ import annotations

from typing import Any

from kernel_space.selfcheck.text.async_text import AsyncCopy
from kernel_space.selfcheck.text.probe import MapSpec, Probe, Target, seeded_bytes
from kernel_space.selfcheck.text.tensor_maps import DTYPES, box_bytes, element_bits, footprint

_LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes{more}"
MARGIN = 128  # dumped behind the box: nothing may be written there


def matrix(dtype: str, row_bytes: int, rows: int, box: tuple[int, int], **options: Any) -> MapSpec:
    """A row-major matrix over the input; ``box`` is (bytes, rows)."""
    bits = DTYPES[dtype][1]
    return MapSpec(
        buffer="in",
        dtype=dtype,
        dims=(row_bytes * 8 // bits, rows),
        strides=(row_bytes,),
        box=(box[0] * 8 // bits, box[1]),
        **options,
    )


def load_text(spec: MapSpec, coordinates: tuple[int, ...], to: str = "%r0", barrier: str = "%r1") -> str:
    opcode = _LOAD.format(rank=len(coordinates), more="")
    return f"{opcode} [{to}], [%map0, {{{', '.join(map(str, coordinates))}}}], [{barrier}];"


def load(
    name: str,
    asks: str,
    spec: MapSpec,
    coordinates: tuple[int, ...],
    *,
    offset: int = 0,
    expect: int | None = None,
    lanes: int = 1,
    before_expect: bool = False,
    target: Target = Target.SM90,
    race_free: bool = True,
    in_vain: bool = False,
) -> Probe:
    """One load to ``offset`` bytes behind the region's start; coordinates in elements."""
    to = f"add.u32 %r3, %r0, {offset};\n"
    data = sum((dim - 1) * step for dim, step in zip(spec.dims[1:], spec.strides, strict=True))
    data += -(-spec.dims[0] * element_bits(spec) // 8 // 16) * 16
    return AsyncCopy(
        name=f"tma_load.{name}",
        asks=asks,
        issue=to + load_text(spec, coordinates, "%r3"),
        region=-(-(offset + footprint(spec) + MARGIN) // 16) * 16,
        expect=box_bytes(spec) if expect is None else expect,
        inputs=seeded_bytes(f"tma_load.{name}", spec.offset + data),
        maps=(spec,),
        lanes=lanes,
        before_expect=before_expect,
        target=target,
        race_free=race_free,
        in_vain=in_vain,
    ).probe()


def probes() -> list[Probe]:
    return [
        *_swizzles(), *_short_rows(), *_element_types(), *_out_of_bounds(), *_ranks(), *_strides(), *_atoms(),
        *_transactions(), *_blackwell(),
    ]  # fmt: skip


def _swizzles() -> list[Probe]:
    found = []
    for swizzle in (0, 32, 64, 128):
        inner = swizzle or 64
        for offset in (0,) if not swizzle else (0, 128, 640):
            spec = matrix("uint8", 256, 20, (inner, 12), swizzle=swizzle)
            asks = (
                f"box of {inner} B x 12 under swizzle {swizzle}, to {offset} bytes behind a multiple of 1024"
            )
            found.append(load(f"swizzle_{swizzle}.at_{offset}", asks, spec, (32, 3), offset=offset))
    return found


def _short_rows() -> list[Probe]:
    """A box narrower than the swizzle's span: where do its rows start, and is the rest left alone?"""
    cases = ((128, 64), (128, 48), (128, 16), (128, 96), (64, 32), (64, 48), (64, 16), (32, 16))
    found = []
    for swizzle, inner in cases:
        spec = matrix("uint8", 256, 16, (inner, 10), swizzle=swizzle)
        asks = f"rows of {inner} B under swizzle {swizzle}: the row pitch is the span"
        found.append(load(f"short_row.{inner}_of_{swizzle}", asks, spec, (16, 2)))
    tall = MapSpec(
        buffer="in", dtype="uint16", dims=(64, 8, 4), strides=(128, 1024), box=(32, 3, 2), swizzle=128
    )
    found.append(load("short_row.three_dimensions", "short rows of 3 x 2 boxes", tall, (0, 1, 1)))
    return found


def _element_types() -> list[Probe]:
    found = []
    for dtype in DTYPES:
        if dtype == "16u4_align8b":
            continue
        spec = matrix(dtype, 128, 12, (64, 8), swizzle=64)
        bits = DTYPES[dtype][1]
        asks = f"{dtype}: bits pass unchanged, or are flushed and rounded"
        found.append(load(f"type.{dtype}", asks, spec, (16 * 8 // bits, 2)))
    return found


def _out_of_bounds() -> list[Probe]:
    """Coordinates in elements of 2 bytes; the matrix is 48 x 12."""
    cases = {
        "negative_column": (-8, 2), "past_last_column": (32, 2), "negative_row": (0, -3), "past_last_row": (0, 9),
        "corner": (-16, -2), "far_corner": (40, 10), "all_left": (-32, 0), "all_below": (0, 12),
        "all_far": (8, 1 << 20), "exact_end": (16, 4),
    }  # fmt: skip
    found = []
    for name, coordinates in cases.items():
        spec = matrix("float16", 96, 12, (64, 8), swizzle=64)
        asks = f"box at {coordinates} of a 48 x 12 matrix: zeros outside, all bytes counted"
        found.append(load(f"oob.{name}", asks, spec, coordinates))
    ragged = MapSpec(buffer="in", dtype="uint8", dims=(37, 7), strides=(48,), box=(32, 8), swizzle=32)
    found.append(
        load("oob.ragged_row", "37 bytes of a pitch of 48 exist: zeros from byte 37 on", ragged, (16, 2))
    )
    whole = MapSpec(buffer="in", dtype="uint8", dims=(19, 3), strides=(32,), box=(32, 8))
    found.append(
        load("oob.box_beyond_tensor", "the box is larger than the tensor in both dimensions", whole, (0, 0))
    )
    for dtype in ("float16", "bfloat16", "float32", "float64", "float32_ftz", "tfloat32"):
        spec = matrix(dtype, 96, 6, (64, 8), swizzle=0, oob_nan=True)
        asks = f"out of bounds fill with NaN: which NaN of {dtype}"
        found.append(load(f"oob.nan_fill.{dtype}", asks, spec, (32 * 8 // DTYPES[dtype][1], -1)))
    return found


def _ranks() -> list[Probe]:
    line = MapSpec(buffer="in", dtype="uint32", dims=(80,), strides=(), box=(48,))
    cube = MapSpec(
        buffer="in", dtype="uint16", dims=(32, 6, 5), strides=(64, 384), box=(16, 4, 3), swizzle=32
    )
    four = MapSpec(
        buffer="in", dtype="uint8", dims=(32, 4, 3, 4), strides=(32, 160, 640), box=(32, 2, 2, 3), swizzle=32
    )
    five = MapSpec(
        buffer="in", dtype="uint8", dims=(16, 3, 3, 3, 3), strides=(16, 48, 144, 432), box=(16, 2, 2, 2, 2)
    )
    return [
        load("rank.1d", "48 of 80 words", line, (24,)),
        load("rank.1d_out_of_bounds", "48 words, 16 of them behind the end", line, (48,)),
        load("rank.3d", "box 16 x 4 x 3", cube, (8, 1, 1)),
        load("rank.3d_out_of_bounds", "row and plane out of bounds on both sides", cube, (8, -1, 3)),
        load("rank.4d", "box 32 x 2 x 2 x 3 of a padded tensor", four, (0, 1, 1, 0)),
        load("rank.4d_out_of_bounds", "outermost coordinate -1, another past the end", four, (0, 3, 1, -1)),
        load("rank.5d", "box 16 x 2 x 2 x 2 x 2", five, (0, 1, 0, 1, 1)),
        load("rank.5d_out_of_bounds", "four coordinates out of bounds", five, (0, 2, -1, 2, -1)),
    ]


def _strides() -> list[Probe]:
    """Steps through the tensor, batches on top of each other, views into the middle."""
    step_rows = matrix("uint8", 64, 16, (32, 8), element_strides=(1, 2))
    step_both = MapSpec(
        buffer="in", dtype="uint32", dims=(64, 8), strides=(256,), box=(32, 4), element_strides=(2, 1)
    )
    repeated = MapSpec(buffer="in", dtype="uint8", dims=(32, 4, 3), strides=(32, 0), box=(32, 4, 2))
    overlap = MapSpec(buffer="in", dtype="uint8", dims=(64, 6), strides=(16,), box=(48, 5))
    offset = matrix("uint8", 64, 8, (32, 4), offset=48)
    return [
        load("stride.every_second_row", "element stride 2 in dimension 1", step_rows, (16, 1)),
        load("stride.every_second_word", "a step of 2 in dimension 0 has no effect", step_both, (4, 1)),
        load("stride.zero", "stride 0 repeats a plane", repeated, (0, 0, 1)),
        load("stride.overlapping", "rows that overlap", overlap, (16, 1)),
        load("stride.offset_base", "a base 48 bytes into the buffer", offset, (16, 2)),
    ]


def _atoms() -> list[Probe]:
    """Swizzle units other than 16 bytes: the Hopper driver refuses them."""
    return [
        load(f"swizzle_{name}", f"swizzle {name}", matrix("uint8", 256, 20, (128, 12), swizzle=name), (32, 3),
             target=Target.SM100A)
        for name in ("128_atom_32", "128_atom_32_flip_8", "128_atom_64")
    ]  # fmt: skip


def _transactions() -> list[Probe]:
    """Cases with one possible outcome. Expecting fewer bytes than arrive has none: see docs/evidence/selfcheck.md."""
    spec, at = matrix("uint8", 128, 8, (64, 4)), (16, 1)
    early = "data arrives before expect_tx: the count goes below zero"
    many, lanes = (
        "16 bytes too many expected: never completes",
        "32 lanes load, bytes of 32 expected: completes",
    )
    return [
        load("transactions.before_expect", early, spec, at, before_expect=True),
        load("transactions.too_many_expected", many, spec, at, expect=272, race_free=False, in_vain=True),
        load("transactions.32_lanes", lanes, spec, at, lanes=32, expect=32 * 256, race_free=False),
    ]


def _blackwell() -> list[Probe]:
    """fp4 tensors: dims, box and coordinates count elements of 4 bits."""
    spec = matrix("16u4_align8b", 128, 12, (64, 8), swizzle=64)
    past = matrix("16u4_align8b", 96, 12, (64, 8), swizzle=64)
    return [
        load("fp4.inside", "packed fp4 elements", spec, (64, 2), target=Target.SM100A),
        load(
            "fp4.out_of_bounds",
            "packed fp4 elements past the last column",
            past,
            (128, -2),
            target=Target.SM100A,
        ),
    ]
