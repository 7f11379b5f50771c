"""Rows of the SVDQuant tables with the warps that the compiler of their time made (``compiled_then``).

MMA and TMA warp: what the clock charges them for a k-tile of today's PTX is taken out, what the listing takes is put
in, in all rows; of the TMA warp, what stands in front of its wait for a slot goes there. Epilogue: what is put in is by
how much the listing of a row is longer than that of the same compiler at ``UNSPOILT`` stages. The epilogue of the
stand-in is another one (it scales and adds a bias, in a loop over subtiles, and frees the accumulator after its last
TMEM load), so that there is nothing of the same kind to take out.

In: the issue of the warps' own instructions by stall counts, a poll of a barrier, and for the MMA warp the waits for
operands. Out, the clock's own: latencies of tcgen05.ld, shared stores, fences, TMA and named barriers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

import numpy as np

from benchmarks.clocked_rows import Row
from benchmarks.compiled_then import (
    UNSPOILT,
    behind_the_wait,
    issue_clocks,
    latency,
    loop,
    lora_instructions_now,
    other_warps,
)  # fmt: skip
from benchmarks.sass_issue import Instruction, issue, tile
from benchmarks.warp_marks import FENCES, LOADS_PER_K_TILE, MARKS, charged, marked
from kernel_space.core.errors import InputError
from kernel_space.machine.clock.clock import Clock, Times
from kernel_space.machine.clock.reduce import reduce_kernel
from kernel_space.machine.ptx.operands import Imm
from kernel_space.machine.ptx.parse import parse_ptx
from tuner.simulated.time import capture_launch

TILE_M, TILE_N, K_TILE, LORA_MMA_K = 256, 128, 256, 16
SLOW = 2000.0
TMA_LOAD = "cp.async.bulk.tensor"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedRow:
    """``path``: one k-tile of the MMA warp. ``own``: what ``clock`` charges it per k-tile.

    ``others``: mark of another warp -> clocks that the listings say more (or less) per k-tile, in the epilogue per
    output tile.
    """

    row: Row
    path: tuple[Instruction, ...]
    clock: Clock
    own: Times
    others: dict[str, Times | float]

    @property
    def k_tiles(self) -> int:
        return self.row.problem.k // K_TILE

    @property
    def lora_mmas(self) -> int:
        return self.row.problem.r // LORA_MMA_K

    def warp_clocks(self, operands: Times | float) -> Times | float:
        """Clocks of the k-tiles of an output tile if nothing but the MMA warp itself held it up.

        ``operands``: until a tcgen05 instruction has read its registers; a value, or one per set.
        """
        code = tile(self.path, k_tiles=self.k_tiles, lora_mmas=self.lora_mmas)
        return issue(code, lambda opcode: latency(opcode, operands, self.clock.spin))

    def cycles(self, operands: Times | float, marks: Collection[str] = tuple(FENCES)) -> Times:
        """SM cycles of the launch with the warps of these ``marks`` as listed, the others as the clock charges them."""
        own = self.k_tiles * self.own + self.lora_mmas * lora_instructions_now() * self.clock.issue
        more = {"mma": (self.warp_clocks(operands) - own) / self.k_tiles} | self.others
        return self.row.cycles(charged(self.clock, {mark: more[mark] / MARKS[mark] for mark in marks}))


def listed(row: Row, clock: Clock) -> ListedRow:
    """``row`` of the stand-in. Raises ``InputError`` for NVIDIA's kernel and for stages that were not compiled."""
    if row.config is None:
        raise InputError(f"there is no listing of the {row.table} rows")
    stages = (int(row.config.num_lora_stage), int(row.config.num_ab_stage))
    path = loop("then", *stages)
    behind = instructions_behind_the_wait(row.ptx) * clock.issue
    row = dataclasses.replace(row, ptx=marked(row.ptx))
    k_tile = other_warps("tma")["then", *stages]
    loads = behind_the_wait(k_tile) - behind
    epilogue, usual = (
        float(issue_clocks(other_warps("epilogue")["then", *which], 0.0)) for which in (stages, UNSPOILT)
    )
    others = {
        "tma head": issue_clocks(k_tile, clock.spin) - own_charge(row, clock, "tma") - loads,
        "tma": loads,
        "epilogue": epilogue - usual,
    }
    return ListedRow(row=row, path=path, clock=clock, own=own_charge(row, clock, "mma"), others=others)


def instructions_behind_the_wait(ptx: str) -> float:
    """Instructions that the clock charges the TMA warp between its wait for a slot and the last load of a k-tile."""
    reduced = reduce_kernel(parse_ptx(ptx, None))
    code = reduced.kernel.instrs
    loads = [number for number, one in enumerate(code) if one.opcode.startswith(TMA_LOAD)][:LOADS_PER_K_TILE]
    wait = max(number for number in range(loads[0]) if code[number].opcode.startswith("mbarrier.try_wait"))
    costs = [
        dict(reduced.costs[operand.value])
        for one in code[wait : loads[-1]] if one.opcode == "timed.cost"
        for operand in one.operands if isinstance(operand, Imm)
    ]  # fmt: skip
    assert all(set(cost) == {"issue"} for cost in costs), costs
    return sum(cost["issue"] for cost in costs)


def own_charge(row: Row, clock: Clock, warp: str) -> Times:
    """Clocks per k-tile that ``clock`` charges the MMA or TMA warp of ``row``, whose PTX is ``marked``.

    The warp is made so slow that nothing else counts: what twice as many k-tiles take longer, less that.
    """
    assert row.built is not None, "only rows of the stand-in are marked"
    slow = charged(clock, {warp: SLOW})
    twice = dataclasses.replace(row.problem, k=2 * row.problem.k)
    longer = dataclasses.replace(row, problem=twice, launch=capture_launch(row.built, twice, row.places))
    tiles = -(-(-(-twice.m // TILE_M) * -(-twice.n // TILE_N)) // row.places)
    added = longer.cycles(slow) - row.cycles(slow)
    return np.asarray(added / (tiles * (row.problem.k // K_TILE)) - MARKS[warp] * SLOW)
