"""Budgets against published numbers, hand arithmetic, staged layouts and the compiled kernel."""

from __future__ import annotations

import re

import pytest

from kernel_space.build.readback import with_layouts
from kernel_space.core.arch import SM100A
from kernel_space.core.budget import Budget
from kernel_space.core.problem import ProblemClass
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.budget import budget, solve_stages, tmem_allocation
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tests.compiled_cases import compile_and_capture

R128 = GemmProblem.class_of(r=128)
# Published for SVDQuant W4A4 on B200, tile 256x128 over 2 CTAs, R = 128 whole, fp16; bytes per CTA and slot.
PUBLISHED_AB_STAGE = 28672
PUBLISHED_C_STAGE = 8192
PUBLISHED_LORA_ACT, PUBLISHED_LORA_UP = 32768, 16384
# num_lora_stage -> (num_ab_stage, num_lora_stage, num_c_stage) of the same source after its accounting fix.
PUBLISHED_SOLUTIONS = {0: (7, 0, 3), 1: (5, 1, 4), 2: (4, 2, 2), 3: (2, 3, 3)}


def _budget(text: str, problem_class: ProblemClass = R128) -> Budget:
    config = solve_stages(KernelConfigSm100a.parse(text), problem_class, SM100A)
    return budget(config, problem_class, SM100A)


def _each(table_of: Budget) -> dict[str, int]:
    return {row.name: row.each for row in table_of.smem.rows}


def test_published_bytes_per_slot() -> None:
    each = _each(_budget("lora_tile_k=all"))
    assert each["A"] + each["B"] + each["SFA"] + each["SFB"] == PUBLISHED_AB_STAGE
    assert each["C"] == PUBLISHED_C_STAGE
    assert (each["LoRA act"], each["LoRA up"]) == (PUBLISHED_LORA_ACT, PUBLISHED_LORA_UP)


@pytest.mark.parametrize("num_lora_stage", PUBLISHED_SOLUTIONS)
def test_published_stage_solutions(num_lora_stage: int) -> None:
    problem_class = R128 if num_lora_stage else GemmProblem.class_of(r=0)
    text = f"lora_tile_k=all num_lora_stage={num_lora_stage}"
    config = solve_stages(KernelConfigSm100a.parse(text), problem_class, SM100A)
    solution = (config.num_ab_stage, config.num_lora_stage, config.num_c_stage)
    assert solution == PUBLISHED_SOLUTIONS[num_lora_stage]


def test_pair_of_ctas_halves_both_lora_operands() -> None:
    """256x128 over two CTAs: 128 rows of act and 64 of up each, times 128 columns of 2 bytes."""
    each = _each(_budget("lora_tile_k=all"))
    assert each["LoRA act"] == 128 * 128 * 2
    assert each["LoRA up"] == 64 * 128 * 2
    one_cta = _each(_budget("mma_tiler_mn=128x128 cluster_shape_mn=1x1 lora_tile_k=all"))
    assert one_cta["LoRA up"] == 128 * 128 * 2


def test_lora_in_ab_stage_takes_no_memory_of_its_own() -> None:
    riding = _budget("lora_buffer=ab_stage num_lora_stage=0")
    assert "LoRA act" not in _each(riding)
    assert riding.config.num_ab_stage == _budget("", GemmProblem.class_of(r=0)).config.num_ab_stage


@pytest.mark.parametrize(
    ("text", "used", "allocated"),
    [
        # accumulators + SFA + SFB: 4 columns per 128 rows and 64 K elements for each scale-factor operand
        ("num_acc_stage=2", 2 * 128 + 16 + 16, 512),
        ("num_acc_stage=1", 128 + 16 + 16, 256),
        ("mma_tiler_k=128 num_acc_stage=1", 128 + 8 + 8, 256),
        ("mma_tiler_mn=128x64 cluster_shape_mn=1x1 num_acc_stage=1", 64 + 16 + 16, 128),
        ("mma_tiler_mn=128x64 cluster_shape_mn=1x1 num_acc_stage=2", 128 + 16 + 16, 256),
        ("mma_tiler_mn=256x192 num_acc_stage=2", 2 * 192 + 16 + 32, 512),
        ("mma_tiler_mn=256x256 num_acc_stage=1", 256 + 16 + 32, 512),
        # overlapped: 464 accumulator columns and 48 of scale factors
        ("mma_tiler_mn=256x256 num_acc_stage=2", 464 + 48, 512),
    ],
)
def test_tmem_columns_by_hand(text: str, used: int, allocated: int) -> None:
    result = _budget(text)
    assert (result.tmem_columns_used, result.tmem_columns_allocated) == (used, allocated)
    assert result.tmem.total == used


@pytest.mark.parametrize(("columns", "allocated"), [(1, 32), (32, 32), (33, 64), (257, 512), (512, 512)])
def test_tmem_allocation_is_a_power_of_two(columns: int, allocated: int) -> None:
    assert tmem_allocation(columns) == allocated


