"""When a warp issues each SASS instruction of a loop, from the control codes that ptxas wrote into it.

    nvdisasm -c -hex kernel.cubin | python -m benchmarks.sass_issue --stages 1,5 --compiler then [--warp tma]

prints the loop over k-tiles of an MMA warp as rows of ``tests/data/svdquant_mma_loops.csv``; with ``--warp``, that of
the TMA warp or the epilogue of an output tile as rows of ``tests/data/svdquant_other_warps.csv``.

Bits 105 to 121 of the 128 of an instruction: stall count (4), yield (1), write and read scoreboard (3 each, 7: none),
mask of scoreboards to wait for (6); Jia et al., arXiv 1804.06826, and unchanged since. A warp issues in order: an
instruction ``stall`` clocks after the one before it, and not before every scoreboard in its mask is free. A write
scoreboard is free when the result is there, a read scoreboard when the operands have been read (Huerta et al., arXiv
2503.20481). Nothing else is modelled: no instruction fetch, no cost of a taken branch or of BSYNC beyond its stall
count, no competition of other warps.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np

from kernel_space.core.errors import InputError
from kernel_space.machine.clock.clock import Times

NONE = 7
SCOREBOARDS = 6
_FIRST = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;?\s*/\* 0x[0-9a-f]{16} \*/")
_SECOND = re.compile(r"\s*/\* (0x[0-9a-f]{16}) \*/")
_LABEL = re.compile(r"\s*(\.L_x_\d+):")
_BRANCH = re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """``write``, ``read``: the scoreboard that it sets, or ``NONE``; ``wait``: a mask of scoreboards.

    ``lora``: None, or behind which NVFP4 MMA of its k-tile stands the LoRA MMA that it belongs to.
    """

    text: str
    stall: int
    write: int = NONE
    read: int = NONE
    wait: int = 0
    lora: int | None = None

    @property
    def opcode(self) -> str:
        """Without guard and modifiers: ``UTCOMMA``."""
        words = self.text.split()
        return words[1 if words[0].startswith("@") else 0].partition(".")[0]


Latency: TypeAlias = Callable[[str], Times | float]
"""Opcode -> clocks from its issue until the scoreboard that it sets is free."""


def decode(listing: str) -> tuple[list[Instruction], dict[str, int]]:
    """The instructions of ``nvdisasm -c -hex``, and label -> number of the instruction behind it."""
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    text = ""
    for line in listing.splitlines():
        if found := _FIRST.match(line):
            text = found.group(1)
        elif text and (found := _SECOND.match(line)):
            control = int(found.group(1), 16) >> 41
            code.append(
                Instruction(
                    text=text, stall=control & 15, write=control >> 5 & 7, read=control >> 8 & 7,
                    wait=control >> 11 & 63,
                )
            )  # fmt: skip
            text = ""
        elif found := _LABEL.match(line):
            labels[found.group(1)] = len(code)
    return code, labels


def k_tile(listing: str) -> list[Instruction]:
    """What the MMA warp executes for one k-tile with a LoRA MMA behind every NVFP4 MMA, each marked ``lora``.

    The way through the innermost loop around the first UTCCP: branches over an UTCHMMA are not taken (LoRA), those over
    a SYNCS of LoRA's own barrier are (it is waited for once per tile), waits succeed at once. Raises ``InputError``
    where there is no such loop.
    """
    code, labels = decode(listing)
    head, back = _loop(code, labels, "UTCCP")
    path: list[Instruction] = []
    at, lora, end, mmas = head, None, -1, -1
    while at <= back:
        one = code[at]
        mmas += one.opcode == "UTCOMMA"
        if at == end:
            lora = None
        path.append(dataclasses.replace(one, lora=lora))
        target = _target(one, labels)
        over = {each.opcode for each in code[at + 1 : target]} if at < target <= back else set()
        at += 1
        if over.isdisjoint({"UTCOMMA", "UTCCP"}):
            if "UTCHMMA" in over:
                lora, end = mmas, target
            elif "SYNCS" in over:
                at = target
    return path


def tma_k_tile(listing: str) -> list[Instruction]:
    """What the TMA warp of the leading CTA executes for one k-tile: waits succeed at once, every load is issued.

    Raises ``InputError`` where there is no loop around an UTMALDG.
    """
    code, labels = decode(listing)
    head, back = _loop(code, labels, "UTMALDG")
    return code[head : back + 1]


def epilogue_tile(listing: str) -> list[Instruction]:
    """What the storing epilogue warp executes from a full accumulator until it frees it, all subtiles unrolled.

    What stands before is left out: it is done while the accumulator fills. Raises ``InputError`` for another number of
    TMA stores than of TMEM loads.
    """
    code, _ = decode(listing)
    loads = [number for number, one in enumerate(code) if one.opcode == "LDTM"]
    stores = sum(one.opcode == "UTMASTG" for one in code)
    if not loads or stores != len(loads):
        raise InputError(f"the listing has {len(loads)} LDTM and {stores} UTMASTG: no unrolled epilogue")
    wait = max(number for number in range(loads[0]) if "TRYWAIT" in code[number].text)
    taken = next(number for number in range(wait, loads[0]) if code[number].opcode == "BRA")
    frees = next(number for number in range(loads[-1], len(code)) if "SYNCS.ARRIVE" in code[number].text)
    return code[taken + 1 : frees + 1]


def _target(one: Instruction, labels: dict[str, int]) -> int:
    found = _BRANCH.search(one.text)
    return labels[found.group(1)] if found else -1


def _loop(code: list[Instruction], labels: dict[str, int], opcode: str) -> tuple[int, int]:
    """First and last instruction of the smallest loop around an ``opcode``."""
    found = [number for number, one in enumerate(code) if one.opcode == opcode]
    around = [
        (back - target, target, back)
        for back, one in enumerate(code)
        if any(0 <= (target := _target(one, labels)) <= number < back for number in found)
    ]
    if not around:
        raise InputError(f"the listing has no loop around a {opcode}")
    return min(around)[1:]


def issue(code: Iterable[Instruction], latency: Latency, times: int = 2) -> Times | float:
    """Clocks of the last of ``times`` passes through ``code``, one behind the other."""
    passes = list(code)
    now: Times | float = 0.0
    free: list[Times | float] = [0.0] * SCOREBOARDS
    ends = [now]
    for _ in range(times):
        for one in passes:
            for board in range(SCOREBOARDS):
                if one.wait >> board & 1:
                    now = np.maximum(now, free[board])
            for board in (one.write, one.read):
                if board != NONE:
                    free[board] = np.maximum(free[board], now + latency(one.opcode))
            now = now + one.stall
        ends.append(now)
    return ends[-1] - ends[-2]


def tile(path: Sequence[Instruction], *, k_tiles: int, lora_mmas: int) -> list[Instruction]:
    """All k-tiles of an output tile, ``lora_mmas`` among them in the published order: every ``stride``-th MMA."""
    mmas = sum(one.opcode == "UTCOMMA" for one in path)
    stride = k_tiles * mmas // lora_mmas if lora_mmas else 0
    behind = {number * stride for number in range(lora_mmas)}
    return [
        one
        for number in range(k_tiles)
        for one in path
        if one.lora is None or number * mmas + one.lora in behind
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stages", required=True, help="num_lora_stage,num_ab_stage")
    parser.add_argument("--compiler", required=True, choices=("then", "now"))
    parser.add_argument("--warp", choices=("mma", "tma", "epilogue"), default="mma")
    args = parser.parse_args()
    listing, writer = sys.stdin.read(), csv.writer(sys.stdout, lineterminator="\n")
    path = {"mma": k_tile, "tma": tma_k_tile, "epilogue": epilogue_tile}[args.warp](listing)
    for one in path:
        which = ("" if one.lora is None else one.lora) if args.warp == "mma" else args.warp
        writer.writerow(
            [
                *args.stages.split(","),
                args.compiler,
                which,
                one.text,
                one.stall,
                one.write,
                one.read,
                one.wait,
            ]
        )


if __name__ == "__main__":
    main()
