"""Legality of the space of ``lora_mma``: the only list of its rules. Each has a name and returns a reason."""

from __future__ import annotations

from typing import Any

from kernel_space.core.config import AUTO
from kernel_space.core.kernel import Rule
from kernel_space.operators.nvfp4_quantize.lora_mma.config import LoraMmaConfig
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import LEAST_STAGES, columns_of
from kernel_space.operators.nvfp4_quantize.parts.rule_forms import one_of
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem

ROWS_PER_WARP = (16, 32)
WARPS = (1, 2, 4, 8)
SPLITS_R = (1, 2, 4, 8, 16)
MOST_WARPS = 16
PREFETCH_DISTS = (0, 1, 2, 4)
MOST_STAGES = 16
MAX_CLUSTER = 8  # portable size
COLUMN_STEP = 16  # columns of one mma.sync
THREADS_PER_SM, CTAS_PER_SM = 2048, 32
REGISTERS, MOST_REGISTERS = 65536, 255  # of an SM, of a thread
OTHER_REGISTERS = 64  # that a thread wants beside its sums and its words of x (ptxas 13)
MOST_TILES = 2**31 - 1  # CTAs along x of a grid


def canonical(config: LoraMmaConfig, _: QuantizeProblem) -> LoraMmaConfig:
    """Every knob has an effect for every problem."""
    return config


def rank(_: Any, problem: QuantizeProblem) -> str | None:
    return None if problem.r else "R must be above 0, got 0; kernel=rows quantizes alone"


def _rows_per_warp(config: LoraMmaConfig, _: QuantizeProblem) -> str | None:
    return one_of("rows_per_warp", config.rows_per_warp, ROWS_PER_WARP)


def _warps_m(config: LoraMmaConfig, _: QuantizeProblem) -> str | None:
    return one_of("warps_m", config.warps_m, WARPS)


def _warps_k(config: LoraMmaConfig, _: QuantizeProblem) -> str | None:
    return one_of("warps_k", config.warps_k, WARPS)


def _warps(config: LoraMmaConfig, _: QuantizeProblem) -> str | None:
    if config.warps_m * config.warps_k <= MOST_WARPS:
        return None
    return f"warps_m * warps_k must be at most {MOST_WARPS}, got {config.warps_m} * {config.warps_k}"


def split_k(config: Any, _: QuantizeProblem) -> str | None:
    if 1 <= config.split_k <= MAX_CLUSTER:
        return None
    return f"split_k must be from 1 to {MAX_CLUSTER}, a cluster, got {config.split_k}"


def _split_r(config: LoraMmaConfig, problem: QuantizeProblem) -> str | None:
    if (reason := one_of("split_r", config.split_r, SPLITS_R)) is not None:
        return reason
    columns = columns_of(problem.r, config.split_r)
    if (config.split_r - 1) * columns < problem.r:
        return None
    return (
        f"split_r must leave columns for each CTA, got {config.split_r} parts of {columns} at R={problem.r}"
    )


def _num_b_stage(config: LoraMmaConfig, _: QuantizeProblem) -> str | None:
    if config.num_b_stage == AUTO:
        return None
    if LEAST_STAGES <= config.num_b_stage <= MOST_STAGES:  # type: ignore[operator]  # a number, if not AUTO
        return None
    return f"num_b_stage must be auto or from {LEAST_STAGES} to {MOST_STAGES}, got {config.num_b_stage}"


def _prefetch_dist(config: LoraMmaConfig, _: QuantizeProblem) -> str | None:
    return one_of("prefetch_dist", config.prefetch_dist, PREFETCH_DISTS)


def _ctas_per_sm(config: LoraMmaConfig, _: QuantizeProblem) -> str | None:
    most = min(CTAS_PER_SM, THREADS_PER_SM // (32 * config.warps_m * config.warps_k))
    if 1 <= config.ctas_per_sm <= most:
        return None
    return (
        f"ctas_per_sm must be from 1 to {most} with {config.warps_m} * {config.warps_k} warps, got "
        f"{config.ctas_per_sm}"
    )


def _registers(config: LoraMmaConfig, problem: QuantizeProblem) -> str | None:
    """A kernel that spills its sums is slower than any other choice."""
    threads = 32 * config.warps_m * config.warps_k * config.ctas_per_sm
    there = min(MOST_REGISTERS, REGISTERS // threads // 8 * 8)
    sums = config.rows_per_warp * columns_of(problem.r, config.split_r) // 32
    wanted = sums + config.rows_per_warp + OTHER_REGISTERS
    if wanted <= there:
        return None
    return (
        f"a thread must have {wanted} registers ({sums} of sums, {config.rows_per_warp} of x, {OTHER_REGISTERS}), "
        f"{threads} threads an SM leave it {there}; use fewer rows_per_warp, warps or ctas_per_sm, or more split_r"
    )


def _tiles(config: LoraMmaConfig, problem: QuantizeProblem) -> str | None:
    tile_m = config.rows_per_warp * config.warps_m
    ctas = -(-problem.m // tile_m) * config.split_k * config.split_r
    if ctas <= MOST_TILES:
        return None
    return f"M must have at most {MOST_TILES} CTAs, got {ctas} of {tile_m} rows"


KNOB_RULES: dict[str, Rule] = {
    "rank": rank,
    "rows_per_warp": _rows_per_warp,
    "warps_m": _warps_m,
    "warps_k": _warps_k,
    "warps": _warps,
    "split_k": split_k,
    "split_r": _split_r,
    "num_b_stage": _num_b_stage,
    "prefetch_dist": _prefetch_dist,
    "ctas_per_sm": _ctas_per_sm,
    "registers": _registers,
    "tiles": _tiles,
}
