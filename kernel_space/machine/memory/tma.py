"""The tensor memory accelerator: box copies between global and shared memory.

Facts, measured on Hopper unless noted: a box is written row by row, dense, then swizzled by absolute shared address,
``a ^ ((a >> 7 & m) << 4)``; out-of-bounds elements read as zero, or as 7ff7 in every 16 bits, and count in the
transaction bytes. Stores and reductions drop what lies past the end, but in units of 16 bytes: the unit that holds a
row's last element is written whole, into the padding of the pitch (rows of whole units, as this project's, have
none). At a negative coordinate they are an illegal instruction. Coordinate 0 must be 16-byte aligned; k active lanes
load k times, but store once. ``.cta_group::2`` signals the barrier of CTA ``(d & ~1) | (rank of mbar & 1)`` for
destination d (ISA text).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kernel_space.core.errors import InputError
from kernel_space.launch.tensor_map import TENSOR_MAP_BYTES, TensorMap, decode_tensor_map
from kernel_space.machine.memory.undefined import UndefinedBytes, copied_birth
from kernel_space.machine.values import floats
from kernel_space.machine.values.address_windows import PARAM_WINDOW
from kernel_space.machine.values.faults import IllegalAccess, ProtocolError, Unsupported
from kernel_space.machine.values.lanes import UNSIGNED, Array, signed
from kernel_space.machine.values.packed_operands import spread_groups
from kernel_space.machine.values.undefined import Birth, UndefinedValue, where

if TYPE_CHECKING:
    from kernel_space.machine.memory.bulk_groups import BulkOp
    from kernel_space.machine.memory.global_memory import Region
    from kernel_space.machine.memory.smem import Smem
    from kernel_space.machine.run.machine import Cta, Machine, Warp
    from kernel_space.machine.units.mbarrier import MBarrier
    from kernel_space.machine.values.clocks import Known

ALIGNMENT = 128
OUTSIDE_NAN = 0x7FF7  # in every 16 bits, whatever the element type (measured on Hopper)


class TmaTensor:
    """A descriptor prepared for copies. Extents run from the outermost dimension inwards; the last is bytes."""

    def __init__(self, fields: TensorMap) -> None:
        if fields.interleave_bytes:
            raise Unsupported("interleaved tensor maps are not modelled")
        self.fields = fields
        self.bits = fields.element_type.bits
        self.address = fields.address
        self.dims = (*reversed(fields.dims[1:]), fields.dims[0] * self.bits // 8)
        self.strides = (*reversed(fields.strides), 1)
        self.inner = fields.box[0] * self.bits // 8
        self.steps = (*reversed(fields.element_strides[1:]), 1)  # that of dimension 0 has no effect
        extents = (*reversed(fields.box[1:]), self.inner)
        self.box = tuple(-(-extent // step) for extent, step in zip(extents, self.steps, strict=True))
        self.rows = int(np.prod(self.box[:-1]))
        self.bytes = self.rows * self.inner
        self.unpacks = fields.element_type.name.endswith("ALIGN16B")
        self.width = (
            fields.box[0] if self.unpacks else self.inner
        )  # bytes of a row of the box in shared memory
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

    def _inside(self, start: tuple[int, ...], stores: bool) -> tuple[slice, ...]:
        """The part of the box inside the tensor, () if none; ``stores``: in whole units of 16 bytes."""
        dims = (*self.dims[:-1], -(-self.dims[-1] // 16) * 16) if stores else self.dims
        rows = zip(dims, start, self.box, self.steps, strict=True)
        part = [(max(0, -(at // step)), min(count, -((at - size) // step))) for size, at, count, step in rows]
        return () if any(a >= b for a, b in part) else tuple(slice(a, b) for a, b in part)

    def window(
        self, machine: Machine, start: tuple[int, ...], what: str, *, stores: bool = False
    ) -> tuple[Array | None, tuple[slice, ...]]:
        """(strided view of the part of the box inside the tensor, where that part lies in the box)."""
        where = self._inside(start, stores)
        if not where:
            return None, ()
        pitches = tuple(step * stride for step, stride in zip(self.steps, self.strides, strict=True))
        origin = self.address + sum(at * stride for at, stride in zip(start, self.strides, strict=True))
        first = origin + sum(part.start * pitch for part, pitch in zip(where, pitches, strict=True))
        shape = tuple(part.stop - part.start for part in where)
        last = first + sum((n - 1) * pitch for n, pitch in zip(shape, pitches, strict=True)) + 1
        region = machine.memory.find(first, last, what)
        return np.ndarray(shape, np.uint8, region.u8, first - region.base, pitches), where

    def region_of(self, machine: Machine, start: tuple[int, ...]) -> Region | None:
        """The region that a load of the part of the box inside the tensor reads; None: that part is empty."""
        view, _ = self.window(machine, start, "TMA load")
        return None if view is None else machine.memory.find(view.ctypes.data, view.ctypes.data + 1, "TMA")

    def region_words(
        self, machine: Machine, start: tuple[int, ...], *, stores: bool = False
    ) -> tuple[Region, Array] | None:
        """(region, its 4-byte words) of the part of the box inside the tensor."""
        view, where = self.window(machine, start, "TMA store" if stores else "TMA load", stores=stores)
        if view is None:
            return None
        first = view.ctypes.data
        region = machine.memory.find(first, first + 1, "TMA")
        words = np.arange((first - region.base) & ~3, first - region.base + view.shape[-1], 4, dtype=np.int64)
        for count, pitch in zip(view.shape[-2::-1], view.strides[-2::-1], strict=True):
            words = (np.arange(count)[:, None] * pitch + words.reshape(1, -1)).reshape(-1)
        return region, words >> 2

    def read(self, machine: Machine, start: tuple[int, ...]) -> Array:
        """The box as 16-byte chunks, (rows, chunks per row)."""
        view, where = self.window(machine, start, "TMA load")
        part = None if view is None else np.ascontiguousarray(view)
        if part is not None and self.fields.round_to_tf32:
            part = round_to_tf32(part)
        if part is not None and part.shape == self.box:
            box = part
        else:
            box = self._outside()
            if part is not None:
                box[where] = part
        if self.unpacks:
            box = spread_groups(box.reshape(self.rows, -1), self.bits)
        return box.view(np.complex128).reshape(self.rows, -1)

    def _outside(self) -> Array:
        """A box whose elements are all out of bounds."""
        if self.fields.oob_fill_nan:
            return np.full(self.bytes // 2, OUTSIDE_NAN, np.uint16).view(np.uint8).reshape(self.box)
        return np.zeros(self.box, np.uint8)

    def placement(self, offset: int) -> tuple[int, Array | None]:
        """(first chunk, chunk index of every chunk of the box relative to it; None: dense)."""
        span = self.fields.swizzle_bytes
        if not span:
            return offset >> 4, None
        unit = self.fields.swizzle_atom_bytes
        return (offset & ~1023) >> 4, _swizzled(offset & 1023, self.rows, self.width, self.pitch, span, unit)

    def write_shared(self, memory: Smem | UndefinedBytes, offset: int, data: Array | int) -> None:
        """``data``: the box in chunks, or 0."""
        base, chunks = self.placement(offset)
        if chunks is not None:
            memory.chunks[base + chunks] = data
        else:
            flat = data if isinstance(data, int) else data.reshape(-1)
            memory.chunks[base : base + self.rows * self.width // 16] = flat

    def read_shared(self, memory: Smem | UndefinedBytes, offset: int) -> Array:
        if self.unpacks:
            raise Unsupported("stores of 16-byte aligned 4- and 6-bit elements are not modelled")
        base, chunks = self.placement(offset)
        if chunks is None:
            return memory.chunks[base : base + self.bytes // 16].reshape(self.rows, -1)
        return memory.chunks[base + chunks]

    def undefined(self, machine: Machine, start: tuple[int, ...], stored: str) -> tuple[Array, Birth] | None:
        """The undefined bits of a box in global memory, in chunks; None if all are defined."""
        view, where = self.window(machine, start, "TMA load")
        if view is None:
            return None
        first = view.ctypes.data
        region = machine.memory.find(first, first + 1, "TMA")
        if region.undefined is None:
            return None
        found = _beside(view, region, region.undefined)
        if not np.count_nonzero(found):
            return None
        at = first - region.base + int(np.dot(np.argwhere(found)[0], view.strides))
        box = np.zeros(self.box, np.uint8)
        box[where] = found
        if self.unpacks:
            box = spread_groups(box.reshape(self.rows, -1), self.bits)
        birth = copied_birth(region.undefined, at, stored, region.name)
        return box.view(np.complex128).reshape(self.rows, -1), birth

    def footprint(self) -> int:
        """Bytes from the first to the last one in shared memory."""
        return (self.rows - 1) * self.pitch + self.width


def _beside(view: Array, region: Region, bits: UndefinedBytes) -> Array:
    """The undefined bits of the bytes of ``view``, a window into ``region``."""
    return np.ndarray(view.shape, np.uint8, bits.u8, view.ctypes.data - region.base, view.strides)


def round_to_tf32(box: Array) -> Array:
    """float32 bytes with 10 bits of mantissa, to nearest even; every NaN becomes one pattern (measured on Hopper)."""
    bits = box.view(np.uint32)
    size = bits & 0x7FFFFFFF
    rounded = (bits + (0xFFF + (bits >> 13 & 1))) & 0xFFFFE000
    special = np.where(size > 0x7F800000, np.uint32(floats.TF32_NAN), bits)
    return np.where(size < 0x7F800000, rounded, special).astype(np.uint32).view(np.uint8)


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
    never completes when 32 lanes load, and one that expects 32 boxes does. ``over``: ``Races.launches_over``.
    """

    kind = "tma"

    def __init__(
        self,
        tensor: TmaTensor,
        start: tuple[int, ...],
        targets: list[tuple[Cta, int, MBarrier]],
        who: str,
        times: int,
        over: Known | None,
    ) -> None:
        self.tensor, self.start, self.targets, self.who, self.times = tensor, start, targets, who, times
        self.over = over

    def run(self) -> None:
        machine = self.targets[0][0].machine
        data = self.tensor.read(machine, self.start)
        for cta, offset, barrier in self.targets:
            self.tensor.write_shared(cta.smem, offset, data)
            if cta.smem.undefined is not None:
                self._bits(machine, cta.smem.undefined, offset)
            barrier.complete(self.tensor.bytes * self.times, self.who, self.over)

    def _bits(self, machine: Machine, memory: UndefinedBytes, offset: int) -> None:
        found = self.tensor.undefined(machine, self.start, f"by the {self.who}")
        self.tensor.write_shared(memory, offset, 0 if found is None else found[0])
        if found is not None:
            memory.note(offset, offset + self.tensor.footprint(), found[1], f"by the {self.who}")


