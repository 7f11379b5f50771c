"""Legality of the kernel ``narrow``: the only list of its rules."""

from __future__ import annotations

from typing import Any

from kernel_space.core.config import AUTO, print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.problem import SWIGLU
from kernel_space.operators.svdquant_gemm.sm90a_parts.rules import tile_k
from kernel_space.operators.svdquant_gemm_16bit.narrow.budget import least_ab
from kernel_space.operators.svdquant_gemm_16bit.narrow.config import WARP_ROWS, NarrowConfig
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem

MAX_ROWS = 128
COLUMNS = (8, 16, 32, 64)
MAX_WARPGROUPS, MAX_CTAS = 4, 4
MAX_CLUSTER = 8  # portable size
MAX_XS_TILES = 4  # each reads and dequantizes all weights again
REGISTERS, MOST_REGISTERS = 65536, 255  # of an SM, of a thread
# Registers of a thread beside sums and operands of xs, and what a unit of weights held adds (without spills, ptxas 13).
WORKING, HELD = 48, 48


def canonical(config: NarrowConfig, _: HalfGemmProblem) -> NarrowConfig:
    """Every knob has an effect."""
    return config


def _tile_rows(config: NarrowConfig, _: HalfGemmProblem) -> str | None:
    rows = config.tile_mnk[0]
    if not WARP_ROWS <= rows <= MAX_ROWS or rows & rows - 1:
        return f"rows of tile_mnk must be 32, 64 or 128, got {rows}"
    return None


def _tile_columns(config: NarrowConfig, problem: HalfGemmProblem) -> str | None:
    columns = config.tile_mnk[1]
    if columns not in COLUMNS:
        return f"columns of tile_mnk must be one of {' '.join(map(str, COLUMNS))}, got {columns}"
    most = MAX_XS_TILES * columns
    if problem.m > most:
        return f"weights are read again for every {columns} rows of xs: M must be at most {most}, got {problem.m}"
    return None


def _consumers(config: NarrowConfig, _: HalfGemmProblem) -> str | None:
    groups = config.consumer_warpgroups
    if groups in (1, 2, MAX_WARPGROUPS):
        return None
    return f"consumer_warpgroups must be 1, 2 or 4, got {groups}"


def _accumulators(config: NarrowConfig, _: HalfGemmProblem) -> str | None:
    registers = min(
        REGISTERS // (128 * config.consumer_warpgroups * config.ctas_per_sm) // 8 * 8, MOST_REGISTERS
    )
    needed = config.tile_mnk[1] * 2 + WORKING + HELD * config.dequant_ahead
    if needed > registers:
        return (
            f"a thread of {config.consumer_warpgroups} warpgroups and {config.ctas_per_sm} CTAs per SM can have "
            f"{registers} registers, {print_knob(config.tile_mnk)} with dequant_ahead={config.dequant_ahead} needs "
            f"{needed}; use fewer columns, warpgroups or CTAs per SM"
        )
    return None


def _stages(config: NarrowConfig, _: HalfGemmProblem) -> str | None:
    ab: Any = config.num_ab_stage  # numbers where they are not AUTO
    dq: Any = config.num_dq_stage
    least = least_ab(config)
    if ab != AUTO and ab < least:
        return f"num_ab_stage must be at least {least}, for the sums of a warp, or auto, got {ab}"
    if dq != AUTO and dq < 1:
        return f"num_dq_stage must be at least 1 or auto, got {dq}"
    if AUTO not in (ab, dq) and dq + config.dequant_ahead > ab:
        return (
            f"weights must be loaded before their xs: num_dq_stage + dequant_ahead must be at most num_ab_stage {ab}, "
            f"got {dq} + {config.dequant_ahead}"
        )
    return None


def _dequant_ahead(config: NarrowConfig, _: HalfGemmProblem) -> str | None:
    if config.dequant_ahead in (0, 1):
        return None
    return f"dequant_ahead must be 0 or 1, got {config.dequant_ahead}"


def _ctas_per_sm(config: NarrowConfig, _: HalfGemmProblem) -> str | None:
    if 1 <= config.ctas_per_sm <= MAX_CTAS:
        return None
    return f"ctas_per_sm must be between 1 and {MAX_CTAS}, got {config.ctas_per_sm}"


def _split_k(config: NarrowConfig, _: HalfGemmProblem) -> str | None:
    """A CTA may find nothing to do: it adds zeros."""
    if not 1 <= config.split_k <= MAX_CLUSTER:
        return f"split_k must be between 1 and {MAX_CLUSTER} CTAs of a cluster, got {config.split_k}"
    return None


def _activation(_: NarrowConfig, problem: HalfGemmProblem) -> str | None:
    if problem.activation == SWIGLU:
        return "sums of a gate and of what it is for end in different warps or CTAs: activation=swiglu needs wide"
    return None


KNOB_RULES: dict[str, Rule] = {
    "tile_rows": _tile_rows,
    "tile_columns": _tile_columns,
    "tile_k": tile_k,
    "consumers": _consumers,
    "dequant_ahead": _dequant_ahead,
    "ctas_per_sm": _ctas_per_sm,
    "accumulators": _accumulators,
    "stages": _stages,
    "split_k": _split_k,
    "activation": _activation,
}
