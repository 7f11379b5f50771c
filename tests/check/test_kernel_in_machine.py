"""The generated kernels executed: every corner of the space under all schedules, races on, against float64.

A *pairwise* cover: every value of every knob meets every value of every other knob in some candidate, wherever the
rules allow the pair. The oracle is ``reference.py``; ``check_candidate`` also compares the schedules bit by bit.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from kernel_space.build.build import build
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import SM100A, SM103A, Arch
from kernel_space.core.rules import Legal, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

KNOBS: dict[str, tuple[Any, ...]] = {
    "mma_tiler_mn": tuple((m, n) for m in (128, 256) for n in (64, 128, 192, 256)),
    "mma_tiler_k": (128, 256),
    "cluster_shape_mn": ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (1, 4), (4, 4)),
    "num_ab_stage": (1, 3, "auto"),
    "num_acc_stage": (1, 2),
    "num_c_stage": (1, 2),
    "lora_tile_k": (64, "all"),
    "lora_schedule": ("interleave", "tail"),
    "lora_buffer": ("dedicated", "ab_stage"),
    "raster_order": ("m", "n"),
    "swizzle_size": (1, 4),
    "epi_tile_n": (16, 32, 64, 128),
    "split_k": (1, 2, 4),
    "swap_ab": (False, True),
    "prefetch_dist": (0, 3),
    "use_pdl": (False, True),
    "r": (0, 16, 48, 64, 80, 128, 256),
    "lora_dtype": ("fp16", "bf16"),
    "out_dtype": ("fp16", "bf16"),
}
CLASS_KEYS = ("r", "lora_dtype", "out_dtype")
Point = dict[str, Any]
PARTS = 12  # the slow cover, cut so that one test stays within its time limit
TRIES = 400


def _legal(point: Point) -> tuple[GemmProblem, KernelConfigSm100a] | None:
    knobs = {name: value for name, value in point.items() if name not in CLASS_KEYS}
    problem = GemmProblem(m=4352, k=15360, n=3072, **{name: point[name] for name in CLASS_KEYS})
    verdict = legalize(KernelConfigSm100a(**knobs), problem, SM100A)
    return (problem, verdict.config) if isinstance(verdict, Legal) else None


def pairwise_cover() -> list[tuple[GemmProblem, KernelConfigSm100a]]:
    """Legal points that together hold every pair of values that any legal point of ``TRIES`` tries holds."""
    draw = random.Random(5)
    missing = {
        frozenset(((one, a), (other, b)))
        for one, other in itertools.combinations(KNOBS, 2)
        for a in KNOBS[one]
        for b in KNOBS[other]
    }
    cover: list[tuple[GemmProblem, KernelConfigSm100a]] = []
    for wanted in sorted(missing, key=lambda pair: sorted(map(str, pair))):
        if wanted not in missing:
            continue
        for _ in range(TRIES):
            point = {name: draw.choice(values) for name, values in KNOBS.items()} | dict(wanted)
            legal = _legal(point)
            if legal is not None:
                cover.append(legal)
                missing -= {frozenset(pair) for pair in itertools.combinations(point.items(), 2)}
                break
    return cover


def _check(problem: GemmProblem, config: KernelConfigSm100a, arch: Arch = SM100A) -> None:
    result = check_candidate(build(config, problem.problem_class, arch), config, problem)
    assert result.ok, f"{problem.problem_class} {config}\n{result.reason}\n{result}"


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", "4352,3840,3072,128"),
        pytest.param(
            "mma_tiler_mn=256x256 lora_buffer=ab_stage", "4352,3840,3072,256", marks=pytest.mark.slow
        ),
        pytest.param(
            "mma_tiler_mn=128x192 cluster_shape_mn=1x2 num_ab_stage=2 epi_tile_n=64",
            "4352,3840,3072,48",
            marks=pytest.mark.slow,
        ),
        ("mma_tiler_mn=128x64 cluster_shape_mn=1x1 swap_ab=true split_k=4 use_pdl=true", "17,3840,3072,32"),
        pytest.param(
            "mma_tiler_mn=256x64 cluster_shape_mn=4x2 raster_order=n swizzle_size=2",
            "4352,3840,3072,0",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_kernels_of_each_kind(text: str, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    verdict = legalize(KernelConfigSm100a.parse(text), problem, SM100A)
    assert isinstance(verdict, Legal), verdict
    _check(problem, verdict.config)


def test_sm_103a_runs_too() -> None:
    problem = GemmProblem.parse("4352,3840,3072,64", lora_dtype="bf16", out_dtype="bf16")
    verdict = legalize(KernelConfigSm100a(), problem, SM103A)
    assert isinstance(verdict, Legal)
    _check(problem, verdict.config, SM103A)


@pytest.mark.slow
def test_cover_holds_every_value_of_every_knob() -> None:
    cover = pairwise_cover()
    for name in ("mma_tiler_mn", "cluster_shape_mn", "epi_tile_n", "split_k", "swap_ab", "raster_order"):
        assert {getattr(config, name) for _, config in cover} == set(KNOBS[name])
    assert {problem.r for problem, _ in cover} == set(KNOBS["r"])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
def test_pairwise_cover_of_the_space(part: int) -> None:
    for problem, config in pairwise_cover()[part::PARTS]:
        _check(problem, config)
