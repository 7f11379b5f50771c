"""Legality of the kernel ``sm90a_small_m``: the only list of its rules."""

from __future__ import annotations

from typing import Any

from kernel_space.core.config import AUTO, print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.problem import SWIGLU, GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_gemm.sm90a_parts.rules import tile_k
from kernel_space.operators.svdquant_gemm.sm90a_small_m.budget import LEAST_STAGES, least_dq, wanted_dq
from kernel_space.operators.svdquant_gemm.sm90a_small_m.config import (
    LEAST_WGMMA_STAGES,
    ROLE_REGISTERS,
    SmallMConfig,
)

ROW_STEP = 32  # rows that share 16-byte pieces of scale factors
MAX_ROWS = 256
COLUMNS = {
    "mma.sync": (8, 16, 32, 64),
    "wgmma": (16, 32, 64, 128),
}  # of act: a tile lies in one block of scale factors
LEAST_WGT_COLUMNS, MAX_WGT_COLUMNS, WGT_COLUMN_STEP = 32, 256, 8  # rows of weights
MAX_WARPGROUPS = 4
MAX_CLUSTER = 8  # portable size
MAX_ACT_TILES = 8  # each reads and dequantizes all weights again
REGISTERS = 65536  # of an SM
# Registers a thread may have -> accumulators it can hold beside its operands without spills (ptxas 13).
ACCUMULATORS = {
    "mma.sync": ((168, 64), (128, 16), (80, 8)),
    "wgmma": ((128, 64), (64, 32)),
}
OPERAND_REGISTERS = 60  # of a consumer with weights as columns, beside its accumulators (ptxas 13)


def canonical(config: SmallMConfig, _: GemmProblem) -> SmallMConfig:
    """Knobs of the column operand take one value where act is it."""
    if _kind(config) == "mma.sync" or config.swap_ab:
        return config.replace(register_operand="wgt", num_dequant_warpgroups=1)
    return config


def _kind(config: SmallMConfig) -> str:
    """By the knob as it is written: ``auto`` takes wgmma only where ``solve_stages`` does."""
    return "wgmma" if wanted_dq(config) else "mma.sync"


def _weights_are_columns(config: SmallMConfig) -> bool:
    return _kind(config) == "wgmma" and not config.swap_ab


def _tile_rows(config: SmallMConfig, _: GemmProblem) -> str | None:
    kind, rows = _kind(config), config.tile_mnk[0]
    step = ROW_STEP if kind == "mma.sync" else MMA_ROWS
    if not step <= rows <= MAX_ROWS or rows % step:
        return f"rows of tile_mnk must be a multiple of {step} up to {MAX_ROWS} for {kind}, got {rows}"
    return None


def _tile_columns(config: SmallMConfig, problem: GemmProblem) -> str | None:
    kind, (act_rows, columns, _) = _kind(config), config.tile_mnk
    if not _weights_are_columns(config):
        act_rows = columns
        if columns not in COLUMNS[kind]:
            choices = " ".join(map(str, COLUMNS[kind]))
            return f"columns of tile_mnk must be one of {choices} for {kind}, got {columns}"
    elif not LEAST_WGT_COLUMNS <= columns <= MAX_WGT_COLUMNS or columns % WGT_COLUMN_STEP:
        return (
            f"columns of tile_mnk, rows of weights, must be a multiple of {WGT_COLUMN_STEP} from {LEAST_WGT_COLUMNS} "
            f"to {MAX_WGT_COLUMNS} (N of wgmma), got {columns}"
        )
    most = MAX_ACT_TILES * act_rows
    if problem.m > most:
        return f"weights are read again for every {act_rows} rows of act: M must be at most {most}, got {problem.m}"
    return None


def _consumers(config: SmallMConfig, _: GemmProblem) -> str | None:
    groups, rows = config.consumer_warpgroups, config.tile_mnk[0]
    if _kind(config) == "wgmma":
        if groups * MMA_ROWS != rows:
            return f"consumer_warpgroups must own {MMA_ROWS} of {rows} rows each with wgmma, got {groups}"
        return None
    warps_n = rows // ROW_STEP
    if not 1 <= groups <= MAX_WARPGROUPS or 4 * groups % warps_n:
        return (
            f"consumer_warpgroups must be 1 to {MAX_WARPGROUPS} and their warps a multiple of the {warps_n} that share "
            f"{config.tile_mnk[0]} rows, got {groups}"
        )
    return None


