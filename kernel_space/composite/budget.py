"""What a chain takes on one SM: each link has the SM for itself, so the tables stand side by side and do not add up."""

from __future__ import annotations

import dataclasses

from kernel_space.core.budget import Budget, Table


@dataclasses.dataclass(frozen=True)
class CompositeBudget(Budget):
    """``parts``: link -> its budget. ``smem``, ``tmem`` and what is asked of them are those of the fullest link."""

    parts: tuple[tuple[str, Budget], ...] = ()

    @property
    def slots(self) -> dict[str, int]:
        """Rings are the links' own."""
        return {}

    @property
    def smem_bytes(self) -> int:
        return max(part.smem_bytes for _, part in self.parts)

    @property
    def tmem_columns_used(self) -> int:
        return max(part.tmem_columns_used for _, part in self.parts)

    @property
    def tmem_columns_allocated(self) -> int:
        return max(part.tmem_columns_allocated for _, part in self.parts)

    @property
    def smem(self) -> Table:
        return self.table("smem")

    @property
    def tmem(self) -> Table:
        return self.table("tmem")

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(_titled(name, table) for name, part in self.parts for table in part.tables)

    def table(self, resource: str) -> Table:
        return max(
            (_titled(name, part.table(resource)) for name, part in self.parts), key=lambda one: one.over
        )

    def over(self, resource: str) -> int:
        return max(part.over(resource) for _, part in self.parts)


def _titled(link: str, table: Table) -> Table:
    return dataclasses.replace(table, title=f"{link}: {table.title}")
