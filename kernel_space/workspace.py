"""Global workspace of a split-K kernel: one int32 arrival counter per CTA tile, then fp32 partial sums."""

from __future__ import annotations

from kernel_space.config import KernelConfig
from kernel_space.problem import GemmProblem
from kernel_space.tiles import num_cta_tiles

COUNTER_BYTES = 4
PARTIALS_ALIGN = 256
PARTIAL_BYTES = 4


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
