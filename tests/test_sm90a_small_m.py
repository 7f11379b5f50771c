"""``mainloop=mma`` of the sm_90a kernel: executed in the machine against float64, rules, budget, launch."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from kernel_space.arch import SM90A
from kernel_space.build import refuse_serialized
from kernel_space.capture import CaptureRuntime, Launch
from kernel_space.config_sm90a import KernelConfigSm90a
from kernel_space.dsl_compile import Artifacts, compile_function
from kernel_space.dsl_env import import_dsl
from kernel_space.loading import load_bytes
from kernel_space.operands import make_operands
from kernel_space.problem import GemmProblem
from kernel_space.rules import Legal, Rejection, legalize
from kernel_space.sim.launch import Exported
from kernel_space.sim.run import run_compiled
from kernel_space.workspace import workspace_bytes, zeroed_bytes

PROBLEM = GemmProblem.parse("64,3840,3072,128")
FIRST_ADDRESS, ADDRESS_STEP, SM_COUNT = 0x7F00_0000_0000, 1 << 32, 132
SYNC, WGMMA = "mma.sync.aligned.m16n8k16", "wgmma.mma_async"


def parse(text: str) -> KernelConfigSm90a:
    return KernelConfigSm90a.parse(f"mainloop=mma {text}")


def legal(text: str, problem: GemmProblem = PROBLEM) -> Legal:
    verdict = legalize(parse(text), problem, SM90A)
    assert isinstance(verdict, Legal), verdict
    return verdict


@functools.cache
def compiled(config: KernelConfigSm90a, problem: GemmProblem) -> Artifacts:
    import_dsl("sm_90a")
    from kernel_space.kernels import svdquant_gemm_sm90a as kernel

    function, arguments = kernel.host_function(config, problem.problem_class, SM90A)
    return compile_function(function, arguments, {}, arch="sm_90a", prefix="case")[1]


# ------------------------------------------------------------------ executed

# Ragged in every size; parts of K that get nothing, R of half a unit, clusters off the powers of two, column tiles.
CASES = [
    ("tile_mnk=32x8x128 consumer_warpgroups=1", "1,544,264,0", "fp16", "fp16"),
    ("tile_mnk=32x8x128 num_ab_stage=3", "5,160,72,16", "bf16", "fp16"),
    ("tile_mnk=32x8x128 split_k=3 consumer_warpgroups=1", "3,32,8,16", "fp16", "fp16"),
    ("tile_mnk=64x16x128 split_k=3 num_ab_stage=2 use_pdl=true", "17,1120,136,48", "bf16", "bf16"),
    ("tile_mnk=64x16x128 num_dq_stage=2 consumer_warpgroups=1", "9,352,72,240", "fp16", "bf16"),
    ("tile_mnk=64x32x128 split_k=2 num_dq_stage=2 use_pdl=true", "41,672,72,112", "bf16", "bf16"),
    ("tile_mnk=128x128x128 num_dq_stage=3", "130,416,136,16", "bf16", "fp16"),
]
SLOW_CASES = [
    ("tile_mnk=96x8x128 consumer_warpgroups=3 split_k=5 use_pdl=true", "9,1376,200,256", "bf16", "fp16"),
    ("tile_mnk=128x64x128 consumer_warpgroups=4 split_k=4", "70,1184,392,112", "bf16", "bf16"),
    ("tile_mnk=32x64x128 num_dq_stage=0", "70,480,40,32", "fp16", "fp16"),
]


@pytest.mark.parametrize(
    ("text", "shape", "lora_dtype", "out_dtype"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
@pytest.mark.parametrize("schedule", ["eager", pytest.param("random", marks=pytest.mark.slow)])
def test_executed(
    text: str, shape: str, lora_dtype: str, out_dtype: str, schedule: str, tmp_path: Path
) -> None:
    """Every element within the derived tolerance of float64, no races, nothing outside of the operands touched."""
    from kernel_space.kernels.svdquant_gemm_sm90a import ARGUMENTS

    problem = GemmProblem.parse(shape, lora_dtype=lora_dtype, out_dtype=out_dtype)
    config = legal(text, problem).config
    artifacts = compiled(config, problem)
    object_path = tmp_path / "case.o"
    object_path.write_bytes(artifacts.object_code)
    operands = make_operands(problem, seed=3)
    tensors = operands.tensors().values()
    result = run_compiled(
        Exported(artifacts.ptx, object_path, artifacts.prefix, ARGUMENTS),
        *tensors, 0, problem.m, problem.n, problem.k, SM_COUNT, schedule=schedule,
    )  # fmt: skip
    assert result.ok, str(result)
    check = operands.check(split_k=config.partial_sums)
    assert check.ok, str(check)


# ------------------------------------------------------------------ rules, budget, workspace


@pytest.mark.parametrize(
    ("text", "rule", "message"),
    [
        ("tile_mnk=48x8x128", "tile_rows", "a multiple of 32 up to 256 for mma.sync, got 48"),
        ("tile_mnk=96x64x128", "tile_rows", "a multiple of 64 up to 256 for wgmma, got 96"),
        ("tile_mnk=64x24x128", "tile_columns", "one of 8 16 32 64 for mma.sync, got 24"),
        ("tile_mnk=64x8x128 num_dq_stage=2", "tile_columns", "one of 16 32 64 128 for wgmma, got 8"),
        ("tile_mnk=64x64x64", "tile_k", "must be 128"),
        ("tile_mnk=96x16x128", "consumers", "a multiple of the 3 that share 96 rows, got 2"),
        ("tile_mnk=32x8x128 consumer_warpgroups=5", "consumers", "must be 1 to 4"),
        (
            "tile_mnk=32x64x128 num_dq_stage=0 consumer_warpgroups=4",
            "accumulators",
            "128 registers can hold 16",
        ),
        ("tile_mnk=32x8x128 num_ab_stage=1", "stages", "num_ab_stage must be at least 2"),
        ("tile_mnk=64x64x128 num_dq_stage=1", "stages", "num_dq_stage must be 0"),
        ("tile_mnk=32x8x128 ctas_per_sm=4 consumer_warpgroups=1", "ctas_per_sm", "must be 1 or 2, got 4"),
        ("tile_mnk=32x8x128 split_k=9", "split_k", "between 1 and 8 CTAs of a cluster, got 9"),
        ("tile_mnk=64x64x128 num_ab_stage=9", "smem_capacity", "SMEM per CTA"),
    ],
)
def test_refused(text: str, rule: str, message: str) -> None:
    verdict = legalize(parse(text), PROBLEM, SM90A)
    assert isinstance(verdict, Rejection)
    assert (verdict.rule, message in verdict.reason) == (rule, True), verdict


def test_few_rows_of_act_only() -> None:
    problem = GemmProblem.parse("65,3840,3072,128")
    verdict = legalize(parse("tile_mnk=32x8x128"), problem, SM90A)
    assert isinstance(verdict, Rejection) and "M must be at most 64, got 65" in verdict.reason


def test_knobs_of_the_ring_kernel_take_one_value() -> None:
    spelled = "tile_mnk=32x8x128 register_operand=act raster_order=n swizzle_size=4 wgmma_k=32 num_c_stage=2 "
    spelled += "num_dequant_warpgroups=2 num_lora_stage=2 cluster_shape_mn=2x1"
    assert legal(spelled).config == legal("tile_mnk=32x8x128").config
    assert legal("tile_mnk=32x8x128").config.swap_ab


def test_auto_takes_wgmma_from_32_columns_on() -> None:
    assert [legal(f"tile_mnk=64x{columns}x128").config.num_dq_stage for columns in (8, 16, 32, 64)] == [
        0,
        0,
        3,
        3,
    ]


def test_bytes_of_one_slot_by_hand() -> None:
    """mma.sync, 8 warps: 4 pieces of weights, one of scales, one of act, 128 bytes of its scales."""
    each = {row.name: row.each for row in legal("tile_mnk=32x8x128").budget.smem.rows}
    assert each == {"operands": 8 * (4 * 512 + 512 + 512 + 128), "wcscale": 32 * 4, "bias": 32 * 4}


def test_bytes_of_wgmma_by_hand() -> None:
    """8 warps, 4 share rows and deal out 8 act tiles; two parts of K; the cluster's sums are one tile in two halves."""
    each = {row.name: row.each for row in legal("tile_mnk=64x64x128 split_k=2").budget.smem.rows}
    assert each["operands"] == 8 * (2 * 512 + 512 + 2 * (512 + 128))
    assert each["dequantized act"] == 2 * 64 * 128 * 2
    assert each["sums of the cluster"] == 64 * 64 * 4
    assert each["arrived"] == 8


