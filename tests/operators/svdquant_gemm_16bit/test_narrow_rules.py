"""Rules of ``narrow``, its budget by hand and against the compiled kernel, its place in the search space."""

from __future__ import annotations

import dataclasses
import re

import pytest

from kernel_space.build.build import build
from kernel_space.build.resources import read_resources, sass_counts
from kernel_space.core.arch import SM90A
from kernel_space.core.registry import kernel
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.launch.capture import capture
from kernel_space.operators.svdquant_gemm_16bit.narrow.config import NarrowConfig
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.signature import SIGNATURE
from tests.operators.svdquant_gemm_16bit.runs import legal, ptx_of
from tuner.space.space import SearchSpace

FEW = HalfGemmProblem.parse("16,3840,3072,128", dtype="bf16")
BROKEN = {
    "tile_rows": ("tile_mnk=96x16x128", "must be 32, 64 or 128, got 96"),
    "tile_columns": ("tile_mnk=32x24x128", "one of 8 16 32 64, got 24"),
    "tile_k": ("tile_mnk=32x16x64", "must be 128"),
    "consumers": ("tile_mnk=32x16x128 consumer_warpgroups=3", "must be 1, 2 or 4, got 3"),
    "dequant_ahead": ("tile_mnk=32x16x128 dequant_ahead=2", "must be 0 or 1, got 2"),
    "ctas_per_sm": ("tile_mnk=32x16x128 ctas_per_sm=5", "between 1 and 4, got 5"),
    "accumulators": ("tile_mnk=32x32x128 ctas_per_sm=4", "can have 128 registers"),
    "stages": ("tile_mnk=32x16x128 num_ab_stage=2 num_dq_stage=2", "at most num_ab_stage 2, got 2 + 1"),
    "split_k": ("tile_mnk=32x16x128 split_k=9", "between 1 and 8 CTAs of a cluster, got 9"),
    "activation": ("tile_mnk=32x16x128", "activation=swiglu needs wide"),
}
GATED = dataclasses.replace(FEW, activation="swiglu")


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_has_its_name(rule: str) -> None:
    text, reason = BROKEN[rule]
    verdict = legalize(NarrowConfig.parse(text), GATED if rule == "activation" else FEW, SM90A)
    assert isinstance(verdict, Rejection) and verdict.rule == rule, verdict
    assert reason in verdict.reason


def test_every_rule_is_broken() -> None:
    assert set(BROKEN) == set(kernel("svdquant_gemm_16bit", "narrow").knob_rules)


@pytest.mark.parametrize(
    ("text", "shape", "rule"),
    [
        ("tile_mnk=32x16x128", "65,3840,3072,128", "tile_columns"),
        ("tile_mnk=32x64x128 num_ab_stage=3", "64,3840,3072,128", "stages"),
        ("tile_mnk=32x16x128 num_dq_stage=0", "16,3840,3072,128", "stages"),
        ("tile_mnk=32x16x128 num_ab_stage=20 num_dq_stage=4", "16,3840,3072,128", "smem_capacity"),
    ],
)
def test_refused(text: str, shape: str, rule: str) -> None:
    verdict = legalize(NarrowConfig.parse(text), HalfGemmProblem.parse(shape), SM90A)
    assert isinstance(verdict, Rejection) and verdict.rule == rule, verdict


