"""The little of ELF64 (little endian) that is needed to look into host objects and cubins."""

from __future__ import annotations

import dataclasses
import struct

from kernel_space.core.errors import InputError

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_SHT_SYMTAB = 2
_SHT_NOBITS = 8
_STT_FUNC = 2
_SHN_UNDEF = 0


@dataclasses.dataclass(frozen=True)
class Section:
    """``info`` is ``sh_info``; ``size`` counts bytes in memory, so ``data`` of a NOBITS section is empty."""

    name: str
    type: int
    info: int
    link: int
    size: int
    data: bytes


@dataclasses.dataclass(frozen=True)
class Symbol:
    name: str
    is_function: bool
    is_undefined: bool
    section_index: int
    size: int


@dataclasses.dataclass(frozen=True)
class Elf:
    flags: int
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)


def read_elf(data: bytes) -> Elf:
    """Raises ``InputError`` when ``data`` is not a complete ELF64 file."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise InputError(f"not an ELF64 file: it starts with {data[:6]!r}")
    try:
        fields = _HEADER.unpack_from(data)
        sections = _sections(data, offset=fields[6], count=fields[12], names_index=fields[13])
        return Elf(flags=fields[7], sections=sections, symbols=_symbols(sections))
    except (struct.error, IndexError) as error:
        raise InputError(f"the ELF file of {len(data)} bytes is cut short: {error}") from error


def _sections(data: bytes, *, offset: int, count: int, names_index: int) -> tuple[Section, ...]:
    headers = [_SECTION.unpack_from(data, offset + i * _SECTION.size) for i in range(count)]
    names = data[headers[names_index][4] : headers[names_index][4] + headers[names_index][5]]
    return tuple(
        Section(
            name=_text(names, name),
            type=kind,
            info=info,
            link=link,
            size=size,
            data=b"" if kind == _SHT_NOBITS else data[start : start + size],
        )
        for name, kind, _flags, _address, start, size, link, info, _align, _entry in headers
    )


def _symbols(sections: tuple[Section, ...]) -> tuple[Symbol, ...]:
    table = next((section for section in sections if section.type == _SHT_SYMTAB), None)
    if table is None:
        return ()
    names = sections[table.link].data
    return tuple(
        Symbol(
            name=_text(names, name),
            is_function=info & 0xF == _STT_FUNC,
            is_undefined=index == _SHN_UNDEF,
            section_index=index,
            size=size,
        )
        for name, info, _other, index, _value, size in _SYMBOL.iter_unpack(table.data)
    )


def _text(names: bytes, offset: int) -> str:
    return names[offset : names.index(b"\0", offset)].decode()
