"""Judging two runs of a probe."""

from __future__ import annotations

import dataclasses
import struct
from enum import StrEnum

from kernel_space.selfcheck.text.probe import Ending, Probe, Result

SHOWN = 4  # differing items named in a report


class Verdict(StrEnum):
    AGREE = "agree"
    DIFFER = "differ"
    UNSUPPORTED = "unsupported"  # the machine says that it does not model the probe
    REFUSED = "refused"  # the driver did not take the probe: there is nothing to compare


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """``detail``: for a difference, the first differing items with their operands."""

    probe: Probe
    verdict: Verdict
    detail: str = ""


def compare(probe: Probe, card: Result, machine: Result) -> Comparison:
    """Bytes against bytes; a fault agrees with a fault, a hang with a hang."""
    if card.ending is Ending.REFUSED:
        return Comparison(probe=probe, verdict=Verdict.REFUSED, detail=card.detail)
    if machine.ending is Ending.UNSUPPORTED:
        return Comparison(probe=probe, verdict=Verdict.UNSUPPORTED, detail=machine.detail)
    if card.ending is not machine.ending:
        detail = f"card: {card.ending} {card.detail}; machine: {machine.ending} {machine.detail}"
        return Comparison(probe=probe, verdict=Verdict.DIFFER, detail=detail)
    if card.ending is not Ending.BYTES:
        return Comparison(probe=probe, verdict=Verdict.AGREE, detail=f"both end as {card.ending}")
    detail = difference(probe, card.data, machine.data)
    return Comparison(probe=probe, verdict=Verdict.DIFFER if detail else Verdict.AGREE, detail=detail)


def difference(probe: Probe, card: bytes, machine: bytes) -> str:
    """'' if the bytes agree; else how many items differ, and the first of them."""
    size = probe.item_bytes[1] or 4
    differing = [
        at for at in range(0, len(card), size)
        if card[at : at + size] != machine[at : at + size] and not _close(probe.ulp, card, machine, at)
    ]  # fmt: skip
    if not differing:
        return ""
    shown = "; ".join(_item(probe, card, machine, at, size) for at in differing[:SHOWN])
    return f"{len(differing)} of {len(card) // size} items differ: {shown}"


def _item(probe: Probe, card: bytes, machine: bytes, at: int, size: int) -> str:
    operands = ""
    if probe.item_bytes[0]:
        start = at // size * probe.item_bytes[0]
        operands = f"operands {_hex(probe.inputs[start : start + probe.item_bytes[0]])}: "
    where = f"item {at // size}: " if operands else f"byte {at:#x}: "
    return f"{where}{operands}card {_hex(card[at : at + size])}, machine {_hex(machine[at : at + size])}"


def _hex(data: bytes) -> str:
    count = len(data) // 4
    words = [f"{word:08x}" for word in struct.unpack_from(f"<{count}I", data)]
    return " ".join([*words, *([data[4 * count :].hex()] if len(data) % 4 else [])])


def _close(ulp: int, card: bytes, machine: bytes, at: int) -> bool:
    """f32 results of an approximate instruction; infinities, NaN and zeros must match bit for bit."""
    if not ulp:
        return False
    a, b = (_ordered(struct.unpack_from("<I", data, at)[0]) for data in (card, machine))
    return a is not None and b is not None and abs(a - b) <= ulp


def _ordered(bits: int) -> int | None:
    """Position of a finite nonzero f32 on the number line; None for all else."""
    magnitude = bits & 0x7FFFFFFF
    if magnitude == 0 or magnitude >= 0x7F800000:
        return None
    return -magnitude if bits >> 31 else magnitude
