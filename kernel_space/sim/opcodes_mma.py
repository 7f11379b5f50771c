"""``mma.sync``: warp-level matrix products. PTX ISA 9.7.14.5; modelled for m16n8k16 of f16 and bf16 into f32."""

from __future__ import annotations

from kernel_space.sim.opcodes import Modifiers, opcode
from kernel_space.sim.operands import Imm, Operand, Vec
from kernel_space.sim.parse import Instr
from kernel_space.sim.writer import Writer


@opcode("mma.sync")
def mma_sync(c: Writer, i: Instr, m: Modifiers) -> None:
    for word in ("aligned", "m16n8k16", "row", "col"):
        m.need(word)
    if m.rest not in (["f32", kind, kind, "f32"] for kind in ("f16", "bf16")):
        raise c.fail("types are not modelled", modifier=".".join(m.rest))
    kind, m.rest = m.rest[1], []
    target = i.operands[0]
    assert isinstance(target, Vec)
    if not c.converged:
        raise c.fail("not all lanes of the warp are known to be here")
    groups = ", ".join(f"({', '.join(_words(c, operand))})" for operand in i.operands[1:])
    name = c.temporary()
    c.emit(f"{name} = mma_16x8x16({kind!r}, {groups})")
    for number, item in enumerate(target.items):
        c.write(item, f"{name}[{number}]")


def _words(c: Writer, operand: Operand) -> list[str]:
    """The registers of a vector operand; ptx may write constants for accumulators that start at zero."""
    assert isinstance(operand, Vec)
    return [str(item.value) if isinstance(item, Imm) else c.read(item, 32) for item in operand.items]
