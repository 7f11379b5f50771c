"""What spilled registers cost: their bytes through L1.

The clock runs PTX, which knows no spills; ptxas puts them somewhere into what it makes of it. Known are their bytes,
each local-memory instruction counted once (``kernel_space/build/resources.py``). How often each is executed is assumed:
as often as the kernel's instructions are on average; at least once, at most as often as its most repeated ones. A store
or load moves its bytes for each of the 32 lanes through L1, at the rate of other accesses. What a warp
waits for a value to come back, and what L1 then lacks for other things, is left out.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kernel_space.machine.values.lanes import LANES

if TYPE_CHECKING:
    from kernel_space.machine.clock.chip import TimedCta, TimedMachine
    from kernel_space.machine.clock.clock import Times


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spills:
    """Cycles that the spills of a launch take: ``cycles`` under each set of constants; nominally ``least`` if each is
    executed once a CTA, ``most`` if all stand in its most repeated code.
    """

    cycles: Times
    least: float
    most: float

    def __add__(self, other: Spills) -> Spills:
        return Spills(
            cycles=self.cycles + other.cycles, least=self.least + other.least, most=self.most + other.most
        )


def spills_of(machine: TimedMachine, cta: TimedCta, spill_bytes: int, rounds: int) -> Spills:
    """Of ``rounds`` of CTAs like ``cta``, which has run; ``spill_bytes``: of a thread."""
    once = spill_bytes * LANES * len(cta.warps) * rounds / machine.l1_rate
    mean, most = repeats(cta)
    return Spills(cycles=mean * once, least=float(once[0]), most=most * float(once[0]))


def repeats(cta: TimedCta) -> tuple[float, float]:
    """(how often its instructions were executed on average, and the most repeated ones) of the warps of a CTA."""
    issued = text = 0.0
    most = 1
    for warp in cta.warps:
        issued += warp.issued
        text += sum(slots for slots, visits in zip(warp.slots, warp.visits, strict=True) if visits)
        most = max(most, *warp.visits)
    return max(1.0, issued / text if text else 1.0), float(most)
