"""Layouts of the kernel ``fused``: those of ``wide``, with x in the place of xs, and what else its slots hold."""

from typing import Any

import cutlass
from cutlass import cute

from kernel_space.core.problem import ProblemClass
from kernel_space.operators.svdquant_gemm.parts.allocations import MBARRIER_BYTES, Allocation
from kernel_space.operators.svdquant_gemm.sm90a_parts.layouts import DQ_K
from kernel_space.operators.svdquant_gemm_16bit.wide.layouts import WideLayouts
from kernel_space.operators.svdquant_linear_16bit.fused.config import OCTET, FusedConfig

SUMS = "sums_full"  # the barrier at which a strip's sums of all CTAs of a cluster have arrived
INVERSE, BRANCH, BRANCH_FULL = "1 / smooth", "lora_act_in", "branch_full"
MOST_SMOOTH_AHEAD = 3  # k-tiles of smooth that are on their way
UNIT_R = 32  # of which a lane of a quad has eight neighbours, 16 bytes
LINE = 128  # bytes of all banks of shared memory
HALF_BYTES, WORD_BYTES = 2, 4


class FusedLayouts(WideLayouts):
    """Tiled MMAs and staged SMEM layouts of a resolved config."""

    def __init__(self, config: FusedConfig, problem_class: ProblemClass):
        super().__init__(config, problem_class)  # type: ignore[arg-type]  # has all knobs that are asked for
        self.down_tiles = -(-self.r // self.rows)  # of columns of lora_down, for each tile of rows of x
        # They lie where y is to lie at the end; the smallest part of it has two.
        self.smooth_ahead = min(MOST_SMOOTH_AHEAD, cute.cosize(self.c) * HALF_BYTES // self.smooth_bytes)

    def _make_rings(self) -> None:
        if self.r:
            # A unit of the low-rank branch is 32 of R, of which a slice has one or two.
            self.lora_k = 2 * UNIT_R if self.r > UNIT_R else UNIT_R
            self.num_lora_slices = -(-self.r // self.lora_k)
            # Of whole slices, as they are multiplied: beyond R there are zeros.
            self.branch_units = self.num_lora_slices * self.lora_k // UNIT_R
            # Half a line more than a whole number: two neighbouring rows are in different banks.
            self.branch_pitch = -(-self.branch_units * UNIT_R * HALF_BYTES // LINE) * LINE + LINE // 2
        super()._make_rings()
        stages = self.config.num_ab_stage
        # 16-bit 1 / smooth of a k-tile: of each quarter of a quad its pairs of neighbours, octet after octet.
        self.inverse = cute.make_layout((self.k // 2, stages))
        self.inverse_bytes = self.k * HALF_BYTES
        self.smooth_bytes = self.k * WORD_BYTES
        # lora_down has slots of 64 K where packed weights have slots of 128: four times the bytes a K element.
        self.down_slots = stages // 2
        self.down_bytes = self.rows * DQ_K * HALF_BYTES
        self.down = self._k_major(self.half, "K_SW128", (self.rows, DQ_K), max(1, self.down_slots))

    @property
    def sums(self) -> Any:
        """fp32 sums of a strip, where x has been: (value, thread, row block, octet of the strip, CTA of the sum)."""
        config = self.config
        threads = 32 * self.num_consumer_warps
        sums = cute.make_layout((4, threads, config.row_blocks, config.strip_octets, config.split_k))
        if cute.cosize(sums) * 4 > cute.cosize(self.dq) * HALF_BYTES:
            raise ValueError(f"sums {sums} must fit into the slots of x {self.dq}")
        return sums

    def barriers(self) -> list[tuple[str, int, str]]:
        found = super().barriers()
        if self.r:
            # As many as there are packed slots, of which half are used: so their number is a multiple of the slots.
            found += [(f"down_{side}", self.config.num_ab_stage, "ab") for side in ("full", "empty")]
            if self.copies_branch:
                found.append((BRANCH_FULL, 1, "one"))
        return [*found, (SUMS, 1, "one")]

    @property
    def copies_branch(self) -> bool:
        """Whether rows of lora_act_in lie beside the rings: where CTAs of a cluster own strips."""
        return self.r > 0 and self.config.split_k > 1

    def allocations(self) -> list[Allocation]:
        """Shared memory in the order in which the kernel lays it out."""
        regions = [region for region in super().allocations() if region.name != "split-K flag"]
        at = next(number for number, region in enumerate(regions) if region.align == MBARRIER_BYTES)
        own = [Allocation(INVERSE, cutlass.Uint32, self.inverse, "ab", 16)]
        if self.copies_branch:
            rows = cute.make_layout(self.config.strip_octets * OCTET * self.branch_pitch)
            own.append(Allocation(BRANCH, cutlass.Uint8, rows, "one", 16))
        return [*regions[:at], *own, *regions[at:]]
