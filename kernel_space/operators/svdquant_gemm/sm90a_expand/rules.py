"""Legality of the kernel ``sm90a_expand``: the only list of its rules."""

from __future__ import annotations

from kernel_space.core.config import print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_expand.config import ExpandConfig
from kernel_space.operators.svdquant_gemm.sm90a_parts import rules as shared

CLUSTER_SHAPES = ((1, 1), (2, 1))


def canonical(config: ExpandConfig, problem: GemmProblem) -> ExpandConfig:
    """Give knobs without effect one value, so that two spellings of one kernel are one candidate."""
    if config.epi_tile_n == config.usual_epi_tile_n:
        config = config.replace(epi_tile_n=0)
    return config if problem.r else config.replace(num_lora_stage=0)


def _cluster_shape(config: ExpandConfig, _: GemmProblem) -> str | None:
    if config.cluster_shape_mn not in CLUSTER_SHAPES:
        shapes = " ".join(print_knob(shape) for shape in CLUSTER_SHAPES)
        return f"cluster_shape_mn must be one of {shapes}, got {print_knob(config.cluster_shape_mn)}"
    return None


def _stream_k(config: ExpandConfig, _: GemmProblem) -> str | None:
    if config.stream_k and config.split_k != 1:
        return f"stream_k deals out the k-tiles by itself: it needs split_k=1, got split_k={config.split_k}"
    return None


KNOB_RULES: dict[str, Rule] = {
    "tile_rows": shared.tile_rows,
    "tile_columns": shared.tile_columns,
    "tile_k": shared.tile_k,
    "consumers": shared.consumers,
    "pingpong": shared.pingpong,
    "accumulators": shared.accumulators,
    "cluster_shape": _cluster_shape,
    "stages": shared.least_stages({"num_ab_stage": 2, "num_dq_stage": 2}),
    "epi_tile": shared.epi_tile,
    "wgmma_k": shared.wgmma_k,
    "swizzle": shared.swizzle,
    "split_k": shared.split_k,
    "stream_k": _stream_k,
}
