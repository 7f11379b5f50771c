"""Budgets of a configuration as tables of named allocations: what the budgets of all kernels share.

Every size is read back (``cute.cosize``, ``cute.size_in_bytes``) from the layouts that the kernel allocates.
Reading costs about 10 ms, so it is done once per ``Footprint``: the sizes of one slot of every ring. Sizes are
linear in the slot counts (a test holds that against staged layouts), so solving is integer arithmetic.
"""

from __future__ import annotations

import collections
import dataclasses
import functools

from kernel_space.core.arch import Arch
from kernel_space.core.config import KernelConfig


@dataclasses.dataclass(frozen=True)
class Row:
    """``copies`` pieces of ``each`` bytes (SMEM) or columns (TMEM); negative where overlap shares columns."""

    name: str
    each: int
    copies: int

    @property
    def total(self) -> int:
        return self.each * self.copies


@dataclasses.dataclass(frozen=True)
class Table:
    """A budget: named rows, their sum, the limit. Its printed form says what does not fit and why."""

    title: str
    unit: str
    rows: tuple[Row, ...]
    limit: int
    notes: tuple[tuple[str, int], ...] = ()

    @property
    def total(self) -> int:
        return sum(row.total for row in self.rows)

    @property
    def over(self) -> int:
        """How much the sum exceeds the limit; 0 or less when it fits."""
        return self.total - self.limit

    def __str__(self) -> str:
        lines = [f"{self.title:<16}{'each':>9}{'copies':>8}{self.unit:>10}"]
        lines += [f"{row.name:<16}{row.each:>9}{row.copies:>8}{row.total:>10}" for row in self.rows]
        lines.append(f"{'used':<33}{self.total:>10}")
        lines += [f"{name:<33}{value:>10}" for name, value in self.notes]
        lines.append(f"{'limit':<33}{self.limit:>10}")
        lines.append(f"{'over by' if self.over > 0 else 'free':<33}{abs(self.over):>10}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Sizes of one slot of every ring, read back from the layouts.

    ``smem`` rows are (region, bytes of one slot, ring) in allocation order; ring ``one`` is what no stage count
    multiplies.
    """

    smem: tuple[tuple[str, int, str], ...]

    @functools.cached_property
    def ring_bytes(self) -> dict[str, int]:
        """Bytes that one more slot of each ring takes; 0 for a ring that is not there."""
        sums: collections.Counter[str] = collections.Counter()
        for _, size, ring in self.smem:
            sums[ring] += size
        return sums

    def smem_bytes(self, slots: dict[str, int]) -> int:
        return sum(size * slots[ring] for ring, size in self.ring_bytes.items())


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a resolved configuration takes on one SM. A kernel's own budget is a subclass in ``budget_<arch>.py``.

    Without tensor memory, ``tmem`` has no rows and its sums are 0.
    """

    footprint: Footprint
    config: KernelConfig
    arch: Arch

    @property
    def slots(self) -> dict[str, int]:
        """Ring -> slots, ``one`` included."""
        raise NotImplementedError

    @property
    def smem_limit(self) -> int:
        """Bytes of shared memory one CTA may take."""
        return self.arch.smem_capacity

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory the host code requests at launch."""
        return self.footprint.smem_bytes(self.slots)

    @property
    def tmem_columns_used(self) -> int:
        return 0

    @property
    def tmem_columns_allocated(self) -> int:
        return 0

    @property
    def smem(self) -> Table:
        slots = self.slots
        rows = tuple(Row(name, size, slots[ring]) for name, size, ring in self.footprint.smem)
        return Table("SMEM per CTA", "bytes", rows, self.smem_limit)

    @property
    def tmem(self) -> Table:
        return Table("TMEM per SM", "columns", (), self.arch.tmem_columns)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Those that have rows, in the order in which they are printed."""
        return tuple(table for table in (self.smem, self.tmem) if table.rows)

    def table(self, resource: str) -> Table:
        """The table of ``smem`` or ``tmem``."""
        return {"smem": self.smem, "tmem": self.tmem}[resource]

    def over(self, resource: str) -> int:
        """``table(resource).over`` without making the table: legality asks for it at every point of a space."""
        if resource == "tmem":
            return self.tmem_columns_used - self.arch.tmem_columns
        return self.smem_bytes - self.smem_limit

    def __str__(self) -> str:
        return "\n\n".join(str(table) for table in self.tables)
