"""``st.async``: stores to a CTA of the cluster that complete on an mbarrier there. PTX ISA 9.7.9.12."""

from __future__ import annotations

from kernel_space.machine.opcodes.memory import address
from kernel_space.machine.opcodes.table import Modifiers, opcode
from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Vec

_TYPES = {kind + size: int(size) // 8 for kind, sizes in (("b", ("32", "64")), ("u", ("32", "64")), ("s", ("32", "64")),
                                                          ("f", ("32", "64"))) for size in sizes}  # fmt: skip


@opcode("st.async")
def st_async(c: Writer, i: Instr, m: Modifiers) -> None:
    m.ignore("weak")
    m.need("shared::cluster")
    m.need("mbarrier::complete_tx::bytes")
    m.ignore("v2", "v4")
    size = _TYPES[m.need(*_TYPES)]
    source = i.operands[1]
    items = source.items if isinstance(source, Vec) else (source,)
    texts = "".join(f"{c.read(item, 8 * size)}, " for item in items)
    to, barrier = address(c, i.operands[0]), address(c, i.operands[2])
    c.emit(f"st_async(w, {to}, {size}, ({texts}), {barrier}, {c.mask}, {c.site})")
