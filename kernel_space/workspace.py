"""Global workspace of a split-K kernel: one int32 arrival counter per CTA tile, then fp32 partial sums."""

from __future__ import annotations

from kernel_space.config import KernelConfig
from kernel_space.problem import GemmProblem

COUNTER_BYTES = 4
PARTIALS_ALIGN = 256
PARTIAL_BYTES = 4


def num_cta_tiles(config: KernelConfig, problem: GemmProblem) -> int:
    """CTA tiles of the output, those of ragged clusters included."""
    rows, columns = (problem.n, problem.m) if config.swap_ab else (problem.m, problem.n)
    cta_m, cta_n, _ = config.cta_tile_mnk
    cluster_m, cluster_n = config.cluster_shape_mn
    clusters_m = -(-rows // (cta_m * cluster_m))
    clusters_n = -(-columns // (cta_n * cluster_n))
    return clusters_m * cluster_m * clusters_n * cluster_n


def zeroed_bytes(config: KernelConfig, problem: GemmProblem) -> int:
    """Leading bytes that must be zero before the first launch; every launch leaves them zero."""
    if config.split_k == 1:
        return 0
    counters = num_cta_tiles(config, problem) * COUNTER_BYTES
    return -(-counters // PARTIALS_ALIGN) * PARTIALS_ALIGN


def workspace_bytes(config: KernelConfig, problem: GemmProblem) -> int:
    """Bytes of workspace one launch needs; 0 without split-K. The address must be 256-byte aligned."""
    if config.split_k == 1:
        return 0
    cta_m, cta_n, _ = config.cta_tile_mnk
    partials = num_cta_tiles(config, problem) * config.split_k * cta_m * cta_n * PARTIAL_BYTES
    return zeroed_bytes(config, problem) + partials
