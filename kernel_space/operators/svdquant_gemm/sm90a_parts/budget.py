"""SMEM budget of an sm_90a configuration: what the three kernels share of it and of their stage solvers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TypeVar

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint
from kernel_space.core.config import AUTO, KernelConfig

Config = TypeVar("Config", bound=KernelConfig)

RINGS = ("dq", "ab", "lora", "c")
WANTED_AB_STAGES = 3  # a load in flight, one being read by the dequantizing warps, one by the consumers
MOST_LORA_STAGES = 2  # slices in flight: the load of the next hides behind the wgmma of this one
MOST_AB_STAGES = 16
RESERVED_PER_CTA = 1024


@dataclasses.dataclass(frozen=True)
class BudgetSm90a(Budget):
    """What a resolved configuration takes on one SM. ``limit``: bytes of shared memory that one CTA may take."""

    limit: int

    @property
    def slots(self) -> dict[str, int]:
        return {**{ring: int(getattr(self.config, f"num_{ring}_stage", 0)) for ring in RINGS}, "one": 1}

    @property
    def smem_limit(self) -> int:
        return self.limit


def share_of_smem(ctas_per_sm: int, arch: Arch) -> int:
    """Bytes one CTA may take. Of several on an SM each also takes 1 KB that the system reserves (CUDA programming
    guide: 228 KB per SM on 9.0, 1 KB of it reserved for every CTA).
    """
    if ctas_per_sm == 1:
        return arch.smem_capacity
    return (arch.smem_capacity + RESERVED_PER_CTA) // ctas_per_sm - RESERVED_PER_CTA


def fill_rings(
    config: Config,
    foot: Footprint,
    least: dict[str, int],
    wishes: Iterable[tuple[str, int]],
    limit: int,
) -> Config:
    """Replace every ``auto`` by a count that fits: first ``least`` (ring -> slots), then more of each ring of
    ``wishes`` in turn, up to the number there. A count that cannot be met ends at its minimum; the budget of the
    result says by how much it is over.
    """
    asked = {ring: getattr(config, f"num_{ring}_stage") for ring in least}
    slots = {ring: count if asked[ring] == AUTO else int(asked[ring]) for ring, count in least.items()}
    for ring, most in wishes:
        while asked[ring] == AUTO and slots[ring] < most:
            more = {**slots, ring: slots[ring] + 1}
            if foot.smem_bytes({**dict.fromkeys(RINGS, 0), **more, "one": 1}) > limit:
                break
            slots = more
    return config.replace(**{f"num_{ring}_stage": slots[ring] for ring in slots if asked[ring] == AUTO})
