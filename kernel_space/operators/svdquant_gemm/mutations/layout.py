"""Where a kernel keeps what in shared memory: how a mutation finds the instructions of one barrier or one operand."""

from __future__ import annotations

import dataclasses

from kernel_space.core.arch import arch
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm100a.budget import budget
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a


@dataclasses.dataclass(frozen=True)
class SharedRegion:
    """``slots`` times ``each`` bytes at ``offset`` from the start of dynamic shared memory."""

    name: str
    offset: int
    each: int
    slots: int

    @property
    def end(self) -> int:
        return self.offset + self.each * self.slots


@dataclasses.dataclass(frozen=True, kw_only=True)
class MutationContext:
    """What a mutation knows of the kernel besides its PTX: the resolved config and the regions of shared memory."""

    config: KernelConfigSm100a
    regions: tuple[SharedRegion, ...]

    @classmethod
    def of(
        cls, config: KernelConfigSm100a, problem_class: ProblemClass, arch_name: str = "sm_100a"
    ) -> MutationContext:
        """Of a resolved config: its budget lists the regions in the order of their addresses, without gaps."""
        regions, offset = [], 0
        for row in budget(config, problem_class, arch(arch_name)).smem.rows:
            regions.append(SharedRegion(row.name, offset, row.each, row.copies))
            offset = regions[-1].end
        return cls(config=config, regions=tuple(regions))

    def region_at(self, offset: int) -> str | None:
        """Name of the region that holds a byte."""
        return next((region.name for region in self.regions if region.offset <= offset < region.end), None)

    def region(self, name: str) -> SharedRegion:
        """Raises ``KeyError`` for a kernel without it."""
        return {region.name: region for region in self.regions}[name]
