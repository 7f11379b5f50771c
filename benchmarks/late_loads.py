"""Loads of shared memory that may still be under way when a warp arrives at an mbarrier, in SASS.

    python -m benchmarks.late_loads [RESULTS ...]      # rows of each folder's table; the default is results/h200

A slot that is given back is filled again, by TMA sooner than such a load may have read it. The machine runs the PTX, in
which what is loaded has been used by then; ptxas moves products behind the arrival, for it sees no order of the two
(docs/evidence/kernel_16bit.md, "Sliced K"). So the listing is read: a load is under way from where it sets a scoreboard
until an instruction waits for that one, or a ``MEMBAR`` waits for all. Straight on, with branches not taken: a loop's
end is not carried to its head, where a wait at the next barrier lies in between.

A finding is no error by itself: the barrier may guard other memory than the load has read.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.sass_issue import NONE, SCOREBOARDS, Instruction, decode
from kernel_space.build.build import build
from kernel_space.build.resources import disassemble
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import operator, parse_config
from kernel_space.core.rules import Legal, legalize

ROOT = Path(__file__).parents[1]
LOADS = {"LDS", "LDSM"}
ENDS = {"EXIT", "RET"}


@dataclasses.dataclass(frozen=True)
class Late:
    """An arrival, and the loads before it that nothing has waited for."""

    arrival: str
    loads: tuple[str, ...]


def late_loads(code: list[Instruction]) -> Iterator[Late]:
    """Every arrival with a load under way, in the order of the listing."""
    under_way: dict[int, list[str]] = {number: [] for number in range(SCOREBOARDS)}
    for one in code:
        for number in range(SCOREBOARDS):
            if one.wait >> number & 1:
                under_way[number] = []
        if one.opcode == "MEMBAR" or one.opcode in ENDS or one.text.startswith("BRA "):
            under_way = {number: [] for number in range(SCOREBOARDS)}
        elif one.opcode in LOADS and one.write != NONE:
            under_way[one.write].append(one.text)
        elif is_arrival(one):
            loads = tuple(text for texts in under_way.values() for text in texts)
            if loads:
                yield Late(one.text, loads)


def is_arrival(one: Instruction) -> bool:
    """At an mbarrier, without bytes to expect: that is what a producer does."""
    return one.opcode == "SYNCS" and "ARRIVE" in one.text and ("ART0" in one.text or "RED" in one.text)


def main(argv: list[str]) -> None:
    for folder in [Path(name) for name in argv] or [ROOT / "results" / "h200"]:
        seen: dict[str, str] = {}
        for row in json.loads((folder / "dispatch.json").read_text())["rows"]:
            problem = operator(row["op"]).problem(**row["problem"])
            legal = legalize(parse_config(row["op"], SM90A, row["config"]), problem, SM90A)
            if not isinstance(legal, Legal):
                continue
            compiled = build(legal.config, problem.problem_class, SM90A)
            if str(compiled.cubin_path) in seen:
                continue
            seen[str(compiled.cubin_path)] = row["config"]
            code, _ = decode(disassemble(compiled.cubin_path, encoded=True))
            for late in late_loads(code):
                print(
                    f"{row['op']} {problem}: {row['config'][:90]}\n    {late.arrival}: {' | '.join(late.loads)}"
                )
        print(f"{folder}: {len(seen)} kernels")


if __name__ == "__main__":
    main(sys.argv[1:])
