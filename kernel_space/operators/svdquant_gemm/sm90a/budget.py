"""SMEM budget of an sm_90a configuration, and the stage solver."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint
from kernel_space.core.config import AUTO
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import LEAST_WGMMA_STAGES, KernelConfigSm90a

RINGS = ("dq", "ab", "lora", "c")
# Knobs that the size of a slot depends on; beside them, whether K is split.
SIZED_BY = ("mainloop", "tile_mnk", "consumer_warpgroups", "pingpong", "register_operand", "epi_tile_n")
WANTED_AB_STAGES = 3  # a load in flight, one being read by the dequantizing warps, one by the consumers
WANTED_DQ_STAGES = 4  # two k-tiles of 128: one being multiplied, one being written
MOST_LORA_STAGES = 2  # slices in flight: the load of the next hides behind the wgmma of this one
MOST_AB_STAGES = 16
# Slots of expanded activations. Beyond FEW_COLUMNS columns more than 6 were not faster; of 64x128 10 were 2 % faster
# than 6 at M = 128 and 256, of 128x128 8 were 1 % at M = 256 and 512 (H200).
MOST_EXPANDED_STAGES, FEW_COLUMNS = 6, 128
MOST_NARROW_STAGES = {1: 10, 2: 8}  # by consumer warpgroups
LEAST_SMALL_M_STAGES, MOST_SMALL_M_STAGES = (
    2,
    4,
)  # more than one warp has units for at K = 3840 were not faster (H200)
WGMMA_COLUMNS = 32  # from here on wgmma is faster than mma.sync (H200)
# Slots of a unit with wgmma, of act and of weights (4 were 2 % faster than 3 at M = 128, H200); packed slots.
WANTED_WGMMA_DQ_STAGES, WANTED_WGT_DQ_STAGES, MOST_WGMMA_STAGES = 3, 4, 8
LEAST_HALF_STAGES, WANTED_HALF_STAGES = 3, 8  # slots of half a unit: one written, two being read
RESERVED_PER_CTA = 1024
EXPANDING_BLOCKS = 4  # of the expanding kernel that have room beside a CTA where ``shares_sm_with_expansion``


@dataclasses.dataclass(frozen=True)
class BudgetSm90a(Budget):
    """What a resolved configuration takes on one SM."""

    config: KernelConfigSm90a

    @property
    def slots(self) -> dict[str, int]:
        return {**{ring: int(getattr(self.config, f"num_{ring}_stage")) for ring in RINGS}, "one": 1}

    @property
    def smem_limit(self) -> int:
        return smem_limit(self.config, self.arch)


def smem_limit(config: KernelConfigSm90a, arch: Arch) -> int:
    """Bytes one CTA may take. Of several on an SM each also takes 1 KB that the system reserves (CUDA programming
    guide: 228 KB per SM on 9.0, 1 KB of it reserved for every CTA).
    """
    if config.shares_sm_with_expansion:
        return arch.smem_capacity - EXPANDING_BLOCKS * RESERVED_PER_CTA
    if config.ctas_per_sm == 1:
        return arch.smem_capacity
    return (arch.smem_capacity + RESERVED_PER_CTA) // config.ctas_per_sm - RESERVED_PER_CTA


def footprint(config: KernelConfigSm90a, problem_class: ProblemClass, arch: Arch) -> Footprint:
    """The footprint of a config's class; stage counts, raster and scheduling knobs do not enter it."""
    sized_by = tuple(getattr(config, name) for name in SIZED_BY)
    split_k, dq, ctas = (2 if config.split_k > 1 else 1), 1, 1
    if config.mainloop == "mma":
        # The sums of a cluster depend on its size, dq slots on CTAs per SM; without dq slots it is another kernel.
        split_k, dq, ctas = config.split_k, min(small_m_dq(config), 1), config.ctas_per_sm
    return _read_footprint(sized_by, (split_k, dq, ctas), problem_class, arch.name)


