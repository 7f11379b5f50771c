"""Legality of the space of ``lora_wgmma``: the only list of its rules. Each has a name and returns a reason."""

from __future__ import annotations

from kernel_space.core.config import AUTO
from kernel_space.core.kernel import Rule
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import LEAST_STAGES
from kernel_space.operators.nvfp4_quantize.lora_mma.rules import (
    MOST_REGISTERS,
    REGISTERS,
    THREADS_PER_SM,
    rank,
    split_k,
)
from kernel_space.operators.nvfp4_quantize.lora_wgmma.config import LoraWgmmaConfig
from kernel_space.operators.nvfp4_quantize.parts.rule_forms import one_of
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem

GROUPS = (1, 2, 3, 4)
MOST_GROUPS = 4
GROUP_THREADS = 128
MOST_B_STAGES, MOST_X_STAGES = 16, 8
OTHER_REGISTERS = 64  # that a thread wants beside its sums, words of x among them (ptxas 13)


def canonical(config: LoraWgmmaConfig, _: QuantizeProblem) -> LoraWgmmaConfig:
    """Every knob has an effect for every problem."""
    return config


def _groups_m(config: LoraWgmmaConfig, _: QuantizeProblem) -> str | None:
    return one_of("groups_m", config.groups_m, GROUPS)


def _groups_k(config: LoraWgmmaConfig, _: QuantizeProblem) -> str | None:
    return one_of("groups_k", config.groups_k, GROUPS)


def _groups(config: LoraWgmmaConfig, _: QuantizeProblem) -> str | None:
    if config.groups_m * config.groups_k <= MOST_GROUPS:
        return None
    return f"groups_m * groups_k must be at most {MOST_GROUPS}, got {config.groups_m} * {config.groups_k}"


def _num_b_stage(config: LoraWgmmaConfig, _: QuantizeProblem) -> str | None:
    if config.num_b_stage == AUTO:
        return None
    if LEAST_STAGES <= config.num_b_stage <= MOST_B_STAGES:  # type: ignore[operator]  # a number, if not AUTO
        return None
    return f"num_b_stage must be auto or from {LEAST_STAGES} to {MOST_B_STAGES}, got {config.num_b_stage}"


def _num_x_stage(config: LoraWgmmaConfig, _: QuantizeProblem) -> str | None:
    if 1 <= config.num_x_stage <= MOST_X_STAGES:
        return None
    return f"num_x_stage must be from 1 to {MOST_X_STAGES}, got {config.num_x_stage}"


def _ctas_per_sm(config: LoraWgmmaConfig, _: QuantizeProblem) -> str | None:
    most = THREADS_PER_SM // (GROUP_THREADS * config.groups_m * config.groups_k)
    if 1 <= config.ctas_per_sm <= most:
        return None
    return (
        f"ctas_per_sm must be from 1 to {most} with {config.groups_m} * {config.groups_k} warpgroups, got "
        f"{config.ctas_per_sm}"
    )


def _registers(config: LoraWgmmaConfig, problem: QuantizeProblem) -> str | None:
    """A kernel that spills is slower than any other choice."""
    threads = GROUP_THREADS * config.groups_m * config.groups_k * config.ctas_per_sm
    there, sums = min(MOST_REGISTERS, REGISTERS // threads // 8 * 8), problem.r // 2
    wanted = sums + OTHER_REGISTERS
    if wanted <= there:
        return None
    return (
        f"a thread must have {wanted} registers ({sums} of sums, {OTHER_REGISTERS}), {threads} threads an SM leave it "
        f"{there}; use fewer warpgroups or ctas_per_sm"
    )


KNOB_RULES: dict[str, Rule] = {
    "rank": rank,
    "groups_m": _groups_m,
    "groups_k": _groups_k,
    "groups": _groups,
    "split_k": split_k,
    "num_b_stage": _num_b_stage,
    "num_x_stage": _num_x_stage,
    "ctas_per_sm": _ctas_per_sm,
    "registers": _registers,
}
