"""Rules that the sm_90a kernels with rings share. Each has a name and returns a reason."""

from __future__ import annotations

from typing import Protocol

from kernel_space.core.config import AUTO, print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS, RingsConfig

TILE_ROWS = (64, 128, 256)
MAX_COLUMNS = 256  # N of one wgmma
COLUMN_STEP = 8
TILE_K = 128
MAX_ACCUMULATORS = 144  # fp32 accumulators a consumer thread can hold beside its operand registers
SWIZZLE_SIZES = (1, 2, 4, 8, 16)
MAX_SPLIT_K = 16
EPI_TILES_N = (16, 32, 64, 128)


class Banded(Protocol):
    """A config whose tiles are walked in bands."""

    @property
    def swizzle_size(self) -> int: ...


def tile_rows(config: RingsConfig, _: GemmProblem) -> str | None:
    rows = config.tile_mnk[0]
    if rows not in TILE_ROWS:
        return f"rows of tile_mnk must be one of {' '.join(map(str, TILE_ROWS))}, got {rows}"
    return None


def tile_columns(config: RingsConfig, _: GemmProblem) -> str | None:
    columns = config.tile_mnk[1]
    if columns < COLUMN_STEP or columns > MAX_COLUMNS or columns % COLUMN_STEP:
        return (
            f"columns of tile_mnk must be a multiple of 8 from 8 to {MAX_COLUMNS} (N of wgmma), got {columns}"
        )
    return None


def tile_k(config: RingsConfig, _: GemmProblem) -> str | None:
    if config.tile_mnk[2] != TILE_K:
        return f"K of tile_mnk must be {TILE_K} (a lane owns 32 elements of a row), got {config.tile_mnk[2]}"
    return None


def consumers(config: RingsConfig, _: GemmProblem) -> str | None:
    groups, rows = config.consumer_warpgroups, config.tile_mnk[0]
    if groups not in (1, 2) or rows % (MMA_ROWS * config.warpgroups_of_tile):
        return f"consumer_warpgroups must be 1 or 2 and own a multiple of {MMA_ROWS} of {rows} rows each, got {groups}"
    return None


def accumulators(config: RingsConfig, _: GemmProblem) -> str | None:
    each = config.accumulators
    if each > MAX_ACCUMULATORS:
        return (
            f"a consumer thread can hold {MAX_ACCUMULATORS} accumulators, tile {print_knob(config.tile_mnk)} with "
            f"{config.consumer_warpgroups} consumer warpgroups needs {each}; use a smaller tile or more warpgroups"
        )
    return None


def wgmma_k(config: RingsConfig, _: GemmProblem) -> str | None:
    return None if config.wgmma_k in (16, 32) else f"wgmma_k must be 16 or 32, got {config.wgmma_k}"


def swizzle(config: Banded, _: GemmProblem) -> str | None:
    if config.swizzle_size not in SWIZZLE_SIZES:
        return f"swizzle_size must be one of {' '.join(map(str, SWIZZLE_SIZES))}, got {config.swizzle_size}"
    return None


def pingpong(config: RingsConfig, _: GemmProblem) -> str | None:
    if not config.pingpong:
        return None
    if config.consumer_warpgroups != 2:
        return f"pingpong takes turns of two: consumer_warpgroups must be 2, got {config.consumer_warpgroups}"
    if config.split_k != 1 or config.stream_k:
        # A warpgroup passes over the slots of the other's tile, whose number must be that of its own.
        got = f"split_k={config.split_k} stream_k={print_knob(config.stream_k)}"
        return f"pingpong needs tiles that all have the same k-tiles: split_k=1 stream_k=false, got {got}"
    return None


def split_k(config: RingsConfig, problem: GemmProblem) -> str | None:
    k_tiles = -(-problem.k // config.tile_mnk[2])
    if not 1 <= config.split_k <= MAX_SPLIT_K:
        return f"split_k must be between 1 and {MAX_SPLIT_K}, got {config.split_k}"
    if config.split_k > k_tiles:
        return f"every split needs a k-tile: K={problem.k} has {k_tiles} of {config.tile_mnk[2]}, got {config.split_k}"
    return None


def least_stages(least: dict[str, int]) -> Rule:
    """Rule that the stage counts are at least ``least``; with LoRA its ring has a slot."""

    def rule(config: RingsConfig, problem: GemmProblem) -> str | None:
        for name, count in {**least, **({"num_lora_stage": 1} if problem.r else {})}.items():
            value = getattr(config, name)
            if value != AUTO and value < count:
                return f"{name} must be at least {count} or auto, got {value}"
        return None

    return rule


def epi_tile(config: RingsConfig, _: GemmProblem) -> str | None:
    staged, columns = config.epi_tile_n, config.tile_mnk[1]
    if staged == 0:
        return None
    if staged not in EPI_TILES_N:
        return f"epi_tile_n must be 0 or one of {' '.join(map(str, EPI_TILES_N))}, got {staged}"
    if staged > columns:
        return f"epi_tile_n must be 0 or at most the {columns} columns of the tile, got {staged}"
    return None
