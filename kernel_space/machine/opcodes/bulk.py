"""Asynchronous copies. PTX ISA 9.7.9.25-27 "cp.async.bulk", "cp.async.bulk.tensor", "cp.reduce.async.bulk"."""

from __future__ import annotations

from kernel_space.machine.opcodes.memory import address
from kernel_space.machine.opcodes.sync import uniform
from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Mem

_RANKS = ("1d", "2d", "3d", "4d", "5d")
_REDUCTIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_PLAIN_TYPES = ("u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64", "b32", "b64")


def _memory(c: Writer, i: Instr, at: int) -> str:
    operand = i.operands[at]
    assert isinstance(operand, Mem)
    return uniform(c, address(c, Mem(operand.base, operand.offset)), operand.base)


def _coordinates(c: Writer, i: Instr, at: int) -> str:
    operand = i.operands[at]
    if not isinstance(operand, Mem) or operand.coords is None:
        raise c.fail("needs [tensor map, {coordinates}]")
    return "(" + "".join(uniform(c, c.read(item), item) + ", " for item in operand.coords) + ")"


@opcode("cp.async.bulk.tensor")
def bulk_tensor(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need(*_RANKS)
    spaces = [
        m.need("shared::cluster", "shared::cta", "global"),
        m.need("shared::cluster", "shared::cta", "global"),
    ]
    target = i.operands[0]
    if not isinstance(target, Mem):
        raise c.fail("needs [address] or [tensor map, {coordinates}] first")
    to_shared = i.tokens.index(spaces[1]) > i.tokens.index(spaces[0]) and target.coords is None
    _tile_only(c, m)
    m.ignore("L2::cache_hint")
    if not to_shared:
        m.need("bulk_group")
        return c.emit(
            f"tma_store(w, {_memory(c, i, 0)}, {_coordinates(c, i, 0)}, {_memory(c, i, 1)}, '', {c.mask}, {c.site})"
        )
    m.need("mbarrier::complete_tx::bytes")
    multicast = bool(m.take("multicast::cluster"))
    pair = m.take("cta_group::1", "cta_group::2") == "cta_group::2"
    mask = uniform(c, c.read(i.operands[3], 16), i.operands[3]) if multicast else "None"
    c.emit(
        f"tma_load(w, {_memory(c, i, 0)}, {_memory(c, i, 1)}, {_coordinates(c, i, 1)}, {_memory(c, i, 2)}, {mask}, "
        f"{pair}, {c.mask}, {c.site})"
    )


def _tile_only(c: Writer, m: Modifiers) -> None:
    mode = m.take(
        "tile", "im2col", "im2col::w", "im2col::w::128", "tile::gather4", "tile::scatter4", "im2col_no_offs"
    )
    if mode not in ("", "tile"):
        raise c.fail("load mode is not modelled", modifier=mode)


@opcode("cp.reduce.async.bulk.tensor")
def reduce_tensor(c: Writer, i: Instr, m: Modifiers) -> None:
    m.need(*_RANKS)
    m.need("global")
    m.need("shared::cta")
    how = m.need(*_REDUCTIONS)
    _tile_only(c, m)
    m.need("bulk_group")
    m.ignore("L2::cache_hint")
    c.emit(
        f"tma_store(w, {_memory(c, i, 0)}, {_coordinates(c, i, 0)}, {_memory(c, i, 1)}, {how!r}, {c.mask}, {c.site})"
    )


@opcode("cp.async.bulk.prefetch")
def bulk_prefetch(c: Writer, i: Instr, m: Modifiers) -> None:
    """Brings data into L2: no effect on the result."""
    m.rest = []


@opcode("cp.async.bulk")
def bulk(c: Writer, i: Instr, m: Modifiers) -> None:
    target = m.need("shared::cluster", "shared::cta", "global")
    source = m.need("global", "shared::cta")
    m.ignore("L2::cache_hint")
    size = uniform(c, c.read(i.operands[2]), i.operands[2])
    to, come = _memory(c, i, 0), _memory(c, i, 1)
    if target == "global":
        m.need("bulk_group")
        return c.emit(f"bulk_store(w, {to}, {come}, {size}, '', '', {c.mask}, {c.site})")
    m.need("mbarrier::complete_tx::bytes")
    multicast = bool(m.take("multicast::cluster"))
    mask = uniform(c, c.read(i.operands[4], 16), i.operands[4]) if multicast else "None"
    c.emit(
        f"bulk_load(w, {to}, {come}, {size}, {_memory(c, i, 3)}, {mask}, {source == 'global'}, {c.mask}, {c.site})"
    )


@opcode("cp.reduce.async.bulk")
def reduce_bulk(c: Writer, i: Instr, m: Modifiers) -> None:
    target = m.need("global", "shared::cluster")
    m.need("shared::cta")
    if target != "global":
        raise c.fail("reduction into shared memory is not modelled", modifier=target)
    m.need("bulk_group")
    m.ignore("L2::cache_hint", "noftz")
    how, kind = m.need(*_REDUCTIONS), m.need(*_PLAIN_TYPES)
    size = uniform(c, c.read(i.operands[2]), i.operands[2])
    c.emit(
        f"bulk_store(w, {_memory(c, i, 0)}, {_memory(c, i, 1)}, {size}, {how!r}, {kind!r}, {c.mask}, {c.site})"
    )


@opcode("cp.async.bulk.commit_group")
def commit_group(c: Writer, i: Instr, m: Modifiers) -> None:
    c.emit(f"bulk_commit(w, {c.mask})")


@opcode("cp.async.bulk.wait_group")
def wait_group(c: Writer, i: Instr, m: Modifiers) -> None:
    reads = bool(m.take("read"))
    operand = i.operands[0]
    assert isinstance(operand, Imm)
    c.emit(f"if bulk_wait(w, {operand.value}, {reads}, {c.mask}, {c.site}): return -2")


@opcode("cp.async")
def cp_async(c: Writer, i: Instr, m: Modifiers) -> None:
    """Per-lane copies of 4, 8 or 16 bytes, with an optional shorter source that is filled with zeros."""
    m.need("ca", "cg")
    m.need("shared", "shared::cta")
    m.need("global")
    m.ignore("L2::cache_hint", "L2::64B", "L2::128B", "L2::256B")
    size = i.operands[2]
    assert isinstance(size, Imm)
    if len(i.operands) > 3 and getattr(i.operands[3], "width", 32) == 1:
        raise c.fail("the ignore-src predicate is not modelled")
    used = c.read(i.operands[3]) if len(i.operands) > 3 else str(size.value)
    to, come = address(c, i.operands[0]), address(c, i.operands[1])
    c.emit(f"cp_async(w, {to}, {come}, {size.value}, {used}, {c.mask}, {c.site})")


@opcode("cp.async.commit_group", "cp.async.wait_all", "cp.async.wait_group")
def cp_async_group(c: Writer, i: Instr, m: Modifiers) -> None:
    """``wait_all`` also waits for what no group holds yet."""
    if i.tokens[2] == "commit_group":
        return c.emit(f"cp_async_commit(w, {c.mask})")
    most = -1
    if i.tokens[2] == "wait_group":
        operand = i.operands[0]
        assert isinstance(operand, Imm)
        most = operand.value
    c.emit(f"cp_async_wait(w, {most}, {c.mask}, {c.site})")


@opcode("cp.async.mbarrier.arrive")
def cp_async_arrive(c: Writer, i: Instr, m: Modifiers) -> None:
    keeps = bool(m.take("noinc"))
    m.ignore("shared", "shared::cta", "b64")
    c.emit(f"cp_async_arrive(w, {_memory(c, i, 0)}, {keeps}, {c.mask}, {c.site})")
