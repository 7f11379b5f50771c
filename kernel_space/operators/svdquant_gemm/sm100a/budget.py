"""SMEM and TMEM budgets of an sm_100a configuration, and the stage solver."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from kernel_space.core.arch import Arch
from kernel_space.core.budget import Budget, Footprint, Row, Table
from kernel_space.core.config import ALL, AUTO
from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

MIN_TMEM_COLUMNS = 32  # tcgen05.alloc takes powers of two from 32 to 512 (PTX ISA)
OVERLAPPING_N = 256  # two accumulators of 256 columns fit beside the scale factors only if they overlap
ACC_STAGES = 2
LORA_STAGES = 2
AB_STAGES_BESIDE_TWO_LORA_STAGES = 3
RESERVED_C_STAGES = 2


@dataclasses.dataclass(frozen=True)
class FootprintSm100a(Footprint):
    """Rings are ``ab``, ``lora``, ``acc``, ``c`` and ``one``; ``*_cols`` are TMEM columns."""

    acc_cols: int
    sfa_cols: int
    sfb_cols: int
    num_epi_subtiles: int

    def tmem_columns(self, num_acc_stage: int, overlapped: bool) -> int:
        scale_factors = self.sfa_cols + self.sfb_cols
        shared = scale_factors if overlapped else 0
        return self.acc_cols * num_acc_stage + scale_factors - shared


@dataclasses.dataclass(frozen=True)
class BudgetSm100a(Budget):
    """What a resolved configuration takes on one SM."""

    footprint: FootprintSm100a
    config: KernelConfigSm100a

    @property
    def slots(self) -> dict[str, int]:
        return _slots(self.config)

    @property
    def tmem_columns_used(self) -> int:
        return self.footprint.tmem_columns(int(self.config.num_acc_stage), _is_overlapped(self.config))

    @property
    def tmem_columns_allocated(self) -> int:
        return tmem_allocation(self.tmem_columns_used)

    @property
    def tmem(self) -> Table:
        foot = self.footprint
        rows = [Row("accumulators", foot.acc_cols, int(self.config.num_acc_stage))]
        if _is_overlapped(self.config):
            rows.append(Row("overlap", -(foot.sfa_cols + foot.sfb_cols), 1))
        rows += [Row("SFA", foot.sfa_cols, 1), Row("SFB", foot.sfb_cols, 1)]
        notes = (("allocated", self.tmem_columns_allocated),)
        return Table("TMEM per SM", "columns", tuple(rows), self.arch.tmem_columns, notes)


def tmem_allocation(columns: int) -> int:
    """The smallest legal tcgen05.alloc that holds ``columns``: a power of two of at least 32."""
    return max(MIN_TMEM_COLUMNS, 1 << (columns - 1).bit_length())


def footprint(config: KernelConfigSm100a, problem_class: ProblemClass, arch: Arch) -> FootprintSm100a:
    """The footprint of a config's class; stage counts, raster and scheduling knobs do not enter it."""
    lora = (config.lora_tile_k, config.lora_buffer) if problem_class.r else (64, "dedicated")
    shape = (config.mma_tiler_mn, config.mma_tiler_k, config.epi_tile_n, config.swap_ab, config.split_k > 1)
    return _read_footprint(shape, lora, problem_class, arch.name)