@functools.cache
def _read_footprint(
    sized_by: tuple[Any, ...], also: tuple[int, int, int], problem_class: ProblemClass, arch_name: str
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    split_k, num_dq_stage, ctas_per_sm = also
    stages = {f"num_{ring}_stage": 1 for ring in RINGS} | {"num_dq_stage": num_dq_stage}
    knobs = dict(zip(SIZED_BY, sized_by, strict=True))
    one_slot = KernelConfigSm90a(**knobs, **stages, split_k=split_k, ctas_per_sm=ctas_per_sm)
    return Footprint(**footprint_fields(one_slot, problem_class, arch_name))


def layouts(config: KernelConfigSm90a, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    if config.mainloop == "mma" and small_m_dq(config):
        from kernel_space.operators.svdquant_gemm.sm90a_small_m.layouts_wgmma import LayoutsSmallMWgmma

        return LayoutsSmallMWgmma(config, problem_class)
    if config.mainloop == "mma":
        from kernel_space.operators.svdquant_gemm.sm90a_small_m.layouts import LayoutsSmallM

        return LayoutsSmallM(config, problem_class)
    from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import LayoutsSm90a

    return LayoutsSm90a(config, problem_class)


def budget(config: KernelConfigSm90a, problem_class: ProblemClass, arch: Arch) -> BudgetSm90a:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    return BudgetSm90a(footprint(config, problem_class, arch), config, arch)


def solve_stages(config: KernelConfigSm90a, problem_class: ProblemClass, arch: Arch) -> KernelConfigSm90a:
    """Replace every ``auto`` by a count that fits, in this order of preference.

    1. 2 packed slots, 2 dq slots, 1 slot of C and, with LoRA, 1 of its ring.
    2. A third packed slot, then up to 4 dq slots.
    3. A second LoRA slot.
    4. A slot of C for every 64 rows of a warpgroup, two where a row is staged in parts.
    5. Packed slots take what is left, up to 16.

    With ``mainloop=expand``: a third packed slot, a second LoRA slot, up to 6 dq slots (of up to 128 columns 8, with
    one consumer warpgroup 10), then packed slots.
    With ``mainloop=mma``: up to 4 packed slots. With wgmma there: 3 packed slots, a third dq slot (of
    weights a fourth, of halves up to 8), up to 8 packed.
    A count that cannot be met ends at its minimum; the budget of the result says by how much it is over.
    """
    if config.mainloop == "mma":
        return _solve_small_m(config, problem_class, arch)
    foot = footprint(config, problem_class, arch)
    least = {"dq": 2, "ab": 2, "lora": 1 if problem_class.r else 0, "c": 1}
    asked = {ring: getattr(config, f"num_{ring}_stage") for ring in RINGS}
    slots = {ring: least[ring] if asked[ring] == AUTO else int(asked[ring]) for ring in RINGS}
    wishes = [
        ("ab", WANTED_AB_STAGES),
        ("dq", WANTED_DQ_STAGES),
        ("lora", MOST_LORA_STAGES if problem_class.r else 0),
        ("c", max(config.row_blocks, 1 + (config.staged_columns < config.tile_mnk[1]))),
        ("ab", MOST_AB_STAGES),
    ]
    if config.mainloop == "expand":
        wishes = [wishes[0], wishes[2], ("dq", most_expanded_stages(config)), wishes[4]]
    limit = smem_limit(config, arch)
    for ring, most in wishes:
        while asked[ring] == AUTO and slots[ring] < most:
            more = {**slots, ring: slots[ring] + 1}
            if foot.smem_bytes({**more, "one": 1}) > limit:
                break
            slots = more
    return config.replace(**{f"num_{ring}_stage": slots[ring] for ring in RINGS})


def most_expanded_stages(config: KernelConfigSm90a) -> int:
    """dq slots that ``mainloop=expand`` takes at most when left to ``auto``."""
    narrow = config.tile_mnk[1] <= FEW_COLUMNS
    return MOST_NARROW_STAGES[config.consumer_warpgroups] if narrow else MOST_EXPANDED_STAGES


def _solve_small_m(config: KernelConfigSm90a, problem_class: ProblemClass, arch: Arch) -> KernelConfigSm90a:
    """The least packed slots; with wgmma a third dq slot; then packed slots."""
    foot = footprint(config, problem_class, arch)
    least, most = LEAST_SMALL_M_STAGES, MOST_SMALL_M_STAGES
    if small_m_dq(config):
        least, most = LEAST_WGMMA_STAGES, MOST_WGMMA_STAGES
    slots = {
        "dq": min(small_m_dq(config), least_small_m_dq(config)),
        "ab": least,
        "lora": 0,
        "c": 0,
        "one": 1,
    }
    asked = {"dq": config.num_dq_stage, "ab": config.num_ab_stage}
    slots |= {ring: int(count) for ring, count in asked.items() if count != AUTO}
    for ring, wanted in (("dq", small_m_dq(config)), ("ab", most)):
        while asked[ring] == AUTO and slots[ring] < wanted:
            if foot.smem_bytes({**slots, ring: slots[ring] + 1}) > smem_limit(config, arch):
                break
            slots[ring] += 1
    return config.replace(num_dq_stage=slots["dq"], num_ab_stage=slots["ab"])


def least_small_m_dq(config: KernelConfigSm90a) -> int:
    """dq slots without which a kernel with wgmma cannot go on."""
    return LEAST_HALF_STAGES if config.dq_slot_halves == 1 else 2


def small_m_dq(config: KernelConfigSm90a) -> int:
    """``auto``: wgmma where there are columns enough for it, with a slot to write, one to wait for and one to read; of
    weights one more, and of their halves as many as fit, as those are filled while the previous launch runs.
    """
    if config.num_dq_stage != AUTO:
        return int(config.num_dq_stage)
    if config.tile_mnk[1] < WGMMA_COLUMNS:
        return 0
    if config.dq_slot_halves == 1:
        return WANTED_HALF_STAGES
    return WANTED_WGMMA_DQ_STAGES if config.swap_ab else WANTED_WGT_DQ_STAGES
