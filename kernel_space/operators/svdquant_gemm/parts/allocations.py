"""Shared memory of a kernel as named allocations, and dtypes that all kernels use."""

import dataclasses
from typing import Any

import cutlass
from cutlass import cute

ACC_DTYPE = cutlass.Float32
HALF_DTYPES = {"fp16": cutlass.Float16, "bf16": cutlass.BFloat16}
MBARRIER_BYTES = 8


@dataclasses.dataclass(frozen=True)
class Allocation:
    """One named region of shared memory: a ``layout`` of ``dtype`` elements, aligned to ``align`` bytes.

    ``ring`` says which stage count the region grows with: ``num_<ring>_stage``, or ``one`` for none.
    """

    name: str
    dtype: Any
    layout: Any
    ring: str
    align: int

    @property
    def bytes(self) -> int:
        """Bytes of all slots, read back from the layout."""
        return cute.size_in_bytes(self.dtype, self.layout)


def smem_rows(allocations: list[Allocation]) -> tuple[tuple[str, int, str], ...]:
    """(region, bytes, ring) of each, as ``budget.Footprint`` holds them."""
    return tuple((region.name, int(region.bytes), region.ring) for region in allocations)
