"""``tcgen05``: tensor memory and the fifth-generation tensor core. PTX ISA 9.7.16."""

from __future__ import annotations

from kernel_space.machine.opcodes.memory import address
from kernel_space.machine.opcodes.sync import converged, uniform
from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm, Mem, Operand, Vec

KINDS = (
    "kind::mxf4nvf4",
    "kind::mxf4",
    "kind::mxf8f6f4",
    "kind::f16",
    "kind::tf32",
    "kind::f8f6f4",
    "kind::i8",
)
_SCALE_BLOCK = {
    "block16": 16, "block32": 32, "scale_vec::4X": 16, "scale_vec::2X": 32, "scale_vec::1X": 32,
}  # fmt: skip
_COLLECTOR = tuple(f"collector::a::{use}" for use in ("fill", "use", "lastuse", "discard"))
LOAD_SHAPES = ("16x64b", "16x128b", "16x256b", "32x32b", "16x32bx2")
_PACKED = {"b4x16_p64": 4, "b6x16_p32": 6}  # source formats of a decompressing copy, and bits per element
CP_SHAPES = ("128x256b", "4x256b", "128x128b", "64x128b", "32x128b")


def _group(c: Writer, m: Modifiers) -> int:
    group = m.need("cta_group::1", "cta_group::2")
    if c.graph.mixes_groups:
        c.emit(f"mixed_groups(w, {c.site})")
    return int(group[-1])


def _aligned(c: Writer, m: Modifiers) -> None:
    m.need("sync")
    m.need("aligned")
    converged(c)


def _address(c: Writer, operand: Operand) -> str:
    assert isinstance(operand, Mem)
    return uniform(c, address(c, operand), operand.base)


def _base(c: Writer, operand: Operand) -> str:
    """Address of a collective access: the ISA wants the same one from all threads of the warp."""
    assert isinstance(operand, Mem)
    text = address(c, operand)
    return f"base_address(w, {text}, {c.mask}, {c.site})" if c.varies(operand.base) else text


@opcode("tcgen05.alloc")
def alloc(c: Writer, i: Instr, m: Modifiers) -> None:
    group = _group(c, m)
    _aligned(c, m)
    m.ignore("shared::cta", "b32")
    columns = uniform(c, c.read(i.operands[1]), i.operands[1])
    c.emit(f"if tmem_alloc(w, {_address(c, i.operands[0])}, {columns}, {group}, {c.site}): return -2")


@opcode("tcgen05.dealloc")
def dealloc(c: Writer, i: Instr, m: Modifiers) -> None:
    group = _group(c, m)
    _aligned(c, m)
    m.ignore("b32")
    base, columns = (uniform(c, c.read(operand), operand) for operand in i.operands)
    c.emit(f"tmem_dealloc(w, {base}, {columns}, {group}, {c.site})")


@opcode("tcgen05.relinquish_alloc_permit")
def relinquish(c: Writer, i: Instr, m: Modifiers) -> None:
    _group(c, m)
    _aligned(c, m)
    c.emit(f"tmem_relinquish(w, {c.site})")


@opcode("tcgen05.wait::ld", "tcgen05.wait::st")
def wait(c: Writer, i: Instr, m: Modifiers) -> None:
    _aligned(c, m)
    c.emit(f"tmem_wait(w, {i.tokens[1][-2:]!r}, {c.site})")


