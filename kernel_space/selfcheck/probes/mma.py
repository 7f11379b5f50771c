"""Probes of ``tcgen05.mma`` (need a B200): layouts, rounding of sums, special values."""

from __future__ import annotations

import numpy as np

from kernel_space.selfcheck.text import mma_images as images
from kernel_space.selfcheck.text.mma_probe import Mma, random_rows
from kernel_space.selfcheck.text.probe import Probe, seeded_bytes


def probes() -> list[Probe]:
    cases = [*_dense(), *_rounding(), *_special()]
    return [case.probe() for case in cases]


def _rows(seed: str, count: int, width: int, low: int = -8, high: int = 9) -> np.ndarray:
    """(count, width) small integers from a seed."""
    data = np.frombuffer(seeded_bytes(seed, count * width), np.uint8).reshape(count, width)
    return data.astype(np.int64) % (high - low) + low


def _pair(seed: str, m: int, n: int) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Two K steps of small integers in f16: every sum is exact, so that only the layout is asked."""
    a = tuple(images.f16(_rows(f"{seed}/a{step}", m, 16)) for step in (0, 1))
    b = tuple(images.f16(_rows(f"{seed}/b{step}", n, 16)) for step in (0, 1))
    return a, b


def _dense() -> list[Mma]:
    """Layouts: which lane and column holds D[m, n]. Then the modes of one shape."""
    sizes = ((128, 16, 1), (128, 256, 1), (64, 8, 1), (64, 64, 1), (256, 32, 2), (128, 32, 2), (128, 64, 2))
    return [*(_layout(*size) for size in sizes), *_modes(), *_other_types()]


def _layout(m: int, n: int, group: int) -> Mma:
    a, b = _pair(f"dense {m} {n}", m, n)
    name, asks = f"f16.m{m}_n{n}_group_{group}", "exact sums: lane and column of every D[m, n]"
    idesc = images.dense_idesc(m, n)
    return Mma(name=name, asks=asks, kind="kind::f16", idesc=idesc, n=n, a=a, b=b, group=group)


def _modes() -> list[Mma]:
    a, b = _pair("dense modes", 128, 16)
    idesc = images.dense_idesc
    base = Mma(
        name="f16.accumulate",
        asks="adds to the accumulator",
        kind="kind::f16",
        idesc=idesc(128, 16),
        n=16,
        a=a,
        b=b,
        keep=True,
    )
    vector, swapped = ", {%r16, %r17, %r16, %r17}", (images.SBO, images.LBO)
    major = "MN-major without swizzle: what LBO and SBO mean"
    return [
        base,
        base.but("f16.d_f16", "D in f16: its place in the column", idesc=idesc(128, 16, d=0)),
        base.but("f16.negate", "A negated", idesc=idesc(128, 16, negate=1)),
        base.but("f16.a_in_tmem", "A from tensor memory", a=a[:1], b=b[:1], a_in_tmem=True),
        base.but("f16.mn_major_b", f"B {major}", idesc=idesc(128, 16, transpose=2)),
        base.but("f16.mn_major_a", f"A {major}", idesc=idesc(128, 16, transpose=1)),
        base.but("f16.disabled_lanes", "lanes of a set bit keep their accumulator", disabled=vector),
        base.but("f16.swapped_strides", "LBO and SBO exchanged: which steps along K", strides=swapped),
    ]


def _other_types() -> list[Mma]:
    return [
        Mma(
            name="bf16.m128_n16",
            asks="bf16 operands",
            kind="kind::f16",
            idesc=images.dense_idesc(128, 16, a=1, b=1),
            n=16,
            a=(images.bf16(_rows("bf a", 128, 16)),),
            b=(images.bf16(_rows("bf b", 16, 16)),),
        ),
        Mma(
            name="i8.m128_n16",
            asks="signed times unsigned bytes",
            kind="kind::i8",
            n=16,
            start=0x5A000000,
            idesc=images.dense_idesc(128, 16, d=2, a=1, b=0),
            a=(random_rows("i8 a", 128),),
            b=(random_rows("i8 b", 16),),
        ),
    ]


def _rounding() -> list[Mma]:
    """One large product among small ones: how many bits a sum keeps, and how it rounds."""
    a, b = _large_and_small()
    idesc = images.dense_idesc(128, 16)
    one = Mma(
        name="sum.within_step",
        asks="a product of 2^(10+n) and n of 2^-e: width and rounding inside one K step",
        kind="kind::f16",
        idesc=idesc,
        n=16,
        a=(images.f16(a),),
        b=(images.f16(b),),
    )
    first = np.arange(16) == 0
    large = [images.f16(np.where(first, rows, 0)) for rows in (a, b)]
    small = [images.f16(np.where(first, 0, rows)) for rows in (a, b)]
    before = "the same products, the large one in a step of its own before"
    return [
        one,
        one.but("sum.across_steps", before, a=(large[0], small[0]), b=(large[1], small[1])),
        one.but("sum.large_last", "the large product last", a=(small[0], large[0]), b=(small[1], large[1])),
        one.but("sum.onto_accumulator", "onto 1 + lane and column bits", a=small[:1], b=small[1:], keep=True),
        one.but("sum.f16_accumulator", "the same with D in f16", idesc=images.dense_idesc(128, 16, d=0)),
        _low_bits(),
    ]


def _large_and_small() -> tuple[np.ndarray, np.ndarray]:
    """Row m of A: 1024, then small values; column n of B: 2^n, then n ones of either sign."""
    lanes = np.arange(128)
    a = np.zeros((128, 16))
    a[:, 0] = 1024.0
    a[:, 1:] = (2.0 ** -(lanes % 25))[:, None] * (1 + lanes // 25 % 2 / 2)[:, None]
    b = np.ones((16, 16))
    b[:, 0] = 2.0 ** np.arange(16)
    b[1::2, 1:] *= -1
    for column in range(16):
        b[column, 1 + column :] = 0
    return a, b


def _low_bits() -> Mma:
    return Mma(
        name="tf32.low_bits",
        asks="tf32 operands with all 23 bits set: are they rounded or cut",
        kind="kind::tf32",
        idesc=images.dense_idesc(128, 16, a=2, b=2),
        n=16,
        a=(images.f32(_floats("tf32 a", 128)),),
        b=(images.f32(_floats("tf32 b", 16)),),
    )


def _floats(seed: str, count: int) -> np.ndarray:
    """(count, 8) f32 between 1/16 and 16 with full significands."""
    words = np.frombuffer(seeded_bytes(seed, count * 32), np.uint32).reshape(count, 8)
    return (
        words & np.uint32(0x807FFFFF) | (np.uint32(123) + (words >> 23) % np.uint32(8)) << np.uint32(23)
    ).view(np.float32)


def _special() -> list[Mma]:
    """Infinities, NaN and denormals in operands; lane l of A holds one special value, columns of B others."""
    values = np.array(
        [
            0x0000,
            0x8000,
            0x0001,
            0x03FF,
            0x0400,
            0x3C00,
            0xBC00,
            0x7BFF,
            0x7C00,
            0xFC00,
            0x7E00,
            0x7C01,
            0xFFFF,
            0x8001,
            0x2400,
            0x1400,
        ],
        np.uint16,
    )
    a = np.full((128, 16), 0x3C00, np.uint16)
    a[:, 3] = values[np.arange(128) % 16]
    a[:, 7] = values[np.arange(128) // 16 * 2 % 16]
    b = np.full((16, 16), 0x3C00, np.uint16)
    b[:, 3] = values
    tiny = images.f32(np.full((128, 8), 2.0**-70) * (1 + np.arange(128) % 7)[:, None])
    return [
        Mma(
            name="special.f16",
            asks="inf, NaN, denormals among the products; bits of the resulting NaN",
            kind="kind::f16",
            idesc=images.dense_idesc(128, 16),
            n=16,
            a=(a.view(np.uint8).reshape(128, 32),),
            b=(b.view(np.uint8).reshape(16, 32),),
        ),
        Mma(
            name="special.tf32_denormal_sum",
            asks="products of 2^-140: are denormal sums kept",
            kind="kind::tf32",
            idesc=images.dense_idesc(128, 16, a=2, b=2),
            n=16,
            a=(tiny,),
            b=(tiny[:16],),
        ),
        *_special_bytes(),
    ]


def _special_bytes() -> list[Mma]:
    return [
        Mma(
            name="special.e4m3",
            asks="e4m3 bytes, NaN included",
            kind="kind::f8f6f4",
            idesc=images.dense_idesc(128, 16),
            n=16,
            a=(random_rows("e4m3 a", 128),),
            b=(random_rows("e4m3 b", 16),),
        ),
        Mma(
            name="special.e5m2",
            asks="e5m2 times e4m3, inf and NaN included",
            kind="kind::f8f6f4",
            idesc=images.dense_idesc(128, 16, a=1),
            n=16,
            a=(random_rows("e5m2 a", 128),),
            b=(random_rows("e4m3 b2", 16),),
        ),
    ]
