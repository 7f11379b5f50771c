"""Legality of the kernel ``sliced``: the only list of its rules."""

from __future__ import annotations

from kernel_space.core.config import AUTO, print_knob
from kernel_space.core.kernel import Rule
from kernel_space.operators.svdquant_gemm.problem import SWIGLU
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.sliced.config import MOST_ROUNDS, OCTET, SlicedKnobs
from kernel_space.operators.svdquant_linear_16bit.staged.config import HALF_K

MAX_CLUSTER = 8  # CTAs of a portable cluster (CUDA programming guide, thread block clusters)
TILE_ROWS = (8, 16, 32)
MOST_COLUMNS, TILE_K = 256, 128  # of a box of TMA; two swizzle spans of bf16
MAX_TILES = 4  # of rows: each reads and dequantizes all weights again
MOST_DOWN_COLUMNS = 64
MOST_WARPGROUPS, MOST_CTAS = 4, 4
# Registers of a thread that multiplies, beside sums and operands of x (ptxas 13: hardly any spills).
WORKING = 48


def _tile(config: SlicedKnobs, problem: HalfLinearProblem) -> str | None:
    rows, columns, k = config.tile_mnk
    if rows not in TILE_ROWS:
        return f"rows of tile_mnk must be one of {' '.join(map(str, TILE_ROWS))}, got {rows}"
    if columns % OCTET or not OCTET <= columns <= MOST_COLUMNS:
        return f"columns of tile_mnk must be a multiple of {OCTET} up to {MOST_COLUMNS}, got {columns}"
    if k != TILE_K:
        return f"K of tile_mnk must be {TILE_K}, got {k}"
    most = MAX_TILES * rows
    if problem.m > most:
        return f"weights are read again for every {rows} rows of x: M must be at most {most}, got {problem.m}"
    return None


def _warpgroups(config: SlicedKnobs, _: HalfLinearProblem) -> str | None:
    if not 1 <= config.consumer_warpgroups <= MOST_WARPGROUPS:
        return f"consumer_warpgroups must be from 1 to {MOST_WARPGROUPS}, got {config.consumer_warpgroups}"
    if config.slot_warps not in (1, 2):
        return f"slot_warps must be 1 or 2, the halves of a k-tile, got {config.slot_warps}"
    if not 1 <= config.ctas_per_sm <= MOST_CTAS:
        return f"ctas_per_sm must be from 1 to {MOST_CTAS}, got {config.ctas_per_sm}"
    return None


def _registers(config: SlicedKnobs, problem: HalfLinearProblem) -> str | None:
    """Of a thread: sums of 16 x 8, and eight words of each eight rows of x for 64 of K."""
    rows, columns, _ = config.tile_mnk
    _, has = config.registers
    up = rows // OCTET * (-(-columns // (2 * OCTET)) * 4 + 8)
    down = 0
    if problem.r:
        width = config.down_tile(problem.r)
        down = rows // OCTET * (-(-width // (2 * OCTET)) * 4 + 8)
    needed = WORKING + max(up, down)
    if needed > has:
        return (
            f"a thread of {config.consumer_warpgroups} warpgroups and {config.ctas_per_sm} CTAs per SM can have {has} "
            f"registers, {print_knob(config.tile_mnk)} with down_columns={config.down_columns} needs {needed}; use "
            "fewer columns, warpgroups or CTAs per SM"
        )
    return None


def _cluster(config: SlicedKnobs, problem: HalfLinearProblem) -> str | None:
    halves = -(-problem.k // HALF_K)
    if not 1 <= config.split_k <= MAX_CLUSTER:
        return f"split_k must be from 1 to {MAX_CLUSTER} CTAs of a cluster, got {config.split_k}"
    if config.split_k > halves:
        return f"every CTA of a cluster needs {HALF_K} of K: K={problem.k} has {halves}, got split_k={config.split_k}"
    columns = config.down_columns
    if columns % OCTET or not OCTET <= columns <= MOST_DOWN_COLUMNS:
        return f"down_columns must be a multiple of {OCTET} up to {MOST_DOWN_COLUMNS}, got {columns}"
    return None


def _stages(config: SlicedKnobs, problem: HalfLinearProblem) -> str | None:
    value, sharers = config.num_ab_stage, config.sharers
    if value == AUTO:
        value = MOST_ROUNDS * sharers  # at most
    if int(value) < 1 or int(value) % sharers:
        return f"{sharers} warps or pairs of them have slots of their own: num_ab_stage must be a multiple, got {value}"
    found = config.replace(num_ab_stage=value)
    if problem.r and not found.down_stages(problem.r):
        return (
            f"{sharers} k-tiles of {config.down_tile(problem.r)} columns of lora_down do not fit where others have "
            "packed weights; use fewer down_columns"
        )
    if found.lacks_room(problem.r):
        return (
            f"sums of {config.warps} warps take {found.sums_bytes(problem.r)} bytes, where {value} slots have been are "
            f"{found.sums_room}; use more of them, or fewer warps"
        )
    return None


def _activation(_: SlicedKnobs, problem: HalfLinearProblem) -> str | None:
    if problem.activation == SWIGLU:
        return "sums of a gate and of what it is for end in different lanes: activation=swiglu needs staged or wide"
    return None


KNOB_RULES: dict[str, Rule] = {
    "tile": _tile,
    "warpgroups": _warpgroups,
    "registers": _registers,
    "cluster": _cluster,
    "stages": _stages,
    "activation": _activation,
}
