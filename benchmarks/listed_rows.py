"""Rows of the SVDQuant tables with the MMA warp that the compiler of their time made (``compiled_then``)."""

from __future__ import annotations

import dataclasses

import numpy as np

from benchmarks.clocked_rows import Row
from benchmarks.compiled_then import latency, loop, lora_instructions_now, marked
from benchmarks.sass_issue import Instruction, issue, tile
from kernel_space.errors import InputError
from kernel_space.sim.timed.clock import Clock, Times
from tuner.simulated_time import capture_launch

TILE_M, TILE_N, K_TILE, MMAS_PER_K_TILE, LORA_MMA_K = 256, 128, 256, 4, 16
SLOW_MMA = 2000.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedRow:
    """``path``: one k-tile by ``compiled_then.loop``. ``own``: what ``clock`` charges its MMA warp per k-tile."""

    row: Row
    path: tuple[Instruction, ...]
    clock: Clock
    own: Times

    @property
    def k_tiles(self) -> int:
        return self.row.problem.k // K_TILE

    @property
    def lora_mmas(self) -> int:
        return self.row.problem.r // LORA_MMA_K

    def warp_clocks(self, operands: Times | float) -> Times | float:
        """Clocks of the k-tiles of an output tile if nothing but the warp itself held it up.

        ``operands``: until a tcgen05 instruction has read its registers; a value, or one per set.
        """
        code = tile(self.path, k_tiles=self.k_tiles, lora_mmas=self.lora_mmas)
        return issue(code, lambda opcode: latency(opcode, operands, self.clock.spin))

    def cycles(self, operands: Times | float) -> Times:
        """SM cycles of the launch. What the listing says more (or less) than the clock stands behind each MMA."""
        own = self.k_tiles * self.own + self.lora_mmas * lora_instructions_now() * self.clock.issue
        more = (self.warp_clocks(operands) - own) / (self.k_tiles * MMAS_PER_K_TILE)
        return self.row.cycles(dataclasses.replace(self.clock, fence_gpu=more))


def listed(row: Row, clock: Clock) -> ListedRow:
    """``row`` of the stand-in. Raises ``InputError`` for NVIDIA's kernel and for stages that were not compiled."""
    if row.config is None:
        raise InputError(f"there is no listing of the {row.table} rows")
    row = dataclasses.replace(row, ptx=marked(row.ptx, mmas_per_k_tile=MMAS_PER_K_TILE))
    path = loop("then", row.config.num_lora_stage, row.config.num_ab_stage)
    return ListedRow(row=row, path=path, clock=clock, own=own_charge(row, clock))


def own_charge(row: Row, clock: Clock) -> Times:
    """Clocks per k-tile that ``clock`` charges the MMA warp of ``row``, whose PTX is ``marked``.

    Each MMA is made so slow for the warp that nothing else counts: what twice as many k-tiles take longer, less that.
    """
    assert row.built is not None, "only rows of the stand-in are marked"
    slow = dataclasses.replace(clock, fence_gpu=np.full(clock.sets, SLOW_MMA))
    twice = dataclasses.replace(row.problem, k=2 * row.problem.k)
    longer = dataclasses.replace(row, problem=twice, launch=capture_launch(row.built, twice, row.places))
    tiles = -(-(-(-twice.m // TILE_M) * -(-twice.n // TILE_N)) // row.places)
    added = longer.cycles(slow) - row.cycles(slow)
    return added / (tiles * (row.problem.k // K_TILE)) - MMAS_PER_K_TILE * SLOW_MMA
