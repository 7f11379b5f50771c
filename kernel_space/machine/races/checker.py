"""The race checker: happens-before over shared, tensor and global memory.

One warp counts as one thread of execution: lanes of a warp do not race with each other here. Checks are made when an
operation is issued, which makes findings depend little on the schedule.
"""

from __future__ import annotations

from typing import Any

from kernel_space.machine.observe.report import Finding, place
from kernel_space.machine.races.maps import MapRaces
from kernel_space.machine.values.faults import SimStatus

MOST_FINDINGS = 20


class Races(MapRaces):
    """Findings are kept once per pair of instructions."""

    def __init__(self, program: Any, before: Any = None, *, in_a_row: bool = False) -> None:
        super().__init__(program, before, in_a_row=in_a_row)
        self.found: dict[tuple[Any, ...], Finding] = {}

    def report(
        self, key: tuple[Any, ...], text: str, site: int, who: str, other_site: int, other: str,
        machine: Any = None,
    ) -> None:  # fmt: skip
        """``machine``: whose program ``other_site`` is of, if not this one's."""
        if key in self.found or len(self.found) >= MOST_FINDINGS:
            return
        lines = [text, f"  {who} at {place(self.machine, site)}"]
        if other_site >= 0:
            lines.append(f"  {other} at {place(machine or self.machine, other_site)}")
        self.found[key] = Finding(status=SimStatus.RACE, text="\n".join(lines))

    def findings(self) -> list[Finding]:
        return list(self.found.values())
