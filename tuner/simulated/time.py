"""Simulated time of a compiled candidate: its own PTX, run with a clock under every admissible set of constants.

Every number here is ``simulated``. A prediction is an interval, and an order of two candidates is the share of the
sets under which it holds; docs/timing.md says what was compared with published times and where it fails.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_space.core.errors import InputError
from kernel_space.launch.capture import Launch, capture
from kernel_space.machine.clock.clock import Times
from kernel_space.machine.clock.estimate import TimedRun, simulate_launch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.simulated.constants.hash import simulation_hash
from tuner.simulated.constants.sets import ConstantSets, admissible_sets
from tuner.simulated.model_work import cluster_places, count_work
from tuner.trials.outcome import Kind, Timing
from tuner.trials.rank_stability import JUDGE, SETS_US, pack_times

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.rules import Legal
    from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
    from tuner.simulated.timing_model import Machine

# Pointers of a captured launch are made up, 4 GiB apart, so that a descriptor tells which argument it describes.
FIRST_ADDRESS: Final = 0x7F00_0000_0000
ADDRESS_STEP: Final = 1 << 32
OPERANDS: Final = {
    "act": "A/B", "wgt": "A/B", "ascales": "A/B", "wscales": "A/B", "lora_act_in": "LoRA", "lora_up": "LoRA", "y": "y",
}  # fmt: skip
CAUSES: Final = {
    "wait: tma A/B": "waiting for A/B",
    "wait: tma LoRA": "waiting for LoRA",
    "wait: arrive": "waiting for the accumulator",
    "wait: tensor": "waiting for the tensor core",
    "wait: issue": "MMA warp issuing",
    "tensor: mma mxf4nvf4": "tensor, NVFP4",
    "tensor: mma f16": "tensor, LoRA",
    "tensor: scale factor copy": "tensor, scale-factor copies",
    "tensor: kind switch": "tensor, change of kind",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedTime:
    """Microseconds of one launch, simulated.

    ``sets_us``  Times: under each admissible set of constants, nominal first
    ``discrepancy``  share by which the interval goes beyond the extremes of ``sets_us``
    ``about``    which sets these are
    ``terms``    nominal microseconds by cause; they add up to ``us``
    ``run``      what the clocked run saw, in cycles
    """

    sets_us: Times
    discrepancy: float
    about: str
    terms: dict[str, float]
    run: TimedRun

    @property
    def us(self) -> float:
        return float(self.sets_us[0])

    @property
    def low_us(self) -> float:
        return float(self.sets_us.min()) * (1 - self.discrepancy)

    @property
    def high_us(self) -> float:
        return float(self.sets_us.max()) * (1 + self.discrepancy)

    @property
    def bound(self) -> str:
        """The largest cause besides tensor work; ``tensor`` if the tensor core is busy most of the time."""
        busy = sum(us for cause, us in self.terms.items() if cause.startswith("tensor"))
        if busy > 0.75 * self.us:
            return "tensor"
        return max(
            (cause for cause in self.terms if not cause.startswith("tensor")), key=self.terms.__getitem__
        )


def simulate(
    compiled: CompiledKernel,
    config: KernelConfigSm100a,
    problem: GemmProblem,
    device: Machine,
    *,
    cold: bool = True,
    record: bool = False,
    sets: ConstantSets | None = None,
) -> SimulatedTime:
    """Simulated time of one launch of ``compiled``, the kernel of the resolved ``config``.

    ``cold``: operands come from DRAM, as for ``timing_model``. ``sets``: by default the admissible ones. Needs no GPU.
    Raises ``Unsupported`` for PTX that the clock does not model, ``Fault`` for what the program does wrong.
    """
    chosen = sets or admissible_sets(device.arch)
    places = cluster_places(device.sm_count, config.cluster_size)
    launch = capture_launch(compiled, problem, places)
    run = simulate_launch(
        launch, compiled.ptx, chosen.clock, sm_count=device.sm_count, places=places, cold=cold,
        map_names=map_names(launch, compiled), record=record,
        atomic_results=arrivals(config, problem, device.sm_count),
    )  # fmt: skip
    return time_of(run, chosen, use_pdl=config.use_pdl)


def arrivals(config: KernelConfigSm100a, problem: GemmProblem, sm_count: int) -> tuple[int, ...]:
    """What the split counter returns for the pieces of cluster 0, in turn.

    One piece in ``split_k`` is the last of its tile to arrive; the cluster's last piece is one of them, for that is
    when the launch ends.
    """
    pieces = count_work(config, problem, sm_count).schedule.waves
    last = config.split_k - 1
    return tuple(last if (pieces - 1 - number) % config.split_k == 0 else 0 for number in range(pieces))


def time_of(run: TimedRun, sets: ConstantSets, *, use_pdl: bool = False) -> SimulatedTime:
    """Cycles of a run and the launch, in microseconds."""
    launch = sets.values["launch_us"] - (sets.values["pdl_gain_us"] if use_pdl else 0.0)
    per_cycle = 1e-3 / float(sets.values["clock_ghz"][0])
    terms = {"launch": float(launch[0])}
    for cause, cycles in run.account.items():
        name = CAUSES.get(cause, cause)
        terms[name] = terms.get(name, 0.0) + cycles * per_cycle
    sets_us = sets.microseconds(run.cycles) + launch
    return SimulatedTime(
        sets_us=sets_us, discrepancy=sets.discrepancy, about=sets.about, terms=terms, run=run
    )


def simulate_time(compiled: CompiledKernel, legal: Legal, problem: GemmProblem, device: Machine) -> Timing:
    """``simulate`` as the time of a trial: the nominal set's time with the interval of the admissible sets."""
    time = simulate(compiled, legal.config, problem, device)
    return Timing(
        kind=Kind.SIMULATED, us=time.us, low_us=time.low_us, high_us=time.high_us, evidence=evidence_of(time)
    )


