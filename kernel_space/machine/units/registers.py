"""``setmaxnreg``: registers that the warps of a CTA hand to each other. PTX ISA 9.7.19.5 "setmaxnreg".

Every warp starts with the registers per thread of the launch; what ``.dec`` releases goes to the pool of the CTA, and
``.inc`` waits until the pool has enough. The pool starts empty: registers of the SM beyond the launch are nobody's.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from kernel_space.machine.ptx.instruction import Instr
from kernel_space.machine.ptx.operands import Imm
from kernel_space.machine.values.faults import ProtocolError
from kernel_space.machine.values.lanes import FULL, LANES

if TYPE_CHECKING:
    from kernel_space.machine.ptx.parse import Kernel
    from kernel_space.machine.run.machine import Cta, Warp

REGISTERS_OF_AN_SM = 65536  # CUDA programming guide, technical specifications, 9.0 and 10.x
FEWEST, MOST, UNIT = (
    24,
    256,
    8,
)  # PTX ISA: what a count may be; registers are given out in units of 8 a thread
WARPGROUP = 4


def registers_at_launch(kernel: Kernel) -> int | None:
    """Registers of a thread at launch, where ``setmaxnreg`` works; None where it has no effect.

    ptxas gives as many as ``.minnctapersm`` CTAs leave room for, but no more than the largest ``setmaxnreg.inc`` asks
    for (found by compiling for sm_90a; a test compares with cubins), or what ``.maxnreg`` says. Without either, ptxas
    drops ``setmaxnreg`` (its note C7508).
    """
    counts = [instr for instr in kernel.instrs if instr.tokens[0] == "setmaxnreg"]
    if not counts:
        return None
    if kernel.maxnreg is not None:
        return -(-kernel.maxnreg // UNIT) * UNIT
    threads = kernel.reqntid or kernel.maxntid
    if threads is None or kernel.minnctapersm is None:
        return None
    warps = -(-math.prod(threads) // LANES) * kernel.minnctapersm
    asked = [count_of(instr) for instr in counts if "inc" in instr.tokens]
    return min(REGISTERS_OF_AN_SM // (warps * LANES) // UNIT * UNIT, max(asked, default=MOST), MOST)


def count_of(instr: Instr) -> int:
    operand = instr.operands[0]
    return operand.value if isinstance(operand, Imm) else 0


@dataclasses.dataclass(frozen=True)
class _Change:
    """One executed ``setmaxnreg``. ``epoch``: of the race checker's clock of the warp."""

    site: int
    epoch: int


class RegisterPool:
    """``held``: registers per thread of each warp; ``free``: registers (not per thread) in the pool; ``changes``: what
    each warp has executed."""

    def __init__(self, cta: Cta) -> None:
        self.at_launch: int | None = cta.machine.program.registers_at_launch
        warps = range(len(cta.warps))
        self.held = dict.fromkeys(warps, self.at_launch or 0)
        self.changes: dict[int, list[_Change]] = {number: [] for number in warps}
        self.asking: set[int] = set()
        self.free = 0
        self.waiters: list[Warp] = []

    def __str__(self) -> str:
        held = sorted(self.held.values(), reverse=True)
        return (
            f"the register pool: {self.free} free, {sum(held) * LANES} held by {len(held)} warps, "
            f"{self.at_launch} a thread at launch"
        )

    def begin(self, w: Warp, count: int, mask: int, site: int) -> None:
        """The rules of one execution. Raises ``ProtocolError``."""
        if mask != FULL:
            raise ProtocolError(f"setmaxnreg is executed by {mask.bit_count()} of the 32 threads of {w.who}")
        if not FEWEST <= count <= MOST or count % UNIT:
            raise ProtocolError(f"setmaxnreg takes a multiple of {UNIT} from {FEWEST} to {MOST}, got {count}")
        self._with_the_warpgroup(w)
        epoch = w.clock.epoch if w.races is not None else 0
        self.changes[w.number].append(_Change(site, epoch))

    def _with_the_warpgroup(self, w: Warp) -> None:
        """The group is whole, and its warps have synchronised before each execution but the first. The ISA wants the
        same instruction in all of them; NVIDIA's attention kernels give the roles of one group different ones."""
        first = w.number // WARPGROUP * WARPGROUP
        if first + WARPGROUP > len(self.held):
            raise ProtocolError(
                f"setmaxnreg needs whole warpgroups; that of {w.who} has {len(self.held) - first} of 4 warps"
            )
        at = len(self.changes[w.number])
        for number in range(first, first + WARPGROUP):
            other, theirs = w.cta.warps[number], self.changes[number]
            if at and other is not w and not self._has_seen(w, other, theirs[:at]):
                raise ProtocolError(
                    f"{w.who} executes setmaxnreg again, and nothing orders it behind the one before in {other.who}"
                )

    @staticmethod
    def _has_seen(w: Warp, other: Warp, before: list[_Change]) -> bool:
        """Does ``w`` know that ``other`` has executed as many as itself? Orders are known to the race checker only."""
        if len(before) < len(w.cta.registers.changes[w.number]):
            return False
        return w.races is None or bool(w.clock.clock[0, other.clock.slot] >= before[-1].epoch)

    def close(self, cta: Cta) -> None:
        """At the end of the CTA. Raises ``ProtocolError`` for warps that left one out."""
        for number, changes in self.changes.items():
            first = number // WARPGROUP * WARPGROUP
            group = range(first, min(first + WARPGROUP, len(cta.warps)))
            missing = [cta.warps[n].who for n in group if len(self.changes[n]) < len(changes)]
            if missing:
                warp = cta.machine.current_warp = cta.warps[number]
                warp.site = changes[-1].site
                raise ProtocolError(
                    f"setmaxnreg must be executed by all warps of a warpgroup; {', '.join(missing)} did not"
                )


def set_max_registers(w: Warp, how: str, count: int, mask: int, site: int) -> bool:
    """True: sleep, for the pool has too few registers."""
    w.site = site
    pool = w.cta.registers
    if pool is None:
        pool = w.cta.registers = RegisterPool(w.cta)
    if w.number not in pool.asking:
        pool.begin(w, count, mask, site)
    if pool.at_launch is None:
        return False
    held = pool.held[w.number]
    if count > held if how == "dec" else count < held:
        raise ProtocolError(f"setmaxnreg.{how} to {count}, but a thread of {w.who} has {held} registers")
    needed = (count - held) * LANES
    if needed > pool.free:
        pool.asking.add(w.number)
        pool.waiters.append(w)
        w.sleep(("registers", pool, needed, site))
        return True
    pool.asking.discard(w.number)
    pool.held[w.number] = count
    pool.free -= needed
    if needed < 0:
        _wake(pool)
    return False


def _wake(pool: Any) -> None:
    waiters, pool.waiters = pool.waiters, []
    for warp in waiters:
        warp.wake()
