"""Modelled times, for kernels that bring a formula (``core.traits``): what a search may sort and leave out by."""

from __future__ import annotations

from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import kernel_of
from kernel_space.core.traits import PLAIN, Chip, MachineTraits, ModelledTime, traits_of


def modelled_us(config: KernelConfig, problem: Problem, chip: Chip) -> float | None:
    """Microseconds of a resolved config by its kernel's formula, nominal constants; None without one for the chip.

    A bound that is the same for every candidate (bytes over bandwidth) would be no substitute: nothing can be sorted by
    it, and beside another kernel's times it would look like the best of them.
    """
    model = _formula(config, problem, chip).model_us
    return model(config, problem, chip) if model else None


def modelled_time(config: KernelConfig, problem: Problem, chip: Chip) -> ModelledTime | None:
    """The same with its terms and the range of its constants."""
    model = _formula(config, problem, chip).model
    return model(config, problem, chip) if model else None


def _formula(config: KernelConfig, problem: Problem, chip: Chip) -> MachineTraits:
    traits = traits_of(kernel_of(config, problem))
    return traits if chip.arch.name in traits.modelled else PLAIN
