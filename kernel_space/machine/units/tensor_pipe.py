"""The in-order pipe of ``tcgen05.cp``, ``mma``, ``shift`` and ``commit``: one per CTA, or per pair under cta_group 2.

Consecutive MMAs into one accumulator are executed together; where a group ends depends on the program's order alone,
so the sums do not depend on the schedule.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from kernel_space.machine.units.tensor_core import (
    K_BYTES,
    Shape,
    apply_scales,
    check_footprint,
    decode,
    instruction_shape,
    lanes_of,
    operand,
    scale_b_bytes,
    scale_b_columns,
    scale_bytes,
    smem_descriptor,
)
from kernel_space.machine.units.undefined_products import chunk_birth, product_bits
from kernel_space.machine.values.faults import ProtocolError, Unsupported
from kernel_space.machine.values.formats import values_of
from kernel_space.machine.values.lanes import Array, Value, first_lane, lane_list
from kernel_space.machine.values.packed_operands import PACKED, bytes_of, held_codes

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Cta, Warp
    from kernel_space.machine.units.mbarrier import MBarrier


class TensorPipe:
    """``queue``: operations ready to run, in order; ``open``: MMAs that the next one may still join."""

    kind = "tensor"

    def __init__(self, cta: Cta) -> None:
        self.cta = cta
        self.queue: deque[Any] = deque()
        self.open: list[Mma] = []
        self.sequence = 0
        self.slot = -1
        self.collected: tuple[Any, ...] | None = None

    def collect(self, part: Mma, use: str) -> None:
        """Of the collector buffer of A: ``use`` and ``lastuse`` take what a ``fill`` of the same A has left in it, and
        nothing but ``fill`` and ``use`` keeps it. Raises ``ProtocolError``.
        """
        shape = part.shape
        key = (part.a, part.a_in_tmem, part.group, shape.kind, shape.m, shape.a_format, shape.a_mn_major)
        if use in ("use", "lastuse") and self.collected != key:
            state = "another A" if self.collected else "nothing"
            raise ProtocolError(f"collector::a::{use} without a fill: {state} is in the collector buffer")
        self.collected = key if use in ("fill", "use") else None

    def push(self, operation: Any) -> None:
        """Add an operation; those that are complete become work for the scheduler."""
        self.sequence += 1
        if isinstance(operation, Mma):
            if self.open and not operation.joins(self.open[0]):
                self.close()
            self.open.append(operation)
            return
        self.close()
        self._enqueue(operation)

    def close(self) -> None:
        if self.open:
            group, self.open = MmaGroup(self.open), []
            self._enqueue(group)

    def _enqueue(self, operation: Any) -> None:
        observer = self.cta.machine.observer
        self.queue.append(operation if observer is None else observer.issued(operation, self.cta))
        self.cta.machine.issue_pipe(self)

    def run(self) -> None:
        """Execute the oldest operation."""
        self.queue.popleft().run()

    def drain(self) -> None:
        while self.queue:
            self.queue.popleft().run()


class Mma:
    """One ``tcgen05.mma``. ``ctas``: the issuing CTA, or the pair with the even rank first."""

    __slots__ = (
        "a",
        "a_in_tmem",
        "accumulate",
        "b",
        "block",
        "ctas",
        "d",
        "disabled",
        "group",
        "scales",
        "shape",
    )

    def __init__(
        self, ctas: tuple[Cta, ...], shape: Shape, group: int, d: int, a: int, a_in_tmem: bool, b: int,
        scales: tuple[int, int] | None, block: int, accumulate: bool, disabled: tuple[int, ...],
    ) -> None:  # fmt: skip
        self.ctas, self.shape, self.group, self.d = ctas, shape, group, d
        self.a, self.a_in_tmem, self.b = a, a_in_tmem, b
        self.scales, self.block, self.accumulate, self.disabled = scales, block, accumulate, disabled

    def joins(self, first: Mma) -> bool:
        """May this MMA be summed together with the group that ``first`` opened?"""
        same = (
            self.shape.kind == first.shape.kind
            and self.shape.m == first.shape.m
            and self.shape.n == first.shape.n
        )
        return self.accumulate and same and self.d == first.d and self.disabled == first.disabled


class MmaGroup:
    """MMAs into one accumulator: operands side by side along K, one product, one addition."""

    def __init__(self, parts: list[Mma]) -> None:
        self.parts = parts

    def run(self) -> None:
        first = self.parts[0]
        b = np.concatenate([_operand_b(part) for part in self.parts], axis=1)
        for number, cta in enumerate(first.ctas):
            a = np.concatenate([_operand_a(part, number) for part in self.parts], axis=1)
            product = b @ a.T
            for lanes, part in _blocks(first, product):
                _add(cta, first.d & 0xFFFF, lanes, part, first)
        if first.ctas[0].smem.undefined is not None:
            self._note_undefined()

    def _note_undefined(self) -> None:
        first = self.parts[0]
        for cta, bits, birth in product_bits(self.parts):
            undefined, column = cta.tmem.undefined, first.d & 0xFFFF
            assert undefined is not None
            if bits is None and first.accumulate:
                continue
            shape = (first.shape.n, first.shape.m // first.group)
            words = np.broadcast_to(np.uint32(0), shape) if bits is None else bits
            for lanes, part in _blocks(first, words):
                cells = (slice(column, column + len(part)), lanes)
                old = undefined.words[cells]
                undefined.words[cells] = _kept(first, lanes, old, old | part if first.accumulate else part)
            if birth is not None:
                undefined.note(column, accumulator_columns(first), birth)


def _operand_a(part: Mma, number: int) -> Array:
    shape, cta = part.shape, part.ctas[number]
    rows = shape.m // part.group
    if part.a_in_tmem:
        column = part.a & 0xFFFF
        words = cta.tmem.words[column : column + K_BYTES // 4, lanes_of(shape.m, part.group)]
        values = _held_values(np.ascontiguousarray(words.T).view(np.uint8), shape)
    else:
        values = operand(cta, part.a, rows, shape.a_mn_major, shape, shape.a_format)
    if shape.negate_a:
        values = -values
    if part.scales is None:
        return values
    scales = scale_bytes(cta.tmem.words, part.scales[0], rows, part.block, shape.scale_a_id, shape.kind)
    return apply_scales(values, scales, shape.scale_format)


def _held_values(data: Array, shape: Shape) -> Array:
    """Of A in tensor memory, bytes [rows, 32]."""
    bits = PACKED.get(shape.a_format, 0)
    if not bits:
        return decode(data, shape.a_format)
    if not shape.kind.endswith("f8f6f4"):
        raise Unsupported(f"A of {shape.a_format} in tensor memory is not modelled for kind::{shape.kind}")
    return values_of(shape.a_format).take(held_codes(data, bits))


def _operand_b(part: Mma) -> Array:
    """All N rows: one CTA has them, or each of the pair has its half."""
    shape = part.shape
    rows = shape.n // len(part.ctas)
    parts = [operand(cta, part.b, rows, shape.b_mn_major, shape, shape.b_format) for cta in part.ctas]
    values = np.concatenate(parts) if len(parts) > 1 else parts[0]
    if shape.negate_b:
        values = -values
    if part.scales is None:
        return values
    scales = scale_b_bytes(part.ctas[0].tmem.words, part.scales[1], shape, part.group, part.block)
    for cta in part.ctas[1:]:
        other = scale_b_bytes(cta.tmem.words, part.scales[1], shape, part.group, part.block)
        if not np.array_equal(scales, other):
            raise ProtocolError(
                "the two CTAs of a pair hold different scale factors of B in their tensor memories"
            )
    return apply_scales(values, scales, shape.scale_format)


def _blocks(first: Mma, product: Array) -> list[tuple[Array, Array]]:
    """(lanes, what goes to the columns there) of a product [N, rows of one CTA]."""
    shape, lane = first.shape, first.d >> 16
    if shape.m == 128 and first.group == 2:  # 64 rows per CTA: the upper half of N lies in lanes 64 and up
        half = shape.n // 2
        return [(np.arange(64) + lane, product[:half]), (np.arange(64, 128) + lane, product[half:])]
    return [(lanes_of(shape.m, first.group) + lane, product)]


def _add(cta: Cta, column: int, lanes: Array, product: Array, first: Mma) -> None:
    count = product.shape[0]
    if first.shape.d_format == "f32" and len(lanes) == 128 and not first.disabled:
        target = cta.tmem.f32[column : column + count]
        target[...] = target + product if first.accumulate else product
        return
    words = cta.tmem.words[column : column + count, lanes]
    cta.tmem.words[column : column + count, lanes] = _kept(first, lanes, words, _sum(words, product, first))


def _kept(first: Mma, lanes: Array, old: Array, new: Array) -> Array:
    """``new`` but for disabled lanes."""
    if not first.disabled:
        return new
    bits = np.array([first.disabled[lane // 32] >> lane % 32 & 1 for lane in lanes.tolist()], bool)
    return np.where(bits[None, :], old, new)


def _sum(words: Array, product: Array, first: Mma) -> Array:
    """New 32-bit words of the accumulator. An f16 accumulator uses the low half of each word."""
    match first.shape.d_format:
        case "s32":
            exact = product.astype(np.int64).astype(np.int32)
            return ((words.view(np.int32) + exact) if first.accumulate else exact).view(np.uint32)
        case "f16":
            old = (words & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)
            total = old + product if first.accumulate else product
            return total.astype(np.float16).view(np.uint16).astype(np.uint32)
    old = words.view(np.float32)
    return np.ascontiguousarray(old + product if first.accumulate else product).view(np.uint32)


class Copy:
    """``tcgen05.cp``: every CTA of the group copies from its own shared memory into its own tensor memory."""

    def __init__(
        self,
        ctas: tuple[Cta, ...],
        column: int,
        lane: int,
        descriptor: int,
        shape: str,
        spread: str,
        packed: int,
    ) -> None:
        self.ctas, self.column, self.lane = ctas, column, lane
        self.descriptor, self.shape, self.spread, self.packed = descriptor, shape, spread, packed

    def run(self) -> None:
        for cta in self.ctas:
            self._copy(cta)

    def _copy(self, cta: Cta) -> None:
        chunks = cp_chunks(self.descriptor, self.shape)
        self._move(self._words(cta.smem.chunks[chunks]), cta.tmem.words)
        source, target = cta.smem.undefined, cta.tmem.undefined
        if source is not None and target is not None:
            bits = self._words(source.chunks[chunks])
            self._move(bits, target.words)
            if np.count_nonzero(bits.view(np.uint64)):
                birth = chunk_birth(
                    cta, int(chunks[bits.view(np.uint64).reshape(*chunks.shape, 2).any(axis=2)][0])
                )
                target.note(self.column, chunks.shape[1] * 4, birth)

    def _words(self, chunks: Array) -> Array:
        """[rows, words]. Of undefined bits those of the padding are left behind."""
        return bytes_of(chunks.view(np.uint8), self.packed).view(np.uint32)

    def _move(self, data: Array, memory: Array) -> None:
        words = np.ascontiguousarray(data.T)
        target = memory[self.column : self.column + words.shape[0]]
        rows = 32 if self.spread in _HALVES else data.shape[0]
        for number, start in enumerate(cp_lanes(self.shape, self.spread)):
            first = number // 2 * 32 if self.spread in _HALVES else 0
            target[:, self.lane + start : self.lane + start + rows] = words[:, first : first + rows]


_CP = {
    "128x256b": (128, 32),
    "4x256b": (4, 32),
    "128x128b": (128, 16),
    "64x128b": (64, 16),
    "32x128b": (32, 16),
}


# First lanes of the copies of rows 0 to 31, then of rows 32 to 63.
_HALVES = {"warpx2::02_13": (0, 64, 32, 96), "warpx2::01_23": (0, 32, 64, 96)}


def cp_lanes(shape: str, spread: str) -> tuple[int, ...]:
    """First lanes of the copies that a warpx modifier asks for."""
    if shape == "32x128b" and spread == "warpx4":
        return (0, 32, 64, 96)
    if shape in ("128x256b", "4x256b", "128x128b") and not spread:
        return (0,)
    if shape == "64x128b" and spread in _HALVES:
        return _HALVES[spread]
    raise Unsupported(f"tcgen05.cp.{shape} with {spread or 'no multicast'} is not modelled")


def cp_chunks(descriptor: int, shape: str) -> Array:
    """Absolute 16-byte chunks of the source, [rows, chunks per row]."""
    rows, width = _CP[shape]
    form = smem_descriptor(descriptor)
    row, byte = np.arange(rows)[:, None], np.arange(0, width, 16)[None, :]
    if form.span:
        address = form.start + (row >> 3) * form.sbo + (row & 7) * form.span + byte
        address ^= (address >> 7 & (form.span // 16 - 1)) << 4
    else:
        address = form.start + (row >> 3) * form.sbo + (byte >> 4) * form.lbo + (row & 7) * 16
    return address >> 4


class Shift:
    """``tcgen05.shift.down``: rows move down by one lane in the 8 columns at the address."""

    def __init__(self, ctas: tuple[Cta, ...], column: int, lane: int) -> None:
        self.ctas, self.column, self.lane = ctas, column, lane

    def run(self) -> None:
        for cta in self.ctas:
            memories = [cta.tmem.words, *([] if cta.tmem.undefined is None else [cta.tmem.undefined.words])]
            for memory in memories:
                words = memory[self.column : self.column + 8]
                words[:, self.lane : 127] = words[:, self.lane + 1 : 128].copy()


class Commit:
    """Arrives once on each barrier when everything before it has completed."""

    def __init__(self, barriers: list[MBarrier], who: str, clock: Any) -> None:
        self.barriers, self.who, self.clock = barriers, who, clock

    def run(self) -> None:
        for barrier in self.barriers:
            if self.clock is not None:
                barrier.cta.machine.races.commit_arrives(barrier, self.clock)
            barrier.arrive(1, self.who)


def mixed_groups(w: Warp, site: int) -> None:
    w.site = site
    raise ProtocolError(
        "tcgen05 instructions of this kernel name cta_group::1 and cta_group::2; all must name one"
    )


def group_of(w: Warp, group: int) -> tuple[TensorPipe, tuple[Cta, ...]]:
    """(pipe, CTAs) of an operation issued by the warp under ``cta_group::group``."""
    cta = w.cta
    if group == 1:
        return cta.pipe, (cta,)
    leader = cta.peer(cta.rank & ~1)
    return leader.pipe, (leader, cta.peer(cta.rank | 1))


def tensor_cp(
    w: Warp,
    to: int,
    descriptor: int,
    shape: str,
    spread: str,
    group: int,
    mask: int,
    site: int,
    packed: int = 0,
) -> None:
    """``packed``: bits of the elements that a decompressing copy finds in padded groups of 16."""
    w.site = site
    pipe, ctas = group_of(w, group)
    column, lane = to & 0xFFFF, to >> 16
    chunks = cp_chunks(descriptor, shape)
    cp_lanes(shape, spread)
    for cta in ctas:
        cta.smem.check(int(chunks.min()) << 4, (int(chunks.max()) + 1) << 4, 16, "tcgen05.cp")
        cta.tmem.check(column, chunks.shape[1] * 4, "tcgen05.cp")
    for lane_id in lane_list(mask):
        if w.races is not None:
            w.races.tensor_copy(w, pipe, ctas, chunks, column, chunks.shape[1] * 4, lane_id, site)
        pipe.push(Copy(ctas, column, lane, descriptor, shape, spread, packed))


def tensor_shift(w: Warp, address: int, group: int, mask: int, site: int) -> None:
    w.site = site
    pipe, ctas = group_of(w, group)
    for cta in ctas:
        cta.tmem.check(address & 0xFFFF, 8, "tcgen05.shift")
    for lane in lane_list(mask):
        if w.races is not None:
            w.races.tensor_columns(w, pipe, ctas, address & 0xFFFF, 8, True, lane, site)
        pipe.push(Shift(ctas, address & 0xFFFF, address >> 16))


def tensor_commit(w: Warp, address: int, ctas_mask: int | None, group: int, mask: int, site: int) -> None:
    """Without multicast the barrier is where the address says; with it, at the same offset of each CTA."""
    from kernel_space.machine.units.mbarrier import find

    w.site = site
    pipe, _ = group_of(w, group)
    if ctas_mask is None:
        barriers = [find(w, address)]
    else:
        offset = address & 0xFFFFFF
        barriers = [find(w, rank << 24 | offset) for rank in range(16) if ctas_mask >> rank & 1]
    for lane in lane_list(mask):
        clock = w.races.tensor_commit(w, pipe, barriers, lane, site) if w.races is not None else None
        pipe.push(Commit(barriers, f"tcgen05.commit of {w.who}", clock))


def tensor_mma(
    w: Warp, d: int, a: int, a_in_tmem: bool, b: int, idesc: int, sfa: int | None, sfb: int | None,
    disabled: tuple[Value, ...], enable: int, kind: str, block: int, group: int, mask: int, site: int,
    collector: str = "",
) -> None:  # fmt: skip
    w.site = site
    shape = instruction_shape(idesc, kind, group)
    pipe, ctas = group_of(w, group)
    scales = None if sfa is None or sfb is None else (sfa, sfb)
    part = Mma(
        ctas, shape, group, d, a, a_in_tmem, b, scales, block, bool(enable), _lanes_off(disabled, mask)
    )
    operands = _check_operands(part)
    pipe.collect(part, collector)
    for lane in lane_list(mask):
        if w.races is not None:
            w.races.tensor_mma(w, pipe, part, operands, lane, site)
        pipe.push(part)


def _lanes_off(disabled: tuple[Value, ...], mask: int) -> tuple[int, ...]:
    """What the thread that issues it says of lanes of the result."""
    words = tuple(first_lane(word, mask) for word in disabled)
    return words if any(words) else ()


def _check_operands(part: Mma) -> list[tuple[Cta, Array]]:
    """Bounds of every operand; returns the chunks of shared memory that each CTA reads."""
    shape, operands = part.shape, []
    a_rows, b_rows = shape.m // part.group, shape.n // len(part.ctas)
    form_b = smem_descriptor(part.b)
    for cta in part.ctas:
        cta.tmem.check(part.d & 0xFFFF, accumulator_columns(part), "accumulator of tcgen05.mma")
        if part.a_in_tmem:
            cta.tmem.check(part.a & 0xFFFF, K_BYTES // 4, "A of tcgen05.mma")
        else:
            form_a = smem_descriptor(part.a)
            operands.append(
                (cta, check_footprint(cta, form_a, a_rows, shape.a_mn_major, shape.size, "A of tcgen05.mma"))
            )
        operands.append(
            (cta, check_footprint(cta, form_b, b_rows, shape.b_mn_major, shape.size, "B of tcgen05.mma"))
        )
        if part.scales is not None:
            cta.tmem.check(part.scales[0] & 0xFFFF, -(-a_rows // 32), "SFA of tcgen05.mma")
            cta.tmem.check(part.scales[1] & 0xFFFF, scale_b_columns(shape, part.group), "SFB of tcgen05.mma")
    return operands


def accumulator_columns(part: Mma) -> int:
    return part.shape.n // 2 if part.shape.m == 128 and part.group == 2 else part.shape.n
