"""Arithmetic and operand layouts of ``tcgen05.mma`` and ``tcgen05.cp``.

Descriptor bits, canonical layouts and scale-factor layouts: CUTLASS headers (mma_sm100_desc.hpp), checked by running
NVIDIA's kernels. Products of narrow operands and their scale factors are exact in float32; each K block is summed by
one float32 matrix product and added to the accumulator in float32. The internal width and order of the hardware's
sum is not documented.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import numpy as np

from kernel_space.machine.values.faults import ProtocolError, Unsupported
from kernel_space.machine.values.formats import byte_pairs, values_of
from kernel_space.machine.values.lanes import Array
from kernel_space.machine.values.packed_operands import PACKED, codes_of

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta

K_BYTES = 32  # K of one MMA instruction, of every kind
_SPAN = {0: 0, 1: 128, 2: 128, 4: 64, 6: 32}
_F8F6F4_FORMATS = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}


_RESERVED_IN_MATRIX = 3 << 14 | 3 << 30 | 0xFF << 53
_RESERVED = 1 << 3 | 1 << 6  # of an instruction descriptor, by kind; a sparse one also has bits 0 and 1
_RESERVED_BY_KIND = {
    **dict.fromkeys(("f16", "tf32", "f8f6f4"), _RESERVED | 3 | 1 << 23 | 1 << 29),
    "i8": 1 << 6 | 3 | 3 << 13 | 1 << 23 | 1 << 29,
    "mxf8f6f4": _RESERVED | 3 | 7 << 24 | 1 << 31,
    **dict.fromkeys(("mxf4", "mxf4nvf4"), _RESERVED | 3 | 1 << 12 | 3 << 15 | 7 << 24),
}


def _bits(mask: int) -> str:
    return ", ".join(str(bit) for bit in range(mask.bit_length()) if mask >> bit & 1)


@dataclasses.dataclass(frozen=True)
class SmemDescriptor:
    """64-bit matrix descriptor: byte offsets; ``span`` of the swizzle, ``base32`` for the 32-byte atom."""

    start: int
    lbo: int
    sbo: int
    span: int
    base32: bool


@functools.lru_cache(maxsize=8192)
def smem_descriptor(bits: int) -> SmemDescriptor:
    """Raises ``ProtocolError`` for a version, layout or base offset the hardware does not define here."""
    layout = bits >> 61
    if bits >> 46 & 7 != 1:
        raise ProtocolError(f"matrix descriptor {bits:#018x}: the version field must be 1")
    if bits & _RESERVED_IN_MATRIX:
        raise ProtocolError(
            f"matrix descriptor {bits:#018x}: reserved bits {_bits(bits & _RESERVED_IN_MATRIX)} must be 0"
        )
    if layout not in _SPAN:
        raise ProtocolError(f"matrix descriptor {bits:#018x}: unknown layout {layout}")
    if bits >> 49 & 7 or bits >> 52 & 1:
        raise Unsupported(f"matrix descriptor {bits:#018x}: base offset and absolute LBO are not modelled")
    return SmemDescriptor(
        (bits & 0x3FFF) << 4,
        (bits >> 16 & 0x3FFF) << 4,
        (bits >> 32 & 0x3FFF) << 4,
        _SPAN[layout],
        layout == 1,
    )


def _swizzled(address: Array, span: int, base32: bool) -> Array:
    if not span:
        return address
    if base32:
        return address ^ ((address >> 7 & 3) << 5)
    return address ^ ((address >> 7 & (span // 16 - 1)) << 4)


@functools.lru_cache(maxsize=1024)
def k_major_chunks(low: int, lbo: int, sbo: int, span: int, base32: bool, rows: int) -> Array:
    """16-byte chunks of ``rows`` x 32 bytes of K, relative to the 1024-byte block of the start. [rows, 2]"""
    row, byte = np.arange(rows)[:, None], np.arange(0, K_BYTES, 16)[None, :]
    if span:
        address = low + (row >> 3) * sbo + (row & 7) * span + byte
    else:
        address = low + (row >> 3) * sbo + (byte >> 4) * lbo + (row & 7) * 16
    return _swizzled(address, span, base32) >> 4


@functools.lru_cache(maxsize=1024)
def mn_major_chunks(low: int, lbo: int, sbo: int, span: int, base32: bool, rows: int, size: int) -> Array:
    """Chunks of T = 16 / size neighbouring rows for each k. [k, rows / T]"""
    per_chunk = 16 // size
    k = np.arange(K_BYTES // size)[:, None]
    mn = np.arange(0, rows, per_chunk)[None, :]
    if span:
        width = per_chunk * (span // 16)
        address = low + (mn % width) * size + (mn // width) * lbo + (k & 7) * span + (k >> 3) * sbo
    else:
        address = low + (mn // per_chunk) * sbo + (k >> 3) * lbo + (k & 7) * 16
    return _swizzled(address, span, base32) >> 4


def gather(cta: Cta, bits: int, rows: int, mn_major: bool, size: int, packing: int = 0) -> Array:
    """Operand bytes, [rows, 32], from the shared memory of ``cta``. ``size``: bytes per element (MN-major);
    ``packing``: bits of elements in padded groups of 16, which become one code per byte."""
    form = smem_descriptor(bits)
    base, chunks = footprint(form, rows, mn_major, size)
    found = cta.smem.chunks[base + chunks]
    if packing:
        found = codes_of(found.view(np.uint8), packing)
    if not mn_major:
        return found.view(np.uint8).reshape(rows, K_BYTES)
    elements = found.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[size]).reshape(K_BYTES // size, rows)
    return np.ascontiguousarray(elements.T).view(np.uint8)


def footprint(form: SmemDescriptor, rows: int, mn_major: bool, size: int) -> tuple[int, Array]:
    """(first chunk of the block, chunks relative to it) that an operand reads."""
    low, base = form.start & 1023, (form.start & ~1023) >> 4
    if mn_major:
        return base, mn_major_chunks(low, form.lbo, form.sbo, form.span, form.base32, rows, size)
    return base, k_major_chunks(low, form.lbo, form.sbo, form.span, form.base32, rows)


def check_footprint(cta: Cta, form: SmemDescriptor, rows: int, mn_major: bool, size: int, what: str) -> Array:
    """The absolute chunks an operand reads. Raises ``IllegalAccess`` outside of the CTA's shared memory."""
    base, chunks = footprint(form, rows, mn_major, size)
    low, high = _range(id(chunks), chunks)
    cta.smem.check((base + low) << 4, (base + high + 1) << 4, 16, what)
    return base + chunks


