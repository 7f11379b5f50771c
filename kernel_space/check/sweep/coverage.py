"""Which threads execute which instruction while a candidate is checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kernel_space.machine.observe.trace import Observer
from kernel_space.machine.translate.translate import Program

if TYPE_CHECKING:
    from kernel_space.machine.run.machine import Machine, Warp

Seen = dict[tuple[str, int], dict[int, int]]  # (kernel, site) -> warp of the CTA -> its lanes


class CoverageProgram(Program):
    """A program that notes who executes each of its instructions."""

    covers = True

    def __init__(self, kernel: Any, seen: Seen) -> None:
        super().__init__(kernel)
        self._seen = seen

    def seen(self, warp: Warp, site: int, mask: int) -> None:
        warps = self._seen.setdefault((self.kernel.name, site), {})
        warps[warp.number] = warps.get(warp.number, 0) | mask


class Coverage(Observer):
    """``seen`` of every launch that it is attached to."""

    def __init__(self) -> None:
        self.seen: Seen = {}
        self._programs: dict[int, CoverageProgram] = {}

    def attach(self, machine: Machine) -> None:
        kernel = machine.program.kernel
        found = self._programs.get(id(kernel))
        if found is None:
            found = self._programs[id(kernel)] = CoverageProgram(kernel, self.seen)
        machine.program = found
