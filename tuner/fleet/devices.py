"""Which device ``--device`` means on a cluster: cards of a class that its hosts have, or its simulators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

from kernel_space.core.errors import InputError
from tuner.fleet.cards import LINE, FleetCard
from tuner.fleet.fleet import Fleet
from tuner.fleet.identity import CARD, COMPILE, SIMULATE, card_offer
from tuner.fleet.pools import FleetChecks

if TYPE_CHECKING:
    from tuner.devices.device import Device

READY_S = 30.0  # for a host that joins
SETTLE_S = 20.0  # until those that are there have said what they are
PER_PROBLEM = 8  # simulators that one problem keeps busy: a search waits for results


def resolved(fleet: Fleet, name: str, *, compiles: bool = True) -> str:
    """``--device`` as the offer that judges: ``simulate`` for a class without cards, ``card-<class>``, by name.

    ``auto`` is the class of the cluster's cards, or else the default class, simulated. ``h200``: a class without a
    simulator is its cards. ``card-b200``: cards of a class that has one. Waits for hosts that are about to join. Raises
    ``InputError`` when nobody does what is needed.
    """
    from tuner.devices.classes import DEFAULT_CLASS
    from tuner.devices.select import AUTO, device_class_of, has_simulator

    members = fleet.members
    if name.startswith("cuda"):
        raise InputError(f"--device must be a class of card such as h200 with --cluster ADDRESS, got {name}")
    if compiles:
        require(fleet, COMPILE)
    members.wait_for(members.settled, SETTLE_S)
    if name == AUTO:
        classes = members.card_classes()
        if len(classes) > 1:
            raise InputError(f"--device must name one of the cluster's cards, {', '.join(classes)}")
        name = card_offer(classes[0]) if classes else DEFAULT_CLASS
    if not name.startswith(CARD) and not has_simulator(device_class_of(name).arch):
        name = card_offer(name)
    require(fleet, name if name.startswith(CARD) else SIMULATE)
    return name


def device_of(fleet: Fleet, name: str, *, say: Callable[[str], None]) -> Device:
    """The device ``name``, which ``resolved`` gave. One of cards takes its card when it is first asked. Raises
    ``InputError`` as ``require``."""
    from tuner.devices.card import ABILITIES, CudaDevice
    from tuner.devices.classes import class_of
    from tuner.devices.select import device_class_of
    from tuner.devices.simulated import SimulatedDevice
    from tuner.simulated.machine_check import MachineChecker

    if not name.startswith(CARD):
        known = device_class_of(name)
        checker = MachineChecker(pool=FleetChecks(fleet))
        return SimulatedDevice(name=name, arch=known.arch, sm_count=known.sm_count, checker=checker)
    while not (members := fleet.members.offering(name)):
        require(fleet, name)  # the one that was there when the name was resolved may be gone
    member = members[0]
    assert member.description is not None and member.description.card is not None
    card = member.description.card
    found = class_of(card)
    assert found is not None, "its host was vetted"
    worker = FleetCard(fleet, found.name, say=say)
    return CudaDevice(
        name=found.name,
        arch=found.arch,
        sm_count=card.sm_count,
        card=card,
        worker=worker,
        told_driver=member.description.driver,
        abilities=dataclasses.replace(ABILITIES, line=LINE),
        asked=worker.answered,
    )


def side_by_side(fleet: Fleet, name: str) -> int:
    """Problems that are tuned at the same time: one a card."""
    if name.startswith(CARD):
        return max(1, fleet.members.slots(name))
    return max(1, fleet.members.slots(SIMULATE) // PER_PROBLEM)


def jobs_of_each(fleet: Fleet, side: int) -> int:
    """Compilers for each of ``side`` problems."""
    return max(1, -(-fleet.members.slots(COMPILE) // side))


def summary(fleet: Fleet) -> str:
    """What the cluster does for this tuner, in one line."""
    members = fleet.members
    cards = [f"{members.slots(card_offer(one))} cards {one}" for one in members.card_classes()]
    parts = [
        f"{len(members.hosts())} hosts",
        f"{members.slots(COMPILE)} compilers",
        f"{members.slots(SIMULATE)} simulators",
        *cards,
    ]
    return ", ".join(parts)


def require(fleet: Fleet, offer: str) -> None:
    """Wait for a host that does ``offer``. Raises ``InputError`` when none comes."""
    members = fleet.members
    if members.wait_for(lambda: bool(members.slots(offer)), READY_S):
        return
    fleet.check()
    refused = f" ({members.refusals()})" if members.refusals() else ""
    raise InputError(
        f"a host of the cluster must offer {offer} with these sources, none does{refused}; start tune.py worker on one"
    )