_RANGES: dict[int, tuple[Array, int, int]] = {}


def _range(key: int, chunks: Array) -> tuple[int, int]:
    found = _RANGES.get(key)
    if found is None or found[0] is not chunks:
        found = _RANGES[key] = (chunks, int(chunks.min()), int(chunks.max()))
    return found[1], found[2]


@dataclasses.dataclass(frozen=True)
class Shape:
    """What the instruction descriptor says: M over the whole group, formats, majors, scale-factor bytes."""

    kind: str
    m: int
    n: int
    a_format: str
    b_format: str
    d_format: str
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    scale_format: str
    scale_a_id: int
    scale_b_id: int

    @property
    def size(self) -> int:
        """Bytes per element of A and B in shared memory (fp4: two per byte, never MN-major)."""
        return {"f16": 2, "bf16": 2, "tf32": 4}.get(self.a_format, 1)


@functools.lru_cache(maxsize=1024)
def instruction_shape(idesc: int, kind: str, group: int) -> Shape:
    """Decode and check an instruction descriptor. Raises ``ProtocolError`` or ``Unsupported``."""
    scaled = kind.startswith("mx")
    if idesc >> 2 & 1:
        raise Unsupported("sparse MMA is not modelled")
    if wrong := idesc & _RESERVED_BY_KIND[kind]:
        raise ProtocolError(f"instruction descriptor {idesc:#010x}: reserved bits {_bits(wrong)} must be 0")
    a_code, b_code = idesc >> 7 & 7, idesc >> 10 & 7
    a_format, b_format = (_operand_format(kind, code) for code in (a_code, b_code))
    if scaled:
        if idesc >> 31:
            raise Unsupported("K size bit 31 of the instruction descriptor (K = 96) is not modelled")
        d_format, scale = "f32", "ue8m0" if idesc >> 23 & 1 else "ue4m3"
    else:
        d_format, scale = {0: "f16", 1: "f32", 2: "s32"}.get(idesc >> 4 & 3, "?"), ""
    m, n = (idesc >> 24 & 31) << 4, (idesc >> 17 & 63) << 3
    _check_shape(kind, m, n, group, d_format, kind.endswith("f8f6f4") and bool(idesc >> 16 & 1))
    return Shape(
        kind, m, n, a_format, b_format, d_format, bool(idesc >> 13 & 1), bool(idesc >> 14 & 1),
        bool(idesc >> 15 & 1), bool(idesc >> 16 & 1), scale, idesc >> 29 & 3 if scaled else 0,
        idesc >> 4 & 3 if scaled else 0,
    )  # fmt: skip


