"""Simulated time of a compiled candidate: its own PTX, run with a clock under every admissible set of constants.

Every number here is ``simulated``. A prediction is an interval, and an order of two candidates is the share of the
sets under which it holds; docs/timing.md says what was compared with published times and where it fails.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel_of, operator_of
from kernel_space.core.traits import Chip, traits_of
from kernel_space.launch.capture import Launch, capture
from kernel_space.launch.ptx_entries import body
from kernel_space.machine.clock.clock import Times
from kernel_space.machine.clock.constants import cluster_places
from kernel_space.machine.clock.estimate import TimedRun, joined_runs, simulate_launch
from kernel_space.machine.clock.occupancy import SYSTEM_SMEM, ctas_per_sm
from kernel_space.machine.clock.power import slowdown
from tuner.simulated.constants.hash import simulation_hash
from tuner.simulated.constants.sets import ConstantSets, admissible_sets
from tuner.trials.outcome import Kind, Timing
from tuner.trials.rank_stability import JUDGE, SETS_US, pack_times

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.config import KernelConfig
    from kernel_space.core.problem import Problem
    from kernel_space.core.rules import Legal

# Pointers of a captured launch are made up, 4 GiB apart, so that a descriptor tells which argument it describes.
FIRST_ADDRESS: Final = 0x7F00_0000_0000
ADDRESS_STEP: Final = 1 << 32
TENSOR_MEMORY: Final = "tcgen05.alloc"
EARLY: Final = (
    "programmatic_stream_serialization"  # attribute of a launch that may overlap what runs before it
)
# Cause of the clock's account -> what it is called; a kernel may name its own (``core.traits``).
CAUSES: Final = {
    "wait: global": "waiting for global memory",
    "wait: arrive": "waiting for other warps",
    "wait: tensor": "waiting for the tensor core",
    "wait: issue": "MMA warp issuing",
    "tensor: mma mxf4nvf4": "tensor, NVFP4",
    "tensor: mma f16": "tensor, fp16",
    "tensor: scale factor copy": "tensor, scale-factor copies",
    "tensor: kind switch": "tensor, change of kind",
}
MMA: Final = "tensor: mma "  # and the kind
LOADS: Final = "wait: tma "  # and the operand's name


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedTime:
    """Microseconds of one call, simulated: of all its launches together.

    ``sets_us``  Times: under each admissible set of constants, nominal first
    ``discrepancy``  share by which the interval goes beyond the extremes of ``sets_us``
    ``throttled``  at least 1: how much further its slow end lies because the card may hold its power
    ``about``    which sets these are
    ``terms``    nominal microseconds by cause; they add up to ``us``
    ``run``      what the clocked run saw, in cycles; of several launches, one after the other
    ``spills_us``  by how much spilled registers may take less, and more, than ``sets_us`` holds
    """

    sets_us: Times
    discrepancy: float
    about: str
    terms: dict[str, float]
    run: TimedRun
    throttled: float = 1.0
    spills_us: tuple[float, float] = (0.0, 0.0)

    @property
    def us(self) -> float:
        return float(self.sets_us[0])

    @property
    def low_us(self) -> float:
        return (float(self.sets_us.min()) - self.spills_us[0]) * (1 - self.discrepancy)

    @property
    def high_us(self) -> float:
        return (float(self.sets_us.max()) + self.spills_us[1]) * (1 + self.discrepancy) * self.throttled

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
    config: KernelConfig,
    problem: Problem,
    device: Chip,
    *,
    cold: bool = True,
    record: bool = False,
    sets: ConstantSets | None = None,
) -> SimulatedTime:
    """Simulated time of one call of ``compiled``, the kernel of the resolved ``config``.

    ``cold``: operands come from DRAM, in every launch of the call. ``sets``: by default the admissible ones. Needs no
    GPU. Raises ``Unsupported`` for PTX that the clock does not model, ``Fault`` for what the program does wrong.
    """
    chosen = sets or admissible_sets(device.arch)
    traits, ptx = traits_of(kernel_of(config, problem)), compiled.ptx
    results = traits.atomic_results(config, problem, device.sm_count) if traits.atomic_results else (0,)
    at_once = cluster_places(device.sm_count, config.cluster_size) * config.ctas_per_sm
    launches = capture_launches(compiled, problem, at_once)
    runs = [
        simulate_launch(
            launch, ptx, chosen.clock, sm_count=device.sm_count, places=places_of(launch, device) * resident,
            resident=resident, tensors=tensor_places(compiled, problem), cold=cold,
            map_names=map_names(launch, compiled, traits.operands), record=record, atomic_results=results,
            spill_bytes=compiled.resources_of(launch.kernel_name).spill_bytes,
        )
        for launch, resident in ((one, resident_ctas(compiled, config, one, device)) for one in launches)
    ]  # fmt: skip
    return time_of_launches(runs, [launches_early(one) for one in launches], chosen, traits.causes)


def places_of(launch: Launch, device: Chip) -> int:
    """Clusters of the launch's shape that the chip holds at once, one CTA on each SM."""
    return cluster_places(device.sm_count, math.prod(launch.cluster))


