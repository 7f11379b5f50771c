"""Warps of the published SVDQuant kernel as the compilers of the tables' time made it.

The tables were measured in April and May 2026. That compiler (nvidia-cutlass-dsl 4.4.2 and 4.5.0) keeps the addresses
of the MMAs in uniform registers at every stage count of the sweep but one: with ``num_lora_stage`` = 1 (5 A/B stages)
it computes them in vector registers and moves them over before each tcgen05 instruction, 192 instructions per k-tile
instead of 85. Today's does not. ``tests/data/svdquant_mma_loops.csv`` holds the loops with their control codes,
``svdquant_other_warps.csv`` the k-tile of the TMA warp and the epilogue of an output tile, which that compiler spoilt
at the same stage counts.

The clock runs today's PTX of a stand-in and charges its warps a cost per instruction. ``listed_rows`` takes that
charge out and puts in what the published kernel's own instructions take by ``sass_issue``: their stall counts and
waits on scoreboards. R2UR is part of the former: on sm_100 it sets no scoreboard (none in the listings does) but has a
fixed latency of 13 clk (NVIDIA's tables for B100 in Mesa, src/nouveau/compiler/latencies/sm100/ureg_raw.csv), and ptxas
puts 11 + 2 between the last one and the tcgen05 instruction that reads it.

No source was found for one number: ``OPERANDS``, after how long a tcgen05 instruction has read the uniform registers
that it names, so that they may be written again. The older code waits for that more often: a clock more costs it 9 per
k-tile with one LoRA stage, 4 with two and three, 1 without LoRA.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.sass_issue import NONE, Instruction, issue
from kernel_space.core.errors import InputError
from kernel_space.machine.clock.clock import Times
from kernel_space.machine.clock.constants import Constant

DATA = Path(__file__).parents[1] / "tests" / "data"
LOOPS = DATA / "svdquant_mma_loops.csv"
OTHER_WARPS = DATA / "svdquant_other_warps.csv"
OPERANDS = Constant(
    value=26.0, low=9.0, high=176.0, unit="clk", kind="assumed", group="core",
    source="tcgen05 instruction -> its uniform registers have been read. Not before those of a load of shared memory "
    "(9 on Ampere: Huerta et al., arXiv 2503.20481, Table 2), nor after the shortest measured MMA of two CTAs is done "
    "(176: SemiAnalysisAI/microbench-blackwell umma_latency, MXF4); value: median of what the ncu rows leave",
)  # fmt: skip
SPECIAL_REGISTER = 20.0  # S2R: about 20 clk (maxas); up to 24 it costs nothing in the one loop that has it
Paths: TypeAlias = dict[tuple[str, int, int], tuple[Instruction, ...]]
UNSPOILT = (2, 4)  # one of the stage counts at which that compiler's loops are as good as today's


@functools.cache
def loops() -> Paths:
    """(compiler, num_lora_stage, num_ab_stage) -> what its MMA warp executes for one k-tile."""
    return _paths(_rows(LOOPS))


@functools.cache
def other_warps(warp: str) -> Paths:
    """As ``loops``: of "tma" one k-tile, of "epilogue" one output tile, from a full accumulator until it is free."""
    return _paths(row for row in _rows(OTHER_WARPS) if row["warp"] == warp)


def issue_clocks(path: tuple[Instruction, ...], poll: Times | float) -> Times | float:
    """Clocks of ``path`` when results and operands of all but a poll are there at once: what its issue takes.

    A lower bound: the clock has latencies of its own for what these warps wait for, operands of TMA and LDCU have none.
    """
    code = [dataclasses.replace(one, read=NONE) for one in path]
    return issue(code, lambda opcode: poll if opcode == "SYNCS" else 0.0)


def behind_the_wait(path: tuple[Instruction, ...]) -> int:
    """Stall counts of a k-tile of the TMA warp between its wait for a slot and its last load."""
    wait = next(number for number, one in enumerate(path) if "TRYWAIT" in one.text)
    last = max(number for number, one in enumerate(path) if one.opcode == "UTMALDG")
    return sum(one.stall for one in path[wait + 1 : last])


def loop(compiler: str, num_lora_stage: int, num_ab_stage: int) -> tuple[Instruction, ...]:
    """Raises ``InputError`` for stage counts that were not compiled."""
    found = loops().get((compiler, num_lora_stage, num_ab_stage))
    if found is None:
        raise InputError(
            f"{LOOPS.name} has no loop of compiler {compiler} with num_lora_stage={num_lora_stage} "
            f"num_ab_stage={num_ab_stage}"
        )
    return found


def lora_instructions_now() -> float:
    """Instructions of one LoRA MMA as today's compiler makes it: the same within one at all stage counts."""
    counts = [
        sum(one.lora == 0 for one in path) for (compiler, lora, _), path in loops().items()
        if compiler == "now" and lora
    ]  # fmt: skip
    return float(np.median(counts))


def latency(opcode: str, operands: Times | float, poll: Times | float) -> Times | float:
    """Clocks until the scoreboard of ``opcode`` is free. Raises ``InputError`` for one that these loops do not have."""
    if opcode == "SYNCS":
        return poll
    if opcode == "S2R":
        return SPECIAL_REGISTER
    if opcode.startswith("UTC"):
        return operands
    raise InputError(f"no latency is known of {opcode}, which sets a scoreboard")


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open() as lines:
        yield from csv.DictReader(line for line in lines if not line.startswith("#"))


def _paths(rows: Iterable[dict[str, str]]) -> Paths:
    found: dict[tuple[str, int, int], list[Instruction]] = {}
    for row in rows:
        key = row["compiler"], int(row["num_lora_stage"]), int(row["num_ab_stage"])
        found.setdefault(key, []).append(_instruction(row))
    return {key: tuple(path) for key, path in found.items()}


def _instruction(row: dict[str, str]) -> Instruction:
    numbers = {name: int(row[name]) for name in ("stall", "write", "read", "wait")}
    return Instruction(text=row["instruction"], lora=int(row["lora"]) if row.get("lora") else None, **numbers)