def _operand_format(kind: str, code: int) -> str:
    formats = {
        "f16": {0: "f16", 1: "bf16"},
        "tf32": {2: "tf32"},
        "i8": {0: "u8", 1: "s8"},
        "mxf4": {1: "e2m1"},
        "mxf4nvf4": {1: "e2m1"},
        "f8f6f4": _F8F6F4_FORMATS,
        "mxf8f6f4": _F8F6F4_FORMATS,
    }[kind]
    if code not in formats:
        raise Unsupported(f"operand format {code} of kind::{kind} is not modelled")
    return formats[code]


def _check_shape(kind: str, m: int, n: int, group: int, d_format: str, wide_n: bool) -> None:
    """Legal M, and steps of N, as CuTe DSL checks them. ``wide_n``: 8-bit B stored MN-major."""
    legal_m = (128, 256) if group == 2 else (64, 128)
    step = 16 * group if wide_n or (kind == "i8" and (m == 128) == (group == 1)) else 8 * group
    if m not in legal_m or not 8 <= n <= 256 or n % step:
        raise ProtocolError(f"kind::{kind} with cta_group::{group} has no shape M={m} N={n}")
    if kind.startswith("mx") and m == 64:
        raise Unsupported(f"block-scaled M={m} with cta_group::{group} is not modelled")
    if kind.startswith("mx") and _is_folded(m, group) and n % 128:
        # CuTe's layout of the factors is that of N rounded up to 128, whose half is not the accumulator's
        raise Unsupported(f"block-scaled M={m} N={n} with cta_group::{group}: N in steps of 128 is modelled")
    wanted = {"i8": ("s32",), "tf32": ("f32",)}.get(kind, ("f32", "f16"))
    if d_format not in wanted:
        raise ProtocolError(f"kind::{kind} cannot accumulate in {d_format}")


def decode(data: Array, form: str) -> Array:
    """Bytes [rows, n] -> float32 [rows, elements] (float64 for 8-bit integers, whose sums must be exact)."""
    rows = data.shape[0]
    match form:
        case "e2m1":
            return byte_pairs("e2m1").take(data).view(np.float32).reshape(rows, -1)
        case "f16":
            return data.view(np.float16).astype(np.float32)
        case "bf16":
            return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        case "tf32":
            return (data.view(np.uint32) & 0xFFFFE000).view(np.float32)
        case "u8":
            return data.astype(np.float64)
        case "s8":
            return data.view(np.int8).astype(np.float64)
    return values_of(form).take(data)


def operand(cta: Cta, bits: int, rows: int, mn_major: bool, shape: Shape, form: str) -> Array:
    """Values of an operand in shared memory, [rows, elements]."""
    packing = PACKED.get(form, 0) if shape.kind.endswith("f8f6f4") else 0
    data = gather(cta, bits, rows, mn_major, shape.size, packing)
    return values_of(form).take(data) if packing else decode(data, form)


