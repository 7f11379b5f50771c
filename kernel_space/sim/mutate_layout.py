"""Names of a kernel's shared memory: what a report calls a barrier, and where a mutation finds it."""

from __future__ import annotations

import dataclasses
from typing import Any

from kernel_space.config import KernelConfig
from kernel_space.problem import ProblemClass
from kernel_space.readback import with_layouts

WARP_ROLES = {
    0: "epilogue0",
    1: "epilogue1",
    2: "epilogue2",
    3: "epilogue3",
    4: "mma_warp",
    5: "tma_warp",
}


@dataclasses.dataclass(frozen=True)
class SharedRegion:
    """``bytes`` at ``offset`` from the start of dynamic shared memory. A barrier array has ``slots`` of 8 bytes."""

    name: str
    offset: int
    bytes: int
    slots: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class MutationContext:
    """What a mutation knows of the kernel besides its PTX: the config and the named regions of shared memory."""

    config: KernelConfig
    regions: tuple[SharedRegion, ...]

    @classmethod
    def of(
        cls, config: KernelConfig, problem_class: ProblemClass, arch_name: str = "sm_100a"
    ) -> MutationContext:
        """Of a resolved config, from the layouts that the kernel itself allocates. Imports the DSL."""
        regions = with_layouts(config, problem_class, arch_name, _regions)
        return cls(config=config, regions=regions)

    def region_at(self, offset: int) -> str | None:
        """Name of the region that holds a byte."""
        for region in self.regions:
            if region.offset <= offset < region.offset + region.bytes:
                return region.name
        return None

    def region(self, name: str) -> SharedRegion | None:
        return next((region for region in self.regions if region.name == name), None)

    @property
    def barrier_names(self) -> dict[int, str]:
        """Offset -> name for ``run_compiled``: ``{...: "ab_full[0]"}``."""
        return {
            region.offset + 8 * slot: f"{region.name}[{slot}]"
            for region in self.regions
            for slot in range(region.slots)
        }


def _regions(layouts: Any) -> tuple[SharedRegion, ...]:
    slots = {name: count for name, count, _ in layouts.barriers()}
    regions, end = [], 0
    for item in layouts.allocations():
        start = -(-end // item.align) * item.align
        end = start + int(item.bytes)
        regions.append(SharedRegion(item.name, start, int(item.bytes), slots.get(item.name, 0)))
    return tuple(regions)