STAGED = [
    ("", 128),
    ("lora_tile_k=all", 48),
    ("lora_buffer=ab_stage num_lora_stage=0", 80),
    ("mma_tiler_mn=128x192 cluster_shape_mn=1x1 mma_tiler_k=128 epi_tile_n=64 swap_ab=true", 32),
    ("mma_tiler_mn=256x256 num_acc_stage=2 split_k=2", 256),
    ("mma_tiler_mn=256x64", 0),
]


@pytest.mark.parametrize(("text", "r"), STAGED)
@pytest.mark.parametrize("stages", [(2, 1, 1), (3, 2, 2), (5, 4, 3)])
def test_integers_equal_staged_layouts(text: str, r: int, stages: tuple[int, int, int]) -> None:
    """The solver multiplies one slot; the oracle is the size of the layouts with all slots built in."""
    problem_class = GemmProblem.class_of(r=r)
    num_ab, num_lora, num_c = stages
    config = KernelConfigSm100a.parse(text).replace(num_ab_stage=num_ab, num_c_stage=num_c)
    lora = num_lora if r and config.lora_buffer == "dedicated" else 0
    config = solve_stages(config.replace(num_lora_stage=lora), problem_class, SM100A)
    staged = with_layouts(
        config, problem_class, "sm_100a", lambda lay: {a.name: int(a.bytes) for a in lay.allocations()}
    )
    solved = {row.name: row.total for row in budget(config, problem_class, SM100A).smem.rows}
    assert solved == staged


def test_largest_counts_really_are_the_largest() -> None:
    """Brute force over the A/B count for tiles of both CTA groups."""
    for tile in ("128x64", "128x128", "256x128", "256x256"):
        cluster = "2x1" if tile.startswith("256") else "1x1"
        text = f"mma_tiler_mn={tile} cluster_shape_mn={cluster} num_lora_stage=1 num_c_stage=2"
        solved = _budget(text)
        fitting = [
            count
            for count in range(1, 40)
            if budget(solved.config.replace(num_ab_stage=count), R128, SM100A).smem_bytes <= 232448
        ]
        assert solved.config.num_ab_stage == max(fitting)


def test_table_prints_its_own_arithmetic() -> None:
    table = _budget("num_ab_stage=9 num_c_stage=1 num_lora_stage=1").smem
    lines = str(table).splitlines()
    rows = [re.fullmatch(r"(.{16})\s*(\d+)\s+(\d+)\s+(\d+)", line) for line in lines]
    totals = [int(row[4]) for row in rows if row]
    assert all(int(row[2]) * int(row[3]) == int(row[4]) for row in rows if row)
    assert lines[-1].split() == ["over", "by", str(sum(totals) - 232448)]


CORNERS = [
    "mma_tiler_mn={tile} cluster_shape_mn={cluster} mma_tiler_k=256",
    "mma_tiler_mn={tile} cluster_shape_mn={cluster} mma_tiler_k=128 lora_tile_k=all epi_tile_n=64",
    "mma_tiler_mn={tile} cluster_shape_mn={cluster} lora_buffer=ab_stage swap_ab=true epi_tile_n=16",
    "mma_tiler_mn={tile} cluster_shape_mn={cluster} num_acc_stage=1 split_k=2 num_c_stage=1",
]
TILES = [("128x64", "1x1"), ("128x256", "1x2"), ("256x192", "2x1"), ("256x256", "4x1")]


def _compiled_as_solved(text: str, r: int) -> bool:
    """False when the rules reject the config; else the compiled kernel must take what the solver says."""
    problem = GemmProblem(m=300, k=3840, n=1000, r=r)
    legal = legalize(KernelConfigSm100a.parse(text), problem, SM100A)
    if not isinstance(legal, Legal):
        return False
    compiled, launches = compile_and_capture(legal.config, problem)
    assert launches[0].smem_bytes == legal.budget.smem_bytes
    (columns,) = re.findall(r"mov\.b32\s+%r\d+, (\d+);\s+tcgen05\.alloc", compiled.ptx)
    assert int(columns) == legal.budget.tmem_columns_allocated
    return True


def test_solver_equals_compiled_kernel() -> None:
    assert _compiled_as_solved("", 128)
    assert _compiled_as_solved("mma_tiler_mn=128x64 cluster_shape_mn=1x1 mma_tiler_k=128 lora_tile_k=all", 32)
    assert _compiled_as_solved("mma_tiler_mn=256x256 split_k=2 swap_ab=true", 0)


@pytest.mark.slow
@pytest.mark.parametrize("r", [0, 32, 64, 128, 256])
@pytest.mark.parametrize(("tile", "cluster"), TILES)
def test_solver_equals_compiled_kernel_at_the_corners(tile: str, cluster: str, r: int) -> None:
    checked = [_compiled_as_solved(corner.format(tile=tile, cluster=cluster), r) for corner in CORNERS]
    assert sum(checked) >= len(CORNERS) - 1  # whole-R slices of R = 256 do not fit beside the largest tiles
