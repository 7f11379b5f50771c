"""What is known of the designs for sm_90a beside their sources: how a launch is dealt out, what it needs, and a problem
that exercises its rings.
"""

from __future__ import annotations

import math
from typing import Any

from kernel_space.core.traits import Effort, MachineTraits, Rates, Schedule
from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_parts.turns import turns
from kernel_space.operators.svdquant_gemm.tiles import cluster_tiles, waves
from kernel_space.operators.svdquant_gemm.traffic import HALF_BYTES, NVFP4_BYTES

CYCLES_US = 1750.0  # an H200 at its power limit; another clock only scales what is fitted
STEP = 128  # K elements of a step
MMA_PER_CYCLE = 2048  # multiply-adds in fp16 of one SM
DEQUANT_PER_CYCLE = 256  # elements of one SM: 4 schedulers, 32 lanes, two elements an instruction
L2_BYTES_PER_CYCLE = 64  # into one SM
LATENCY = 150  # cycles of a step that nothing hides
TURN_US, MEETING_US, LAUNCH_US = 0.5, 0.5, 1.0  # of a piece of work, of CTAs that share one, of a launch
ALONE_US = 1.0  # of a launch that overlaps with no other: a time, not a share, so most of a short one's
STORED_PER_CYCLE = 1000  # elements of a tile that an epilogue scales, or adds to
# Clusters along K that run at once on an H200, by their CTAs: GPCs hold 16 or 18 SMs, not all alike.
RAGGED_CLUSTERS = {3: 42, 4: 32, 5: 24, 6: 20}
MANY_ROWS = 512  # of act: above, launches overlap little of one another


def schedule(config: GemmConfig, problem: GemmProblem, sm_count: int) -> Schedule:
    """Output tiles of clusters, or splits of them. What ``stream_k`` deals out again counts as whole tiles."""
    found = waves(config, problem, sm_count)
    return Schedule(pieces=found.clusters, places=found.places, steps=found.k_tiles)


def effort(config: Any, problem: Any, rates: Rates) -> Effort:
    """Of any kernel for sm_90a that multiplies tiles of packed weights; act is packed too, or 16 bits wide."""
    rows, columns, _ = config.cta_tile_mnk
    pieces, places = _dealt(config, problem, rates.sm_count)
    stream = _knob(config, "stream_k")
    turns = max(pieces / places, 1 / 8) if stream else math.ceil(pieces / places)
    steps = math.ceil(math.ceil(problem.k / STEP) / config.split_k) + problem.r / STEP
    # CTAs of one SM at a time share what it does in a cycle
    beside = min(_knob(config, "ctas_per_sm", 1), math.ceil(pieces / rates.sm_count))
    stored = rows * columns / STORED_PER_CYCLE / CYCLES_US
    shared = float(config.split_k > 1 or stream)
    moved = _read(config, problem) * _bytes(config, problem)
    return Effort(
        steps=turns * steps,
        turns=math.ceil(pieces / places),
        step={name: beside * us for name, us in _step(config).items()} | {"latency": LATENCY / CYCLES_US},
        turn={"turn": TURN_US, "epilogue": beside * stored},
        beside={"memory": moved / (rates.dram_bytes_s or math.nan) * 1e6},
        once={
            "launch": LAUNCH_US,
            "alone": 0.0 if config.use_pdl else ALONE_US,
            "partial_sums": shared * config.split_k * stored * min(turns, 2),
            "meeting": shared * MEETING_US,
            "expanding": _expanded(config, problem) / (rates.dram_bytes_s or math.nan) * 1e6,
        },
        choices=_choices(config, problem),
    )


def _knob(config: Any, name: str, without: Any = 0) -> Any:
    """Of a kernel that may not have it."""
    return getattr(config, name, without)


def _takes_halves(config: Any) -> bool:
    """Whether columns come to the main loop as 16 bits."""
    return bool(_knob(config, "expands_act"))