class BulkStore:
    """Shared to global: a box, or plain bytes; ``how`` names a reduction or is ''."""

    kind = "store"

    def __init__(self, cta: Cta, warp: Warp, operation: BulkOp) -> None:
        self.cta, self.warp, self.operation = cta, warp, operation
        self.site: int = warp.site

    def run(self) -> None:
        self.move()
        self.warp.bulk_done(self.operation)

    def move(self) -> None:
        raise NotImplementedError


class TensorStore(BulkStore):
    def __init__(
        self,
        cta: Cta,
        warp: Warp,
        operation: BulkOp,
        tensor: TmaTensor,
        start: tuple[int, ...],
        offset: int,
        how: str,
    ) -> None:
        super().__init__(cta, warp, operation)
        self.tensor, self.start, self.offset, self.how = tensor, start, offset, how

    def move(self) -> None:
        machine = self.cta.machine
        machine.global_version += 1
        view, where = self.tensor.window(machine, self.start, "TMA store", stores=True)
        if view is None:
            return
        self._bits(machine, view, where)
        part = self._box(self.cta.smem)[where]
        if self.how:
            part = reduced(view, part, self.how, self.tensor.fields.element_type.name)
        view[...] = part

    def _box(self, memory: Smem | UndefinedBytes) -> Array:
        data = np.ascontiguousarray(self.tensor.read_shared(memory, self.offset)).view(np.uint8)
        return data.reshape(self.tensor.box)

    def _bits(self, machine: Machine, view: Array, places: tuple[slice, ...]) -> None:
        """What lies past a row's end, in its last 16 bytes, is padding that means nothing: it counts as defined."""
        source, first = self.cta.smem.undefined, view.ctypes.data
        region = machine.memory.find(first, first + 1, "TMA")
        found = None
        if source is not None:
            found = self._box(source)[places].copy()
            found[..., max(0, self.tensor.dims[-1] - self.start[-1] - places[-1].start) :] = 0
        if source is None or found is None or not np.count_nonzero(found):
            if region.undefined is not None and not self.how:
                _beside(view, region, region.undefined)[...] = 0
            return
        target = _beside(view, region, region.bits())
        target[...] = target | found if self.how else found
        at = first - region.base + np.argwhere(found) @ np.array(view.strides)
        stored = where(self.warp, self.site)
        base, chunks = self.tensor.placement(self.offset)
        birth = self._birth(source, base, chunks, stored)
        region.bits().note_words(at >> 2, birth, stored)

    def _birth(self, source: UndefinedBytes, base: int, chunks: Array | None, stored: str) -> Birth:
        """Of the first undefined byte of the box."""
        places = base + (np.arange(self.tensor.bytes // 16) if chunks is None else chunks.reshape(-1))
        found = source.views[8].reshape(-1, 2)[places].any(axis=1)
        chunk = int(places[np.argmax(found)])
        byte = 16 * chunk + int(np.argmax(source.u8[16 * chunk : 16 * chunk + 16] != 0))
        return copied_birth(source, byte, stored, f"SMEM{self.cta.suffix}")


_REDUCE_TYPES = {
    "u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64, "s64": np.int64,
    "b32": np.uint32, "b64": np.uint64,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor, "inc": lambda old, new: np.where(old >= new, 0, old + 1),
    "dec": lambda old, new: np.where((old == 0) | (old > new), new, old - 1),
}  # fmt: skip
_FLOAT_FUNCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "min": floats.minimum, "max": floats.maximum,
}  # fmt: skip


def reduced(old: Array, new: Array, how: str, kind: str) -> Array:
    """Element-wise reduction of two byte arrays of the same shape; ``kind`` as in a tensor map or in PTX.

    Of a number and a NaN the minimum and the maximum are the number (measured on Hopper).
    """
    old, new, kind = np.ascontiguousarray(old), np.ascontiguousarray(new), kind.lower()
    plain = kind.removesuffix("_ftz")
    if plain in floats.BITS and how in _FLOAT_FUNCTIONS:
        unsigned = UNSIGNED[floats.BITS[plain]]
        function, parts = _FLOAT_FUNCTIONS[how], (old.view(unsigned), new.view(unsigned))
        result = floats.binary(function, *parts, plain, ftz=kind != plain)
        return np.asarray(result, unsigned).reshape(parts[0].shape).view(np.uint8)
    if kind not in _REDUCE_TYPES or how not in _FUNCTIONS:
        raise Unsupported(f"bulk reduction {how} of {kind} is not modelled")
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
        if region.undefined is not None and region.undefined.any(at, at + 64):
            raise UndefinedValue(f"the tensor map at {address:#x} has undefined bytes")
        if w.races is not None:
            w.races.map_used(w, address, w.site)
    key = bytes(data[:64])
    found = machine.tensors.get(key)
    if found is None:
        if key[10] >> 3 & 3 > 1:
            raise Unsupported("swizzle atoms of 64 bytes, or of 32 bytes with a flip, are not modelled")
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
    over = None
    if w.races is not None:
        w.races.tma_load(w, tensor, start, targets, site)
        over = w.races.launches_over(w)
    load = TmaLoad(tensor, start, targets, f"TMA load of {w.who}", mask.bit_count(), over)
    w.machine.issue(load, w.cta)


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
    if any(at < 0 for at in start):
        raise IllegalAccess(f"TMA store at a negative coordinate, box origin {start} (illegal instruction)")
    if any(step != 1 for step in tensor.steps):
        raise Unsupported("stores with element strides are not modelled")
    cta = w.cta
    if offset % ALIGNMENT:
        raise IllegalAccess(f"TMA reads shared offset {offset:#x}, which is not aligned to {ALIGNMENT} bytes")
    cta.smem.check(offset, offset + tensor.footprint(), 16, "TMA store")
    times = mask.bit_count() if how else 1
    operation = w.bulk.open(mask, times)
    if w.races is not None:
        w.races.tma_store(w, tensor, start, offset, how, operation, site)
    for _ in range(times):
        w.machine.issue(TensorStore(cta, w, operation, tensor, start, offset, how), cta)