def test_bytes_by_hand() -> None:
    """Two warps beside each other, four parts of K; a unit of 32 rows of weights is 64 bytes of codes and 8 scale
    factors of each, one of 16 rows of xs 256 bytes of each. Pieces of 16 bytes of 16 x 64 sums, thirds of them from
    each of three CTAs.
    """
    text = "kernel=narrow tile_mnk=64x16x128 consumer_warpgroups=2 split_k=3 num_ab_stage=3 num_dq_stage=2"
    rows = {row.name: row for row in legal(text, FEW).budget.smem.rows}
    assert rows["weights"].each == 8 * 32 * (64 + 8)
    assert rows["xs"].each == 4 * 16 * 256
    assert rows["sums of the cluster"].each == -(-16 * 16 // 3) * 16 * 3
    assert rows["wcscale"].each == rows["bias"].each == 64 * 4
    assert rows["arrived"].each == 8


@pytest.mark.parametrize(
    ("text", "solved"),
    [
        ("tile_mnk=32x8x128", (4, 3)),
        ("tile_mnk=32x16x128 ctas_per_sm=3", (4, 2)),  # 57 and 16 KB a slot of xs, of 75
        ("tile_mnk=32x16x128 num_ab_stage=2", (2, 1)),
        ("tile_mnk=32x16x128 num_ab_stage=2 dequant_ahead=0", (2, 2)),
        ("tile_mnk=128x64x128 consumer_warpgroups=2", (4, 3)),
    ],
)
def test_auto(text: str, solved: tuple[int, int]) -> None:
    found = legal(f"kernel=narrow {text}", FEW).config
    assert isinstance(found, NarrowConfig)
    assert (found.num_ab_stage, found.num_dq_stage) == solved


TIGHT = [
    ("tile_mnk=32x16x128 ctas_per_sm=4", "bf16"),
    ("tile_mnk=32x8x128 consumer_warpgroups=4 ctas_per_sm=2 dequant_ahead=0", "fp16"),
    ("tile_mnk=64x32x128 ctas_per_sm=3", "bf16"),
    ("tile_mnk=128x64x128 consumer_warpgroups=2 split_k=5", "bf16"),
    ("tile_mnk=64x64x128 consumer_warpgroups=2 dequant_ahead=0", "fp16"),
]


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("tile_mnk=32x16x128 split_k=4 ctas_per_sm=3 use_pdl=true", "bf16"),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in TIGHT),
    ],
)
def test_the_compiled_kernel_is_what_the_budget_says(text: str, dtype: str) -> None:
    """Shared memory, grid, cluster and threads of the launch; everything in registers."""
    problem = HalfGemmProblem.parse("16,3840,3072,128", dtype=dtype)
    resolved = legal(f"kernel=narrow {text}", problem)
    config = resolved.config
    assert isinstance(config, NarrowConfig)
    compiled = build(config, problem.problem_class, SM90A)
    pointers = {name: 1 << 20 | i << 40 for i, name in enumerate((*SIGNATURE.tensors(problem), "workspace"))}
    (launch,) = capture(compiled, *SIGNATURE.values(problem, pointers, clusters=1))
    rows, columns, _ = config.tile_mnk
    assert launch.smem_bytes == resolved.budget.smem_bytes <= resolved.budget.smem_limit
    assert launch.block == (128 * config.consumer_warpgroups, 1, 1)
    assert launch.grid == (3072 // rows * config.split_k, -(-16 // columns), 1)
    assert launch.cluster == (config.split_k, 1, 1) or config.split_k == 1
    assert bool(launch.attributes.get("programmatic_stream_serialization")) == config.use_pdl
    (used,) = read_resources(compiled.cubin_path).values()
    assert used.stack_bytes == used.spill_store_bytes == 0
    # 8 K blocks and two of LoRA, two blocks of 16 rows, tiles of 8 columns.
    assert sass_counts(compiled.cubin_path)["HMMA"] == 10 * 2 * columns // 8


def test_weights_alone_are_read_and_dequantized_before_the_kernel_before_has_ended() -> None:
    """By the order in the text: one dequantized unit stands before the wait, all stores and ``ldmatrix`` behind it."""
    ptx = ptx_of("kernel=narrow tile_mnk=32x16x128 split_k=4 ctas_per_sm=3 use_pdl=true", FEW)
    assert ptx.count("griddepcontrol.wait") == 1 and "griddepcontrol.launch_dependents" in ptx
    before, after = ptx.split("griddepcontrol.wait")
    assert not re.search(r"st\.global|ldmatrix|mma\.sync", before)
    assert before.count("mul.rn.bf16x2") >= 4 * 16 and "cp.async.cg" in before and "ldmatrix" in after


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_defaults_and_designs_are_legal(dtype: str) -> None:
    space = SearchSpace.load("svdquant_gemm_16bit", SM90A)
    for r in (0, 16, 128, 256):
        for shape in ("1,32,8", "8,3840,3072", "9,96,136", "16,12288,3072", "17,32,8", "64,3072,12288"):
            problem = HalfGemmProblem.parse(f"{shape},{r}", dtype=dtype)
            assert isinstance(legalize(space.default(problem), problem, SM90A), Legal), problem
            found = [one.config for one in space.kernels["narrow"].designs if one.holds(problem)]
            assert found
            for config in found:
                assert isinstance(legalize(config, problem, SM90A), Legal), (config, problem)
    assert space.default(FEW).kernel == "narrow"
