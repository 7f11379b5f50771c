"""Legality of the space of ``smooth_rows``: the only list of its rules. Each has a name and returns a reason."""

from __future__ import annotations

from kernel_space.core.kernel import Rule
from kernel_space.numerics.quad_order import SPAN
from kernel_space.operators.nvfp4_quantize.parts.rule_forms import one_of
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.smooth_rows.config import VECTOR, SmoothRowsConfig

THREADS_PER_CTA = (32, 64, 128, 256, 512, 1024)
ROW_LOADS = (1, 2, 4, 8)  # converted by code of their own: a larger kernel leaves the instruction cache
CTAS_PER_SM = 32  # CUDA programming guide, table of technical specifications: of 9.0, as the next
THREADS_PER_SM = 2048
MOST_ROWS = 1024
QUAD = SPAN // VECTOR
MOST_TILES = 2**31 - 1  # CTAs along x of a grid


def _rank(_: SmoothRowsConfig, problem: SmoothProblem) -> str | None:
    """There is no tensor core in this kernel."""
    return f"R must be 0, got {problem.r}; kernel=smooth_mma computes lora_act_in" if problem.r else None


def _threads_per_cta(config: SmoothRowsConfig, _: SmoothProblem) -> str | None:
    return one_of("threads_per_cta", config.threads_per_cta, THREADS_PER_CTA)


def _threads_per_row(config: SmoothRowsConfig, _: SmoothProblem) -> str | None:
    """A quad exchanges words, so it must be in one warp, and none of it in another row."""
    most = config.threads_per_cta
    if QUAD <= config.threads_per_row <= most and not config.threads_per_row & (config.threads_per_row - 1):
        return None
    return (
        f"threads_per_row must be a power of two from {QUAD} ({SPAN} columns, {VECTOR} a thread) to threads_per_cta "
        f"{most}, got {config.threads_per_row}"
    )


def _row_loads(config: SmoothRowsConfig, _: SmoothProblem) -> str | None:
    return one_of("row_loads", config.row_loads, ROW_LOADS)


def _rows(config: SmoothRowsConfig, _: SmoothProblem) -> str | None:
    step = config.rows_per_pass * config.row_loads
    if step <= config.rows <= MOST_ROWS and config.rows % step == 0:
        return None
    return (
        f"rows must be a multiple of threads_per_cta / threads_per_row * row_loads, at most {MOST_ROWS}, got "
        f"{config.rows} and {config.threads_per_cta} / {config.threads_per_row} * {config.row_loads} = {step}"
    )


def _ctas_per_sm(config: SmoothRowsConfig, _: SmoothProblem) -> str | None:
    most = min(CTAS_PER_SM, THREADS_PER_SM // config.threads_per_cta)
    if 1 <= config.ctas_per_sm <= most:
        return None
    return (
        f"ctas_per_sm must be from 1 to {most} with threads_per_cta={config.threads_per_cta}, got "
        f"{config.ctas_per_sm}"
    )


def _tiles(config: SmoothRowsConfig, problem: SmoothProblem) -> str | None:
    tile_m, tile_k = config.tile_mk
    tiles = -(-problem.m // tile_m) * -(-problem.k // tile_k)
    if tiles <= MOST_TILES:
        return None
    return f"M and K must have at most {MOST_TILES} tiles of {tile_m}x{tile_k}, got {tiles}"


KNOB_RULES: dict[str, Rule] = {
    "rank": _rank,
    "threads_per_cta": _threads_per_cta,
    "threads_per_row": _threads_per_row,
    "row_loads": _row_loads,
    "rows": _rows,
    "ctas_per_sm": _ctas_per_sm,
    "tiles": _tiles,
}
