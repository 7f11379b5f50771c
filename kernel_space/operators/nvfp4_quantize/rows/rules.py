"""Legality of the space of ``rows``: the only list of its rules. Each has a name and returns a reason."""

from __future__ import annotations

from collections.abc import Collection

from kernel_space.core.arch import Arch
from kernel_space.core.config import print_knob
from kernel_space.core.kernel import Rule
from kernel_space.core.problem import ProblemClass
from kernel_space.numerics.blocked import SF_BLOCK_K, SF_ROWS
from kernel_space.operators.nvfp4_quantize.parts.rule_forms import one_of
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig

TILES_M = (1, 2, 4, 8, 16, 32, 64, 128)
VECTOR_WIDTHS = (8, 16, 32)
THREADS_PER_CTA = (32, 64, 128, 256, 512, 1024)
ROW_LOADS = (1, 2, 4, 8, 16)
CTAS_PER_SM = 32  # CUDA programming guide, table of technical specifications: of 9.0 and 10.0, as the next
THREADS_PER_SM = 2048
MOST_VECTORS = 16  # of a thread, converted by code of their own: a larger kernel leaves the instruction cache
MOST_TILES = 2**31 - 1  # CTAs along x of a grid


def canonical(config: RowsConfig, _: QuantizeProblem) -> RowsConfig:
    """Every knob has an effect for every problem."""
    return config


def solve_stages(config: RowsConfig, _: ProblemClass, __: Arch) -> RowsConfig:
    """There are no rings."""
    return config


def _rank(_: RowsConfig, problem: QuantizeProblem) -> str | None:
    """There is no tensor core in this kernel."""
    return f"R must be 0, got {problem.r}; kernel=lora_mma computes lora_act_in" if problem.r else None


def _tile(config: RowsConfig, _: QuantizeProblem) -> str | None:
    """Rows so that tiles end where blocks of scales do; columns in whole words of scales."""
    tile_m, tile_k = config.tile_mk
    if tile_m not in TILES_M:
        return f"M of tile_mk must be one of {_listed(TILES_M)}, got {print_knob(config.tile_mk)}"
    if not tile_k or tile_k % SF_BLOCK_K:
        return f"K of tile_mk must be a multiple of {SF_BLOCK_K}, got {print_knob(config.tile_mk)}"
    return None


def _vector_width(config: RowsConfig, _: QuantizeProblem) -> str | None:
    return one_of("vector_width", config.vector_width, VECTOR_WIDTHS)


def _threads_per_cta(config: RowsConfig, _: QuantizeProblem) -> str | None:
    return one_of("threads_per_cta", config.threads_per_cta, THREADS_PER_CTA)


def _threads_per_row(config: RowsConfig, _: QuantizeProblem) -> str | None:
    """The threads of a word of scales must be neighbours in one warp, none of them in another row."""
    least, most = SF_BLOCK_K // config.vector_width, config.threads_per_cta
    if least <= config.threads_per_row <= most and not config.threads_per_row & (config.threads_per_row - 1):
        return None
    return (
        f"threads_per_row must be a power of two from {least} ({SF_BLOCK_K} columns of vector_width "
        f"{config.vector_width}) to threads_per_cta {most}, got {config.threads_per_row}"
    )


def _row_loads(config: RowsConfig, _: QuantizeProblem) -> str | None:
    return one_of("row_loads", config.row_loads, ROW_LOADS)


def _rows_of_a_step(config: RowsConfig, _: QuantizeProblem) -> str | None:
    rows = config.rows_per_pass * config.row_loads
    if config.tile_mk[0] % rows == 0:
        return None
    return (
        f"threads_per_cta / threads_per_row * row_loads must divide M of tile_mk, got "
        f"{config.threads_per_cta} / {config.threads_per_row} * {config.row_loads} = {rows} and {config.tile_mk[0]}"
    )


def _columns_of_a_pass(config: RowsConfig, _: QuantizeProblem) -> str | None:
    if config.tile_mk[1] % config.columns_per_pass == 0:
        return None
    return (
        f"threads_per_row * vector_width must divide K of tile_mk, got {config.threads_per_row} * "
        f"{config.vector_width} = {config.columns_per_pass} and {config.tile_mk[1]}"
    )


def _vectors_of_a_thread(config: RowsConfig, _: QuantizeProblem) -> str | None:
    passes = config.tile_mk[1] // config.columns_per_pass
    if passes * config.row_loads <= MOST_VECTORS:
        return None
    return (
        f"the passes of a tile along K times row_loads must be at most {MOST_VECTORS}, got {passes} * "
        f"{config.row_loads}; use a narrower tile_mk"
    )


def _ctas_per_sm(config: RowsConfig, _: QuantizeProblem) -> str | None:
    most = min(CTAS_PER_SM, THREADS_PER_SM // config.threads_per_cta)
    if 1 <= config.ctas_per_sm <= most:
        return None
    return (
        f"ctas_per_sm must be from 1 to {most} with threads_per_cta={config.threads_per_cta}, got "
        f"{config.ctas_per_sm}"
    )


def _tiles(config: RowsConfig, problem: QuantizeProblem) -> str | None:
    tile_m, tile_k = config.tile_mk
    tiles = -(-problem.m // SF_ROWS) * (SF_ROWS // tile_m) * -(-problem.k // tile_k)
    if tiles <= MOST_TILES:
        return None
    return f"M and K must have at most {MOST_TILES} tiles of {print_knob(config.tile_mk)}, got {tiles}"


def _listed(choices: Collection[int]) -> str:
    return ", ".join(map(str, choices))


KNOB_RULES: dict[str, Rule] = {
    "rank": _rank,
    "tile": _tile,
    "vector_width": _vector_width,
    "threads_per_cta": _threads_per_cta,
    "threads_per_row": _threads_per_row,
    "row_loads": _row_loads,
    "rows_of_a_step": _rows_of_a_step,
    "columns_of_a_pass": _columns_of_a_pass,
    "vectors_of_a_thread": _vectors_of_a_thread,
    "ctas_per_sm": _ctas_per_sm,
    "tiles": _tiles,
}