@opcode("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
def tensor_fence(c: Writer, i: Instr, m: Modifiers) -> None:
    """Order of tcgen05 operations around other synchronisation: this machine never reorders them, the race checker
    knows that others may."""
    c.emit(f"tensor_fence(w, {i.tokens[1].startswith('fence::before')}, {c.mask}, {c.site})")


@opcode("tcgen05.ld")
def ld(c: Writer, i: Instr, m: Modifiers) -> None:
    _aligned(c, m)
    shape, count = _shape(m)
    packs = bool(m.take("pack::16b"))
    m.need("b32")
    target = i.operands[0]
    items = target.items if isinstance(target, Vec) else (target,)
    split = _split_offset(c, i, shape)
    name = c.temporary()
    c.emit(
        f"{name} = tmem_load(w, {_base(c, i.operands[1])}, {shape!r}, {count}, {packs}, {split}, {c.site})"
    )
    for number, item in enumerate(items):
        c.write(item, f"{name}[{number}]")


@opcode("tcgen05.st")
def st(c: Writer, i: Instr, m: Modifiers) -> None:
    _aligned(c, m)
    shape, count = _shape(m)
    packs = bool(m.take("unpack::16b"))
    m.need("b32")
    source = i.operands[-1]
    items = source.items if isinstance(source, Vec) else (source,)
    split = i.operands[1].value if shape == "16x32bx2" and isinstance(i.operands[1], Imm) else 0
    texts = ", ".join(c.read(item) for item in items)
    c.emit(
        f"tmem_store(w, {_base(c, i.operands[0])}, {shape!r}, {count}, {packs}, {split}, ({texts},), {c.site})"
    )


def _shape(m: Modifiers) -> tuple[str, int]:
    shape = m.need(*LOAD_SHAPES)
    return shape, int(m.need("x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128")[1:])


def _split_offset(c: Writer, i: Instr, shape: str) -> int:
    if shape != "16x32bx2":
        return 0
    operand = i.operands[2]
    assert isinstance(operand, Imm)
    return operand.value


@opcode("tcgen05.cp")
def cp(c: Writer, i: Instr, m: Modifiers) -> None:
    group = _group(c, m)
    shape = m.need(*CP_SHAPES)
    spread = m.take("warpx4", "warpx2::02_13", "warpx2::01_23")
    packed = _PACKED[m.need(*_PACKED)] if m.take("b8x16") else 0
    descriptor = uniform(c, c.read(i.operands[1], 64), i.operands[1])
    c.emit(
        f"tensor_cp(w, {_address(c, i.operands[0])}, {descriptor}, {shape!r}, {spread!r}, {group}, {c.mask}, {c.site}"
        f"{f', {packed}' if packed else ''})"
    )


@opcode("tcgen05.shift")
def shift(c: Writer, i: Instr, m: Modifiers) -> None:
    group = _group(c, m)
    m.need("down")
    c.emit(f"tensor_shift(w, {_address(c, i.operands[0])}, {group}, {c.mask}, {c.site})")


@opcode("tcgen05.commit")
def commit(c: Writer, i: Instr, m: Modifiers) -> None:
    group = _group(c, m)
    m.need("mbarrier::arrive::one")
    m.ignore("shared::cluster", "b64")
    multicast = bool(m.take("multicast::cluster"))
    mask = uniform(c, c.read(i.operands[1], 16), i.operands[1]) if multicast else "None"
    c.emit(f"tensor_commit(w, {_address(c, i.operands[0])}, {mask}, {group}, {c.mask}, {c.site})")


@opcode("tcgen05.mma")
def mma(c: Writer, i: Instr, m: Modifiers) -> None:
    group = _group(c, m)
    kind = m.need(*KINDS)[6:]
    scaled = bool(m.take("block_scale"))
    block = _SCALE_BLOCK.get(m.take(*_SCALE_BLOCK), 16 if kind == "mxf4nvf4" else 32)
    collector = m.take(*_COLLECTOR)[14:]
    d, a, b, idesc, *rest = i.operands
    a_text = _address(c, a) if isinstance(a, Mem) else uniform(c, c.read(a, 64), a)
    b_text, i_text = uniform(c, c.read(b, 64), b), uniform(c, c.read(idesc), idesc)
    scales = "None, None"
    if scaled:
        scales = f"{_address(c, rest[0])}, {_address(c, rest[1])}"
        rest = rest[2:]
    disabled = "()"
    if rest and isinstance(rest[0], Vec):
        disabled = "(" + "".join(f"{c.read(item)}, " for item in rest[0].items) + ")"
        rest = rest[1:]
    enable = c.predicate(rest[0])
    if len(rest) > 1:
        raise c.fail("scale-input-d is not modelled")
    used = f", {collector!r}" if collector else ""
    c.emit(
        f"tensor_mma(w, {_address(c, d)}, {a_text}, {isinstance(a, Mem)}, {b_text}, {i_text}, {scales}, {disabled}, "
        f"({enable}) & {c.mask}, {kind!r}, {block}, {group}, {c.mask}, {c.site}{used})"
    )
