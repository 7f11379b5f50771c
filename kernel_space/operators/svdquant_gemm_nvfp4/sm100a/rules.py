"""Legality of the kernel: the rules of ``svdquant_gemm``'s, and what whole blocks of scales need."""

from __future__ import annotations

from kernel_space.core.kernel import Rule
from kernel_space.numerics.blocked import SF_BLOCK_K
from kernel_space.operators.svdquant_gemm.sm100a import rules
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm_nvfp4.problem import QuantizedGemmProblem

LEAST_EPI_N = 32  # columns of y whose codes are 16 bytes, the least that TMA stores of a row

canonical = rules.canonical


def _rows_of_threads(config: KernelConfigSm100a, _: QuantizedGemmProblem) -> str | None:
    if not config.swap_ab:
        return None
    return "a thread must hold 16 columns of a row of y, whose scale it makes: swap_ab must be false"


def _subtile(config: KernelConfigSm100a, _: QuantizedGemmProblem) -> str | None:
    if config.epi_tile_n >= LEAST_EPI_N:
        return None
    return (
        f"a row of codes is stored by 16 bytes or more: epi_tile_n must be at least {LEAST_EPI_N}, got "
        f"{config.epi_tile_n}"
    )


def _scale_blocks(config: KernelConfigSm100a, problem: QuantizedGemmProblem) -> str | None:
    columns = config.mma_tiler_mn[1] * problem.out_columns // problem.n
    if columns % SF_BLOCK_K == 0:
        return None
    return (
        f"a tile must write whole blocks of scales, {SF_BLOCK_K} columns of y: N of the tile is {columns} columns, use "
        "mma_tiler_mn with N of 128 or 256"
    )


KNOB_RULES: dict[str, Rule] = {
    **rules.KNOB_RULES,
    "rows_of_threads": _rows_of_threads,
    "subtile": _subtile,
    "scale_blocks": _scale_blocks,
}
