"""Legality of the kernel ``merged_fp8``: the only list of its rules."""

from __future__ import annotations

from kernel_space.core.config import print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.problem import SWIGLU
from kernel_space.operators.svdquant_linear_16bit.merged import rules as merged
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.config import MergedFp8Config
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem

TILE_K = 128  # 128 bytes a row: one span of the swizzle
MERGE_CHUNKS = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 28, 32)  # codes come by boxes of two
QUANTIZE_ROWS = (1, 2, 4, 8, 12, 16, 20, 24, 32, 64)
MAX_ACCUMULATORS = 108  # fp32, of the tensor core's own sums and of those in fp32 each


def canonical(config: MergedFp8Config, problem: Fp8LinearProblem) -> MergedFp8Config:
    """Give knobs without effect one value, so that two spellings of one kernel are one candidate."""
    unused = problem.activation != SWIGLU or config.epi_tile_n == config.usual_epi_tile_n
    return config.replace(epi_tile_n=0) if unused else config


def _tile_k(config: MergedFp8Config, _: Fp8LinearProblem) -> str | None:
    if config.tile_mnk[2] != TILE_K:
        return f"K of tile_mnk must be {TILE_K} (a row of 128 bytes), got {config.tile_mnk[2]}"
    return None


def _quantize_rows(config: MergedFp8Config, _: Fp8LinearProblem) -> str | None:
    if config.quantize_rows not in QUANTIZE_ROWS:
        return f"quantize_rows must be one of {' '.join(map(str, QUANTIZE_ROWS))}, got {config.quantize_rows}"
    return None


def _merge_chunks(config: MergedFp8Config, _: Fp8LinearProblem) -> str | None:
    if config.merge_chunks not in MERGE_CHUNKS:
        return f"merge_chunks must be one of {' '.join(map(str, MERGE_CHUNKS))}, got {config.merge_chunks}"
    return None


def _accumulators(config: MergedFp8Config, _: Fp8LinearProblem) -> str | None:
    each = config.accumulators
    if each > MAX_ACCUMULATORS:
        return (
            f"a consumer thread holds accumulators twice, {MAX_ACCUMULATORS} at most: tile "
            f"{print_knob(config.tile_mnk)} with {config.consumer_warpgroups} consumer warpgroups needs {each}; use a "
            "smaller tile or more warpgroups"
        )
    return None


KNOB_RULES: dict[str, Rule] = {
    **{name: rule for name, rule in merged.KNOB_RULES.items() if name != "dtype"},
    "tile_k": _tile_k,
    "merge_chunks": _merge_chunks,
    "quantize_rows": _quantize_rows,
    "accumulators": _accumulators,
}
