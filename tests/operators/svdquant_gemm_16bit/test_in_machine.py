"""``wide`` executed: ragged shapes, every kind of knob and schedule, races on; weights to the bit, sums against float64."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from kernel_space.machine.run.schedules import SCHEDULES
from kernel_space.numerics.quad_order import SPAN
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from tests.numerics.nvfp4_oracle import blocked_offset, e2m1_value, e4m3_value
from tests.operators.svdquant_gemm_16bit.runs import DTYPES, ptx_of, right, run

SHALLOW = "num_ab_stage=2 num_dq_stage=2 num_lora_stage=1"
PLAIN = "tile_mnk=128x32x128"
ALONE = "tile_mnk=64x40x128 consumer_warpgroups=1"
CLUSTER = f"tile_mnk=128x24x128 cluster_shape_mn=2x1 {SHALLOW}"


def problem(shape: str, dtype: str = "bf16") -> HalfGemmProblem:
    return HalfGemmProblem.parse(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        (PLAIN, "1,32,8,0", "fp16"),
        (PLAIN, "33,160,136,16", "bf16"),
        (f"{ALONE} split_k=2 use_pdl=true", "33,416,136,0", "bf16"),
        (f"{ALONE} stream_k=true use_pdl=true", "130,416,136,16", "fp16"),
        (f"{CLUSTER} num_dq_stage=3", "33,96,136,128", "fp16"),
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_ragged_shapes_under_every_schedule(schedule: str, text: str, shape: str, dtype: str) -> None:
    if "num_dq_stage=3" in text:
        text = text.replace("num_dq_stage=2 ", "")
    elif shape.endswith(",0"):
        text = text.replace("num_lora_stage=1", "")
    right(text, problem(shape, dtype), schedule=schedule)


@pytest.mark.parametrize(("m", "k", "n", "r"), [(1, 96, 8, 16), (33, 32, 136, 0), (130, 160, 8, 128), (33, 416, 136, 16)])
@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        "tile_mnk=256x16x128 wgmma_k=32",
        "tile_mnk=128x16x128 consumer_warpgroups=1",  # two row blocks a warpgroup
        "tile_mnk=128x40x128 raster_order=n swizzle_size=2 epi_tile_n=16",
        f"{ALONE} stream_k=true wgmma_k=32",
        f"{ALONE} split_k=2 use_pdl=true",
        "tile_mnk=128x24x128 cluster_shape_mn=2x1 use_pdl=true",
    ],
)
def test_edges(text: str, m: int, k: int, n: int, r: int) -> None:
    """Each with one of the dtypes."""
    if "64x" in text:
        text = text.replace(" wgmma_k=32", "")  # for 64 rows and up a warpgroup: two blocks of 16 registers
    right(text, problem(f"{m},{k},{n},{r}", ("fp16", "bf16")[(m + k // 32) % 2]))


