"""Which device a name means: a card that judges candidates by itself, or what stands in for a class without one.

A card is judged by itself (``devices/card.py``, unless something else is registered for its class with ``register``);
a class without one is judged by the PTX machine where that runs its kernels, and says so.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

from kernel_space.core.arch import Arch
from kernel_space.core.errors import InputError
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator_names
from kernel_space.machine.archs import SIMULATED
from kernel_space.operators import DEFAULT
from kernel_space.places import COMMAND
from tuner.devices.abilities import Abilities
from tuner.devices.classes import DEFAULT_CLASS, DEVICE_CLASSES, Card, DeviceClass, class_of, names
from tuner.devices.device import Device
from tuner.devices.probe import probe_cuda
from tuner.devices.recorded import FILE_NAME, OfClass, recorded_class
from tuner.space.space import has_space
from tuner.trials.answer import answered
from tuner.trials.outcome import Kind, Outcome, Status

if TYPE_CHECKING:
    from kernel_space.build.build import CompiledKernel
    from kernel_space.core.rules import Legal
    from tuner.card.samples.samples import Samples
    from tuner.card.worker.bench import FinalsOptions

AUTO = "auto"
OTHERWISE = f"use --device {DEFAULT_CLASS} for simulated times"
NOT_VALIDATED = "not validated: nothing here executes the kernel"


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
    abilities: Abilities = dataclasses.field(default_factory=Abilities, init=False)

    def begin(self) -> bool:
        return True

    def check(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        return answered(lambda: Outcome(status=Status.OK, reason=NOT_VALIDATED))

    check_full = check

    def time(self, compiled: CompiledKernel, legal: Legal, problem: Problem) -> Future[Outcome]:
        return answered(self._refused)

    def interleave(
        self, contenders: Sequence[tuple[CompiledKernel, Legal]], problem: Problem, options: FinalsOptions
    ) -> Future[list[Samples] | Outcome]:
        return answered(self._refused)

    def _refused(self) -> Outcome:
        return Outcome(status=Status.UNSUPPORTED, reason=self.refusal)

    @property
    def refusal(self) -> str:
        """Why there is no time, and what to do."""
        return (
            f"{self.name} has no simulator: it is measured on a card, --device cuda:N; without one, "
            f"{COMMAND} compile-only --device {self.name} prepares candidates for {COMMAND} measure on another machine"
        )


Probe = Callable[[], list[Card]]
Factory = Callable[[DeviceClass, Card], Device]
_measuring: dict[str, Factory] = {}


def register(class_name: str, factory: Factory) -> None:
    """``factory`` makes the device for a visible card of this shipped class, in place of ``CudaDevice``."""
    _measuring[DEVICE_CLASSES[class_name].name] = factory


def select_device(
    name: str = AUTO,
    *,
    probe: Probe = probe_cuda,
    results: str | os.PathLike[str] | None = None,
    otherwise: str = OTHERWISE,
) -> Device:
    """``auto``, a class (``b200``: simulated, whatever is plugged in) or a card (``cuda:0``).

    ``auto`` takes the first visible card whose architecture has a kernel, else the simulated b200. ``results``: the
    folder whose ``<class>/device.json`` tell of classes that are not shipped. ``otherwise``: what an error says that
    one can do without the card. Raises ``InputError`` for an unknown
    name, a card that is not there, and a card without a kernel.
    """
    if name == AUTO:
        return _automatic(probe(), otherwise)
    if match := re.fullmatch(r"cuda:([0-9]+)", name):
        return _device_of(_card(int(match[1]), probe(), otherwise), otherwise)
    return _without_card(device_class_of(name, results=results))


def select_card(index: int, *, probe: Probe = probe_cuda) -> Card:
    """``cuda:<index>``. Raises ``InputError`` for one that is not there or that no kernel runs on."""
    card = _card(index, probe(), "name a card that is there")
    if _kernel_class(card) is None:
        raise InputError(f"a card needs compute capability {_capabilities()}, got {card}")
    return card


def device_class_of(name: str, *, results: str | os.PathLike[str] | None = None) -> DeviceClass:
    """A shipped class, or one that was recorded below ``results``. Raises ``InputError`` for a name that is no class
    with a kernel."""
    found = DEVICE_CLASSES.get(name)
    if found is None and results is not None:
        found = recorded_class(results, name)
    if found is None or not _has_kernels(found.arch):
        own = "" if results is None else f", or a class that has a {FILE_NAME} below {os.fspath(results)}"
        raise InputError(f"--device must be auto, {names(_with_kernel())} or cuda:N{own}, got {name!r:.80}")
    return found


def class_of_device(device: Device, results: str | os.PathLike[str]) -> DeviceClass:
    """That of a card too, which need not be a shipped one."""
    if isinstance(device, OfClass):
        return device.device_class
    return device_class_of(device.name, results=results)


def require_times(device: Device) -> None:
    """Raises ``InputError`` where nothing gives times on ``device``, and says what to do."""
    if isinstance(device, AbsentDevice):
        raise InputError(device.refusal)


def has_simulator(arch: Arch) -> bool:
    """Can the PTX machine run and clock the kernels of ``arch``?"""
    return arch.name in SIMULATED


def simulated_names() -> str:
    """Classes that have a simulator: ``b200 and b300``."""
    return " and ".join(one.name for one in DEVICE_CLASSES.values() if has_simulator(one.arch))


def _automatic(cards: list[Card], otherwise: str) -> Device:
    for card in cards:
        if _kernel_class(card) is not None:
            return _device_of(card, otherwise)
    note = f"no kernel here runs on {', '.join(map(str, cards))}: {DEFAULT_CLASS}, simulated" if cards else ""
    return _without_card(DEVICE_CLASSES[DEFAULT_CLASS], note=note)


def _card(index: int, cards: list[Card], otherwise: str) -> Card:
    for card in cards:
        if card.index == index:
            return card
    visible = ", ".join(str(card) for card in cards) or "none"
    raise InputError(f"cuda:{index} is not there (visible cards: {visible}); {otherwise}")


def _device_of(card: Card, otherwise: str) -> Device:
    device_class = _kernel_class(card)
    if device_class is None:
        raise InputError(f"a card needs compute capability {_capabilities()}, got {card}; {otherwise}")
    if factory := _measuring.get(device_class.name):
        return factory(device_class, card)
    from tuner.devices.card import CudaDevice

    return CudaDevice.of_card(device_class, card)


def has_kernels(card: Card) -> bool:
    """Does a kernel run on ``card``?"""
    return _kernel_class(card) is not None


def _kernel_class(card: Card) -> DeviceClass | None:
    """The class of ``card``; None if no kernel runs on it."""
    found = class_of(card)
    return found if found is not None and _has_kernels(found.arch) else None


def _without_card(known: DeviceClass, *, note: str = "") -> Device:
    if has_simulator(known.arch):
        from tuner.devices.simulated import SimulatedDevice

        return SimulatedDevice(name=known.name, arch=known.arch, sm_count=known.sm_count, note=note)
    return AbsentDevice(name=known.name, arch=known.arch, sm_count=known.sm_count, note=note)


def _with_kernel() -> list[DeviceClass]:
    return [one for one in DEVICE_CLASSES.values() if _has_kernels(one.arch)]


def _capabilities() -> str:
    """``10.0 (b200) or 9.0 (h200, h100)``."""
    by_arch = itertools.groupby(_with_kernel(), key=lambda one: one.arch.compute_capability)
    return " or ".join(
        f"{'.'.join(map(str, capability))} ({names(classes)})" for capability, classes in by_arch
    )


def _has_kernels(arch: Arch) -> bool:
    """Whether a search can drive a kernel of any operator for ``arch``; the default one is asked first, as others may
    take longer to import.
    """
    return has_space(DEFAULT, arch) or any(has_space(name, arch) for name in operator_names())
