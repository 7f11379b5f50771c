"""What undefined bits of registers do while a warp runs; called by the text of ``definedness.py``.

``U`` is the warp's ``undefined``. An undefined value may travel as far as it likes; where it decides something (an
address, a guard, a branch, a barrier, a descriptor, the members of a collective) it is a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kernel_space.machine.ptx.operands import Operand, Pair, Reg, Vec, registers_of
from kernel_space.machine.translate.definedness import carries
from kernel_space.machine.translate.flow_rules import Rule, rule_of, whole, width_of
from kernel_space.machine.values import lanes
from kernel_space.machine.values.lanes import FULL, LANES, UNSIGNED, Value, lane_flags
from kernel_space.machine.values.undefined import (
    NOTHING,
    Birth,
    Bits,
    Carried,
    Held,
    UndefinedValue,
    all_bits,
    birth_at,
)

if TYPE_CHECKING:
    from kernel_space.machine.ptx.instruction import Instr
    from kernel_space.machine.run.machine import Warp

CARRY = -1  # the slot of a warp's carry
_GROUP, _QUAD = np.arange(LANES) // 4, np.arange(LANES) % 4


class Flow(NamedTuple):
    """Of one instruction. ``touched``: slots that it reads or writes; ``targets``: its destinations, "_" included."""

    instr: Instr
    touched: frozenset[int]
    targets: tuple[Operand, ...]
    rule: Rule


def flow_of(instr: Instr) -> Flow:
    touched = {register.slot for register in (*instr.uses, *instr.definitions)}
    if carries(instr):
        touched.add(CARRY)
    return Flow(instr, frozenset(touched), _targets(instr), rule_of(instr))


def _targets(instr: Instr) -> tuple[Operand, ...]:
    if not instr.definitions:
        return ()
    first = instr.operands[0]
    if isinstance(first, Vec):
        return first.items
    return (first.first, first.second) if isinstance(first, Pair) else (first,)


class Step:
    """One instruction at work on undefined bits. ``values``: of the operands that ``needed_values`` names."""

    def __init__(
        self, w: Warp, held: dict[int, Held], flow: Flow, mask: int, values: tuple[Value, ...], site: int
    ) -> None:
        self.w, self.held, self.flow, self.values, self.site = w, held, flow, values, site
        self.instr = flow.instr
        self.mask, self.flags = mask, lane_flags(mask)

    def bits(self, operand: Operand, width: int) -> Bits:
        """Undefined bits of a source."""
        if isinstance(operand, Vec):
            part = width // len(operand.items)
            result = np.zeros(LANES, np.uint64)
            for number, item in enumerate(operand.items):
                bits = self.bits(item, part) & all_bits(part)
                result |= bits << np.uint64(part * number) if width <= 64 else whole(bits, 64)
            return result
        found = NOTHING
        for register in registers_of(operand):
            if register.slot in self.held:
                found = found | self.held[register.slot].bits
        return found

    def sources(self) -> tuple[Operand, ...]:
        return self.instr.operands[1:] if self.flow.targets else self.instr.operands

    def any_source(self) -> Bits:
        """The undefined bits of all sources together."""
        found = NOTHING
        for operand in self.sources():
            found = found | self.bits(operand, 64)
        if carries(self.instr) and CARRY in self.held:
            found = found | self.held[CARRY].bits
        return found

    def same(self, bits: Bits) -> list[Bits]:
        """The same for each destination."""
        return [bits] * len(self.flow.targets)

    def birth(self) -> Birth:
        """Of the first undefined source."""
        slots = [register.slot for register in self.instr.uses] + [CARRY]
        held = next(self.held[slot] for slot in slots if slot in self.held)
        return self._read(held.birth)

    def _read(self, birth: Birth) -> Birth:
        """An unwritten register is born where it is read first."""
        return birth if birth.reader else birth_at(self.w, self.site, birth.what)

    def must_be_defined(self, operand: Operand, what: str) -> None:
        """Raises ``UndefinedValue`` if a bit of it is undefined in a lane that takes part."""
        for register in registers_of(operand):
            held = self.held.get(register.slot)
            if held is not None and np.count_nonzero(held.bits[self.flags]):
                refuse(self.w, self.site, register, held, self.flags, what, self._read(held.birth))

    def store_operands(self, *operands: Operand) -> None:
        """Hands the undefined bits of what is stored to the memory."""
        items = [
            item
            for operand in operands
            for item in (operand.items if isinstance(operand, Vec) else (operand,))
        ]
        bits = [self.bits(item, 64) & np.where(self.flags, all_bits(64), np.uint64(0)) for item in items]
        if any(np.count_nonzero(one) for one in bits):
            data = [
                register for item in items for register in registers_of(item) if register.slot in self.held
            ]
            self.w.storing = Carried(bits, self._read(self.held[data[0].slot].birth))

    def put(self, target: Operand, bits: Bits, birth: Birth | None) -> None:
        """Define the undefined bits of a destination in the lanes that take part."""
        if isinstance(target, Reg):
            self.put_slot(target.slot, bits & all_bits(target.width), birth)

    def put_slot(self, slot: int, bits: Bits, birth: Birth | None) -> None:
        old = self.held.get(slot)
        if self.mask != FULL:
            bits = np.where(self.flags, bits, NOTHING if old is None else old.bits)
        if np.count_nonzero(bits):
            kept = birth or (old.birth if old is not None else None)
            assert kept is not None
            self.held[slot] = Held(bits, kept)
        elif old is not None:
            del self.held[slot]


def refuse(
    w: Warp, site: int, register: Reg, held: Held, flags: np.ndarray, what: str, birth: Birth
) -> None:  # fmt: skip
    """Raises ``UndefinedValue``; ``site`` becomes the place of the report."""
    w.site = site
    found = (held.bits != 0) & flags
    raise UndefinedValue(
        f"{what} is undefined: register {register.name}, in {int(found.sum())} of the warp's lanes, first lane "
        f"{int(np.argmax(found))}\n  born as {birth}"
    )


def _flow_at(w: Warp, site: int) -> Flow:
    program = w.machine.program
    found: Flow | None = program.flows.get(site)
    if found is None:
        found = program.flows[site] = flow_of(program.sites[site])
    return found


def step(w: Warp, U: dict[int, Held], site: int, mask: int, values: tuple[Value, ...]) -> None:
    """Before an instruction that touches a register which may be undefined."""
    flow = _flow_at(w, site)
    if U.keys().isdisjoint(flow.touched):
        return
    one = Step(w, U, flow, mask, values, site)
    results = flow.rule(one)
    dirty = any(np.count_nonzero(bits[one.flags]) for bits in results)
    birth = one.birth() if dirty else None
    for target, bits in zip(flow.targets, results, strict=bool(results)):
        one.put(target, bits, birth)
    if carries(flow.instr):
        one.put_slot(CARRY, results[0] if "cc" in flow.instr.tokens else NOTHING, birth)


def decide(w: Warp, U: dict[int, Held], slot: int, mask: int, site: int, what: str) -> None:
    """A predicate guards an instruction or a branch."""
    if slot in U:
        flow = _flow_at(w, site)
        guard = flow.instr.guard
        assert guard is not None
        Step(w, U, flow, mask, (), site).must_be_defined(guard, what)


def take_loaded(w: Warp, U: dict[int, Held], site: int, mask: int) -> None:
    """Behind a load that found undefined bits."""
    loaded, flow = w.loaded, _flow_at(w, site)
    assert loaded is not None
    w.loaded = None
    if not flow.targets:
        return
    one = Step(w, U, flow, mask, (), site)
    plain = flow.instr.tokens[0] == "ld"
    width = width_of(flow.instr)
    for target, bits in zip(flow.targets, loaded.items, strict=True):
        if plain and isinstance(target, Reg) and target.width > width:
            narrow = bits.astype(UNSIGNED[width])
            is_signed = flow.instr.tokens[-1][0] == "s"
            bits = np.asarray(lanes.resize(narrow, width, target.width, is_signed)).astype(np.uint64)
        one.put(target, bits, loaded.birth)


def product(w: Warp, U: dict[int, Held], site: int, accumulates: int) -> None:
    """Behind ``mma.sync`` or ``wgmma``: rows and columns of D that undefined operands or sums make undefined."""
    flow, found = _flow_at(w, site), w.operand_rows
    if not found and U.keys().isdisjoint(flow.touched):
        return
    w.operand_rows = {}
    one = Step(w, U, flow, FULL, (), site)
    births = [birth for _, birth in found.values()]
    results = (
        _warp_product(one, found)
        if flow.instr.tokens[0] == "mma"
        else _group_product(one, found, accumulates)
    )
    if not births and any(np.count_nonzero(bits) for bits in results):
        births = [one.birth()]
    for target, bits in zip(flow.targets, results, strict=True):
        one.put(target, bits, births[0] if births else None)


def _items(operand: Operand) -> tuple[Operand, ...]:
    return operand.items if isinstance(operand, Vec) else ()


def _fragment_rows(one: Step, operand: Operand) -> np.ndarray:
    """Rows of A that its registers make undefined."""
    rows = np.zeros(16, bool)
    for number, item in enumerate(_items(operand)):
        rows[(_GROUP + number % 2 * 8)[one.bits(item, 32) != 0]] = True
    return rows


def _warp_product(one: Step, found: dict[str, tuple[np.ndarray, Birth]]) -> list[Bits]:
    _, a, b, c = one.instr.operands
    rows, columns = _fragment_rows(one, a), np.zeros(8, bool)
    for item in _items(b):
        columns[_GROUP[one.bits(item, 32) != 0]] = True
    return [
        _cells(rows[_GROUP + number // 2 * 8] | columns[_QUAD * 2 + number % 2], one.bits(item, 32))
        for number, item in enumerate(_items(c))
    ]


def _group_product(one: Step, found: dict[str, tuple[np.ndarray, Birth]], accumulates: int) -> list[Bits]:
    sums, a, *_ = one.instr.operands
    count = len(_items(sums)) * 2
    rows = _fragment_rows(one, a)
    if "a" in found:
        first = one.w.number % 4 * 16
        rows = rows | found["a"][0][first : first + 16]
    columns = found["b"][0] if "b" in found else np.zeros(count, bool)
    return [
        _cells(
            rows[_GROUP + number // 2 % 2 * 8] | columns[number // 4 * 8 + _QUAD * 2 + number % 2],
            one.bits(item, 32) if accumulates else NOTHING,
        )
        for number, item in enumerate(_items(sums))
    ]


def _cells(undefined: np.ndarray, old: Bits) -> Bits:
    return whole(undefined.astype(np.uint64) | old, 32)
