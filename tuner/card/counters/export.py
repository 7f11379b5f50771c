"""The text that ``ncu --import REPORT --csv --page raw --print-units base`` prints: a row per profiled launch.

A header with the names of all columns, a row with their units (empty for what has none), then the launches in order.
Messages (``==PROF== …``, what a program printed) may stand before, between and behind. What a chip lacks is ``n/a``,
or has no column. Numbers may have commas between thousands.
"""

from __future__ import annotations

import csv
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from kernel_space.core.errors import InputError

_ID, _NAME = "ID", "Kernel Name"
# To microseconds, hertz and bytes; versions of the profiler write units in different ways.
_SCALES = {
    **dict.fromkeys(("ns", "nsecond", "nanosecond"), 1e-3),
    **dict.fromkeys(("us", "usecond", "microsecond"), 1.0),
    **dict.fromkeys(("ms", "msecond", "millisecond"), 1e3),
    **dict.fromkeys(("s", "second"), 1e6),
    "khz": 1e3,
    "mhz": 1e6,
    "ghz": 1e9,
    **dict.fromkeys(("cycle/ms", "cycle/msecond"), 1e3),
    **dict.fromkeys(("cycle/us", "cycle/usecond"), 1e6),
    **dict.fromkeys(("cycle/ns", "cycle/nsecond"), 1e9),
    "kbyte": 1e3,
    "mbyte": 1e6,
    "gbyte": 1e9,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profiled:
    """One launch: its kernel, and what was counted, by counter; times in us, rates in Hz."""

    kernel: str
    counted: Mapping[str, float]


def read_export(text: str) -> list[Profiled]:
    """Every launch, in order. Raises ``InputError`` for text without a table, and for a table without launches."""
    rows = _rows(text)
    header = next((row for row in rows if _ID in row and _NAME in row), None)
    if header is None:
        raise InputError(f"the profiler's export must hold a table of kernels, it ends {_end(text)}")
    units: Sequence[str] = [""] * len(header)
    found = []
    place = header.index(_ID)
    for row in rows:
        if len(row) != len(header):
            if _is_message(row):
                continue
            raise InputError(
                f"a row of the profiler's export must have {len(header)} columns, one has {len(row)}: "
                f"{','.join(row)[:80]!r}"
            )
        if not row[place]:
            units = row
        else:
            found.append(_launch(header, units, row))
    if not found:
        raise InputError("no kernel was profiled: the export's table is empty")
    return found


def _rows(text: str) -> Iterator[list[str]]:
    return (row for row in csv.reader(text.splitlines()) if row)


def _is_message(row: Sequence[str]) -> bool:
    return len(row) == 1 or row[0].startswith("==")


def _launch(header: Sequence[str], units: Sequence[str], row: Sequence[str]) -> Profiled:
    counted = {}
    for name, unit, cell in zip(header, units, row, strict=True):
        if "__" in name and (value := _number(cell)) is not None:
            counted[name] = value * _SCALES.get(unit.casefold(), 1.0)
    return Profiled(kernel=row[header.index(_NAME)], counted=counted)


def _number(cell: str) -> float | None:
    """None for what was not counted (``n/a``, ``nan``, nothing), and for words."""
    try:
        value = float(cell.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _end(text: str) -> str:
    lines = text.strip().splitlines()
    return f"with {lines[-1][:160]!r}" if lines else "before it begins"
