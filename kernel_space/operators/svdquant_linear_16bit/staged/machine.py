"""What is known of ``staged`` beside its sources: how its work is dealt out, a problem for its rings."""

from __future__ import annotations

import dataclasses
import math

from kernel_space.core.traits import Effort, MachineTraits, Rates
from kernel_space.operators.svdquant_gemm.problem import K_MULTIPLE
from kernel_space.operators.svdquant_gemm.sm90a_parts import machine as others
from kernel_space.operators.svdquant_gemm.traffic import HALF_BYTES, NVFP4_BYTES
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.staged.config import StagedKnobs

__all__ = ["TRAITS", "TURNS"]

# Both of an H200, before smooth was inverted by two warps (docs/evidence/kernel_16bit.md): an SM takes less for either.
WEIGHTS_PER_CYCLE, GROUPS = 15, 3  # that so many dequantizing warpgroups of an SM make, 128 columns
ROUND_CYCLES = 430  # of a slot that is ready: barriers and wgmma of the warps that multiply


def turns(config: StagedKnobs, problem: HalfLinearProblem) -> tuple[HalfLinearProblem, int]:
    """(problem, SMs of the chip): one tile, whole but for a row of x, with K for each ring to go round twice. A slot
    that is filled once tells nothing of who gives it back: nobody waits for that.
    """
    rows, columns, step = config.tile_mnk
    most = max(int(config.num_x_stage), int(config.num_dq_stage), int(config.num_ab_stage))
    k = (2 * most + 1) * config.split_k * step - K_MULTIPLE
    n = math.ceil((columns - 1) / problem.n_multiple) * problem.n_multiple
    return dataclasses.replace(problem, m=rows - 1, n=n, k=k), config.split_k * config.share


def effort(config: StagedKnobs, problem: HalfLinearProblem, rates: Rates) -> Effort:
    """Of one launch; a CTA's slot is a step."""
    rows, columns, step = config.tile_mnk
    down = math.ceil(problem.r / config.down_tile(problem.r)) if problem.r else 0
    tiles = math.ceil((down + math.ceil(problem.n / columns)) / config.share) * config.share
    pieces = tiles * math.ceil(problem.m / rows) * config.split_k
    cluster = config.split_k * config.share
    clusters = others.RAGGED_CLUSTERS.get(cluster, 132 // cluster) * rates.sm_count // 132
    places = max(clusters, 1) * cluster * config.ctas_per_sm
    rounds = math.ceil(pieces / places)
    beside = min(config.ctas_per_sm, math.ceil(pieces / rates.sm_count))  # CTAs of one SM at a time
    cycles = {
        "mma": rows * columns * step / others.MMA_PER_CYCLE,
        "dequant": columns * step / WEIGHTS_PER_CYCLE * GROUPS / min(config.num_dequant_warpgroups, GROUPS),
        "l2": step * (columns * NVFP4_BYTES + rows * HALF_BYTES / config.share) / others.L2_BYTES_PER_CYCLE,
    }
    stored = rows * columns / others.STORED_PER_CYCLE / others.CYCLES_US
    moved = problem.n * problem.k * NVFP4_BYTES + HALF_BYTES * problem.m * (problem.k + problem.n)
    return Effort(
        steps=rounds * math.ceil(math.ceil(problem.k / step) / config.split_k),
        turns=rounds,
        step={name: beside * count / others.CYCLES_US for name, count in cycles.items()}
        | {"latency": ROUND_CYCLES / others.CYCLES_US},
        turn={"turn": others.TURN_US, "epilogue": beside * stored},
        beside={"memory": moved / (rates.dram_bytes_s or math.nan) * 1e6},
        once={
            "launch": others.LAUNCH_US,
            "alone": 0.0 if config.use_pdl else others.ALONE_US,
            "meeting": float(config.split_k > 1) * others.MEETING_US,
        },
        choices={
            "cluster": float(config.share > 1),
            "rows_per_warpgroup": math.log2(config.row_blocks),
            "dequant_warpgroups": float(config.num_dequant_warpgroups - 1),
            "ctas_per_sm": float(config.ctas_per_sm - 1),
        },
    )


TRAITS = MachineTraits(schedule=others.schedule, effort=effort)
TURNS = turns
