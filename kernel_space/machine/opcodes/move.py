"""Moves, shuffles, votes and elections. PTX ISA 9.7.9 "mov", "shfl.sync", 9.7.13 "elect.sync", "vote", "redux"."""

from __future__ import annotations

from kernel_space.machine.opcodes.float import FLOAT_TYPES, split
from kernel_space.machine.opcodes.table import INTEGER_TYPES, Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Operand, Pair, Reg, Symbol, Vec
from kernel_space.machine.values.lanes import FULL


@opcode("mov")
def mov(c: Writer, i: Instr, m: Modifiers) -> None:
    if m.take("pred"):
        return c.write(i.operands[0], c.predicate(i.operands[1]))
    kind = m.need(*INTEGER_TYPES, *FLOAT_TYPES, "b128")
    target, source = i.operands
    width = 128 if kind == "b128" else INTEGER_TYPES[kind][0] if kind in INTEGER_TYPES else FLOAT_TYPES[kind]
    if isinstance(target, Vec):
        return _unpack(c, target, source, width)
    if width == 128:
        return _quad(c, target, source)
    if isinstance(source, Vec) and width == 64 and len(source.items) == 2:
        return _pack(c, target, source)
    pair = c.pair_of(source)
    if pair is not None and isinstance(target, Reg):
        return c.write_pair(target, *pair, c.varies(source))
    c.write(target, c.read(source, width))


def _pack(c: Writer, target: Operand, source: Vec) -> None:
    assert isinstance(target, Reg)
    texts = []
    for item in source.items:
        if isinstance(item, Reg):
            texts.append(c.read(item))
        else:
            local = c.temporary()
            c.emit(f"{local} = {c.read(item)}")
            texts.append(local)
    c.write_pair(target, texts[0], texts[1], c.varies(source))


def _quad(c: Writer, target: Operand, source: Operand) -> None:
    """128-bit registers only hold handles that all lanes share."""
    if c.varies(source) or not isinstance(source, Vec) or len(source.items) != 2:
        raise c.fail("128-bit registers are modelled for {b64, b64} that agree in all lanes", modifier="b128")
    low, high = (c.read(item, 64) for item in source.items)
    c.write(target, f"{low} | {high} << 64")


def _unpack(c: Writer, target: Vec, source: Operand, width: int) -> None:
    items = target.items
    if width == 64 and len(items) == 2:
        texts = list(split(c, source))
        if all(isinstance(item, Reg) for item in items):
            names = [c.temporary(), c.temporary()]
            for name, text in zip(names, texts, strict=True):
                c.emit(f"{name} = {text}")
            texts = names
    else:
        part = width // len(items)
        text = c.read(source, width)
        texts = [f"bits_at({text}, {part * n}, {part})" for n in range(len(items))]
    for item, text in zip(items, texts, strict=True):
        c.write(item, text)


def check_members(c: Writer, operand: Operand) -> None:
    """Test a member mask; the whole warp naming itself, which is nearly every one, needs no test."""
    c.meet()
    if not (c.converged and isinstance(operand, Imm) and operand.value & FULL == FULL):
        c.emit(f"members(w, {c.read(operand)}, {c.mask}, {c.site})")


@opcode("shfl.sync")
def shfl(c: Writer, i: Instr, m: Modifiers) -> None:
    how = m.need("up", "down", "bfly", "idx")
    m.need("b32")
    check_members(c, i.operands[4])
    value, lane, clamp = (c.read(operand) for operand in i.operands[1:4])
    target = i.operands[0]
    plain = how == "idx" and c.converged and not isinstance(target, Pair)
    if plain and not c.varies(i.operands[1]):
        return c.write(target, value)
    if plain and isinstance(i.operands[2], Imm) and i.operands[3] == Imm(31):
        return c.write(target, f"lane_value({value}, {lane})")
    name = c.temporary()
    c.emit(f"{name} = shuffle({value}, {lane}, {clamp}, {how!r}, {c.mask})")
    if isinstance(target, Pair):
        c.write(target.first, f"{name}[0]")
        c.write(target.second, f"{name}[1]")
    else:
        c.write(target, f"{name}[0]")


