"""SMEM and TMEM budgets of a configuration, as tables of named allocations, and the stage solver.

Every size is read back (``cute.cosize``, ``cute.size_in_bytes``) from the layouts that the kernel allocates.
Reading costs about 10 ms, so it is done once per ``Footprint``: the sizes of one slot of every ring. Sizes are
linear in the slot counts (a test holds that against staged layouts), so solving is integer arithmetic.
"""

from __future__ import annotations

import dataclasses
import functools

from kernel_space.arch import Arch, arch
from kernel_space.config import ALL, AUTO, KernelConfig
from kernel_space.problem import ProblemClass

MIN_TMEM_COLUMNS = 32  # tcgen05.alloc takes powers of two from 32 to 512 (PTX ISA)
OVERLAPPING_N = 256  # two accumulators of 256 columns fit beside the scale factors only if they overlap
ACC_STAGES = 2
LORA_STAGES = 2
AB_STAGES_BESIDE_TWO_LORA_STAGES = 3
RESERVED_C_STAGES = 2


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

    ``smem`` rows are (region, bytes of one slot, ring); rings are ``ab``, ``lora``, ``acc``, ``c`` and ``one`` for
    what no stage count multiplies. ``*_cols`` are TMEM columns.
    """

    smem: tuple[tuple[str, int, str], ...]
    acc_cols: int
    sfa_cols: int
    sfb_cols: int
    num_epi_subtiles: int

    @functools.cached_property
    def ring_bytes(self) -> dict[str, int]:
        """Bytes that one more slot of each ring takes."""
        sums = dict.fromkeys(("ab", "lora", "acc", "c", "one"), 0)
        for _, size, ring in self.smem:
            sums[ring] += size
        return sums

    def smem_bytes(self, slots: dict[str, int]) -> int:
        return sum(size * slots[ring] for ring, size in self.ring_bytes.items())

    def tmem_columns(self, num_acc_stage: int, overlapped: bool) -> int:
        scale_factors = self.sfa_cols + self.sfb_cols
        shared = scale_factors if overlapped else 0
        return self.acc_cols * num_acc_stage + scale_factors - shared


@dataclasses.dataclass(frozen=True)
class Budget:
    """What a resolved configuration takes on one SM."""

    footprint: Footprint
    config: KernelConfig
    arch: Arch

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory the host code requests at launch."""
        return self.footprint.smem_bytes(_slots(self.config))

    @property
    def tmem_columns_used(self) -> int:
        return self.footprint.tmem_columns(int(self.config.num_acc_stage), _is_overlapped(self.config))

    @property
    def tmem_columns_allocated(self) -> int:
        return tmem_allocation(self.tmem_columns_used)

    @property
    def smem(self) -> Table:
        slots = _slots(self.config)
        rows = tuple(Row(name, size, slots[ring]) for name, size, ring in self.footprint.smem)
        return Table("SMEM per CTA", "bytes", rows, self.arch.smem_capacity)

    @property
    def tmem(self) -> Table:
        foot = self.footprint
        rows = [Row("accumulators", foot.acc_cols, int(self.config.num_acc_stage))]
        if _is_overlapped(self.config):
            rows.append(Row("overlap", -(foot.sfa_cols + foot.sfb_cols), 1))
        rows += [Row("SFA", foot.sfa_cols, 1), Row("SFB", foot.sfb_cols, 1)]
        notes = (("allocated", self.tmem_columns_allocated),)
        return Table("TMEM per SM", "columns", tuple(rows), self.arch.tmem_columns, notes)

    def __str__(self) -> str:
        return f"{self.smem}\n\n{self.tmem}"


def tmem_allocation(columns: int) -> int:
    """The smallest legal tcgen05.alloc that holds ``columns``: a power of two of at least 32."""
    return max(MIN_TMEM_COLUMNS, 1 << (columns - 1).bit_length())


def footprint(config: KernelConfig, problem_class: ProblemClass, arch: Arch) -> Footprint:
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
) -> Footprint:
    # Imported here: build_key and the stores behind it are not needed by those who only print budgets.
    from kernel_space import footprint_store
    from kernel_space.readback import read_footprint

    mma_tiler_mn, mma_tiler_k, epi_tile_n, swap_ab, splits = shape
    one_slot = KernelConfig(
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
    kernel = arch(arch_name).kernel
    key = f"{arch_name} {problem_class} {one_slot}"
    fields = footprint_store.load(kernel, key)
    if fields is None:
        fields = read_footprint(one_slot, problem_class, arch_name)
        footprint_store.save(kernel, key, fields)
    return Footprint(**{**fields, "smem": tuple(tuple(row) for row in fields["smem"])})


def budget(config: KernelConfig, problem_class: ProblemClass, arch: Arch) -> Budget:
    """Budget of a config whose stage counts are numbers; whether it fits is for the caller to see."""
    return Budget(footprint(config, problem_class, arch), config, arch)


def solve_stages(config: KernelConfig, problem_class: ProblemClass, arch: Arch) -> KernelConfig:
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


def _solve_acc(config: KernelConfig, foot: Footprint, arch: Arch) -> int:
    if config.num_acc_stage != AUTO:
        return int(config.num_acc_stage)
    overlapped = config.mma_tiler_mn[1] == OVERLAPPING_N
    return ACC_STAGES if foot.tmem_columns(ACC_STAGES, overlapped) <= arch.tmem_columns else 1


def _solve_lora(config: KernelConfig, foot: Footprint, slots: dict[str, int], arch: Arch) -> int:
    if config.num_lora_stage != AUTO:
        return int(config.num_lora_stage)
    if foot.ring_bytes["lora"] == 0:
        return 0
    ab_is_auto = config.num_ab_stage == AUTO
    wanted = AB_STAGES_BESIDE_TWO_LORA_STAGES if ab_is_auto else int(config.num_ab_stage)
    beside_two = _free(foot, {**slots, "lora": LORA_STAGES}, "ab", arch)
    return LORA_STAGES if beside_two >= wanted else 1


def _free(foot: Footprint, slots: dict[str, int], ring: str, arch: Arch) -> int:
    """Slots of ``ring`` that fit beside the slots of all other rings."""
    spare = arch.smem_capacity - foot.smem_bytes({**slots, ring: 0})
    return spare // foot.ring_bytes[ring]


def _is_overlapped(config: KernelConfig) -> bool:
    return config.mma_tiler_mn[1] == OVERLAPPING_N and config.num_acc_stage == ACC_STAGES


def _slots(config: KernelConfig) -> dict[str, int]:
    """Ring -> slots; overlapped accumulators share one pair of barriers."""
    return {
        "ab": int(config.num_ab_stage),
        "lora": int(config.num_lora_stage),
        "acc": 1 if _is_overlapped(config) else int(config.num_acc_stage),
        "c": int(config.num_c_stage),
        "one": 1,
    }


def lora_slices(config: KernelConfig, r: int) -> int:
    """Slices of LoRA columns per tile; 0 without LoRA."""
    if r == 0:
        return 0
    return 1 if config.lora_tile_k == ALL else -(-r // int(config.lora_tile_k))
