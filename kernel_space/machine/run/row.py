"""Launches in a row that overlap: several machines on one memory.

A launch begins once every CTA of the one before has executed ``griddepcontrol.launch_dependents`` or has ended. From
then on the schedule says which of them moves: usually the youngest that can, so that a launch does all that it may
before the ones it depends on have done theirs; warps that let it begin stand back until it has. Each has SMs of its
own, for a chip may have room for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_space.machine.run.machine import Machine
from kernel_space.machine.values.faults import SimStatus


class Row:
    """``machines`` in the order of their launches. ``current``: the one that moved last."""

    def __init__(self, machines: Sequence[Machine], max_instructions: int) -> None:
        self.machines, self.max_instructions = machines, max_instructions
        self.current = machines[0]
        self._polls = False
        if machines[0].schedule.holds:
            for machine in machines[:-1]:
                machine.held = []

    @property
    def executed(self) -> int:
        return sum(machine.executed for machine in self.machines)

    def run(self) -> SimStatus:
        """Run all to their end. Faults of a program are raised as ``Fault``; ``current`` is then where it happened."""
        while not self.machines[-1].ended or not all(machine.ended for machine in self.machines):
            self._begin_what_may()
            if not self._step():
                self.current = next(machine for machine in self.machines if not machine.ended)
                return SimStatus.DEADLOCK
            if self.executed > self.max_instructions:
                return SimStatus.BUDGET_EXCEEDED
        return SimStatus.OK

    def _begin_what_may(self) -> None:
        for machine in self.machines:
            if machine.begun:
                continue
            if machine.before is not None and not machine.before.lets_the_next_begin:
                return
            machine.begin()
            if machine.before is not None:
                machine.before.release_held(for_good=True)

    def _step(self) -> bool:
        """Move one launch; one that polled for a whole slice comes last."""
        under_way = [machine for machine in self.machines if machine.begun and not machine.ended]
        order = self.machines[0].schedule.among(under_way)
        if self._polls:
            order = [*(one for one in order if one is not self.current), self.current]
        for machine in order:
            self.current = machine
            if machine.ended or not machine.schedule.step(machine):
                continue
            self._polls = machine.schedule.polled
            machine.end_if_done()
            return True
        return any([machine.release_held(for_good=False) for machine in under_way])
