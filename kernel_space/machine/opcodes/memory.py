"""Loads, stores, atomics and matrix moves. PTX ISA 9.7.9 "ld", "st", 9.7.13 "atom", "red", 9.7.14 "ldmatrix"."""

from __future__ import annotations

from kernel_space.machine.opcodes.float import FLOAT_TYPES
from kernel_space.machine.opcodes.table import INTEGER_TYPES, Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Mem, Operand, Vec
from kernel_space.machine.values.lanes import MASKS

_SHARED = ("shared", "shared::cta", "shared::cluster")
_HINTS = ("L1::no_allocate", "L1::evict_normal", "L1::evict_first", "L1::evict_last", "L1::evict_unchanged",
          "L2::64B", "L2::128B", "L2::256B", "L2::cache_hint", "L2::evict_first", "L2::evict_last",
          "L2::evict_normal", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "unified")  # fmt: skip
_SCOPES = ("cta", "cluster", "gpu", "sys")
_ORDERS = ("relaxed", "acquire", "release", "acq_rel", "weak", "volatile", "mmio")


def element_width(c: Writer, m: Modifiers) -> tuple[int, bool]:
    """(width, signed) of the type of a memory access."""
    kind = m.need(*INTEGER_TYPES, *FLOAT_TYPES, "b128")
    if kind == "b128":
        raise c.fail("128-bit registers are not modelled", modifier=kind)
    return INTEGER_TYPES[kind] if kind in INTEGER_TYPES else (FLOAT_TYPES[kind], False)


def address(c: Writer, operand: Operand) -> str:
    """Expression of ``[base+offset]``."""
    if not isinstance(operand, Mem):
        raise c.fail("needs a memory operand")
    width = getattr(operand.base, "width", 64)
    base = c.read(operand.base, 64)
    if operand.offset == 0:
        return base
    if c.varies(operand.base):
        return f"add({base}, {operand.offset & MASKS[width]}, {MASKS[width]})"
    return f"({base} + {operand.offset})" if operand.offset > 0 else f"({base} - {-operand.offset})"


def access_order(m: Modifiers) -> tuple[str, str]:
    order = m.take(*_ORDERS) or "weak"
    return order, m.take(*_SCOPES)


@opcode("ld")
def ld(c: Writer, i: Instr, m: Modifiers) -> None:
    order, scope = access_order(m)
    order = m.take("nc") or order
    space = m.take("param", "global", "const", "local", *_SHARED)
    m.take("::entry")
    m.ignore(*_HINTS)
    count = int((m.take("v2", "v4", "v8") or "v1")[1:])
    width, is_signed = element_width(c, m)
    where = address(c, i.operands[1])
    target = i.operands[0]
    items = target.items if isinstance(target, Vec) else (target,)
    name = c.temporary()
    size = width // 8
    if space == "param":
        c.emit(f"{name} = load_param(w, {where}, {size}, {count})")
    elif space in _SHARED:
        strong = "" if order == "weak" else f", {order!r}, {scope!r}"
        c.emit(f"{name} = load_shared(w, {where}, {size}, {count}, {c.mask}, {c.site}{strong})")
    elif space in ("global", "const"):
        c.emit(f"{name} = load_global(w, {where}, {size}, {count}, {c.mask}, {c.site}, {order!r}, {scope!r})")
    elif space == "local":
        c.emit(f"{name} = load_local(w, {where}, {size}, {count}, {c.mask}, {c.site})")
    else:
        c.emit(
            f"{name} = load_generic(w, {where}, {size}, {count}, {c.mask}, {c.site}, {order!r}, {scope!r})"
        )
    for number, item in enumerate(items):
        register = getattr(item, "width", width)
        text = f"{name}[{number}]"
        c.write(item, text if register == width else f"resize({text}, {width}, {register}, {is_signed})")


@opcode("st")
def st(c: Writer, i: Instr, m: Modifiers) -> None:
    order, scope = access_order(m)
    space = m.take("global", "local", *_SHARED)
    m.ignore(*_HINTS)
    count = int((m.take("v2", "v4", "v8") or "v1")[1:])
    width, _ = element_width(c, m)
    where = address(c, i.operands[0])
    source = i.operands[1]
    items = source.items if isinstance(source, Vec) else (source,)
    assert len(items) == count
    texts = [narrow(c, item, width) for item in items]
    values = f"({', '.join(texts)},)"
    size = width // 8
    if space in _SHARED:
        strong = "" if order == "weak" else f", {order!r}, {scope!r}"
        c.emit(f"store_shared(w, {where}, {size}, {values}, {c.mask}, {c.site}{strong})")
    elif space == "global":
        c.emit(f"store_global(w, {where}, {size}, {values}, {c.mask}, {c.site}, {order!r}, {scope!r})")
    elif space == "local":
        c.emit(f"store_local(w, {where}, {size}, {values}, {c.mask}, {c.site})")
    else:
        c.emit(f"store_generic(w, {where}, {size}, {values}, {c.mask}, {c.site}, {order!r}, {scope!r})")