def test_least_ring_holds_the_sums_of_a_warp() -> None:
    """64 act rows of 16 weight rows, padded by 4, in fp32: 5120 bytes, 2560 in each of two slots."""
    each = {row.name: row.each for row in legal("tile_mnk=128x64x128 consumer_warpgroups=4").budget.smem.rows}
    assert each["operands"] == 16 * 2560


def test_needs_no_workspace_and_sums_every_part_of_k() -> None:
    config = legal("tile_mnk=64x16x128 split_k=3").config
    assert workspace_bytes(config, PROBLEM) == zeroed_bytes(config, PROBLEM) == 0
    assert config.partial_sums == 3 * 4  # 8 warps, 2 of them share rows
    assert legal("tile_mnk=64x64x128 split_k=2").config.partial_sums == 2 * 2


# ------------------------------------------------------------------ compiled


def captured(config: KernelConfigSm90a, problem: GemmProblem) -> Launch:
    from kernel_space.kernels.svdquant_gemm_sm90a import ARGUMENTS, POINTERS

    artifacts = compiled(config, problem)
    runtime = CaptureRuntime(artifacts.ptx)
    with load_bytes(artifacts.object_code, artifacts.prefix, runtime, arguments=ARGUMENTS) as loaded:
        addresses = [FIRST_ADDRESS + ADDRESS_STEP * index for index in range(len(POINTERS))]
        loaded.call(*addresses, problem.m, problem.n, problem.k, SM_COUNT, 0)
    (launch,) = runtime.launches
    return launch


