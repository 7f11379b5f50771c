"""Probes of block-scaled ``tcgen05.mma`` (need a B200): scale layouts, special scales, value order."""

from __future__ import annotations

import dataclasses

import numpy as np

from kernel_space.selfcheck.text import mma_images as images
from kernel_space.selfcheck.text.mma_probe import Mma, random_rows
from kernel_space.selfcheck.text.probe import Probe, seeded_bytes


def probes() -> list[Probe]:
    return [case.probe() for case in (*_fp4(), *_mx())]


def _scales(seed: str, low: int, high: int) -> np.ndarray:
    """(2, 32, 4) words of four scale bytes between ``low`` and ``high``."""
    data = np.frombuffer(seeded_bytes(seed, 1024), np.uint8).astype(np.int64) % (high - low + 1) + low
    return data.astype(np.uint8).view(np.uint32).reshape(2, 32, 4)


def _fp4() -> list[Mma]:
    """Block-scaled NVFP4. E4M3 scales 0x30-0x40 are 2^-1 to 2; sums stay exact in f32."""
    plain = Mma(
        name="nvf4.m128_n64",
        asks="random fp4 and scales: value order, scale layout",
        kind="kind::mxf4nvf4.block_scale.scale_vec::4X",
        n=64,
        idesc=images.scaled_idesc(128, 64),
        a=(random_rows("nvf4 a", 128),),
        b=(random_rows("nvf4 b", 64),),
        scales=_scales("nvf4", 0x30, 0x40),
    )
    wide = plain.but(
        "nvf4.sum_order",
        "scales over 2^14: width and rounding of the sum of four blocks",
        scales=_scales("nvf4 wide", 0x08, 0x77),
    )
    more = {"a": (wide.a[0], random_rows("nvf4 a3", 128)), "b": (wide.b[0], random_rows("nvf4 b3", 64))}
    pair = {"a": (random_rows("nvf4 a2", 256),), "b": (random_rows("nvf4 b2", 128),), "n": 128, "group": 2}
    return [
        plain,
        plain.but("nvf4.m256_n128_group_2", "over two CTAs", idesc=images.scaled_idesc(256, 128), **pair),
        *_fp4_special(plain),
        wide,
        wide.but("nvf4.two_steps", "the same over two steps", **more),
    ]


def _fp4_special(plain: Mma) -> list[Mma]:
    assert plain.scales is not None
    nan, zeros = plain.scales.copy(), (np.zeros((128, 32), np.uint8),)
    nan.view(np.uint8)[..., ::5] = 0x7F
    one, column = np.zeros((64, 32), np.uint8), np.arange(64)
    one[column, column // 2] = np.where(column % 2, 0x20, 0x02)
    sign = "bit 7 of a UE4M3 scale: ignored, or a sign"
    return [
        plain.but("nvf4.negative_scale", sign, scales=_scales("nvf4", 0xB0, 0xC0)),
        plain.but("nvf4.nan_scale", "a scale of 0x7F: NaN, also times zero", scales=nan),
        plain.but("nvf4.nan_scale_of_zeros", "NaN scale where all fp4 are 0", a=zeros, scales=nan),
        plain.but("nvf4.one_element", "B has one element 1.0 per column: k and its scale", b=(one,)),
    ]


def _mx() -> list[Mma]:
    """Power-of-two scales: fp4 with two scales per step, 8-bit with one."""
    fp4 = Mma(
        name="mxf4.m128_n64",
        asks="UE8M0 scales of blocks of 32",
        kind="kind::mxf4.block_scale.scale_vec::2X",
        n=64,
        idesc=images.scaled_idesc(128, 64, ue8m0=True),
        a=(random_rows("mxf4 a", 128),),
        b=(random_rows("mxf4 b", 64),),
        scales=_scales("mxf4", 124, 130),
    )
    second = dataclasses.replace(
        fp4,
        name="mxf4.scale_id_2",
        idesc=images.scaled_idesc(128, 64, ue8m0=True, sfa=2, sfb=2),
        asks="the second pair of scale bytes",
    )
    special = dataclasses.replace(
        fp4,
        name="mxf4.scale_special",
        scales=_scales("mxf4 special", 250, 255),
        asks="UE8M0 near the top: overflow to inf, 0xFF is NaN",
    )
    low = dataclasses.replace(
        fp4,
        name="mxf4.scale_small",
        scales=_scales("mxf4 low", 0, 6),
        asks="UE8M0 0 is 2^-127; denormal sums",
    )
    eight = Mma(
        name="mxf8.m128_n64",
        asks="e4m3 with one scale per step",
        kind="kind::mxf8f6f4.block_scale.scale_vec::1X",
        n=64,
        idesc=images.scaled_idesc(128, 64, a=0, b=0, ue8m0=True),
        a=(random_rows("mxf8 a", 128),),
        b=(random_rows("mxf8 b", 64),),
        scales=_scales("mxf8", 120, 134),
    )
    ids = [
        dataclasses.replace(
            eight,
            name=f"mxf8.scale_id_{n}",
            idesc=images.scaled_idesc(128, 64, a=0, b=0, ue8m0=True, sfa=n, sfb=3 - n),
            asks=f"scale byte {n} of A, {3 - n} of B",
        )
        for n in (1, 2, 3)
    ]
    return [fp4, second, special, low, eight, *ids]
