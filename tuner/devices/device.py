"""Who judges candidates: the Device protocol, and the choice between what simulates a device and what measures on it.

A device class (``b200``) is a kind of GPU and the folder below ``results/``. A card of a class is judged by itself
(``devices/card.py``, unless something else is registered for the class with ``register``); without one a class is
judged by the PTX machine, and says so.
"""

from __future__ import annotations

import ctypes
import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kernel_space.core.arch import SM90A, SM100A, SM103A, Arch
from kernel_space.core.errors import InputError
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tuner.space.space import has_space
from tuner.trials.outcome import Kind, Outcome, Status

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.rules import Legal
    from tuner.card.samples.samples import Samples
    from tuner.card.worker.bench import FinalsOptions

AUTO = "auto"
NOT_VALIDATED = "not validated: nothing here executes the kernel"


class Device(Protocol):
    """What the stages validate and time ask.

    ``judge`` names what its verdicts depend on besides the kernel: the hash of the simulator, or driver and clocks;
    trials of another judge never answer for this one. ``eager_validation``: check each candidate before it is
    timed (cheap on hardware); otherwise only those whose time could win. ``note`` is one line for the user, or empty.
    """

    name: str
    arch: Arch
    sm_count: int
    kind: Kind
    judge: str
    eager_validation: bool
    note: str

    def validate(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> Outcome:
        """OK, or why not. OK with a reason means: nothing speaks against it, but it was not checked, because ..."""
        ...

    def time(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> Outcome:
        """OK with ``timing``, or why there is none."""
        ...


@runtime_checkable
class TimesAhead(Protocol):
    """A device on which several candidates can be timed at once."""

    def time_ahead(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> None:
        """Begin what ``time`` will be asked; returns at once. Any thread may call it."""
        ...


@runtime_checkable
class RanksLeaders(Protocol):
    """A device on which candidates can be timed against one another: ``gpu.finals`` decides between them."""

    def interleave(
        self, contenders: Sequence[tuple[CompiledKernel, Legal]], problem: GemmProblem, options: FinalsOptions
    ) -> list[Samples] | Outcome:
        """Samples of ``gpu.bench.interleave``, one per contender in their order; or what went wrong with one."""
        ...


@runtime_checkable
class BeginsAhead(Protocol):
    """A device that takes seconds to get ready, in which its user has other things to do."""

    def begin(self) -> bool:
        """Begin with that; returns at once, True if the device is ready already."""
        ...


@runtime_checkable
class ChecksAhead(Protocol):
    """A device on which several candidates can be checked at once."""

    def validate_ahead(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> None:
        """Begin what ``validate`` will be asked; returns at once."""
        ...


@runtime_checkable
class ChecksWinner(Protocol):
    """A device whose ``validate`` runs a smaller problem, and which can run the real one once."""

    def validate_full(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> Outcome:
        """OK with what was checked as its reason, or why not."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceClass:
    """A kind of GPU. ``sm_count`` is that of the usual product; a visible card's own count takes its place."""

    name: str
    arch: Arch
    sm_count: int


# SMs: B200 148 (SemiAnalysis, "Dissecting Blackwell tensor cores", 2026: two dies of 74), B300 SXM6 148 (what
# cudaGetDeviceProperties reports on HGX B300; boards differ, so a visible card's count is used), H200 132 (data sheet).
DEVICE_CLASSES = {
    device_class.name: device_class
    for device_class in (
        DeviceClass(name="b200", arch=SM100A, sm_count=148),
        DeviceClass(name="b300", arch=SM103A, sm_count=148),
        DeviceClass(name="h200", arch=SM90A, sm_count=132),
    )
}
DEFAULT_CLASS = "b200"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AbsentDevice:
    """A device class without a card whose kernel has no simulator: candidates compile, and nothing times them.

    ``kind``: what its table holds, which only a card can add to.
    """

    name: str
    arch: Arch
    sm_count: int
    note: str = ""
    kind: Kind = dataclasses.field(default=Kind.MEASURED, init=False)
    judge: str = dataclasses.field(default="no card", init=False)
    eager_validation: bool = dataclasses.field(default=False, init=False)

    def validate(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> Outcome:
        return Outcome(status=Status.OK, reason=NOT_VALIDATED)

    def time(self, compiled: CompiledKernel, legal: Legal, problem: GemmProblem) -> Outcome:
        return Outcome(status=Status.UNSUPPORTED, reason=self.refusal)

    @property
    def refusal(self) -> str:
        """Why there is no time, and what to do."""
        return (
            f"{self.name} has no simulator: it is measured on a card, --device cuda:N; without one, "
            f"tune.py compile-only --device {self.name} prepares candidates for tune.py measure on another machine"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Card:
    """A GPU that the machine shows. ``index`` counts as in ``cuda:<index>``; ``uuid`` is the driver's name for it."""

    index: int
    name: str
    compute_capability: tuple[int, int]
    sm_count: int
    uuid: str = ""

    def __str__(self) -> str:
        major, minor = self.compute_capability
        return f"cuda:{self.index} ({self.name}, compute capability {major}.{minor}, {self.sm_count} SMs)"


Probe = Callable[[], list[Card]]
Factory = Callable[[DeviceClass, Card], Device]
_measuring: dict[str, Factory] = {}


def register(class_name: str, factory: Factory) -> None:
    """``factory`` makes the device for a visible card of this class, in place of ``CudaDevice``."""
    _measuring[DEVICE_CLASSES[class_name].name] = factory


def probe_cuda() -> list[Card]:
    """The cards that CUDA shows to torch; none on a machine without a GPU or driver."""
    try:
        ctypes.CDLL("libcuda.so.1")  # the driver: without it, seconds of importing torch are for nothing
    except OSError:
        return []
    import torch

    if not torch.cuda.is_available():
        return []
    cards = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        cards.append(
            Card(
                index=index,
                name=properties.name,
                compute_capability=(properties.major, properties.minor),
                sm_count=properties.multi_processor_count,
                uuid=str(properties.uuid),
            )
        )
    return cards


def select_device(name: str = AUTO, *, probe: Probe = probe_cuda) -> Device:
    """``auto``, a class (``b200``: simulated, whatever is plugged in) or a card (``cuda:0``).

    ``auto`` takes the first visible card whose compute capability has a kernel, else the simulated b200.
    Raises ``InputError`` for an unknown name, a card that is not there, and a card without a kernel.
    """
    if name == AUTO:
        return _automatic(probe())
    if match := re.fullmatch(r"cuda:([0-9]+)", name):
        return _device_of(_card(int(match[1]), probe()))
    return _without_card(name)


def _automatic(cards: list[Card]) -> Device:
    for card in cards:
        device_class = _class_of(card)
        if device_class in _with_kernel():
            return _device_of(card)
    note = f"no kernel here runs on {', '.join(map(str, cards))}: {DEFAULT_CLASS}, simulated" if cards else ""
    return _without_card(DEFAULT_CLASS, note=note)


def _card(index: int, cards: list[Card]) -> Card:
    for card in cards:
        if card.index == index:
            return card
    visible = ", ".join(str(card) for card in cards) or "none"
    raise InputError(
        f"cuda:{index} is not there (visible cards: {visible}); use --device {DEFAULT_CLASS} for simulated times"
    )


def _device_of(card: Card) -> Device:
    device_class = _class_of(card)
    if device_class is None or device_class not in _with_kernel():
        known = " or ".join(
            f"{'.'.join(map(str, one.arch.compute_capability))} ({one.name})" for one in _with_kernel()
        )
        raise InputError(f"a card needs compute capability {known}, got {card}; use --device {DEFAULT_CLASS}")
    if factory := _measuring.get(device_class.name):
        return factory(device_class, card)
    from tuner.devices.card import CudaDevice

    return CudaDevice.of_card(device_class, card)


def require_times(device: Device) -> None:
    """Raises ``InputError`` where nothing gives times on ``device``, and says what to do."""
    if isinstance(device, AbsentDevice):
        raise InputError(device.refusal)


def has_simulator(arch: Arch) -> bool:
    """Can the PTX machine run and clock the kernels of ``arch``?"""
    return arch.tmem_columns > 0


def _without_card(name: str, *, note: str = "") -> Device:
    known = device_class_of(name)
    if has_simulator(known.arch):
        from tuner.devices.simulated import SimulatedDevice

        return SimulatedDevice.of_class(name, note=note)
    return AbsentDevice(name=name, arch=known.arch, sm_count=known.sm_count, note=note)


def _class_of(card: Card) -> DeviceClass | None:
    for device_class in DEVICE_CLASSES.values():
        if device_class.arch.compute_capability == card.compute_capability:
            return device_class
    return None


def _with_kernel() -> list[DeviceClass]:
    return [one for one in DEVICE_CLASSES.values() if has_space(GemmProblem.operator, one.arch)]


def device_class_of(name: str) -> DeviceClass:
    """Raises ``InputError`` for a name that is no class with a kernel."""
    if DEVICE_CLASSES.get(name) not in _with_kernel():
        known = ", ".join(one.name for one in _with_kernel())
        raise InputError(f"--device must be auto, {known} or cuda:N, got {name!r}")
    return DEVICE_CLASSES[name]