@opcode("elect.sync")
def elect(c: Writer, i: Instr, m: Modifiers) -> None:
    """The leader is the lowest lane of the member mask (measured on Hopper)."""
    target = i.operands[0]
    assert isinstance(target, Pair)
    check_members(c, i.operands[1])
    members = c.read(i.operands[1])
    if members == str(FULL) and c.converged:
        leader, mask = "0", "1"
    else:
        name = c.temporary()
        c.emit(f"{name} = {members} & {c.mask}")
        leader, mask = f"({name} & -{name}).bit_length() - 1", f"{name} & -{name}"
    if not (isinstance(target.first, Symbol) or _unused(c, target.first)):
        c.write(target.first, leader)
    c.write(target.second, mask)


def _unused(c: Writer, register: Operand) -> bool:
    """The leader's lane is asked for in every elect and used by almost none."""
    return isinstance(register, Reg) and not c.graph.used >> register.slot & 1


@opcode("vote.sync")
def vote(c: Writer, i: Instr, m: Modifiers) -> None:
    how = m.need("all", "any", "uni", "ballot")
    m.need("pred", "b32")
    check_members(c, i.operands[2])
    c.write(i.operands[0], f"vote({c.predicate(i.operands[1])}, {c.mask}, {how!r})")


@opcode("activemask")
def activemask(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need("b32")
    c.write(i.operands[0], c.mask)


@opcode("match")
def match(c: Writer, i: Instr, m: Modifiers) -> None:
    how = m.need("any", "all")
    m.need("sync")
    width, _ = m.integer()
    check_members(c, i.operands[2])
    if how == "all":
        target = i.operands[0]
        first = target.first if isinstance(target, Pair) else target
        name = c.temporary()
        c.emit(f"{name} = match_all({c.read(i.operands[1], width)}, {c.mask}, {width})")
        c.write(first, name)
        if isinstance(target, Pair):
            c.write(target.second, f"{FULL} if {name} else 0")
        return
    c.write(i.operands[0], f"match_any({c.read(i.operands[1], width)}, {c.mask}, {width})")


@opcode("redux.sync")
def redux(c: Writer, i: Instr, m: Modifiers) -> None:
    how = m.need("add", "min", "max", "and", "or", "xor")
    absolute, nan = bool(m.take("abs")), bool(m.take("NaN"))
    kind = m.need("u32", "s32", "b32", "f32")
    check_members(c, i.operands[2])
    if kind == "f32":
        if how not in ("min", "max"):
            raise c.fail("a float reduction is min or max", modifier=how)
        call = f"reduce_float_lanes({c.read(i.operands[1])}, {c.mask}, {how!r}, {absolute}, {nan})"
        return c.write(i.operands[0], call)
    if absolute or nan:
        raise c.fail("modifier belongs to .f32", modifier="abs" if absolute else "NaN")
    c.write(i.operands[0], f"reduce_lanes({c.read(i.operands[1])}, {c.mask}, {how!r}, {kind!r})")


@opcode("prefetch", "applypriority", "discard", "prefetchu")
def prefetch(c: Writer, i: Instr, m: Modifiers) -> None:
    """Cache hints have no effect on the result."""
    m.rest = []


@opcode("nop", "pmevent")
def nop(c: Writer, i: Instr, m: Modifiers) -> None:
    m.rest = []


@opcode("setmaxnreg")
def setmaxnreg(c: Writer, i: Instr, m: Modifiers) -> None:
    how = m.need("inc", "dec")
    for word in ("sync", "aligned", "u32"):
        m.need(word)
    if not isinstance(i.operands[0], Imm):
        raise c.fail("the count of registers must be a constant")
    call = f"set_max_registers(w, {how!r}, {i.operands[0].value}, {c.mask}, {c.site})"
    c.emit(f"if {call}: return -2" if how == "inc" else call)
