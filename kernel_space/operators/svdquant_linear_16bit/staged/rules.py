"""Legality of the kernel ``staged``: the only list of its rules."""

from __future__ import annotations

from kernel_space.core.config import AUTO, print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import MMA_ROWS
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.staged.config import (
    DOWN_STEP,
    HALF_K,
    MOST_DOWN_COLUMNS,
    StagedKnobs,
)

DTYPE = "bf16"
MAX_CLUSTER = 8  # CTAs of a portable cluster (CUDA programming guide, thread block clusters)
TILE_ROWS = (64, 128, 256)  # a box of TMA has 256 at most
LEAST_COLUMNS, MOST_COLUMNS, TILE_K = 16, 256, 128  # N of one wgmma; two swizzle spans of bf16
SLOT_K = 2 * HALF_K  # of R, in a slot of the low-rank branch
MOST_WARPGROUPS, MOST_CTAS = 4, 2
BESIDE_ACCUMULATORS = 56  # registers of a multiplying thread
BESIDE_ONE_WGMMA = 26
LEAST_DEQUANT_REGISTERS = 56
LEAST_DOWN_SLOTS = 2  # one is given back when the next is multiplied
LEAST = {"num_ab_stage": 2, "num_dq_stage": 2, "num_x_stage": 2}


def _dtype(config: StagedKnobs, problem: HalfLinearProblem) -> str | None:
    if problem.dtype == DTYPE:
        return None
    return f"weights over smooth need the range of {DTYPE}, got dtype={problem.dtype}"


def _tile(config: StagedKnobs, problem: HalfLinearProblem) -> str | None:
    rows, columns, k = config.tile_mnk
    step = problem.n_multiple  # of 16 columns of swiglu 8 are gates
    if rows not in TILE_ROWS:
        return f"rows of tile_mnk must be one of {' '.join(map(str, TILE_ROWS))}, got {rows}"
    if columns % step or not LEAST_COLUMNS <= columns <= MOST_COLUMNS:
        return f"columns of tile_mnk must be a multiple of {step} from {LEAST_COLUMNS} to {MOST_COLUMNS}, got {columns}"
    return None if k == TILE_K else f"K of tile_mnk must be {TILE_K}, got {k}"


def _warpgroups(config: StagedKnobs, _: HalfLinearProblem) -> str | None:
    rows, groups, dequant = config.tile_mnk[0], config.consumer_warpgroups, config.num_dequant_warpgroups
    if not 1 <= groups <= MOST_WARPGROUPS or rows % (MMA_ROWS * groups):
        return f"consumer_warpgroups must own a multiple of {MMA_ROWS} of {rows} rows each, got {groups}"
    if not 1 <= config.ctas_per_sm <= MOST_CTAS:
        return f"ctas_per_sm must be from 1 to {MOST_CTAS}, got {config.ctas_per_sm}"
    if not 1 <= dequant <= MOST_WARPGROUPS:
        return f"num_dequant_warpgroups must be from 1 to {MOST_WARPGROUPS}, got {dequant}"
    return None


def _registers(config: StagedKnobs, problem: HalfLinearProblem) -> str | None:
    _, dequant, multiply = config.registers
    if config.tile_mnk[1] // 2 + BESIDE_ONE_WGMMA > config.launched_registers:
        return (
            f"ptxas wants what one wgmma needs, {config.tile_mnk[1] // 2} accumulators and {BESIDE_ONE_WGMMA}, to fit "
            f"the {config.launched_registers} registers of a launch; use fewer columns or warpgroups"
        )
    if config.accumulators + BESIDE_ACCUMULATORS > multiply:
        return (
            f"a multiplying thread has {multiply} registers, {BESIDE_ACCUMULATORS} beside its accumulators, and tile "
            f"{print_knob(config.tile_mnk)} needs {config.accumulators}; use a smaller one or fewer warpgroups"
        )
    if dequant < LEAST_DEQUANT_REGISTERS:
        return f"a dequantizing thread needs {LEAST_DEQUANT_REGISTERS} registers, so many warpgroups leave it {dequant}"
    return None


def _cluster(config: StagedKnobs, problem: HalfLinearProblem) -> str | None:
    halves = -(-problem.k // HALF_K)
    if config.split_k < 1 or config.share < 1 or config.split_k * config.share > MAX_CLUSTER:
        got = f"split_k={config.split_k} share={config.share}"
        return f"a cluster has split_k times share CTAs, from 1 to {MAX_CLUSTER}, got {got}"
    columns = config.down_columns
    if columns % DOWN_STEP or not DOWN_STEP <= columns <= MOST_DOWN_COLUMNS:
        return f"down_columns must be a multiple of {DOWN_STEP} up to {MOST_DOWN_COLUMNS}, got {columns}"
    if config.share > 1 and problem.r > SLOT_K * config.split_k:
        few = f"split_k={config.split_k} is too few for R={problem.r}"
        return f"CTAs that share x have one slot of {SLOT_K} of R each: {few}"
    if config.split_k > halves:
        return f"every CTA of a cluster needs {HALF_K} of K: K={problem.k} has {halves}, got split_k={config.split_k}"
    return None


def _stages(config: StagedKnobs, problem: HalfLinearProblem) -> str | None:
    for name, few in LEAST.items():
        value = getattr(config, name)
        if value != AUTO and value < few:
            return f"{name} must be at least {few} or auto, got {value}"
    for name in ("num_ab_stage", "num_dq_stage"):
        value, groups = getattr(config, name), config.num_dequant_warpgroups
        if value != AUTO and value % groups:
            return (
                f"{groups} dequantizing warpgroups share out places: {name} must be a multiple, got {value}"
            )
    if problem.r and config.num_dq_stage != AUTO:
        down, columns = config.down_tile(problem.r), config.tile_mnk[1]
        if int(config.num_dq_stage) * columns < LEAST_DOWN_SLOTS * down:
            return f"num_dq_stage={config.num_dq_stage} slots of {columns} columns must hold two of lora_down, {down}"
    if AUTO in (config.num_dq_stage, config.num_ab_stage):
        return None
    if config.sums_room < config.sums_bytes:
        return (
            f"the sums of a strip take {config.sums_bytes} bytes where weights have been, "
            f"num_dq_stage={config.num_dq_stage} num_ab_stage={config.num_ab_stage} are {config.sums_room}"
        )
    return None


KNOB_RULES: dict[str, Rule] = {
    "dtype": _dtype,
    "tile": _tile,
    "warpgroups": _warpgroups,
    "registers": _registers,
    "cluster": _cluster,
    "stages": _stages,
}
