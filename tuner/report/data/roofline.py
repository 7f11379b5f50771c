"""Where every candidate stands against what the machine could do at best: roofs, and bytes per operation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from kernel_space.core.arch import SM90A
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of, kernels_of, operator_of
from kernel_space.machine.clock.constants import Constant, constants_of, has_constants
from tuner.devices.classes import DEVICE_CLASSES, DeviceClass
from tuner.report.data.sweep import dram_bytes, microseconds, operations, tflops
from tuner.trials.outcome import Trial

# Operations per clock and SM by pipe, dense (CUTLASS media/docs/cpp/blackwell_functionality.md: NVFP4 is four times the
# half-precision rate, which SemiAnalysisAI/microbench-blackwell measured at 8192).
FLOPS_CLK = {"nvfp4": 32768, "fp16": 8192, "bf16": 8192}
TENSOR_SOURCE = "32768 NVFP4 and 8192 half-precision FLOP/clk/SM"
MIB = 1 << 20


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


COLOURS = ("pair", "single", "third", "fourth")  # classes of the style; more groups share the last one


def roofs(problem: Problem, device_class: DeviceClass | None, sm_count: int) -> tuple[Roof, ...]:
    """What bounds a launch: memory by bytes, caches where a kernel tells what it brings into SMEM, the tensor pipe by
    operations. None for an unknown class.

    ``sm_count``: of the card, which may have more or fewer than its class.
    """
    if device_class is None:
        return ()
    dram = _dram(device_class)
    work = operator_of(problem).work(problem).operations
    tensor = {pipe: count for pipe, count in work.items() if pipe in FLOPS_CLK and count}
    if device_class.arch.name == SM90A.name:
        return (*dram, _hopper_tensor(device_class, sm_count)) if tensor else dram
    if not has_constants(device_class.arch):
        return dram
    constants = constants_of(device_class.arch)
    clock = constants["clock_ghz"].value
    chip = sm_count * clock * 1e-3  # one unit per clock and SM, in tera per second
    fill = (
        _roof("SMEM fill", "smem", constants["fill_narrow"], chip),
        _roof("L2, no multicast", "l2", constants["l2_bytes_clk"], chip),
    )
    kernels = kernels_of(problem.operator, device_class.arch)
    counted = any(kernel.traffic is not None for kernel in kernels)
    return (*dram, *(fill if counted else ()), *_tensor_roofs(tensor, chip))


def _tensor_roofs(tensor: Mapping[str, float], chip: float) -> list[Roof]:
    """The fastest pipe alone, and all pipes in the shares that the problem has of them."""
    if not tensor:
        return []
    fastest = max(tensor, key=FLOPS_CLK.__getitem__)
    mixed = sum(tensor.values()) / sum(count / FLOPS_CLK[pipe] for pipe, count in tensor.items()) * chip
    if len(tensor) == 1:
        return [_tensor(f"tensor pipe, {_shown(fastest)}", "", mixed)]
    alone = _tensor(f"tensor pipe, {_shown(fastest)} alone", "fast", FLOPS_CLK[fastest] * chip)
    others = " and ".join(_shown(pipe) for pipe in tensor if pipe != fastest)
    return [alone, _tensor(f"tensor pipe with {others}", "", mixed)]


def _shown(pipe: str) -> str:
    return {"nvfp4": "NVFP4"}.get(pipe, pipe)


def l2_note(problem: Problem, device_class: DeviceClass | None) -> str:
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


def moved_bytes(problem: Problem, trial: Trial) -> float:
    """What the trial's kernel brings into SMEM; what must cross DRAM where nobody counts that."""
    config = trial.resolved_config
    traffic = kernel_of(config, problem).traffic
    return dram_bytes(problem) if traffic is None else traffic(config, problem)


def counts_fill(problem: Problem, trial: Trial) -> bool:
    """Is it known what the trial's kernel brings into SMEM?"""
    return kernel_of(trial.resolved_config, problem).traffic is not None


def groups(trials: Sequence[Trial]) -> dict[str, str]:
    """Group -> class of its colour: by kernel where there are several, else whether several CTAs form a cluster."""
    several = _several_kernels(trials)
    found = dict.fromkeys(sorted({_group_of(trial, several) for trial in trials}))
    return {name: COLOURS[min(number, len(COLOURS) - 1)] for number, name in enumerate(found)}


def _several_kernels(trials: Sequence[Trial]) -> bool:
    return len({trial.resolved_config.kernel for trial in trials}) > 1


def _group_of(trial: Trial, several: bool) -> str:
    config = trial.resolved_config
    if several:
        return config.kernel
    return "clusters of CTAs" if config.cluster_size > 1 else "single CTAs"


def points(problem: Problem, trials: Sequence[Trial]) -> list[Point]:
    """One point per timed trial, against the bytes it brings into SMEM (into the chip where that is not known)."""
    several, colours = _several_kernels(trials), groups(trials)
    return [
        Point(
            trial=trial,
            intensity=operations(problem) / moved_bytes(problem, trial),
            tflops=tflops(problem, microseconds(trial)),
            group=colours[_group_of(trial, several)],
        )
        for trial in trials
    ]
