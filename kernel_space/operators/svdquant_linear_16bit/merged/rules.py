"""Legality of the kernel ``merged``: the only list of its rules."""

from __future__ import annotations

from kernel_space.core.config import AUTO, print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.sm90a_parts import rules as shared
from kernel_space.operators.svdquant_linear_16bit.merged.config import MergedConfig
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

TILE_K = 64  # 128 bytes a row: one span of the swizzle
CLUSTER_SHAPES = ((1, 1), (2, 1), (1, 2))
DTYPE = "bf16"
LEAST_STAGES = 2  # one that is multiplied, one on its way
MERGE_CHUNKS = (2, 3, 4, 5, 6, 8, 10, 12, 16)


def canonical(config: MergedConfig, problem: HalfLinearProblem) -> MergedConfig:
    """Give knobs without effect one value, so that two spellings of one kernel are one candidate."""
    return config.replace(epi_tile_n=0) if config.epi_tile_n == config.usual_epi_tile_n else config


def _tile_k(config: MergedConfig, _: HalfLinearProblem) -> str | None:
    if config.tile_mnk[2] != TILE_K:
        return f"K of tile_mnk must be {TILE_K} (a row of 128 bytes), got {config.tile_mnk[2]}"
    return None


def _cluster_shape(config: MergedConfig, _: HalfLinearProblem) -> str | None:
    if config.cluster_shape_mn not in CLUSTER_SHAPES:
        shapes = " ".join(print_knob(shape) for shape in CLUSTER_SHAPES)
        return f"cluster_shape_mn must be one of {shapes}, got {print_knob(config.cluster_shape_mn)}"
    return None


def _stages(config: MergedConfig, _: HalfLinearProblem) -> str | None:
    slots = config.num_ab_stage
    if isinstance(slots, str):  # AUTO
        assert slots == AUTO
        return None
    return (
        None
        if slots >= LEAST_STAGES
        else f"num_ab_stage must be at least {LEAST_STAGES} or auto, got {slots}"
    )


def _merge_chunks(config: MergedConfig, _: HalfLinearProblem) -> str | None:
    if config.merge_chunks not in MERGE_CHUNKS:
        return f"merge_chunks must be one of {' '.join(map(str, MERGE_CHUNKS))}, got {config.merge_chunks}"
    return None


def _dtype(config: MergedConfig, problem: HalfLinearProblem) -> str | None:
    if problem.dtype == DTYPE:
        return None
    return f"merged weights need the range of {DTYPE}, got dtype={problem.dtype}"


KNOB_RULES: dict[str, Rule] = {
    "dtype": _dtype,
    "tile_rows": shared.tile_rows,
    "tile_columns": shared.tile_columns,
    "tile_k": _tile_k,
    "consumers": shared.consumers,
    "accumulators": shared.accumulators,
    "cluster_shape": _cluster_shape,
    "stages": _stages,
    "epi_tile": shared.epi_tile,
    "swizzle": shared.swizzle,
    "merge_chunks": _merge_chunks,
}
