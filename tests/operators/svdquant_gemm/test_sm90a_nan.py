"""A block of activations whose scale is NaN: its row of y is NaN, every other row is what it was.

Oracle: float64 of the same operands without that block, and IEEE 754, in which nothing but NaN comes of NaN.
"""

from __future__ import annotations

import pytest
import torch

from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.numerics.nvfp4_oracle import blocked_offset
from tests.operators.svdquant_gemm.candidates import EXPAND, RING, SMALL_M
from tests.operators.svdquant_gemm.test_sm90a_expand import execute_in_machine

NAN_BYTE = 0x7F
COLUMNS = "register_operand=act consumer_warpgroups=1"

# Each way in which the kernels dequantize activations: by the consumers of either operand, by producer warps, ahead
# in memory, in the two kernels for few rows.
CASES = [
    (f"{RING} tile_mnk=64x16x128 consumer_warpgroups=1 register_operand=act", "20,96,24,16"),
    (f"{RING} tile_mnk=64x16x128 consumer_warpgroups=1 register_operand=wgt", "20,96,24,0"),
    (f"{EXPAND} tile_mnk=64x40x128 consumer_warpgroups=1 split_k=2 use_pdl=true", "45,416,72,0"),
    (f"{SMALL_M} tile_mnk=32x8x128 num_ab_stage=3", "5,160,72,16"),
    (f"{SMALL_M} tile_mnk=64x32x128 consumer_warpgroups=1 split_k=2 num_dq_stage=2", "41,160,72,0"),
    (f"{SMALL_M} {COLUMNS} tile_mnk=64x40x128 ctas_per_sm=2 split_k=2 num_dq_stage=3", "40,672,72,0"),
]


@pytest.mark.parametrize(("text", "shape"), CASES)
def test_a_nan_scale_reaches_every_element_of_its_row_and_no_other(text: str, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    operands = make_operands(problem, seed=3)
    wanted, tolerance = operands.reference(), operands.tolerance(split_k=8)
    groups = problem.k // 16
    bad = {0: 0, problem.m // 2: groups // 2, problem.m - 1: groups - 1}
    for row, group in bad.items():
        operands.ascales[blocked_offset(row, group, groups)] = NAN_BYTE
        operands.act[row, 8 * group : 8 * group + 8] = 0  # zero times NaN is NaN too
    execute_in_machine(text, operands, check_races=False)
    others = [row for row in range(problem.m) if row not in bad]
    assert operands.y[list(bad)].isnan().all()
    assert ((operands.y[others].double() - wanted[others]).abs() <= tolerance[others]).all()
    assert torch.isfinite(wanted).all()
