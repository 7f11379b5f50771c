"""How many tiles a problem has, for any kernel's config: of a CTA, of a cluster, and how many clusters run at once."""

from __future__ import annotations

import dataclasses

from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig
from kernel_space.operators.svdquant_gemm.problem import GemmProblem


@dataclasses.dataclass(frozen=True)
class Waves:
    """Work of a persistent grid: ``clusters`` cluster tiles (times splits) of at most ``k_tiles`` k-tiles each, with
    ``places`` at once, in ``waves`` rounds.
    """

    clusters: int
    places: int
    k_tiles: int

    @property
    def waves(self) -> int:
        return _ceil_div(self.clusters, self.places)


def cluster_extents(config: GemmConfig) -> tuple[int, int]:
    """Rows and columns of the MMA's result that one cluster covers with one tile per CTA."""
    rows, columns, _ = config.cta_tile_mnk
    return rows * config.cluster_shape_mn[0], columns * config.cluster_shape_mn[1]


def cluster_tiles(config: GemmConfig, problem: GemmProblem) -> tuple[int, int]:
    """Cluster tiles along M and N of the MMA, ragged ones included."""
    rows, columns = cluster_extents(config)
    m, n = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
    return _ceil_div(m, rows), _ceil_div(n, columns)


def num_cta_tiles(config: GemmConfig, problem: GemmProblem) -> int:
    """CTA tiles of the output, those of ragged clusters included."""
    tiles_m, tiles_n = cluster_tiles(config, problem)
    return tiles_m * tiles_n * config.cluster_size


def waves(config: GemmConfig, problem: GemmProblem, sm_count: int) -> Waves:
    """Rounds in which a chip of ``sm_count`` SMs works off the output."""
    tiles_m, tiles_n = cluster_tiles(config, problem)
    k_tiles = _ceil_div(_ceil_div(problem.k, config.cta_tile_mnk[2]), config.split_k)
    return Waves(tiles_m * tiles_n * config.split_k, config.max_active_clusters(sm_count), k_tiles)


def _ceil_div(value: int, by: int) -> int:
    return -(-value // by)
