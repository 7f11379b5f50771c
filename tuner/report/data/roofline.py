"""Where every candidate stands against what the machine could do at best: roofs, and bytes per operation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from kernel_space.core.arch import SM90A
from kernel_space.machine.clock.constants import Constant, constants_of, has_constants
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.report.data.sweep import knobs_of, microseconds, tflops
from tuner.trials.outcome import Trial

# Operations per clock and SM, dense (CUTLASS media/docs/cpp/blackwell_functionality.md: NVFP4 is four times the
# half-precision rate, which SemiAnalysisAI/microbench-blackwell measured at 8192).
NVFP4_FLOPS_CLK = 32768
HALF_FLOPS_CLK = 8192
TENSOR_SOURCE = "32768 NVFP4 and 8192 half-precision FLOP/clk/SM"
MIB = 1 << 20
NVFP4_BYTES = 9 / 16  # four bits of an element and its share of one E4M3 scale per 16
HALF_BYTES = 2
AFFINE_BYTES = 8  # wcscale and bias, fp32 each


@dataclasses.dataclass(frozen=True, kw_only=True)
class Roof:
    """A limit of the machine. ``tera`` is TFLOP/s, or TB/s when ``per_byte``. ``kind``: measured, derived, assumed,
    published, read from the card. ``css`` is its class."""

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


def roofs(problem: GemmProblem, device_class: DeviceClass | None, sm_count: int) -> tuple[Roof, ...]:
    """What bounds a launch: memory and caches by bytes, the tensor pipe by operations. None for an unknown class.

    ``sm_count``: of the card, which may have more or fewer than its class.
    """
    if device_class is None:
        return ()
    dram = _dram(device_class)
    if device_class.arch.name == SM90A.name:
        return (*dram, _hopper_tensor(device_class, sm_count))
    if not has_constants(device_class.arch):
        return dram
    constants = constants_of(device_class.arch)
    clock = constants["clock_ghz"].value
    chip = sm_count * clock * 1e-3  # one unit per clock and SM, in tera per second
    found = [
        *dram,
        _roof("SMEM fill", "smem", constants["fill_narrow"], chip),
        _roof("L2, no multicast", "l2", constants["l2_bytes_clk"], chip),
    ]
    seconds = problem.m * problem.n * 2e-12 * (problem.k / NVFP4_FLOPS_CLK + problem.r / HALF_FLOPS_CLK)
    mixed = problem.flops * 1e-12 / seconds * chip
    if problem.r:
        found.append(_tensor("tensor pipe, NVFP4 alone", "fast", NVFP4_FLOPS_CLK * chip))
    found.append(_tensor(f"tensor pipe{' with LoRA' if problem.r else ', NVFP4'}", "", mixed))
    return tuple(found)


def l2_note(problem: GemmProblem, device_class: DeviceClass | None) -> str:
    """How what must cross DRAM once compares with the L2: what fits need cross it no more than that."""
    if device_class is None or device_class.l2_bytes is None:
        return ""
    moved, l2 = dram_bytes(problem) / MIB, device_class.l2_bytes / MIB
    return f"Operands and output are {moved:.3g} MiB, the L2 of class {device_class.name} has {l2:.4g} MiB."


def _dram(device_class: DeviceClass) -> tuple[Roof, ...]:
    """Of the class; none where nobody told its bandwidth."""
    if device_class.dram_bytes_s is None:
        return ()
    return (
        Roof(
            name="DRAM",
            css="dram",
            tera=device_class.dram_bytes_s * 1e-12,
            per_byte=True,
            kind=device_class.kind,
            source=device_class.source,
        ),
    )


def _hopper_tensor(device_class: DeviceClass, sm_count: int) -> Roof:
    """Operands are dequantized, so that all operations run at half precision. A class whose rate nobody published may
    have as much per SM as an H200, and no more."""
    told = device_class if device_class.half_flops_s is not None else DEVICE_CLASSES["h200"]
    assert told.half_flops_s is not None
    own = told is device_class
    return Roof(
        name="tensor pipe, fp16",
        css="",
        tera=told.half_flops_s * 1e-12 * sm_count / told.sm_count,
        per_byte=False,
        kind=told.kind if own else "assumed",
        source=f"{told.source}, dense" if own else f"that of {told.name} per SM",
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
