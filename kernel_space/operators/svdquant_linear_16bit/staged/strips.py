"""How octets of columns of a tile are dealt out to the CTAs of a cluster that share it along K."""

import dataclasses
from typing import Any

import cutlass
from cutlass import Int32


@dataclasses.dataclass(frozen=True)
class Strips:
    """``octets`` in pieces of ``unit``, to ``split`` CTAs; the first ones have one more where they cannot be equal."""

    octets: int
    unit: int
    split: int

    @property
    def _pieces(self) -> tuple[int, int]:
        return divmod(self.octets // self.unit, self.split)

    @property
    def most(self) -> int:
        """Octets of the widest strip."""
        each, more = self._pieces
        return (each + (more > 0)) * self.unit

    def of(self, owner: int) -> tuple[int, int]:
        """First octet and number of octets of a CTA's strip."""
        each, more = self._pieces
        return (owner * each + min(owner, more)) * self.unit, (each + (owner < more)) * self.unit

    def of_rank(self, rank: Any) -> tuple[Any, Any]:
        """The same of a rank that is known when the kernel runs."""
        each, more = self._pieces
        first = (rank * each + cutlass.min(rank, Int32(more))) * self.unit
        return first, (each + Int32(rank < more)) * self.unit
