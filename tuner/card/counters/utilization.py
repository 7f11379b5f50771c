"""MFU: the operations of a problem over what this chip could have done in the time, at the clock that it ran at.

No rate of a data sheet is asked: a sheet's is that of one clock, and a card under load runs at another.
"""

from __future__ import annotations

from collections.abc import Mapping

from kernel_space.core.arch import SM90A, SM100A, SM103A, Arch
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_of

# Dense operations per clock and SM of the tensor cores. sm_90: four cores of 512 multiply-adds each (H100 architecture
# paper); NVFP4 operands are dequantized there. sm_100: CUTLASS blackwell_functionality.md, NVFP4 four times the
# half-precision rate, 8192 measured by SemiAnalysisAI/microbench-blackwell. sm_103: NVFP4 half as fast again (HGX B300
# data sheet beside HGX B200's).
_HALF = {SM90A.name: 4096, SM100A.name: 8192, SM103A.name: 8192}
_NVFP4 = {SM90A.name: 4096, SM100A.name: 32768, SM103A.name: 49152}


def rates(arch: Arch) -> Mapping[str, float]:
    """Operations per clock and SM by pipe, as in ``Work.operations``; empty for a chip that nobody told of."""
    if arch.name not in _HALF:
        return {}
    half = _HALF[arch.name]
    return {"fp16": half, "bf16": half, "nvfp4": _NVFP4[arch.name]}


def least_cycles(problem: Problem, arch: Arch, sm_count: int) -> float | None:
    """SM clocks in which the tensor cores of ``sm_count`` SMs do what ``problem`` asks of them; None if that is
    nothing, or the chip's rates are not known."""
    known = rates(arch)
    work = operator_of(problem).work(problem).operations
    cycles = sum(count / known[pipe] for pipe, count in work.items() if pipe in known)
    return cycles / sm_count if cycles else None


def mfu(problem: Problem, arch: Arch, sm_count: int, cycles: float | None) -> float | None:
    """The share of ``cycles`` (SM clocks that a call took) that ``least_cycles`` is."""
    least = least_cycles(problem, arch, sm_count)
    return None if least is None or not cycles else least / cycles


def describe_rates(problem: Problem, arch: Arch, sm_count: int) -> str:
    """What MFU is the share of, in words."""
    work, known = operator_of(problem).work(problem).operations, rates(arch)
    pipes = " and ".join(f"{known[pipe]:.0f} {pipe}" for pipe in work if pipe in known and work[pipe])
    return f"{sm_count} SMs x {pipes} operations per clock x the SM clock above" if pipes else ""