def _registers(config: SmallMConfig) -> int:
    """Registers of a thread at launch; with wgmma there are two more warpgroups, and consumers get more later."""
    groups = config.consumer_warpgroups + (0 if _kind(config) == "mma.sync" else 2)
    return REGISTERS // (128 * groups * config.ctas_per_sm)


def _accumulators(config: SmallMConfig, _: GemmProblem) -> str | None:
    if _weights_are_columns(config):
        return _accumulators_of_columns(config)
    rows_of_warp = ROW_STEP if _kind(config) == "mma.sync" else MMA_ROWS // 4
    each = rows_of_warp * config.tile_mnk[1] // 32
    registers = _registers(config)
    most = next((count for least, count in ACCUMULATORS[_kind(config)] if registers >= least), 0)
    if each > most:
        return (
            f"a thread with {registers} registers can hold {most} accumulators, {print_knob(config.tile_mnk)} needs "
            f"{each}; use fewer columns, warpgroups or CTAs per SM"
        )
    return None


def _accumulators_of_columns(config: SmallMConfig) -> str | None:
    groups = (config.consumer_warpgroups, config.num_dequant_warpgroups, config.ctas_per_sm)
    if groups not in ROLE_REGISTERS:
        return (
            "registers suffice for one of these numbers of consumer_warpgroups, num_dequant_warpgroups, ctas_per_sm: "
            f"{', '.join('-'.join(map(str, key)) for key in ROLE_REGISTERS)}; got {'-'.join(map(str, groups))}"
        )
    most, each = config.role_registers[2] - OPERAND_REGISTERS, config.tile_mnk[1] // 2
    if each > most:
        return (
            f"a consumer thread with {config.role_registers[2]} registers can hold {most} accumulators, "
            f"{print_knob(config.tile_mnk)} needs {each}; use fewer columns, warpgroups or CTAs per SM"
        )
    return None


def _stages(config: SmallMConfig, _: GemmProblem) -> str | None:
    least = LEAST_STAGES if _kind(config) == "mma.sync" else LEAST_WGMMA_STAGES
    ab: Any = config.num_ab_stage  # numbers where they are not AUTO
    dq: Any = config.num_dq_stage
    if ab != AUTO and ab < least:
        return f"num_ab_stage must be at least {least} or auto, got {ab}"
    least_columns = least_dq(config)
    if dq != AUTO and 0 < dq < least_columns:
        return (
            f"num_dq_stage must be 0 (mma.sync), {least_columns} or more (wgmma reads one while one is written) "
            f"or auto, got {dq}"
        )
    return None


def _ctas_per_sm(config: SmallMConfig, _: GemmProblem) -> str | None:
    return None if config.ctas_per_sm in (1, 2) else f"ctas_per_sm must be 1 or 2, got {config.ctas_per_sm}"


def _split_k(config: SmallMConfig, _: GemmProblem) -> str | None:
    """A CTA may find nothing to do: it adds zeros."""
    if not 1 <= config.split_k <= MAX_CLUSTER:
        return f"split_k must be between 1 and {MAX_CLUSTER} CTAs of a cluster, got {config.split_k}"
    return None


def _activation(config: SmallMConfig, problem: GemmProblem) -> str | None:
    if problem.activation == SWIGLU:
        return (
            "sums of a gate and of what it is for end in different warps or CTAs: activation=swiglu needs sm90a_ring "
            "or sm90a_expand"
        )
    return None


KNOB_RULES: dict[str, Rule] = {
    "tile_rows": _tile_rows,
    "tile_columns": _tile_columns,
    "tile_k": tile_k,
    "consumers": _consumers,
    "accumulators": _accumulators,
    "stages": _stages,
    "ctas_per_sm": _ctas_per_sm,
    "split_k": _split_k,
    "activation": _activation,
}
