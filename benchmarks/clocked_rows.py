"""Published B200 rows as launches that the clocked machine runs, with the protocol of their table.

Three tables, never mixed: NVIDIA's GEMM by events (a launch cost and the sustained clock are part of the constants);
one SVDQuant kernel under ncu (compared in SM-active cycles, which need no clock); the same kernel by events of a
Python loop (one additive cost per call for the whole table, fitted, up to 60 us). ``published_kernel`` stands in for
the SVDQuant kernel in both of its tables' protocols, as today's compiler makes it; ``listed_rows`` gives it the
warps of the compiler of that time.
"""

from __future__ import annotations

import csv
import dataclasses
import math
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.nvidia_gemm import TILES
from kernel_space.build.build import CompiledKernel, build
from kernel_space.core.arch import SM100A
from kernel_space.core.registry import kernel
from kernel_space.core.rules import Legal, legalize
from kernel_space.launch.capture import Launch
from kernel_space.machine.clock.clock import Clock, Times
from kernel_space.machine.clock.constants import cluster_places
from kernel_space.machine.clock.estimate import TimedRun, simulate_launch
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a
from tuner.simulated.time import capture_launch

DATA = Path(__file__).parents[1] / "tests" / "data"
SM_COUNT = 148
PUBLISHED = dataclasses.replace(
    kernel(GemmProblem.operator, "sm100a"), name="published", source="benchmarks.published_kernel"
)
TILE = "mma_tiler_mn=256x128 num_acc_stage=1 raster_order=n"
HIGHEST_LAUNCH_US = 60.0
# num_ab_stage, num_lora_stage, num_c_stage by R, where the table names none: what that kernel's solver chooses.
STAGES = {128: (4, 2, 2), 32: (6, 2, 4)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """``published``: microseconds, or SM-active cycles for ncu rows. ``cold``: L2 was flushed before.

    ``built``, ``config``: of the stand-in, None for NVIDIA's kernel.
    """

    table: str
    label: str
    problem: GemmProblem
    published: float
    ptx: str
    launch: Launch
    places: int
    cold: bool = False
    built: CompiledKernel | None = None
    config: KernelConfigSm100a | None = None

    def run(self, clock: Clock) -> TimedRun:
        return simulate_launch(
            self.launch, self.ptx, clock, sm_count=SM_COUNT, places=self.places, cold=self.cold
        )  # fmt: skip

    def cycles(self, clock: Clock) -> Times:
        return self.run(clock).cycles


def cutlass_rows(folder: Path) -> list[Row]:
    """NVIDIA's kernel as ``benchmarks.nvidia_gemm`` left it in ``folder``; loops over the same operands: L2 is warm."""
    rows = []
    for record in _read("cutlass_nvfp4_b200.csv"):
        m, k, n, tile = int(record["m"]), int(record["k"]), int(record["n"]), record["mma_tiler_mn"]
        problem = GemmProblem(m=m, k=k, n=n, r=0)
        rows.append(
            Row(
                table="CUTLASS", label=tile, problem=problem, published=problem.flops / float(record["tflops"]) * 1e-6,
                ptx=(folder / tile / "kernel.ptx").read_text(),
                launch=pickle.loads((folder / tile / f"{m}_{k}_{n}.pkl").read_bytes()),
                places=cluster_places(SM_COUNT, int(record["cta_group"])),
            )
        )  # fmt: skip
    return rows


def long_rows(folder: Path) -> list[Row]:
    """Launches of up to 1.2 ms with every tile of ``folder``; operands and output are larger than L2."""
    rows = []
    for record in _read("cutlass_nvfp4_long_b200.csv"):
        m, k, n = (int(record[name]) for name in "mkn")
        for tile, (_, cluster) in TILES.items():
            rows.append(
                Row(
                    table="CUTLASS, long", label=tile, problem=GemmProblem(m=m, k=k, n=n, r=0), cold=True,
                    published=float(record["us"]), ptx=(folder / tile / "kernel.ptx").read_text(),
                    launch=pickle.loads((folder / tile / f"{m}_{k}_{n}.pkl").read_bytes()),
                    places=cluster_places(SM_COUNT, math.prod(cluster)),
                )
            )  # fmt: skip
    return rows


def ncu_rows() -> list[Row]:
    """ncu flushes L2 before each pass: cold."""
    problem = GemmProblem.parse("4352,3840,3072,128")
    return [
        _stand_in(
            "ncu", f"ab={record['num_ab_stage']} lora=2", problem, float(record["sm_active_cycles"]),
            (int(record["num_ab_stage"]), 2, 2), cold=True,
        )
        for record in _read("svdquant_ncu_b200.csv")
    ]  # fmt: skip


def sweep_rows() -> list[Row]:
    rows = []
    for record in _read("svdquant_stage_sweep_b200.csv"):
        lora = int(record["num_lora_stage"])
        problem = GemmProblem.parse(f"4352,3840,3072,{128 if lora else 0}")
        stages = (int(record["num_ab_stage"]), lora, int(record["num_c_stage"]))
        rows.append(
            _stand_in("LoRA stages, events", f"lora={lora}", problem, float(record["us_per_launch"]), stages)
        )
    return rows


def shape_rows() -> list[Row]:
    rows = []
    for record in _read("svdquant_shapes_b200.csv"):
        problem = GemmProblem.parse(",".join(record[name] for name in "mknr"))
        us = problem.flops / float(record["tflops"]) * 1e-6
        rows.append(_stand_in("SVDQuant shapes, events", "256x128", problem, us, STAGES[problem.r]))
    return rows


def additive_cost(published: np.ndarray, us: np.ndarray) -> float:
    """One launch cost for a whole table: the median of what is missing, at most ``HIGHEST_LAUNCH_US``."""
    return float(np.clip(np.median(published - us), 0, HIGHEST_LAUNCH_US))


def _stand_in(
    table: str, label: str, problem: GemmProblem, published: float, stages: tuple[int, int, int], *,
    cold: bool = False,
) -> Row:  # fmt: skip
    """``stages``: num_ab_stage, num_lora_stage, num_c_stage."""
    text = f"{TILE} num_ab_stage={stages[0]} num_lora_stage={stages[1]} num_c_stage={stages[2]}"
    config = KernelConfigSm100a.parse(text + (" lora_tile_k=all" if problem.r else ""))
    legal = legalize(config, problem, SM100A)
    assert isinstance(legal, Legal) and isinstance(legal.config, KernelConfigSm100a), legal
    compiled = build(legal.config, problem.problem_class, SM100A, kernel=PUBLISHED)
    places = cluster_places(SM_COUNT, legal.config.cluster_size)
    return Row(
        table=table, label=label, problem=problem, published=published, ptx=compiled.ptx,
        launch=capture_launch(compiled, problem, places), places=places, cold=cold, built=compiled,
        config=legal.config,
    )  # fmt: skip


def _read(name: str) -> Iterator[dict[str, str]]:
    with (DATA / name).open() as lines:
        yield from csv.DictReader(line for line in lines if not line.startswith("#"))
