"""Legality of the space of ``smooth_rows``. Each rule has a name and returns a reason; two are those of ``rows``."""

from __future__ import annotations

from kernel_space.core.kernel import Rule
from kernel_space.numerics.quad_order import SPAN
from kernel_space.operators.nvfp4_quantize.parts.rule_forms import one_of
from kernel_space.operators.nvfp4_quantize.rows import rules as quantize_rows
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.smooth_rows.config import VECTOR, SmoothRowsConfig

ROW_LOADS = (1, 2, 4, 8)  # converted by code of their own: a larger kernel leaves the instruction cache
MOST_ROWS = 1024
QUAD = SPAN // VECTOR
REGISTERS, MOST_REGISTERS = 65536, 255  # of an SM, of a thread
LOAD_REGISTERS, OTHER_REGISTERS = (
    11,
    20,
)  # that a thread wants for each load, and beside loads and smooth (ptxas 13)


def _rank(_: SmoothRowsConfig, problem: SmoothProblem) -> str | None:
    """There is no tensor core in this kernel."""
    return f"R must be 0, got {problem.r}; kernel=smooth_mma computes lora_act_in" if problem.r else None


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


def _registers(config: SmoothRowsConfig, problem: SmoothProblem) -> str | None:
    """A kernel that spills is slower than any other choice."""
    threads = config.threads_per_cta * config.ctas_per_sm
    there = min(MOST_REGISTERS, REGISTERS // threads // 8 * 8)
    loads, smooth = LOAD_REGISTERS * config.row_loads, VECTOR if problem.smooth == "fp32" else 0
    wanted = loads + smooth + OTHER_REGISTERS
    if wanted <= there:
        return None
    return (
        f"a thread must have {wanted} registers ({loads} of loads, {smooth} of smooth, {OTHER_REGISTERS}), {threads} "
        f"threads an SM leave it {there}; use fewer row_loads, threads_per_cta or ctas_per_sm"
    )


def _tiles(config: SmoothRowsConfig, problem: SmoothProblem) -> str | None:
    tile_m, tile_k = config.tile_mk
    tiles = -(-problem.m // tile_m) * -(-problem.k // tile_k)
    if tiles <= quantize_rows.MOST_TILES:
        return None
    return f"M and K must have at most {quantize_rows.MOST_TILES} tiles of {tile_m}x{tile_k}, got {tiles}"


KNOB_RULES: dict[str, Rule] = {
    "rank": _rank,
    "threads_per_cta": quantize_rows.KNOB_RULES["threads_per_cta"],
    "threads_per_row": _threads_per_row,
    "row_loads": _row_loads,
    "rows": _rows,
    "ctas_per_sm": quantize_rows.KNOB_RULES["ctas_per_sm"],
    "registers": _registers,
    "tiles": _tiles,
}