@functools.cache
def _read_footprint(
    shape: tuple[tuple[int, int], int, int, bool, bool],
    lora: tuple[int | str, str],
    problem_class: ProblemClass,
    arch_name: str,
) -> FootprintSm100a:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space.build.readback import footprint_fields

    mma_tiler_mn, mma_tiler_k, epi_tile_n, swap_ab, splits = shape
    one_slot = KernelConfigSm100a(
        mma_tiler_mn=mma_tiler_mn,
        mma_tiler_k=mma_tiler_k,
        cluster_shape_mn=(mma_tiler_mn[0] // 128, 1),
        num_ab_stage=1,
        num_lora_stage=1,
        num_acc_stage=1,
        num_c_stage=1,
        lora_tile_k=lora[0],
        lora_buffer=lora[1],
        epi_tile_n=epi_tile_n,
        split_k=2 if splits else 1,
        swap_ab=swap_ab,
    )
    fields = footprint_fields(one_slot, problem_class, arch_name)
    return FootprintSm100a(**fields)


def layouts(config: KernelConfigSm100a, problem_class: ProblemClass) -> Any:
    """What the kernel allocates; imports the DSL, needs an MLIR context."""
    from kernel_space.operators.svdquant_gemm.sm100a.layouts import Layouts

    return Layouts(config, problem_class)


def budget(config: KernelConfigSm100a, problem_class: ProblemClass, arch: Arch) -> BudgetSm100a:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    return BudgetSm100a(footprint(config, problem_class, arch), config, arch)


def solve_stages(config: KernelConfigSm100a, problem_class: ProblemClass, arch: Arch) -> KernelConfigSm100a:
    """Replace every ``auto`` by the largest count that fits, in this order of preference.

    1. ``num_acc_stage``: 2 when the columns fit (overlapped at N = 256), else 1.
    2. ``num_c_stage``: 2 slots are set aside first.
    3. ``num_lora_stage``: 2 if at least 3 A/B slots fit beside them (or as many as the config asks), else 1.
    4. ``num_ab_stage``: as many as fit.
    5. ``num_c_stage`` takes what is left, up to one slot per epilogue subtile but at least 2.

    A count that cannot be met ends at its minimum of 1; the budget of the result says by how much it is over.
    """
    foot = footprint(config, problem_class, arch)
    acc = _solve_acc(config, foot, arch)
    slots = _slots(config.replace(num_acc_stage=acc, num_ab_stage=0, num_lora_stage=0, num_c_stage=0))
    c_is_auto, ab_is_auto = config.num_c_stage == AUTO, config.num_ab_stage == AUTO
    slots["c"] = RESERVED_C_STAGES if c_is_auto else int(config.num_c_stage)
    slots["lora"] = _solve_lora(config, foot, slots, arch)
    slots["ab"] = max(1, _free(foot, slots, "ab", arch)) if ab_is_auto else int(config.num_ab_stage)
    if c_is_auto:
        most = max(RESERVED_C_STAGES, foot.num_epi_subtiles)
        slots["c"] = max(1, min(most, _free(foot, slots, "c", arch)))
    return config.replace(
        num_ab_stage=slots["ab"], num_lora_stage=slots["lora"], num_acc_stage=acc, num_c_stage=slots["c"]
    )


def _solve_acc(config: KernelConfigSm100a, foot: FootprintSm100a, arch: Arch) -> int:
    if config.num_acc_stage != AUTO:
        return int(config.num_acc_stage)
    overlapped = config.mma_tiler_mn[1] == OVERLAPPING_N
    return ACC_STAGES if foot.tmem_columns(ACC_STAGES, overlapped) <= arch.tmem_columns else 1


def _solve_lora(config: KernelConfigSm100a, foot: FootprintSm100a, slots: dict[str, int], arch: Arch) -> int:
    if config.num_lora_stage != AUTO:
        return int(config.num_lora_stage)
    if foot.ring_bytes["lora"] == 0:
        return 0
    ab_is_auto = config.num_ab_stage == AUTO
    wanted = AB_STAGES_BESIDE_TWO_LORA_STAGES if ab_is_auto else int(config.num_ab_stage)
    beside_two = _free(foot, {**slots, "lora": LORA_STAGES}, "ab", arch)
    return LORA_STAGES if beside_two >= wanted else 1


def _free(foot: FootprintSm100a, slots: dict[str, int], ring: str, arch: Arch) -> int:
    """Slots of ``ring`` that fit beside the slots of all other rings."""
    spare = arch.smem_capacity - foot.smem_bytes({**slots, ring: 0})
    return spare // foot.ring_bytes[ring]


def _is_overlapped(config: KernelConfigSm100a) -> bool:
    return config.mma_tiler_mn[1] == OVERLAPPING_N and config.num_acc_stage == ACC_STAGES


def _slots(config: KernelConfigSm100a) -> dict[str, int]:
    """Ring -> slots; overlapped accumulators share one pair of barriers."""
    return {
        "ab": int(config.num_ab_stage),
        "lora": int(config.num_lora_stage),
        "acc": 1 if _is_overlapped(config) else int(config.num_acc_stage),
        "c": int(config.num_c_stage),
        "one": 1,
    }


def lora_slices(config: KernelConfigSm100a, r: int) -> int:
    """Slices of LoRA columns per tile; 0 without LoRA."""
    if r == 0:
        return 0
    return 1 if config.lora_tile_k == ALL else -(-r // int(config.lora_tile_k))
