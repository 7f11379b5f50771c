"""SMEM budget of a configuration of ``staged``, and its stage solver."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Footprint
from kernel_space.core.config import AUTO
from kernel_space.core.kernel import Room
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_parts.budget import BudgetSm90a, share_of_smem
from kernel_space.operators.svdquant_linear_16bit.problem import HalfLinearProblem
from kernel_space.operators.svdquant_linear_16bit.staged.config import SLOT_BYTES, StagedKnobs
from kernel_space.operators.svdquant_linear_16bit.staged.rules import LEAST, LEAST_DOWN_SLOTS

SIZED_BY = ("tile_mnk", "consumer_warpgroups", "split_k")  # knobs that allocations depend on
RINGS = ("ab", "dq", "x")
WISHES = (("x", 3), ("ab", 6), ("x", 4), ("dq", 6), ("x", 6), ("ab", 12), ("x", 8))  # up to how many
COUNTERS = 8  # bytes of a tile of rows of x: CTAs that are ready, and that have seen it
ROOM_ALIGN = 256


@dataclasses.dataclass(frozen=True)
class StagedBudget(BudgetSm90a):
    """As ``BudgetSm90a``, of other rings."""

    @property
    def slots(self) -> dict[str, int]:
        return {**{ring: int(getattr(self.config, f"num_{ring}_stage")) for ring in RINGS}, "one": 1}


def zeroed_bytes(tiles: Any, each: int) -> Any:
    """Of the counters of so many tiles of rows, of ``each`` so many bytes; an int, or a number of the DSL."""
    return (tiles * each + (ROOM_ALIGN - 1)) // ROOM_ALIGN * ROOM_ALIGN


def room(config: StagedKnobs, problem: HalfLinearProblem) -> Room:
    """Counters of what is ready and of who has taken it."""
    if not problem.r:
        return Room()
    size = zeroed_bytes(math.ceil(problem.m / config.tile_mnk[0]), COUNTERS)
    return Room(size=size, zeroed=size)


def layouts(config: StagedKnobs, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_linear_16bit.staged.layouts import StagedLayouts

    return StagedLayouts(config, problem_class)


def footprint(config: StagedKnobs, problem_class: ProblemClass, arch: Arch) -> Footprint:
    """The footprint of a config's class; stage counts do not enter it."""
    kind: Any = type(config)  # classes can be hashed, which mypy does not see of dataclasses
    return _read_footprint(kind, tuple(getattr(config, name) for name in SIZED_BY), problem_class, arch.name)


@functools.cache
def _read_footprint(
    kind: type[StagedKnobs], sized_by: tuple[Any, ...], problem_class: ProblemClass, arch_name: str
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    stages: dict[str, Any] = dict.fromkeys(kind.stage_names(), 1)
    one_slot = kind(**dict(zip(SIZED_BY, sized_by, strict=True)), **stages)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def budget(config: StagedKnobs, problem_class: ProblemClass, arch: Arch) -> StagedBudget:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    return StagedBudget(
        footprint(config, problem_class, arch), config, arch, share_of_smem(config.ctas_per_sm, arch)
    )


def solve_stages(config: StagedKnobs, problem_class: ProblemClass, arch: Arch) -> StagedKnobs:
    """Replace every ``auto`` by a count that fits, in this order of preference.

    1. What the rules ask for: two slots of each ring, a multiple of the dequantizing warpgroups where these share them
       out, and as many of weights as the sums of a strip need.
    2. Three of x, six of packed weights, which come from DRAM, then in turn up to 8 of x, 6 of weights and 12 of packed
       ones.

    A count that cannot be met ends at its minimum; the budget of the result says by how much it is over.
    """
    groups, limit = config.num_dequant_warpgroups, share_of_smem(config.ctas_per_sm, arch)
    foot = footprint(config, problem_class, arch)
    steps = {"ab": groups, "dq": groups, "x": 1}
    asked = {ring: getattr(config, f"num_{ring}_stage") for ring in RINGS}
    least = _least(config, problem_class.r)
    slots = {ring: least[ring] if asked[ring] == AUTO else int(asked[ring]) for ring in RINGS}
    for ring, most in WISHES:
        while asked[ring] == AUTO and slots[ring] + steps[ring] <= most:
            more = {**slots, ring: slots[ring] + steps[ring]}
            if foot.smem_bytes({**more, "one": 1}) > limit:
                break
            slots = more
    return config.replace(**{f"num_{ring}_stage": slots[ring] for ring in RINGS})


def _least(config: StagedKnobs, r: int) -> dict[str, int]:
    """Slots of each ring that the rules ask for."""
    groups, columns = config.num_dequant_warpgroups, config.tile_mnk[1]
    least = {name.removeprefix("num_").removesuffix("_stage"): count for name, count in LEAST.items()}
    if r:
        least["dq"] = max(least["dq"], math.ceil(LEAST_DOWN_SLOTS * config.down_tile(r) / columns))
    for ring in ("ab", "dq"):
        least[ring] = math.ceil(least[ring] / groups) * groups
    few = config.replace(num_ab_stage=least["ab"], num_dq_stage=least["dq"])
    lacking = max(0, config.sums_bytes - few.sums_room)
    least["dq"] += math.ceil(lacking / (columns * SLOT_BYTES * groups)) * groups
    return least
