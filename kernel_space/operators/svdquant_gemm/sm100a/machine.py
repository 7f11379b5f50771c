"""What the machine, its clock and reports know of the kernel ``sm100a`` beside its PTX."""

from __future__ import annotations

from kernel_space.core.operator import Deferred
from kernel_space.core.traits import MachineTraits, Schedule
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a import exercise
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from kernel_space.operators.svdquant_gemm.sm100a.model_constants import MODELLED
from kernel_space.operators.svdquant_gemm.sm100a.model_work import count_work

_MODEL = "kernel_space.operators.svdquant_gemm.sm100a.model_time"
_SINGLE_BARRIER = "tmem_dealloc"
_BARRIER_SIDES = ("_full", "_empty")
ROLES = {0: "epilogue0", 1: "epilogue1", 2: "epilogue2", 3: "epilogue3", 4: "mma_warp", 5: "tma_warp"}
OPERANDS = {
    "act": "A/B", "wgt": "A/B", "ascales": "A/B", "wscales": "A/B", "lora_act_in": "LoRA", "lora_up": "LoRA", "y": "y",
}  # fmt: skip


def is_barrier(row: str) -> bool:
    """Is this row of the budget a ring of mbarriers?"""
    return row == _SINGLE_BARRIER or row.endswith(_BARRIER_SIDES)


def schedule(config: KernelConfigSm100a, problem: GemmProblem, sm_count: int) -> Schedule:
    """Output tiles, or splits of them, of clusters that stay on the chip."""
    work = count_work(config, problem, sm_count)
    return Schedule(pieces=work.schedule.clusters, places=work.schedule.places, steps=work.loop.k_tiles)


def atomic_results(config: KernelConfigSm100a, problem: GemmProblem, sm_count: int) -> tuple[int, ...]:
    """What the split counter returns for the pieces of cluster 0, in turn.

    One piece in ``split_k`` is the last of its tile to arrive; the cluster's last piece is one of them, for that is
    when the launch ends.
    """
    pieces, last = schedule(config, problem, sm_count).waves, config.split_k - 1
    return tuple(last if (pieces - 1 - number) % config.split_k == 0 else 0 for number in range(pieces))


TRAITS = MachineTraits(
    exercise=exercise.exercise,
    cut=exercise.cut,
    most_instructions=exercise.most_instructions,
    barriers=is_barrier,
    roles=ROLES,
    mutations="kernel_space.operators.svdquant_gemm.mutations.suite",
    operands=OPERANDS,
    causes={"tensor: mma f16": "tensor, LoRA", "wait: arrive": "waiting for the accumulator"},
    atomic_results=atomic_results,
    schedule=schedule,
    model=Deferred(f"{_MODEL}:model_time"),
    model_us=Deferred(f"{_MODEL}:model_us"),
    modelled=MODELLED,
)
