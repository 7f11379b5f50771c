"""What is known of ``merged`` beside its sources: how a launch is dealt out, what it needs, a problem for its rings."""

from __future__ import annotations

import math

from kernel_space.core.traits import Effort, MachineTraits, Rates, Schedule
from kernel_space.operators.svdquant_gemm.sm90a_parts.machine import (
    ALONE_US,
    CYCLES_US,
    L2_BYTES_PER_CYCLE,
    LATENCY,
    LAUNCH_US,
    MMA_PER_CYCLE,
    STORED_PER_CYCLE,
    TURN_US,
)
from kernel_space.operators.svdquant_gemm.sm90a_parts.turns import turns
from kernel_space.operators.svdquant_gemm.tiles import waves
from kernel_space.operators.svdquant_gemm.traffic import HALF_BYTES, NVFP4_BYTES
from kernel_space.operators.svdquant_linear_16bit.merged.config import MergedConfig
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem


def schedule(config: MergedConfig, problem: HalfLinearProblem, sm_count: int) -> Schedule:
    """Output tiles of clusters, of the second kernel. What ``stream_k`` deals out again counts as whole tiles."""
    found = waves(config, problem, sm_count)  # type: ignore[arg-type]  # only sizes are read
    return Schedule(pieces=found.clusters, places=found.places, steps=found.k_tiles)


def effort(config: MergedConfig, problem: HalfLinearProblem, rates: Rates) -> Effort:
    """Of both kernels: the first is bound by what it reads and writes, the second is a GEMM."""
    found = schedule(config, problem, rates.sm_count)
    rows, columns, step = config.tile_mnk
    exact = found.pieces / found.places
    rounds = max(exact, 1 / 8) if config.stream_k else math.ceil(exact)
    m, k, n = problem.m, problem.k, problem.n
    dram = rates.dram_bytes_s or math.nan
    shared_rows, shared_columns = config.cluster_shape_mn
    fetched = step * HALF_BYTES * (rows / shared_columns + columns / shared_rows)
    stored = rows * columns / STORED_PER_CYCLE / CYCLES_US
    return Effort(
        steps=rounds * found.steps,
        turns=found.waves,
        step={
            "mma": rows * columns * step / MMA_PER_CYCLE / CYCLES_US,
            "l2": fetched / L2_BYTES_PER_CYCLE / CYCLES_US,
            "latency": LATENCY / CYCLES_US,
        },
        turn={"turn": TURN_US, "epilogue": stored},
        beside={"memory": HALF_BYTES * (m * k + n * k + m * n) / dram * 1e6},
        once={
            "launch": LAUNCH_US,
            "alone": 0.0 if config.use_pdl else ALONE_US,
            "partial_sums": float(config.stream_k) * stored * min(rounds, 2),
            "expanding": n * k * (NVFP4_BYTES + HALF_BYTES) / dram * 1e6,
        },
        choices={
            "stream_k": float(config.stream_k),
            "raster_n": float(config.raster_order == "n"),
            "bands": float(config.swizzle_size > 1),
            "cluster": float(config.cluster_size > 1),
        },
    )


TRAITS = MachineTraits(schedule=schedule, effort=effort)
TURNS = turns
