"""Published B200 measurements as (config, problem, microseconds): the witnesses of the timing model."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

from kernel_space.core.arch import SM100A, Arch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

DATA = Path(__file__).parent / "data"

# What NVIDIA's example resolves to at each tile with fp16 output: its stage counts are in the compiled kernels
# (docs/evidence/timing_model.md). Its N=256 tiles overlap two accumulators.
_CUTLASS = {
    "128x256": "cluster_shape_mn=1x1 num_ab_stage=3 num_c_stage=8",
    "256x128": "cluster_shape_mn=2x1 num_ab_stage=7 num_c_stage=3",
    "256x256": "cluster_shape_mn=2x1 num_ab_stage=5 num_c_stage=4",
}


@dataclasses.dataclass(frozen=True)
class B200:
    """The machine of the measurements."""

    arch: Arch = SM100A
    sm_count: int = 148


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """One row. ``tile`` as printed in the source; ``us`` is kernel time."""

    problem: GemmProblem
    config: KernelConfigSm100a
    tile: str
    us: float


def cutlass_rows() -> list[Published]:
    """NVIDIA's plain NVFP4 GEMM; the CSV has TFLOP/s, which are 2MNK over the time."""
    rows = []
    for record in _read("cutlass_nvfp4_b200.csv"):
        problem = GemmProblem(m=int(record["m"]), k=int(record["k"]), n=int(record["n"]), r=0)
        tile = record["mma_tiler_mn"]
        config = f"mma_tiler_mn={tile} {_CUTLASS[tile]} num_acc_stage=2 num_lora_stage=0"
        us = problem.flops / float(record["tflops"]) * 1e-6
        rows.append(Published(problem=problem, config=KernelConfigSm100a.parse(config), tile=tile, us=us))
    return rows


def svdquant_rows() -> list[Published]:
    """One SVDQuant kernel (256x128, whole LoRA operand per slot) before and after it got its A/B stages back."""
    problem = GemmProblem.parse("4352,3840,3072,128")
    common = "num_acc_stage=2 num_lora_stage=2 num_c_stage=2 lora_tile_k=all"
    return [
        Published(
            problem=problem,
            config=KernelConfigSm100a.parse(f"{common} num_ab_stage={record['num_ab_stage']}"),
            tile="256x128",
            us=float(record["duration_us"]),
        )
        for record in _read("svdquant_ncu_b200.csv")
    ]


def _read(name: str) -> list[dict[str, str]]:
    with (DATA / name).open() as lines:
        return list(csv.DictReader(line for line in lines if not line.startswith("#")))
