"""The tensor memory accelerator: box copies between global and shared memory.

Facts, measured on Hopper unless noted: a box is written row by row, dense, then swizzled by absolute shared address,
``a ^ ((a >> 7 & m) << 4)``; out-of-bounds elements read as zero and count in the transaction bytes; stores drop
them; coordinate 0 must be 16-byte aligned; k active lanes load k times, but store once. ``.cta_group::2`` signals
the barrier of CTA ``(d & ~1) | (rank of mbar & 1)`` for destination d (ISA text).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from kernel_space.errors import InputError
from kernel_space.sim.address_windows import PARAM_WINDOW
from kernel_space.sim.faults import IllegalAccess, ProtocolError, Unsupported
from kernel_space.sim.lanes import Array, signed
from kernel_space.sim.packed_operands import spread_groups
from kernel_space.tensor_map import TENSOR_MAP_BYTES, TensorMap, decode_tensor_map

if TYPE_CHECKING:
    from kernel_space.sim.global_memory import Region
    from kernel_space.sim.machine import Cta, Machine, Warp
    from kernel_space.sim.mbarrier import MBarrier

ALIGNMENT = 128


class TmaTensor:
    """A descriptor prepared for copies. Extents run from the outermost dimension inwards; the last is bytes."""

    def __init__(self, fields: TensorMap) -> None:
        if fields.interleave_bytes or any(step != 1 for step in fields.element_strides):
            raise Unsupported("interleaved or strided tensor maps are not modelled")
        if fields.oob_fill_nan:
            raise Unsupported("tensor maps that fill with NaN are not modelled")
        self.fields = fields
        self.bits = fields.element_type.bits
        self.address = fields.address
        self.dims = (*reversed(fields.dims[1:]), fields.dims[0] * self.bits // 8)
        self.strides = (*reversed(fields.strides), 1)
        self.inner = fields.box[0] * self.bits // 8
        self.box = (*reversed(fields.box[1:]), self.inner)
        self.rows = int(np.prod(self.box[:-1]))
        self.bytes = self.rows * self.inner
        self.unpacks = fields.element_type.name.endswith("ALIGN16B")
        self.width = fields.box[0] if self.unpacks else self.inner  # bytes of a row of the box in shared memory
        if self.inner % 16 or self.width % 16:
            raise ProtocolError(
                f"the inner box of a tensor map must be a multiple of 16 bytes, got {self.inner}"
            )
        span = fields.swizzle_bytes
        if span and self.width > span:
            raise ProtocolError(f"the inner box of {self.width} bytes exceeds the swizzle span of {span}")
        self.pitch = span if span and self.width < span else self.width

    def start(self, coords: tuple[int, ...]) -> tuple[int, ...]:
        """Box origin in the order of ``dims``. Raises ``IllegalAccess`` for a misaligned first coordinate."""
        if len(coords) != len(self.dims):
            raise ProtocolError(f"a tensor map of rank {len(self.dims)} is given {len(coords)} coordinates")
        values = [signed(value, 32) for value in coords]
        if values[0] * self.bits % 128:
            raise IllegalAccess(
                f"TMA coordinate 0 = {values[0]} is not aligned to 16 bytes (illegal instruction)"
            )
        return (*reversed(values[1:]), values[0] * self.bits // 8)

    def window(
        self, machine: Machine, start: tuple[int, ...], what: str
    ) -> tuple[Array | None, tuple[slice, ...]]:
        """(strided view of the part of the box inside the tensor, where that part lies in the box)."""
        low = [max(0, at) for at in start]
        high = [min(size, at + extent) for size, at, extent in zip(self.dims, start, self.box, strict=True)]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return None, ()
        first = self.address + sum(a * s for a, s in zip(low, self.strides, strict=True))
        shape = tuple(b - a for a, b in zip(low, high, strict=True))
        last = first + sum((n - 1) * s for n, s in zip(shape, self.strides, strict=True)) + 1
        region = machine.memory.find(first, last, what)
        view = np.ndarray(shape, np.uint8, region.u8, first - region.base, self.strides)
        return view, tuple(slice(a - at, b - at) for a, b, at in zip(low, high, start, strict=True))

    def region_words(self, machine: Machine, start: tuple[int, ...]) -> tuple[Region, Array] | None:
        """(region, its 4-byte words) of the part of the box inside the tensor."""
        low = [max(0, at) for at in start]
        high = [min(size, at + extent) for size, at, extent in zip(self.dims, start, self.box, strict=True)]
        if any(a >= b for a, b in zip(low, high, strict=True)):
            return None
        region = machine.memory.find(self.address, self.address + 1, "TMA")
        words = np.arange(low[-1] & ~3, high[-1], 4, dtype=np.int64) + (self.address - region.base)
        for first, last, stride in zip(low[-2::-1], high[-2::-1], self.strides[-2::-1], strict=True):
            words = (np.arange(first, last)[:, None] * stride + words.reshape(1, -1)).reshape(-1)
        return region, words >> 2

    def read(self, machine: Machine, start: tuple[int, ...]) -> Array:
        """The box as 16-byte chunks, (rows, chunks per row)."""
        view, where = self.window(machine, start, "TMA load")
        if view is not None and view.shape == self.box:
            box = np.ascontiguousarray(view)
        else:
            box = np.zeros(self.box, np.uint8)
            if view is not None:
                box[where] = view
        if self.fields.round_to_tf32:
            box = round_to_tf32(box)
        if self.unpacks:
            box = spread_groups(box.reshape(self.rows, -1), self.bits)
        return box.view(np.complex128).reshape(self.rows, -1)

    def placement(self, offset: int) -> tuple[int, Array | None]:
        """(first chunk, chunk index of every chunk of the box relative to it; None: dense)."""
        span = self.fields.swizzle_bytes
        if not span:
            return offset >> 4, None
        unit = self.fields.swizzle_atom_bytes
        return (offset & ~1023) >> 4, _swizzled(offset & 1023, self.rows, self.width, self.pitch, span, unit)

    def write_shared(self, cta: Cta, offset: int, data: Array) -> None:
        base, chunks = self.placement(offset)
        if chunks is None:
            cta.smem.chunks[base : base + data.size] = data.reshape(-1)
        else:
            cta.smem.chunks[base + chunks] = data

    def read_shared(self, cta: Cta, offset: int) -> Array:
        if self.unpacks:
            raise Unsupported("stores of 16-byte aligned 4- and 6-bit elements are not modelled")
        base, chunks = self.placement(offset)
        if chunks is None:
            return cta.smem.chunks[base : base + self.bytes // 16].reshape(self.rows, -1)
        return cta.smem.chunks[base + chunks]

    def footprint(self) -> int:
        """Bytes from the first to the last one in shared memory."""
        return (self.rows - 1) * self.pitch + self.width


def round_to_tf32(box: Array) -> Array:
    """float32 bytes with 10 bits of mantissa, to nearest even (which rounding the hardware takes is not documented)."""
    bits = box.view(np.uint32)
    finite = bits & 0x7F800000 != 0x7F800000
    rounded = (bits + (0xFFF + (bits >> 13 & 1))) & 0xFFFFE000
    return np.where(finite, rounded, bits).astype(np.uint32).view(np.uint8)


@functools.lru_cache(maxsize=512)
def _swizzled(low: int, rows: int, inner: int, pitch: int, span: int, unit: int) -> Array:
    """Chunk numbers of a box that starts at offset ``low`` of a 1024-byte block."""
    address = low + np.arange(rows)[:, None] * pitch + np.arange(0, inner, 16)[None, :]
    return swizzle(address, span, unit) >> 4


def swizzle(address: Array, span: int, unit: int = 16) -> Array:
    """Shared address -> swizzled address, for spans of 0, 32, 64 or 128 bytes and atoms of 16 or 32 bytes."""
    if not span:
        return address
    shift = {16: 4, 32: 5}[unit]
    return address ^ ((address >> 7 & (span // unit - 1)) << shift)


class TmaLoad:
    """One box on its way to one or several CTAs. ``targets``: (CTA, offset, barrier to signal).

    ``times``: lanes that issued it. Their bytes count together: measured on Hopper, a barrier that expects one box
    never completes when 32 lanes load, and one that expects 32 boxes does.
    """

    kind = "tma"

    def __init__(
        self,
        tensor: TmaTensor,
        start: tuple[int, ...],
        targets: list[tuple[Cta, int, MBarrier]],
        who: str,
        times: int,
    ) -> None:
        self.tensor, self.start, self.targets, self.who, self.times = tensor, start, targets, who, times

    def run(self) -> None:
        machine = self.targets[0][0].machine
        data = self.tensor.read(machine, self.start)
        for cta, offset, barrier in self.targets:
            self.tensor.write_shared(cta, offset, data)
            barrier.complete(self.tensor.bytes * self.times, self.who)


class BulkStore:
    """Shared to global: a box, or plain bytes; ``how`` names a reduction or is ''."""

    kind = "store"

    def __init__(self, cta: Cta, warp: Warp, group: int) -> None:
        self.cta, self.warp, self.group = cta, warp, group

    def run(self) -> None:
        self.move()
        self.warp.bulk_done(self.group)

    def move(self) -> None:
        raise NotImplementedError


class TensorStore(BulkStore):
    def __init__(
        self,
        cta: Cta,
        warp: Warp,
        group: int,
        tensor: TmaTensor,
        start: tuple[int, ...],
        offset: int,
        how: str,
    ) -> None:
        super().__init__(cta, warp, group)
        self.tensor, self.start, self.offset, self.how = tensor, start, offset, how

    def move(self) -> None:
        machine = self.cta.machine
        machine.global_version += 1
        view, where = self.tensor.window(machine, self.start, "TMA store")
        if view is None:
            return
        data = np.ascontiguousarray(self.tensor.read_shared(self.cta, self.offset)).view(np.uint8)
        part = data.reshape(self.tensor.box)[where]
        if self.how:
            part = reduced(view, part, self.how, self.tensor.fields.element_type.name)
        view[...] = part


_REDUCE_TYPES = {
    "F16": np.float16, "F32": np.float32, "F64": np.float64, "U8": np.uint8, "U16": np.uint16, "U32": np.uint32,
    "S32": np.int32, "U64": np.uint64, "S64": np.int64,
    "f16": np.float16, "f32": np.float32, "f64": np.float64, "u32": np.uint32, "s32": np.int32, "u64": np.uint64,
    "s64": np.int64, "b32": np.uint32, "b64": np.uint64,
}  # fmt: skip
_FUNCTIONS = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
              "xor": np.bitwise_xor}  # fmt: skip


def reduced(old: Array, new: Array, how: str, kind: str) -> Array:
    """Element-wise reduction of two byte arrays of the same shape."""
    if how not in _FUNCTIONS:
        raise Unsupported(f"bulk reduction {how} is not modelled")
    old, new = np.ascontiguousarray(old), np.ascontiguousarray(new)
    if kind in ("BF16", "bf16"):
        from kernel_space.sim.floats import round_to_bf16

        wide = [(part.view(np.uint16).astype(np.uint32) << 16).view(np.float32) for part in (old, new)]
        return round_to_bf16(_FUNCTIONS[how](*wide)).view(np.uint8)
    if kind not in _REDUCE_TYPES:
        raise Unsupported(f"bulk reduction of {kind} is not modelled")
    dtype = _REDUCE_TYPES[kind]
    return _FUNCTIONS[how](old.view(dtype), new.view(dtype)).astype(dtype).view(np.uint8)


def descriptor(w: Warp, address: int) -> TmaTensor:
    """The prepared tensor map at a generic address. Only its first 64 bytes have a meaning."""
    machine = w.machine
    if address >= PARAM_WINDOW:
        at = address - PARAM_WINDOW
        data = machine.param_bytes[at : at + TENSOR_MAP_BYTES]
    else:
        region = machine.memory.find(address, address + TENSOR_MAP_BYTES, "tensor map")
        at = address - region.base
        data = region.u8[at : at + TENSOR_MAP_BYTES].tobytes()
        if w.races is not None:
            w.races.map_used(w, address, w.site)
    key = bytes(data[:64])
    found = machine.tensors.get(key)
    if found is None:
        try:
            found = machine.tensors[key] = TmaTensor(decode_tensor_map(key + bytes(64)))
        except InputError as error:
            raise ProtocolError(f"the bytes at {address:#x} are not a tensor map: {error}") from error
    return found


def tma_load(
    w: Warp, to: int, map_address: int, coords: tuple[int, ...], barrier: int, ctas: int | None, pair: bool,
    mask: int, site: int,
) -> None:  # fmt: skip
    """``cp.async.bulk.tensor`` global to shared; ``ctas``: multicast mask of cluster ranks."""
    w.site = site
    tensor = descriptor(w, map_address)
    start = tensor.start(coords)
    offset = to & 0xFFFFFF
    if offset % ALIGNMENT:
        raise IllegalAccess(
            f"TMA writes to shared offset {offset:#x}, which is not aligned to {ALIGNMENT} bytes"
        )
    ranks = [to >> 24] if ctas is None else [rank for rank in range(16) if ctas >> rank & 1]
    targets = []
    for rank in ranks:
        cta = w.cta.peer(rank)
        cta.smem.check(offset, offset + tensor.footprint(), 16, "TMA load")
        targets.append((cta, offset, target_barrier(w, rank, barrier, ctas is not None, pair)))
    if w.races is not None:
        w.races.tma_load(w, tensor, start, targets, site)
    w.machine.issue(TmaLoad(tensor, start, targets, f"TMA load of {w.who}", mask.bit_count()), w.cta)


def target_barrier(w: Warp, rank: int, barrier: int, multicast: bool, pair: bool) -> MBarrier:
    """The barrier that counts the bytes which arrive in the CTA of ``rank``."""
    own = barrier >> 24
    if pair:
        own = (rank & ~1) | (own & 1)
    elif multicast:
        own = rank
    elif own != rank:
        raise ProtocolError(
            f"a TMA load into CTA {rank} signals a barrier of CTA {own} without .cta_group::2"
        )
    cta = w.cta.peer(own)
    found = cta.mbarriers.get(barrier & 0xFFFFFF)
    if found is None:
        raise IllegalAccess(
            f"TMA signals shared offset {barrier & 0xFFFFFF:#x} of CTA {own}, where no mbarrier is"
        )
    return found


def tma_store(
    w: Warp, map_address: int, coords: tuple[int, ...], come: int, how: str, mask: int, site: int
) -> None:
    """``cp.async.bulk.tensor`` shared to global, or ``cp.reduce``: a plain store by 32 lanes happens once."""
    w.site = site
    tensor = descriptor(w, map_address)
    start, offset = tensor.start(coords), come & 0xFFFFFF
    cta = w.cta
    if offset % ALIGNMENT:
        raise IllegalAccess(f"TMA reads shared offset {offset:#x}, which is not aligned to {ALIGNMENT} bytes")
    cta.smem.check(offset, offset + tensor.footprint(), 16, "TMA store")
    for _ in range(mask.bit_count() if how else 1):
        store = TensorStore(cta, w, w.bulk_open(), tensor, start, offset, how)
        if w.races is not None:
            w.races.tma_store(w, tensor, start, offset, how, site)
        w.machine.issue(store, cta)
