"""What is known of ``sliced`` beside its sources: how its work is dealt out, how long the machine may run it, a problem
for its ring.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from kernel_space.core.traits import Effort, Rates
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE
from kernel_space.operators.svdquant_gemm.sm90a_parts import machine as others
from kernel_space.operators.svdquant_gemm.traffic import HALF_BYTES, NVFP4_BYTES
from kernel_space.operators.svdquant_linear_16bit.sliced.config import SlicedKnobs

__all__ = ["TRAITS", "TURNS"]

PER_SLOT = 100_000  # warp-instructions, of some 2,000 that a slot of 128 columns takes
LOOKING = 3_000_000, 100_000  # of warps that look for pairs while others are held up: in all, and for each SM
# Of an H200, two warps a scheduler (docs/evidence/kernel_16bit.md): a k-tile of 56 and of 96 columns takes 310 and 430
# cycles of an SM, so 128 weights three; the rest is x over smooth and who waits for whom.
WEIGHTS_PER_CYCLE = 43
SLOT_CYCLES = 140


def most_instructions(config: SlicedKnobs, problem: Any, sms: int) -> int:
    """Warp-instructions that no correct run needs."""
    rows, columns, step = config.tile_mnk
    tiles = math.ceil(problem.n / columns) + math.ceil(problem.r / 8)
    slots = math.ceil(problem.k / step) * tiles * math.ceil(problem.m / rows)
    least, per_sm = LOOKING
    return least + per_sm * sms + PER_SLOT * slots


def turns(config: SlicedKnobs, problem: Any) -> tuple[Any, int]:
    """(problem, SMs of the chip): one tile, whole but for a row of x, with K for the ring to go round twice. A slot
    that is filled once tells nothing of who gives it back: nobody waits for that.
    """
    rows, columns, step = config.tile_mnk
    k = (2 * int(config.num_ab_stage) + 1) * config.split_k * step - K_MULTIPLE
    n = math.ceil((columns - 1) / problem.n_multiple) * problem.n_multiple
    return dataclasses.replace(problem, m=rows - 1, n=n, k=k), config.split_k


def effort(config: SlicedKnobs, problem: Any, rates: Rates) -> Effort:
    """Of one launch; a CTA's k-tile is a step."""
    rows, columns, step = config.tile_mnk
    down = math.ceil(problem.r / config.down_tile(problem.r)) if problem.r else 0
    pieces = (down + math.ceil(problem.n / columns)) * math.ceil(problem.m / rows) * config.split_k
    clusters = others.RAGGED_CLUSTERS.get(config.split_k, 132 // config.split_k) * rates.sm_count // 132
    rounds = math.ceil(pieces / (max(clusters, 1) * config.split_k * config.ctas_per_sm))
    beside = min(config.ctas_per_sm, math.ceil(pieces / rates.sm_count))  # CTAs of one SM at a time
    cycles = {
        "mma": rows * columns * step / others.MMA_PER_CYCLE,
        "dequant": columns * step / WEIGHTS_PER_CYCLE,
        "l2": step * (columns * NVFP4_BYTES + rows * HALF_BYTES) / others.L2_BYTES_PER_CYCLE,
    }
    stored = rows * columns / others.STORED_PER_CYCLE / others.CYCLES_US
    moved = problem.n * problem.k * NVFP4_BYTES + HALF_BYTES * problem.m * (problem.k + problem.n)
    return Effort(
        steps=rounds * math.ceil(math.ceil(problem.k / step) / config.split_k),
        turns=rounds,
        step={name: beside * count / others.CYCLES_US for name, count in cycles.items()}
        | {"latency": SLOT_CYCLES / others.CYCLES_US},
        turn={"turn": others.TURN_US, "epilogue": beside * stored},
        beside={"memory": moved / (rates.dram_bytes_s or math.nan) * 1e6},
        once={
            "launch": others.LAUNCH_US,
            "alone": 0.0 if config.use_pdl else others.ALONE_US,
            "meeting": float(config.split_k > 1) * others.MEETING_US,
        },
        choices={"slot_warps": float(config.slot_warps - 1), "ctas_per_sm": float(config.ctas_per_sm - 1)},
    )


TRAITS = dataclasses.replace(others.TRAITS, most_instructions=most_instructions, effort=effort)
TURNS = turns