@pytest.mark.parametrize(
    ("text", "shape", "instruction", "grid"),
    [
        ("tile_mnk=32x8x128 use_pdl=true", "1,3840,3072,128", SYNC, (96, 1, 1)),
        (
            "tile_mnk=32x16x128 split_k=2 consumer_warpgroups=1 ctas_per_sm=2",
            "16,3840,3000,128",
            SYNC,
            (192, 1, 1),
        ),
        ("tile_mnk=64x64x128 split_k=2", "64,3840,3072,128", WGMMA, (96, 1, 1)),
        ("tile_mnk=128x64x128 split_k=4 consumer_warpgroups=4", "70,3840,3072,0", WGMMA, (96, 2, 1)),
    ],
)
def test_launch(text: str, shape: str, instruction: str, grid: tuple[int, int, int]) -> None:
    """One launch of the size that the rows and splits say, shared memory as the budget says, no spills, no TMA."""
    problem = GemmProblem.parse(shape)
    resolved = legal(text, problem)
    config = resolved.config
    artifacts, launch = compiled(config, problem), captured(config, problem)
    refuse_serialized(artifacts)
    assert (launch.grid, launch.cluster) == (grid, (config.split_k, 1, 1))
    assert launch.block == (128 * config.consumer_warpgroups, 1, 1)
    assert launch.smem_bytes == resolved.budget.smem_bytes
    assert bool(launch.attributes.get("programmatic_stream_serialization")) == config.use_pdl
    assert not launch.tensor_maps
    assert [name for name in (SYNC, WGMMA) if name in artifacts.ptx] == [instruction]
    assert "ld.local" not in artifacts.ptx and "st.local" not in artifacts.ptx


def test_weights_alone_are_read_before_the_previous_kernel_ends() -> None:
    """Up to ``griddepcontrol.wait`` no pointer of act, ascales, lora_act_in or y is dereferenced."""
    problem = GemmProblem.parse("1,3840,3072,128")
    text = compiled(legal("tile_mnk=32x8x128 use_pdl=true", problem).config, problem).ptx
    before, _, after = text.partition("griddepcontrol.wait")
    assert before.count("cp.async.cg.shared.global") == 4 + 1 + 1  # weights, their scales, wcscale and bias
    assert (
        "cp.async.ca" not in before and after.count("cp.async.ca") >= 1
    )  # 4-byte copies are those of ascales
    assert "griddepcontrol.launch_dependents" in after