def narrow(c: Writer, item: Operand, width: int) -> str:
    """A source whose register may be wider than the memory type."""
    text = c.read(item, width)
    register = getattr(item, "width", width)
    return text if register == width else f"resize({text}, {width}, {width}, False)"


def _atomic(c: Writer, i: Instr, m: Modifiers, *, returns: bool) -> None:
    order, scope = access_order(m)
    if order == "weak":
        order = "relaxed"
    scope = scope or "gpu"
    space = m.take("global", *_SHARED)
    m.ignore("noftz", *_HINTS)
    how = m.need("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
    vector = m.take("v2", "v4", "v8")
    kind = m.need(*INTEGER_TYPES, *FLOAT_TYPES)
    if vector and returns:
        raise c.fail("vector atomics are modelled for red only", modifier=vector)
    width = INTEGER_TYPES[kind][0] if kind in INTEGER_TYPES else FLOAT_TYPES[kind]
    operands = i.operands[1:] if returns else i.operands
    where = address(c, operands[0])
    sources = [
        item
        for operand in operands[1:]
        for item in (operand.items if isinstance(operand, Vec) else (operand,))
    ]
    texts = ", ".join(c.read(item, width) for item in sources)
    call = (
        f"atomic(w, {where}, {how!r}, {kind!r}, ({texts},), {c.mask}, {c.site}, {order!r}, {scope!r}, "
        f"{'shared' if space in _SHARED else space!r}, {bool(vector)})"
    ).replace(", shared, ", ", 'shared', ")
    if returns:
        c.write(i.operands[0], call)
    else:
        c.emit(call)


@opcode("atom")
def atom(c: Writer, i: Instr, m: Modifiers) -> None:
    _atomic(c, i, m, returns=True)


@opcode("red")
def red(c: Writer, i: Instr, m: Modifiers) -> None:
    if m.take("async"):
        raise c.fail("opcode is not modelled", modifier="async")
    _atomic(c, i, m, returns=False)


@opcode("stmatrix")
def stmatrix(c: Writer, i: Instr, m: Modifiers) -> None:
    count, transposed, byte = _matrix(c, m)
    values = i.operands[1]
    items = values.items if isinstance(values, Vec) else (values,)
    texts = ", ".join(c.read(item) for item in items)
    where = address(c, i.operands[0])
    assert len(items) == count
    c.emit(f"store_matrix(w, {where}, ({texts},), {transposed}, {byte}, {c.mask}, {c.site})")


@opcode("ldmatrix")
def ldmatrix(c: Writer, i: Instr, m: Modifiers) -> None:
    if i.tokens.count("m16n16"):
        return _ldmatrix_bytes(c, i, m)
    count, transposed, byte = _matrix(c, m)
    if byte:
        raise c.fail("ldmatrix has no such shape", modifier="m16n8")
    name = c.temporary()
    c.emit(f"{name} = load_matrix(w, {address(c, i.operands[1])}, {count}, {transposed}, {c.mask}, {c.site})")
    _spread_over(c, i, name)


def _ldmatrix_bytes(c: Writer, i: Instr, m: Modifiers) -> None:
    """``.m16n16.trans.b8``; the formats that unpack 4 and 6 bits are left over."""
    for word in ("sync", "aligned", "m16n16", "trans", "b8"):
        m.need(word)
    count = int(m.need("x1", "x2")[1:])
    m.ignore(*_SHARED)
    name = c.temporary()
    c.emit(f"{name} = load_byte_matrix(w, {address(c, i.operands[1])}, {count}, {c.mask}, {c.site})")
    _spread_over(c, i, name)


def _spread_over(c: Writer, i: Instr, name: str) -> None:
    """The registers of an ``ldmatrix`` from a list of values."""
    target = i.operands[0]
    items = target.items if isinstance(target, Vec) else (target,)
    for number, item in enumerate(items):
        c.write(item, f"{name}[{number}]")


def _matrix(c: Writer, m: Modifiers) -> tuple[int, bool, bool]:
    m.need("sync")
    m.need("aligned")
    shape = m.need("m8n8", "m16n8")
    count = int(m.need("x1", "x2", "x4")[1:])
    transposed = bool(m.take("trans"))
    m.ignore(*_SHARED)
    m.need("b16", "b8")
    return count, transposed, shape == "m16n8"
