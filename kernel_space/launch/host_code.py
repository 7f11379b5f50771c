"""Is the host code of two objects the same? Their symbols begin with a prefix of their own: all that may differ.

The prefix comes from a hash over sources. It decides in which order names lie in the string table, so that two objects
of one kernel differ in bytes that nothing executes; what is compared is what a loader puts into memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kernel_space.core.errors import InputError
from kernel_space.launch.elf import Elf, Section, read_elf

_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")
_SYMTAB, _STRTAB, _RELA, _REL = 2, 3, 4, 9  # sh_type, System V ABI


def same_host_code(first: bytes, first_prefix: str, second: bytes, second_prefix: str) -> bool:
    """Whether two host objects (ELF64, relocatable) are the same code and data under the same names, but for their
    prefixes. Embedded cubins are data and so are compared too. Raises ``InputError`` for what is no such object."""
    return _loaded(first, first_prefix) == _loaded(second, second_prefix)


def _loaded(data: bytes, prefix: str) -> list[object]:
    """Sections in their order; symbols and relocations by name, in no order."""
    elf = read_elf(_without(data, prefix))
    sections: list[object] = [
        (section.name, section.type, section.size, section.data)
        for section in elf.sections
        if section.type not in (_SYMTAB, _STRTAB, _RELA)
    ]
    if any(section.type == _REL for section in elf.sections):
        raise InputError("relocations without addends are not compared")
    try:
        symbols = sorted(_symbols(elf))
        relocations = sorted(one for section in elf.sections for one in _relocations(elf, section))
    except (struct.error, IndexError) as error:
        raise InputError(f"its symbols or relocations are damaged: {error}") from None
    return [*sections, symbols, relocations]


def _without(data: bytes, prefix: str) -> bytes:
    """A prefix is as long in every object, so nothing moves."""
    name = prefix.encode()
    return data.replace(name, b"-" * len(name)) if name else data


def _symbols(elf: Elf) -> Iterator[tuple[object, ...]]:
    """Name, kind, binding and visibility, section, value and size of each."""
    table = next((section for section in elf.sections if section.type == _SYMTAB), None)
    if table is None:
        return
    for symbol, (_name, info, other, index, value, size) in zip(
        elf.symbols, _SYMBOL.iter_unpack(table.data), strict=True
    ):
        yield symbol.name, info, other, index, value, size


def _relocations(elf: Elf, section: Section) -> Iterator[tuple[object, ...]]:
    """Section, place, kind, symbol (a section's symbol has no name: its number then), addend."""
    if section.type != _RELA:
        return
    for place, info, addend in _RELOCATION.iter_unpack(section.data):
        symbol = elf.symbols[info >> 32]
        yield section.info, place, info & 0xFFFFFFFF, symbol.name, symbol.section_index, addend
