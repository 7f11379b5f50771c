"""Legality of the kernel ``merged_fp8``: the only list of its rules."""

from __future__ import annotations

from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_linear_16bit.merged import rules as merged
from kernel_space.operators.svdquant_linear_fp8.merged_fp8.config import MergedFp8Config
from kernel_space.operators.svdquant_linear_fp8.problem import Fp8LinearProblem

TILE_K = 128  # 128 bytes a row: one span of the swizzle
QUANTIZE_ROWS = (1, 2, 4, 8, 16, 32, 64)
canonical = merged.canonical


def _tile_k(config: MergedFp8Config, _: Fp8LinearProblem) -> str | None:
    if config.tile_mnk[2] != TILE_K:
        return f"K of tile_mnk must be {TILE_K} (a row of 128 bytes), got {config.tile_mnk[2]}"
    return None


def _quantize_rows(config: MergedFp8Config, _: Fp8LinearProblem) -> str | None:
    if config.quantize_rows not in QUANTIZE_ROWS:
        return f"quantize_rows must be one of {' '.join(map(str, QUANTIZE_ROWS))}, got {config.quantize_rows}"
    return None


KNOB_RULES: dict[str, Rule] = {
    **{name: rule for name, rule in merged.KNOB_RULES.items() if name != "dtype"},
    "tile_k": _tile_k,
    "quantize_rows": _quantize_rows,
}
