"""The opcode table: mnemonic -> the function that writes its Python text.

An emitter reads its modifiers through ``Modifiers`` and must consume every one of them: what it does not know raises
``Unsupported`` with line, opcode and modifier. Emitters live in the ``opcodes_*`` modules, one per opcode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from kernel_space.machine.opcodes.writer import Writer
from kernel_space.machine.ptx.cfg import Block
from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.values.faults import Unsupported

Emitter = Callable[[Writer, Instr, Block], None]
TABLE: dict[str, Emitter] = {}
INTEGER_TYPES = {
    kind + str(width): (width, kind == "s") for kind in ("u", "s", "b") for width in (8, 16, 32, 64)
}
LONGEST_MNEMONIC = 5


class Modifiers:
    """The dot-separated words behind a mnemonic, consumed one by one."""

    def __init__(self, writer: Writer, instr: Instr, mnemonic: str) -> None:
        self.writer, self.rest = writer, list(instr.tokens[mnemonic.count(".") + 1 :])

    def take(self, *words: str) -> str:
        """The one of ``words`` that is present, or ''."""
        for word in self.rest:
            if word in words:
                self.rest.remove(word)
                return word
        return ""

    def need(self, *words: str) -> str:
        found = self.take(*words)
        if not found:
            given = ".".join(self.rest) or "nothing"
            raise self.writer.fail(f"needs one of .{' .'.join(words)}, has {given}")
        return found

    def integer(self) -> tuple[int, bool]:
        """(width, signed) of an integer type word."""
        return INTEGER_TYPES[self.need(*INTEGER_TYPES)]

    def ignore(self, *words: str) -> None:
        """Words without an effect in this machine (cache hints, scopes of plain accesses)."""
        self.rest = [word for word in self.rest if word not in words]

    def done(self) -> None:
        if self.rest:
            raise self.writer.fail("modifier is not modelled", modifier=self.rest[0])


def opcode(*mnemonics: str) -> Callable[[Callable[[Writer, Instr, Modifiers], None]], Emitter]:
    """Register an emitter ``(writer, instr, modifiers)``; leftover modifiers raise."""

    def register(function: Callable[[Writer, Instr, Modifiers], None]) -> Emitter:
        def emitter_for(mnemonic: str) -> Emitter:
            def emit(writer: Writer, instr: Instr, block: Block) -> None:
                modifiers = Modifiers(writer, instr, mnemonic)
                writer.block = block
                function(writer, instr, modifiers)
                modifiers.done()

            return emit

        for mnemonic in mnemonics:
            TABLE[mnemonic] = emitter_for(mnemonic)
        return TABLE[mnemonics[0]]

    return register


@functools.lru_cache(maxsize=4096)
def _lookup(tokens: tuple[str, ...]) -> Emitter | None:
    for length in range(min(LONGEST_MNEMONIC, len(tokens)), 0, -1):
        found = TABLE.get(".".join(tokens[:length]))
        if found is not None:
            return found
    return None


def find_opcode(instr: Instr) -> Emitter:
    """The emitter of the longest mnemonic that the opcode starts with. Raises ``Unsupported``."""
    _load()
    found = _lookup(instr.tokens)
    if found is None:
        raise Unsupported("opcode is not modelled", line=instr.line, opcode=instr.opcode)
    return found


@functools.cache
def _load() -> None:
    from kernel_space.machine.opcodes import bits as opcodes_bits  # noqa: F401
    from kernel_space.machine.opcodes import bulk as opcodes_bulk  # noqa: F401
    from kernel_space.machine.opcodes import convert as opcodes_convert  # noqa: F401
    from kernel_space.machine.opcodes import float as opcodes_float  # noqa: F401
    from kernel_space.machine.opcodes import integer as opcodes_integer  # noqa: F401
    from kernel_space.machine.opcodes import memory as opcodes_memory  # noqa: F401
    from kernel_space.machine.opcodes import mma as opcodes_mma  # noqa: F401
    from kernel_space.machine.opcodes import move as opcodes_move  # noqa: F401
    from kernel_space.machine.opcodes import st_async as opcodes_st_async  # noqa: F401
    from kernel_space.machine.opcodes import sync as opcodes_sync  # noqa: F401
    from kernel_space.machine.opcodes import tensor as opcodes_tensor  # noqa: F401
    from kernel_space.machine.opcodes import tensormap as opcodes_tensormap  # noqa: F401