def _is_folded(m: int, group: int) -> bool:
    """64 rows in each CTA of a pair: the upper half of N lies in lanes 64 and up."""
    return m == 128 and group == 2


def scale_b_quarters(shape: Shape, group: int) -> tuple[tuple[int, ...], ...]:
    """Quarters of the lanes that hold the same scale factors of B, for each part of N.

    Lanes need the factors of their own accumulators. CuTe: ``tmem_sf_frg``, ScaleFactorDuplicated4by1 and, for a pair
    with M = 128, ScaleFactorDuplicated2by2.
    """
    return ((0, 1), (2, 3)) if _is_folded(shape.m, group) else ((0, 1, 2, 3),)


def scale_b_columns(shape: Shape, group: int) -> int:
    return -(-shape.n // len(scale_b_quarters(shape, group)) // 32)


def scale_b_bytes(memory: Array, address: int, shape: Shape, group: int, block: int) -> Array:
    """Scale factors of B for one K step, bytes [N, blocks]."""
    parts = scale_b_quarters(shape, group)
    rows = shape.n // len(parts)
    return np.concatenate(
        [scale_bytes(memory, address, rows, block, shape.scale_b_id, shape.kind, part) for part in parts]
    )


def scale_bytes(
    memory: Array, address: int, rows: int, block: int, which: int, kind: str,
    among: tuple[int, ...] = (0, 1, 2, 3),
) -> Array:  # fmt: skip
    """Scale factors of one K step, bytes [rows, blocks]: row r has lane r % 32 of column + r / 32 of ``memory``.

    They have to be the same in the quarters ``among`` of 32 lanes, each of which is read. Raises ``ProtocolError``.
    """
    column, quarters = address & 0xFFFF, scale_quarters(memory, address, rows)
    first, *others = among
    found = used_scales(quarters[:, first], rows, block, which, kind)
    for number in others:
        if np.array_equal(quarters[:, number], quarters[:, first]):
            continue
        if not np.array_equal(used_scales(quarters[:, number], rows, block, which, kind), found):
            raise ProtocolError(
                f"the scale factors at TMEM column {column} are others in lanes {32 * number}..{32 * number + 31} "
                f"than in lanes {32 * first}..{32 * first + 31}; each quarter of these lanes needs all of them"
            )
    return found


def scale_quarters(memory: Array, address: int, rows: int) -> Array:
    """[columns, quarters, 32 lanes]"""
    column = address & 0xFFFF
    return memory[column : column + -(-rows // 32)].reshape(-1, 4, 32)


def used_scales(quarter: Array, rows: int, block: int, which: int, kind: str) -> Array:
    """Of one quarter, [columns, 32 lanes]."""
    each = quarter.reshape(-1)[:rows].view(np.uint8).reshape(rows, 4)
    if kind in ("mxf4nvf4", "mxf4"):
        if block == 16:
            if which:
                raise ProtocolError(f"scale-factor id must be 0 with 4 bytes per K step, got {which}")
            return each
        if which not in (0, 2):
            raise ProtocolError(f"scale-factor id must be 0 or 2 with 2 bytes per K step, got {which}")
        return each[:, which : which + 2]
    return each[:, which : which + 1]


def apply_scales(values: Array, scales: Array, form: str) -> Array:
    """Multiply each K block by its factor, in place."""
    rows, blocks = scales.shape
    grouped = values.reshape(rows, blocks, -1)
    grouped *= values_of(form).take(scales)[:, :, None]
    return values


def lanes_of(m: int, group: int) -> Array:
    """TMEM lane of each of a CTA's rows: rows in order, except M = 64 in one CTA, where each quarter holds 16."""
    if m == 64 and group == 1:
        return np.concatenate([np.arange(16) + 32 * quarter for quarter in range(4)])
    return np.arange(m // group)
