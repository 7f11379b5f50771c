"""Legality of the kernel ``sm90a_ring``: the only list of its rules."""

from __future__ import annotations

from typing import Any

from kernel_space.core.config import AUTO, print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.problem import GATE_COLUMNS, SWIGLU, GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_parts import rules as shared
from kernel_space.operators.svdquant_gemm.sm90a_ring.config import RingConfig

# Registers that ptxas 13 wants at launch beside the accumulators of a wgmma: with 128 a thread 192 columns compile,
# 200 do not; with 96 128, not 136.
BESIDE_WGMMA = 30
REGISTERS = 65536  # of an SM
MAX_SHARED_ACCUMULATORS = 16  # with half of the registers
MAX_DEQUANT_GROUPS = 2


def canonical(config: RingConfig, problem: GemmProblem) -> RingConfig:
    """Give knobs without effect one value, so that two spellings of one kernel are one candidate."""
    if config.epi_tile_n == config.usual_epi_tile_n:
        config = config.replace(epi_tile_n=0)
    if not problem.r:
        config = config.replace(num_lora_stage=0)
    staged: Any = config.num_c_stage  # a number where it is not AUTO
    if staged != AUTO and staged > config.staged_parts:
        config = config.replace(num_c_stage=config.staged_parts)
    return config


def _dequant_groups(config: RingConfig, _: GemmProblem) -> str | None:
    if not 1 <= config.num_dequant_warpgroups <= MAX_DEQUANT_GROUPS:
        return (
            f"num_dequant_warpgroups must be 1 or {MAX_DEQUANT_GROUPS}, got {config.num_dequant_warpgroups}"
        )
    return None


def _epi_tile(config: RingConfig, problem: GemmProblem) -> str | None:
    staged, columns = config.epi_tile_n, config.tile_mnk[1]
    if reason := shared.epi_tile(config, problem):
        return reason
    if staged and columns % staged:
        return f"TMA stores whole boxes: epi_tile_n must be 0 or divide the {columns} columns of the tile, got {staged}"
    return None


def _ctas_per_sm(config: RingConfig, _: GemmProblem) -> str | None:
    if config.ctas_per_sm not in (1, 2):
        return f"ctas_per_sm must be 1 or 2, got {config.ctas_per_sm}"
    if config.ctas_per_sm == 2 and config.accumulators > MAX_SHARED_ACCUMULATORS:
        return (
            f"with ctas_per_sm=2 a consumer thread can hold {MAX_SHARED_ACCUMULATORS} accumulators, tile "
            f"{print_knob(config.tile_mnk)} needs {config.accumulators}; use fewer columns"
        )
    return None


def _launch_registers(config: RingConfig, _: GemmProblem) -> str | None:
    groups = 1 + config.num_dequant_warpgroups + config.consumer_warpgroups
    registers = REGISTERS // (128 * groups * config.ctas_per_sm) // 8 * 8
    accumulators = config.tile_mnk[1] // 2
    if accumulators + BESIDE_WGMMA > registers:
        return (
            f"{groups} warpgroups start with {registers} registers a thread, and ptxas wants {BESIDE_WGMMA} beside the "
            f"{accumulators} accumulators of one wgmma; use fewer columns"
        )
    return None


def _activation(config: RingConfig, problem: GemmProblem) -> str | None:
    if problem.activation == SWIGLU and not config.swap_ab and config.staged_columns % (2 * GATE_COLUMNS):
        return (
            f"with activation=swiglu a warp stages whole groups of {2 * GATE_COLUMNS} columns of the tile, got "
            f"{config.staged_columns}"
        )
    return None


# The dequantizing warps fill both halves of a k-tile before they take the next packed slot, and consumers read one
# packed slot ahead: fewer slots deadlock.
_LEAST = {"num_ab_stage": 2, "num_dq_stage": 2, "num_c_stage": 1}
KNOB_RULES: dict[str, Rule] = {
    "tile_rows": shared.tile_rows,
    "tile_columns": shared.tile_columns,
    "tile_k": shared.tile_k,
    "consumers": shared.consumers,
    "pingpong": shared.pingpong,
    "accumulators": shared.accumulators,
    "stages": shared.least_stages(_LEAST),
    "epi_tile": _epi_tile,
    "dequant_groups": _dequant_groups,
    "wgmma_k": shared.wgmma_k,
    "swizzle": shared.swizzle,
    "ctas_per_sm": _ctas_per_sm,
    "launch_registers": _launch_registers,
    "split_k": shared.split_k,
    "activation": _activation,
}