def evidence_of(time: SimulatedTime) -> dict[str, float | str]:
    """Microseconds by cause, which are the only numbers in it and add up to the time; the rest are words."""
    terms: dict[str, float | str] = {name: round(us, 4) for name, us in time.terms.items()}
    return {
        **terms,
        "bound": time.bound,
        "l2": "cold",
        "constants": time.about,
        SETS_US: pack_times(time.sets_us.tolist()),
        JUDGE: simulation_hash(),
    }


def agreement(faster: SimulatedTime, slower: SimulatedTime) -> float:
    """Share of the sets of constants under which ``faster`` is the faster one. Both must use the same sets."""
    if len(faster.sets_us) != len(slower.sets_us):
        raise InputError("two simulated times can only be compared under the same sets of constants")
    return float(np.mean(faster.sets_us < slower.sets_us))


def capture_launch(compiled: CompiledKernel, problem: GemmProblem, places: int) -> Launch:
    """The one launch of ``compiled`` for ``problem``, with ``places`` clusters at once and made-up addresses."""
    values = [FIRST_ADDRESS + ADDRESS_STEP * number for number in range(len(compiled.arguments))]
    sizes = {"m": problem.m, "n": problem.n, "k": problem.k, "max_active_clusters": places, "stream": 0}
    for number, argument in enumerate(compiled.arguments):
        if argument.kind != "pointer":
            values[number] = sizes[argument.name]
    launches = capture(compiled, *values)
    if len(launches) != 1:
        raise InputError(f"a candidate is one launch, {compiled.prefix} makes {len(launches)}")
    return launches[0]


def map_names(launch: Launch, compiled: CompiledKernel) -> dict[int, str]:
    """Kernel parameter -> operand group of its TMA descriptor."""
    names = {}
    for index, tensor in launch.tensor_maps.items():
        argument = compiled.arguments[(tensor.address - FIRST_ADDRESS) // ADDRESS_STEP]
        names[index] = OPERANDS[argument.name]
    return names


__all__ = ["SimulatedTime", "agreement", "simulate", "simulate_time", "simulation_hash"]
