"""Lanes of a warp in lockstep: where they are, which of them take part, and how they part and meet again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kernel_space.machine.ptx.cfg import EXIT
from kernel_space.machine.translate.translate import SPLIT
from kernel_space.machine.values.lanes import LANES


class Lockstep:
    """``number`` in the CTA; ``pc``: the block of the lanes of ``mask``, which meet others at ``rpc``.

    ``frames``: (block, lanes, meeting block) of those that go on later; ``alive``: lanes that have not ended.
    """

    number: int
    pc: int
    rpc: int
    frames: list[tuple[int, int, int]]
    mask: int
    alive: int

    def _special_registers(self, block: tuple[int, int, int], special: Mapping[str, int]) -> int:
        """Sets ``sr_*``, of which ``special`` are those of the CTA; returns the lane mask of threads that exist."""
        bx, by, bz = block
        linear = np.arange(LANES, dtype=np.uint32) + LANES * self.number
        for axis, value in zip("xyz", (linear % bx, linear // bx % by, linear // (bx * by)), strict=True):
            same = bool((value == value[0]).all())
            setattr(self, f"sr_tid_{axis}", int(value[0]) if same else value)
        lane = np.arange(LANES, dtype=np.uint32)
        self.sr_laneid, self.sr_warpid = lane, self.number
        one = np.uint32(1)
        self.sr_lanemask_eq = one << lane
        self.sr_lanemask_lt = (one << lane) - one
        self.sr_lanemask_le = self.sr_lanemask_lt | self.sr_lanemask_eq
        self.sr_lanemask_gt, self.sr_lanemask_ge = ~self.sr_lanemask_le, ~self.sr_lanemask_lt
        self.__dict__.update(special)
        return sum(1 << n for n in range(LANES) if LANES * self.number + n < bx * by * bz)

    def split(self, chosen: int, taken: int, fall: int, meeting: int) -> int:
        """The lanes of ``chosen`` go to ``taken``, the others to ``fall``; they meet again at ``meeting``."""
        others = self.mask & ~chosen
        if self.rpc != meeting and meeting != EXIT:
            self.frames.append((meeting, self.mask, self.rpc))
        for target, lanes in ((fall, others), (taken, chosen)):
            if target == EXIT:
                self.alive &= ~lanes
            elif target != meeting:
                self.frames.append((target, lanes, meeting))
        self.pop()
        return SPLIT

    def pop(self) -> bool:
        """Go on with the lanes on top of the stack; False when no lanes are left."""
        while self.frames:
            self.pc, lanes, self.rpc = self.frames.pop()
            self.mask = lanes & self.alive
            if self.mask:
                return True
        return False

    def leave_lanes(self) -> bool:
        """The current lanes have ended; True when the warp has."""
        self.alive &= ~self.mask
        return not self.pop()
