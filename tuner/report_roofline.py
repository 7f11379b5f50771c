"""Where every candidate stands against what the machine could do at best: roofs, and bytes per operation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kernel_space.arch import SM100A, SM103A, Arch
from kernel_space.problem import GemmProblem
from tuner.machine_constants import Constant, constants_of
from tuner.outcome import Trial
from tuner.report_data import knobs_of, microseconds, tflops

# Operations per clock and SM, dense (CUTLASS media/docs/cpp/blackwell_functionality.md: NVFP4 is four times the
# half-precision rate, which SemiAnalysisAI/microbench-blackwell measured at 8192).
NVFP4_FLOPS_CLK = 32768
HALF_FLOPS_CLK = 8192
TENSOR_SOURCE = "32768 NVFP4 and 8192 half-precision FLOP/clk/SM"
NVFP4_BYTES = 9 / 16  # four bits of an element and its share of one E4M3 scale per 16
HALF_BYTES = 2
AFFINE_BYTES = 8  # wcscale and bias, fp32 each


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roof:
    """A limit of the machine. ``tera`` is TFLOP/s, or TB/s when ``per_byte``. ``kind``: measured, derived, assumed."""

    name: str
    tera: float
    per_byte: bool
    kind: str
    source: str

    def at(self, intensity: float) -> float:
        """TFLOP/s at ``intensity`` FLOP per byte."""
        return self.tera * intensity if self.per_byte else self.tera


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One candidate: FLOP per byte brought into SMEM, useful TFLOP/s."""

    trial: Trial
    intensity: float
    tflops: float


def roofs(problem: GemmProblem, arch: Arch, sm_count: int) -> tuple[Roof, ...]:
    """DRAM, SMEM fill and tensor pipe; none for an arch whose constants are not known."""
    if arch.name not in (SM100A.name, SM103A.name):
        return ()
    constants = constants_of(arch)
    clock, fill, dram = constants["clock_ghz"], constants["fill_narrow"], constants["dram_tb_s"]
    seconds = problem.m * problem.n * 2e-12 * (problem.k / NVFP4_FLOPS_CLK + problem.r / HALF_FLOPS_CLK)
    tensor = problem.flops * 1e-12 / seconds * sm_count * clock.value * 1e-3
    return (
        _roof("DRAM", dram.value, True, dram),
        _roof("SMEM fill", fill.value * sm_count * clock.value * 1e-3, True, fill),
        Roof(name="tensor pipe", tera=tensor, per_byte=False, kind="derived", source=TENSOR_SOURCE),
    )


def _roof(name: str, tera: float, per_byte: bool, constant: Constant) -> Roof:
    return Roof(name=name, tera=tera, per_byte=per_byte, kind=constant.kind, source=constant.source)


def dram_bytes(problem: GemmProblem) -> float:
    """What must cross DRAM once: every operand and the output."""
    operands = (problem.m + problem.n) * (problem.k * NVFP4_BYTES + problem.r * HALF_BYTES)
    return operands + problem.m * problem.n * HALF_BYTES + problem.n * AFFINE_BYTES


def fill_bytes(problem: GemmProblem, config: str) -> float | None:
    """What TMA brings into the SMEM of all CTAs: each MMA tile its rows and columns over all of K and R, tiles at
    the edge whole. None for a config without ``mma_tiler_mn``."""
    knobs = knobs_of(config)
    if "mma_tiler_mn" not in knobs:
        return None
    tile_m, tile_n = (int(part) for part in knobs["mma_tiler_mn"].split("x"))
    rows, columns = (problem.n, problem.m) if knobs.get("swap_ab") == "true" else (problem.m, problem.n)
    tiles = math.ceil(rows / tile_m) * math.ceil(columns / tile_n)
    return tiles * (tile_m + tile_n) * (problem.k * NVFP4_BYTES + problem.r * HALF_BYTES)


def points(problem: GemmProblem, trials: Sequence[Trial]) -> list[Point]:
    """One point per timed trial, against the bytes it brings into SMEM (into the chip where that is not known)."""
    found = []
    for trial in trials:
        moved = fill_bytes(problem, trial.resolved) or dram_bytes(problem)
        speed = tflops(problem, microseconds(trial))
        found.append(Point(trial=trial, intensity=problem.flops / moved, tflops=speed))
    return found