def _dealt(config: Any, problem: Any, sm_count: int) -> tuple[int, int]:
    """(CTA tiles times splits, how many of them run at once)."""
    tiles_m, tiles_n = cluster_tiles(config, problem)
    pieces = tiles_m * tiles_n * config.cluster_size * config.split_k
    per_sm = _knob(config, "ctas_per_sm", 1)
    if config.splits_in_workspace == 1 and config.split_k > 1:  # a cluster along K
        clusters = RAGGED_CLUSTERS.get(config.split_k, 132 // config.split_k) * sm_count // 132
        return pieces, max(clusters, 1) * config.split_k * per_sm
    return pieces, sm_count // config.cluster_size * config.cluster_size * per_sm


def _step(config: Any) -> dict[str, float]:
    """Needs of a step of one CTA."""
    rows, columns, _ = config.cta_tile_mnk
    halves = _takes_halves(config)
    fetched = columns * HALF_BYTES / config.cluster_shape_mn[0] if halves else columns * NVFP4_BYTES
    cycles = {
        "mma": rows * columns * STEP / MMA_PER_CYCLE,
        "row_dequant": rows * STEP / DEQUANT_PER_CYCLE * 2 / min(config.consumer_warpgroups, 2),
        "column_dequant": 0 if halves else columns * STEP / DEQUANT_PER_CYCLE,
        "l2": STEP * (rows * NVFP4_BYTES + fetched) / L2_BYTES_PER_CYCLE,
    }
    return {name: count / CYCLES_US for name, count in cycles.items()}


def _read(config: Any, problem: Any) -> int:
    """How often weights are read. With mma.sync each warp fetches its own, for every tile of rows of act again."""
    alone = config.num_dq_stage == 0 or hasattr(config, "dequant_ahead")
    return math.ceil(problem.m / config.tile_mnk[1]) if alone else 1


def _bytes(config: Any, problem: Any) -> float:
    """Operands and y, once. Where act is 16 bits wide in global memory no first kernel of the launch expanded it."""
    m, k, n, r = problem.m, problem.k, problem.n, problem.r
    wide = _takes_halves(config) and not _expanded(config, problem)
    act = m * k * (HALF_BYTES if wide else NVFP4_BYTES)
    return n * k * NVFP4_BYTES + act + HALF_BYTES * (r * (m + n) + m * n)


def _expanded(config: Any, problem: Any) -> float:
    """Bytes that a first kernel of the same launch reads and writes."""
    if not (_takes_halves(config) and problem.operator == GemmProblem.operator):
        return 0.0
    return problem.m * problem.k * (NVFP4_BYTES + HALF_BYTES)


def _choices(config: Any, problem: Any) -> dict[str, float]:
    many = problem.m > MANY_ROWS
    return {
        "pdl_of_many_rows": float(config.use_pdl and many),
        "pingpong": float(_knob(config, "pingpong")),
        "stream_k": float(_knob(config, "stream_k")),
        "wgmma_k_32": float(_knob(config, "wgmma_k") == 32),
        "raster_n": float(_knob(config, "raster_order") == "n"),
        "bands": float(_knob(config, "swizzle_size", 1) > 1),
        "cluster": float(config.cluster_size > 1),
        "rows_per_warpgroup": math.log2(max(config.cta_tile_mnk[0] / 64 / config.consumer_warpgroups, 0.5)),
        "act_in_registers": float(not config.swap_ab),
        "dequant_warpgroups": float(_knob(config, "num_dequant_warpgroups", 1) - 1),
        "ctas_per_sm": float(_knob(config, "ctas_per_sm", 1) - 1),
        "few_packed_slots": float(config.num_ab_stage <= 2),
        "few_slots": float(0 < config.num_dq_stage <= 2),
        "mma_sync": float(config.num_dq_stage == 0),
        "dequant_ahead": float(_knob(config, "dequant_ahead")),
    }


TRAITS = MachineTraits(schedule=schedule, effort=effort)
TURNS = turns