def resident_ctas(compiled: CompiledKernel, config: KernelConfig, launch: Launch, device: Chip) -> int:
    """CTAs of the launch that an SM holds at once. With tensor memory, of which an SM has little: those that the
    config counts on.
    """
    if TENSOR_MEMORY in body(compiled.ptx, launch.kernel_name):
        return config.ctas_per_sm
    resources = compiled.resources_of(launch.kernel_name)
    return ctas_per_sm(
        threads=math.prod(launch.block), registers=resources.registers, arch=device.arch,
        smem_bytes=launch.smem_bytes + max(0, resources.static_smem_bytes - SYSTEM_SMEM),
    )  # fmt: skip


def tensor_places(compiled: CompiledKernel, problem: Problem) -> dict[int, int]:
    """Made-up address -> bytes of each tensor of a call."""
    sizes = {name: spec.nbytes for name, spec in operator_of(problem).signature.tensors(problem).items()}
    return {
        FIRST_ADDRESS + ADDRESS_STEP * number: sizes[argument.name]
        for number, argument in enumerate(compiled.arguments)
        if sizes.get(argument.name)
    }


def launches_early(launch: Launch) -> bool:
    """Whether it may begin before what runs before it has ended: programmatic dependent launch."""
    return bool(launch.attributes.get(EARLY))


def time_of(run: TimedRun, sets: ConstantSets, *, use_pdl: bool = False) -> SimulatedTime:
    """Cycles of the run of a call's only launch, and the launch, in microseconds."""
    return time_of_launches([run], [use_pdl], sets)


def time_of_launches(
    runs: Sequence[TimedRun],
    early: Sequence[bool],
    sets: ConstantSets,
    causes: Mapping[str, str] | None = None,
) -> SimulatedTime:
    """Of launches that follow one another: their cycles add up, and each is launched. ``early``: which of them overlap
    with what runs before them, and gain what programmatic launch does. ``causes``: the kernel's own names.
    """
    run = joined_runs(runs)
    launch = len(runs) * sets.values["launch_us"] - sum(early) * sets.values["pdl_gain_us"]
    per_cycle = 1e-3 / float(sets.values["clock_ghz"][0])
    terms = {"launch": float(launch[0])}
    for cause, cycles in run.account.items():
        name = cause_name(cause, causes or {})
        terms[name] = terms.get(name, 0.0) + cycles * per_cycle
    sets_us = sets.microseconds(run.cycles) + launch
    return SimulatedTime(
        sets_us=sets_us, discrepancy=sets.discrepancy, about=sets.about, terms=terms, run=run,
        throttled=slowdown(float(sets_us[0]), mma_duty(run), float(sets.values["clock_ghz"].min())),
        spills_us=spills_us(run, per_cycle),
    )  # fmt: skip


def spills_us(run: TimedRun, per_cycle: float) -> tuple[float, float]:
    if run.spills is None:
        return 0.0, 0.0
    nominal = float(run.spills.cycles[0])
    return (nominal - run.spills.least) * per_cycle, (run.spills.most - nominal) * per_cycle


def mma_duty(run: TimedRun) -> float:
    """Share of the nominal cycles in which the tensor pipe multiplies."""
    busy = sum(cycles for cause, cycles in run.account.items() if cause.startswith(MMA))
    return busy / float(run.cycles[0])


def cause_name(cause: str, own: Mapping[str, str]) -> str:
    """What reports call a cause of the clock's account."""
    if cause in own:
        return own[cause]
    if cause.startswith(LOADS):
        return f"waiting for {cause.removeprefix(LOADS)}"
    return CAUSES.get(cause, cause)


def simulate_time(compiled: CompiledKernel, legal: Legal, problem: Problem, device: Chip) -> Timing:
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


def capture_launches(compiled: CompiledKernel, problem: Problem, at_once: int) -> list[Launch]:
    """The launches of one call of ``compiled`` for ``problem``, with ``at_once`` clusters on the chip and made-up
    addresses. Raises ``InputError`` for host code that launches nothing.
    """
    signature = operator_of(problem).signature
    addresses = {
        argument.name: FIRST_ADDRESS + ADDRESS_STEP * number
        for number, argument in enumerate(compiled.arguments)
        if argument.kind == "pointer"
    }
    launches = capture(compiled, *signature.values(problem, addresses, clusters=at_once))
    if not launches:
        raise InputError(f"the host code of {compiled.prefix} launches no kernel")
    return launches


def capture_launch(compiled: CompiledKernel, problem: Problem, at_once: int) -> Launch:
    """The launch of a call that makes one. Raises ``InputError`` for another number of launches."""
    launches = capture_launches(compiled, problem, at_once)
    if len(launches) != 1:
        raise InputError(f"one launch is wanted, {compiled.prefix} makes {len(launches)}")
    return launches[0]


def map_names(
    launch: Launch, compiled: CompiledKernel, operands: Mapping[str, str] | None = None
) -> dict[int, str]:
    """Kernel parameter -> operand of its TMA descriptor: the argument that it describes, or what ``operands`` calls it.
    A descriptor of other memory is called by its parameter.
    """
    names = {}
    for index, tensor in launch.tensor_maps.items():
        number = (tensor.address - FIRST_ADDRESS) // ADDRESS_STEP
        known = 0 <= number < len(compiled.arguments)
        name = compiled.arguments[number].name if known else f"parameter {index}"
        names[index] = (operands or {}).get(name, name)
    return names


__all__ = ["SimulatedTime", "agreement", "simulate", "simulate_time", "simulation_hash"]
