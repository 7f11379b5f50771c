"""Which problems a check in the machine runs on: a small one that exercises the kernel, and the full one, cut if it
must be; and how many instructions no correct run takes.

A kernel that is right on one tile can still be wrong: the second turn of a ring uses the other parity, ragged edges
use out-of-bounds boxes, the last band of a raster is narrower. ``exercise`` chooses M, N, K so that all of these happen
in a run of a second.
"""

from __future__ import annotations

import dataclasses

from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.tiles import cluster_extents, cluster_tiles

LEAST_TILES_PER_CTA = 3
LORA_UNIT_K = 64  # at most so many columns of R are issued together; each unit wants a k-tile before it
MANY_CTA_TILES = 16  # CTA tiles (times splits) of a grid that is still cheap
MORE_CTA_TILES = (
    24  # the same, of one that gives some CTA an odd number of tiles where a cheaper one would not
)
# Nine tiles on two clusters are five and four: a wait for the other one of two accumulators is right until the last of
# an odd number of tiles; one behind the last of two is seen at the fourth tile.
GRIDS = (
    (3, 3, 2),
    (2, 3, 2),
    (2, 2, 1),
    (1, 3, 1),
)  # cluster tiles along M and N of the MMA, clusters on the chip
INSTRUCTIONS_PER_CTA_TILE = 40_000  # about ten times what the largest tile takes; per k-tile a tenth of it
INSTRUCTIONS_PER_K_TILE = 2_000
RAGGED_K = {128: 96, 256: 160}  # K elements of the last k-tile: half a group of scale factors is padding
# Machine and float64 comparison together: fitted to 1024x1536 at K = 480 and 8160, R = 128, for
# four tiles and clusters; 15.9 s were measured for 4352x3840x3072 R = 128, for which these say 22.
SECONDS_PER_PRODUCT = 2.7e-10
SECONDS_PER_TILE = (
    9e-3  # of 128x128: epilogue, barriers, and the parts of the comparison that K does not enter
)


