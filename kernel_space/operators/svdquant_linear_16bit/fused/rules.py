"""Legality of the kernel ``fused``: the only list of its rules."""

from __future__ import annotations

from kernel_space.core.config import AUTO
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.sm90a_parts import rules as shared
from kernel_space.operators.svdquant_linear_16bit.fused.config import OCTET, FusedConfig
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem

DTYPE = "bf16"
MAX_CLUSTER = 8  # CTAs of a portable cluster (CUDA programming guide, thread block clusters)
MOST_SHARED_ACCUMULATORS = 64  # of a consumer thread where two CTAs share the registers of an SM
LEAST = {
    "num_ab_stage": 4,
    "num_dq_stage": 2,
}  # lora_down passes through the ring of weights, half a slot's worth each


def canonical(config: FusedConfig, problem: HalfLinearProblem) -> FusedConfig:
    """Give knobs without effect one value, so that two spellings of one kernel are one candidate."""
    if config.epi_tile_n == config.usual_epi_tile_n:
        config = config.replace(epi_tile_n=0)
    return config if problem.r else config.replace(num_lora_stage=0)


def _dtype(config: FusedConfig, problem: HalfLinearProblem) -> str | None:
    if problem.dtype == DTYPE:
        return None
    return f"weights over smooth need the range of {DTYPE}, got dtype={problem.dtype}"


def _cluster(config: FusedConfig, problem: HalfLinearProblem) -> str | None:
    if not 1 <= config.split_k <= MAX_CLUSTER:
        return f"split_k must be from 1 to {MAX_CLUSTER}, the CTAs of a cluster, got {config.split_k}"
    octets = config.tile_mnk[1] // OCTET
    if config.split_k > octets:
        return f"every CTA of a cluster needs a strip of 8 columns: the tile has {octets}, got split_k={config.split_k}"
    return shared.split_k(config, problem)  # type: ignore[arg-type]  # only K is read


def _strips(config: FusedConfig, _: HalfLinearProblem) -> str | None:
    slots = config.num_dq_stage
    if slots == AUTO or int(slots) >= config.strip_slots:
        return None
    return f"the sums of a strip take {config.strip_slots} slots of x: num_dq_stage must be that or auto, got {slots}"


def _ctas_per_sm(config: FusedConfig, _: HalfLinearProblem) -> str | None:
    if config.ctas_per_sm == 1:
        return None
    if (
        config.ctas_per_sm != 2
        or config.consumer_warpgroups != 1
        or config.accumulators > MOST_SHARED_ACCUMULATORS
    ):
        return (
            f"ctas_per_sm must be 1, or 2 with one consumer warpgroup of at most {MOST_SHARED_ACCUMULATORS} "
            f"accumulators a thread, got {config.ctas_per_sm}, {config.consumer_warpgroups} of {config.accumulators}"
        )
    return None


KNOB_RULES: dict[str, Rule] = {
    "dtype": _dtype,
    "tile_rows": shared.tile_rows,
    "tile_columns": shared.tile_columns,
    "tile_k": shared.tile_k,
    "consumers": shared.consumers,
    "accumulators": shared.accumulators,
    "stages": shared.least_stages(LEAST),
    "epi_tile": shared.epi_tile,
    "cluster": _cluster,
    "strips": _strips,
    "ctas_per_sm": _ctas_per_sm,
}
