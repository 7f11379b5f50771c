"""``epi_tile_n`` of ``sm90a_ring`` and ``sm90a_expand``: boxes of y, bytes, rules, executed whole."""

from __future__ import annotations

import pytest

from kernel_space.core.arch import SM90A
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.compiled_cases import ADDRESS_STEP, FIRST_ADDRESS, compile_and_capture
from tests.operators.svdquant_gemm.candidates import EXPAND, PROBLEM, RING, legal, rejected
from tests.operators.svdquant_gemm.test_sm90a_expand import run_in_machine

WGT = "register_operand=wgt"
# 128 columns: races can be on (docs of the dequantizing warps).
ONE = f"{RING} tile_mnk=64x128x128 consumer_warpgroups=1"


@pytest.mark.parametrize(
    ("text", "each", "slots"),
    [
        (f"{EXPAND} tile_mnk=128x200x128", 8 * 16 * 32 * 2, 1),
        (f"{EXPAND} tile_mnk=128x200x128 epi_tile_n=16", 8 * 16 * 16 * 2, 1),
        (f"{EXPAND} tile_mnk=128x200x128 epi_tile_n=128", 8 * 16 * 128 * 2, 1),
        (f"{EXPAND} tile_mnk=64x200x128 pingpong=true epi_tile_n=64", 8 * 16 * 64 * 2, 1),
        (f"{RING} tile_mnk=256x64x128", 8 * 16 * 64 * 2, 2),
        (f"{RING} tile_mnk=128x64x128", 8 * 16 * 64 * 2, 1),
        (f"{RING} tile_mnk=128x64x128 epi_tile_n=16", 8 * 16 * 16 * 2, 2),
        (f"{RING} tile_mnk=256x64x128 epi_tile_n=32 {WGT}", 8 * 16 * 32 * 2, 2),
    ],
)
def test_bytes_by_hand(text: str, each: int, slots: int) -> None:
    """Eight warps, 16 rows of the tile each, two bytes; by default 32 columns (expand), all of them (ring)."""
    (row,) = [row for row in legal(text).budget.smem.rows if row.name == "C"]
    assert (row.each, row.copies) == (each, slots)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (f"{RING} tile_mnk=256x64x128 epi_tile_n=64", f"{RING} tile_mnk=256x64x128"),
        (f"{EXPAND} tile_mnk=128x200x128 epi_tile_n=32", f"{EXPAND} tile_mnk=128x200x128"),
        (f"{ONE} num_c_stage=2", f"{ONE} num_c_stage=1"),
        (
            f"{RING} tile_mnk=256x64x128 epi_tile_n=32 num_c_stage=5",
            f"{RING} tile_mnk=256x64x128 epi_tile_n=32 num_c_stage=4",
        ),
    ],
)
def test_one_spelling(text: str, plain: str) -> None:
    """What ``epi_tile_n=0`` stands for is spelled 0; slots that no part of a tile would reach are none."""
    assert legal(text) == legal(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{RING} epi_tile_n=24", "0 or one of 16 32 64 128, got 24"),
        (f"{RING} tile_mnk=256x104x128 epi_tile_n=16", "divide the 104 columns of the tile, got 16"),
        (f"{EXPAND} tile_mnk=128x24x128 epi_tile_n=64", "at most the 24 columns of the tile, got 64"),
    ],
)
def test_refused(text: str, message: str) -> None:
    verdict = rejected(text)
    assert (verdict.rule, message in verdict.reason) == ("epi_tile", True), verdict


@pytest.mark.parametrize(
    ("text", "box", "swizzle"),
    [
        (f"{RING} tile_mnk=256x128x128", (64, 16), 128),
        (f"{RING} tile_mnk=256x128x128 epi_tile_n=32", (32, 16), 64),
        (f"{RING} tile_mnk=128x128x128 pingpong=true epi_tile_n=16 num_c_stage=1", (16, 16), 32),
        (f"{RING} tile_mnk=256x96x128 epi_tile_n=32 {WGT}", (16, 32), 0),
    ],
)
def test_box_of_y(text: str, box: tuple[int, int], swizzle: int) -> None:
    """Columns, rows of y that one TMA store writes; what is asked for at launch is what the budget says."""
    resolved = legal(text)
    artifacts, (launch,) = compile_and_capture(resolved.config, PROBLEM, SM90A, 132)
    assert launch.smem_bytes == resolved.budget.smem_bytes
    (y,) = [each for each in launch.tensor_maps.values() if each.address == FIRST_ADDRESS + ADDRESS_STEP * 8]
    assert (y.dims, y.box, y.swizzle_bytes) == ((PROBLEM.n, PROBLEM.m), box, swizzle)
    assert "ld.local" not in artifacts.ptx and "st.local" not in artifacts.ptx


CASES = [
    (f"{ONE} epi_tile_n=32", "100,96,136,0", "fp16", "random"),
    (f"{EXPAND} tile_mnk=64x40x128 consumer_warpgroups=1 epi_tile_n=16", "60,96,72,0", "bf16", "random"),
]
MORE_CASES = [
    (f"{ONE} epi_tile_n=16 num_c_stage=1", "150,160,264,16", "bf16", "slow_epilogue"),
    (f"{ONE} epi_tile_n=32 num_c_stage=3", "150,160,264,0", "fp16", "random"),  # the ring does not divide four parts
    (f"{ONE} epi_tile_n=32 {WGT}", "150,160,264,48", "fp16", "slow_tma"),
    (f"{EXPAND} tile_mnk=128x72x128 epi_tile_n=64", "150,160,264,16", "fp16", "random"),
    (f"{EXPAND} tile_mnk=64x136x128 epi_tile_n=128 cluster_shape_mn=2x1 consumer_warpgroups=1", "150,160,264,0",
     "bf16", "slow_epilogue"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "schedule"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)],
)
def test_in_the_machine(text: str, shape: str, dtype: str, schedule: str) -> None:
    """Ragged M and N, races on: a slot is written again only when its store has read it."""
    problem = GemmProblem.parse(shape, lora_dtype=dtype, out_dtype=dtype)
    check = run_in_machine(text, problem, schedule=schedule)
    assert check.ok, check