def exercise(config: KernelConfigSm100a, problem: GemmProblem) -> tuple[GemmProblem, int]:
    """(problem, SMs of the chip) on which ``check_candidate`` runs ``config``, a resolved config.

    R and dtypes are those of ``problem``. Every CTA has at least three tiles, tiles at both edges are ragged, the last
    k-tile is ragged, the k-tiles of a tile are no multiple of the A/B stages (unless there is one) nor of the splits,
    and every A/B slot is used at least twice.
    """
    tiles_m, tiles_n, clusters = _grid(config)
    rows, columns = cluster_extents(config)
    m = (tiles_m - 1) * rows + _ragged(rows, 128, 69)
    n = (tiles_n - 1) * columns + _ragged(columns, config.mma_tiler_mn[1], config.mma_tiler_mn[1] // 2 + 5)
    if config.swap_ab:
        m, n = n, m
    k_tiles = _k_tiles(config, problem.r, tiles_m * tiles_n, clusters)
    k = (k_tiles - 1) * config.mma_tiler_k + RAGGED_K[config.mma_tiler_k]
    step = problem.n_multiple
    small = dataclasses.replace(problem, m=m, n=-(-n // step) * step, k=k)
    return small, clusters * config.cluster_size


def tiles_per_cta(config: KernelConfigSm100a, problem: GemmProblem, sms: int) -> int:
    """Tiles (output tiles times splits) that the CTA with the fewest has."""
    tiles_m, tiles_n = cluster_tiles(config, problem)
    work = tiles_m * tiles_n * config.split_k
    return work // min(work, max(1, sms // config.cluster_size))


def most_instructions(config: KernelConfigSm100a, problem: GemmProblem, sms: int) -> int:
    """What no correct run needs."""
    clusters = max(1, sms // config.cluster_size)
    cta_tiles = (tiles_per_cta(config, problem, sms) + 1) * clusters * config.cluster_size
    k_tiles = -(-problem.k // config.mma_tiler_k)
    return cta_tiles * (INSTRUCTIONS_PER_CTA_TILE + INSTRUCTIONS_PER_K_TILE * k_tiles)


def _grid(config: KernelConfigSm100a) -> tuple[int, int, int]:
    """Cluster tiles along M, N of the MMA, and clusters. Consecutive work items are the splits of a tile: with a
    number of clusters that does not divide the splits, every cluster meets first and last ones."""
    cost = config.cluster_size * config.split_k
    cheap = [grid for grid in GRIDS if grid[0] * grid[1] * cost <= MANY_CTA_TILES]
    tiles_m, tiles_n, clusters = cheap[0] if cheap else GRIDS[-1]
    if config.split_k == 1 and not _some_odd(tiles_m * tiles_n, clusters):
        odd = next(grid for grid in GRIDS if _some_odd(grid[0] * grid[1], grid[2]) and
                   grid[0] * grid[1] * cost <= MORE_CTA_TILES)  # fmt: skip
        tiles_m, tiles_n, clusters = odd
    if config.split_k > 1:
        if not cheap:
            tiles_n = 2
        work = tiles_m * tiles_n * config.split_k
        clusters = _clusters_of_splits(work)
        more = work + tiles_m * config.split_k
        if not _some_odd(work, clusters) and more * config.cluster_size <= MANY_CTA_TILES:
            tiles_n, clusters = tiles_n + 1, _clusters_of_splits(more)
    return tiles_m, tiles_n, clusters


def _clusters_of_splits(work: int) -> int:
    return next(count for count in (3, 2, 1) if work // count >= LEAST_TILES_PER_CTA)


def _some_odd(work: int, clusters: int) -> bool:
    """Has some cluster an odd number of work items?"""
    return work % clusters > 0 or work // clusters % 2 == 1


def _ragged(extent: int, cta_extent: int, part: int) -> int:
    """Rows or columns of the last cluster tile: half of its CTAs full, one partly filled, the others empty."""
    return extent // 2 // cta_extent * cta_extent + part


def _k_tiles(config: KernelConfigSm100a, r: int, tiles: int, clusters: int) -> int:
    stages, splits = int(config.num_ab_stage), config.split_k
    two_turns = -(-(2 * stages + 1) * clusters // tiles)
    units = -(-r // LORA_UNIT_K)
    k_tiles = max(two_turns, 2 * splits + 1 if splits > 1 else units + 2)
    while (stages > 1 and k_tiles % stages == 0) or (splits > 1 and k_tiles % splits == 0):
        k_tiles += 1
    return k_tiles


def full_seconds(config: KernelConfigSm100a, problem: GemmProblem) -> float:
    """About how long ``check_full`` takes on one core: the figure only decides what is worth starting."""
    tiles_m, tiles_n = cluster_tiles(config, problem)
    rows, columns = cluster_extents(config)
    elements = tiles_m * tiles_n * rows * columns
    products = elements * (problem.k + problem.r)
    return products * SECONDS_PER_PRODUCT + elements / 128**2 * config.split_k * SECONDS_PER_TILE


def cut(config: KernelConfigSm100a, problem: GemmProblem, limit_s: float) -> GemmProblem:
    """``problem`` itself if ``check_full`` takes at most about ``limit_s`` seconds, else one with the same K, R and
    ragged edges but fewer whole cluster tiles: halved along M or N, whichever has more, as often as needed."""
    rows, columns = cluster_extents(config)
    if config.swap_ab:
        rows, columns = columns, rows
    while full_seconds(config, problem) > limit_s:
        smaller_m, smaller_n = _halved(problem.m, rows), _halved(problem.n, columns)
        if (smaller_m, smaller_n) == (problem.m, problem.n):
            return problem
        if smaller_n == problem.n or (smaller_m != problem.m and problem.m // rows >= problem.n // columns):
            problem = dataclasses.replace(problem, m=smaller_m)
        else:
            problem = dataclasses.replace(problem, n=smaller_n)
    return problem


def _halved(size: int, step: int) -> int:
    """Half as many whole steps, at least one, and the same remainder."""
    whole = size // step
    return size if whole <= 1 else (whole + 1) // 2 * step + size % step
