"""Global workspace of a kernel: int32 counters or flags, then fp32 partial sums, where several CTAs share an output
tile along K (``config.sums_in_workspace``); then the activations as fp16, where a first kernel expands them.
"""

from __future__ import annotations

from kernel_space.core.kernel import Room
from kernel_space.operators.svdquant_gemm.gemm_config import GemmConfig
from kernel_space.operators.svdquant_gemm.partials import COUNTER_BYTES, PARTIAL_BYTES, PARTIALS_ALIGN
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.tiles import num_cta_tiles

EXPANDED_BYTES = 2


def room(config: GemmConfig, problem: GemmProblem) -> Room:
    """Workspace of one launch."""
    return Room(size=workspace_bytes(config, problem), zeroed=zeroed_bytes(config, problem))


def zeroed_bytes(config: GemmConfig, problem: GemmProblem) -> int:
    """Leading bytes that must be zero before the first launch; every launch leaves them zero."""
    counters, _ = config.sums_in_workspace(num_cta_tiles(config, problem))
    return -(-counters * COUNTER_BYTES // PARTIALS_ALIGN) * PARTIALS_ALIGN


def workspace_bytes(config: GemmConfig, problem: GemmProblem) -> int:
    """Bytes of workspace one launch needs, often 0. The address must be 256-byte aligned."""
    _, sums = config.sums_in_workspace(num_cta_tiles(config, problem))
    cta_m, cta_n, _ = config.cta_tile_mnk
    partials = sums * cta_m * cta_n * PARTIAL_BYTES
    return zeroed_bytes(config, problem) + partials + expanded_bytes(config, problem)


def expanded_bytes(config: GemmConfig, problem: GemmProblem) -> int:
    """fp16 activations ``[M, K']`` with K' = K rounded up to the K of a tile, where the kernel expands them."""
    if not config.expands_act:
        return 0
    k = config.cta_tile_mnk[2]
    return problem.m * (-(-problem.k // k) * k) * EXPANDED_BYTES
