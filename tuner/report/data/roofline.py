"""Where every candidate stands against what the machine could do at best: roofs, and bytes per operation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kernel_space.core.arch import SM90A, SM100A, SM103A, Arch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.report.data.sweep import knobs_of, microseconds, tflops
from tuner.simulated.constants.machine import H200_ROOFS, Constant, constants_of
from tuner.trials.outcome import Trial

# Operations per clock and SM, dense (CUTLASS media/docs/cpp/blackwell_functionality.md: NVFP4 is four times the
# half-precision rate, which SemiAnalysisAI/microbench-blackwell measured at 8192).
NVFP4_FLOPS_CLK = 32768
HALF_FLOPS_CLK = 8192
TENSOR_SOURCE = "32768 NVFP4 and 8192 half-precision FLOP/clk/SM"
H200_SMS = 132  # of the card whose rate is published
NVFP4_BYTES = 9 / 16  # four bits of an element and its share of one E4M3 scale per 16
HALF_BYTES = 2
AFFINE_BYTES = 8  # wcscale and bias, fp32 each


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roof:
    """A limit of the machine. ``tera`` is TFLOP/s, or TB/s when ``per_byte``. ``kind``: measured, derived, assumed,
    published. ``css`` is its class."""

    name: str
    css: str
    tera: float
    per_byte: bool
    kind: str
    source: str

    def at(self, intensity: float) -> float:
        """TFLOP/s at ``intensity`` FLOP per byte."""
        return self.tera * intensity if self.per_byte else self.tera


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One candidate: FLOP per byte brought into SMEM, useful TFLOP/s, and the group whose colour it has."""

    trial: Trial
    intensity: float
    tflops: float
    group: str


# Class of colour -> what the points of it have in common, per kernel.
GROUPS = {
    "sm_100a": {"pair": "two CTAs per MMA (cta_group 2)", "single": "one CTA per MMA"},
    "sm_90a": {"pair": "two consumer warpgroups", "single": "one consumer warpgroup"},
}


def roofs(problem: GemmProblem, arch: Arch, sm_count: int) -> tuple[Roof, ...]:
    """What bounds a launch: memory and caches by bytes, the tensor pipe by operations. None for an unknown arch."""
    if arch.name == SM90A.name:
        return _hopper_roofs(sm_count)
    if arch.name not in (SM100A.name, SM103A.name):
        return ()
    constants = constants_of(arch)
    clock = constants["clock_ghz"].value
    chip = sm_count * clock * 1e-3  # one unit per clock and SM, in tera per second
    found = [
        _roof("DRAM", "dram", constants["dram_tb_s"], 1.0),
        _roof("SMEM fill", "smem", constants["fill_narrow"], chip),
        _roof("L2, no multicast", "l2", constants["l2_bytes_clk"], chip),
    ]
    seconds = problem.m * problem.n * 2e-12 * (problem.k / NVFP4_FLOPS_CLK + problem.r / HALF_FLOPS_CLK)
    mixed = problem.flops * 1e-12 / seconds * chip
    if problem.r:
        found.append(_tensor("tensor pipe, NVFP4 alone", "fast", NVFP4_FLOPS_CLK * chip))
    found.append(_tensor(f"tensor pipe{' with LoRA' if problem.r else ', NVFP4'}", "", mixed))
    return tuple(found)


def _hopper_roofs(sm_count: int) -> tuple[Roof, ...]:
    """Operands are dequantized, so that all operations run at half precision."""
    half, dram = H200_ROOFS["half_tflops"], H200_ROOFS["dram_tb_s"]
    tera = half.value * sm_count / H200_SMS
    return (
        _roof("DRAM", "dram", dram, 1.0),
        Roof(name="tensor pipe, fp16", css="", tera=tera, per_byte=False, kind=half.kind, source=half.source),
    )


def _roof(name: str, css: str, constant: Constant, scale: float) -> Roof:
    tera = constant.value * scale
    return Roof(name=name, css=css, tera=tera, per_byte=True, kind=constant.kind, source=constant.source)


def _tensor(name: str, css: str, tera: float) -> Roof:
    return Roof(name=name, css=css, tera=tera, per_byte=False, kind="derived", source=TENSOR_SOURCE)


def dram_bytes(problem: GemmProblem) -> float:
    """What must cross DRAM once: every operand and the output."""
    operands = (problem.m + problem.n) * (problem.k * NVFP4_BYTES + problem.r * HALF_BYTES)
    return operands + problem.m * problem.n * HALF_BYTES + problem.n * AFFINE_BYTES


def fill_bytes(problem: GemmProblem, config: str) -> float | None:
    """What TMA brings into the SMEM of all CTAs: each tile its rows and columns over all of K and R, tiles at the edge
    whole. None for a config without ``mma_tiler_mn`` and ``tile_mnk``."""
    knobs = knobs_of(config)
    tile = knobs.get("mma_tiler_mn") or knobs.get("tile_mnk")
    if tile is None:
        return None
    tile_m, tile_n = (int(part) for part in tile.split("x")[:2])
    swapped = knobs.get("swap_ab") == "true" or knobs.get("register_operand") == "wgt"
    rows, columns = (problem.n, problem.m) if swapped else (problem.m, problem.n)
    tiles = math.ceil(rows / tile_m) * math.ceil(columns / tile_n)
    return tiles * (tile_m + tile_n) * (problem.k * NVFP4_BYTES + problem.r * HALF_BYTES)


def group_of(config: str) -> str:
    """``pair`` or ``single``: how much of the chip works on one tile."""
    knobs = knobs_of(config)
    rows = knobs.get("mma_tiler_mn", "").partition("x")[0]
    return "pair" if rows == "256" or knobs.get("consumer_warpgroups") == "2" else "single"


def points(problem: GemmProblem, trials: Sequence[Trial]) -> list[Point]:
    """One point per timed trial, against the bytes it brings into SMEM (into the chip where that is not known)."""
    found = []
    for trial in trials:
        moved = fill_bytes(problem, trial.resolved) or dram_bytes(problem)
        speed = tflops(problem, microseconds(trial))
        group = group_of(trial.resolved)
        found.append(Point(trial=trial, intensity=problem.flops / moved, tflops=speed, group=group))
    return found
