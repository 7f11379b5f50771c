"""Rules of ``wide``, its budget against the compiled kernel, its workspace, defaults and designs."""

from __future__ import annotations

import re

import pytest

from kernel_space.build.build import build
from kernel_space.build.resources import read_resources, sass_counts
from kernel_space.core.arch import SM90A, arch
from kernel_space.core.errors import InputError
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.launch.capture import capture
from kernel_space.operators.svdquant_gemm_16bit.problem import HalfGemmProblem
from kernel_space.operators.svdquant_gemm_16bit.signature import SIGNATURE
from kernel_space.operators.svdquant_gemm_16bit.traffic import fill_bytes
from kernel_space.operators.svdquant_gemm_16bit.wide.config import WideConfig
from kernel_space.operators.svdquant_gemm_16bit.wide.spec import KERNEL
from tests.operators.svdquant_gemm_16bit.runs import LAYER, legal, ptx_of
from tuner.space.space import SearchSpace

SMS = 132
BROKEN = {
    "tile_rows": "tile_mnk=96x128x128",
    "tile_columns": "tile_mnk=128x12x128",
    "tile_k": "tile_mnk=128x128x64",
    "consumers": "consumer_warpgroups=3",
    "accumulators": "tile_mnk=256x152x128",
    "cluster_shape": "cluster_shape_mn=1x2",
    "stages": "num_dq_stage=1",
    "epi_tile": "epi_tile_n=12",
    "wgmma_k": "wgmma_k=64",
    "swizzle": "swizzle_size=0",
    "split_k": "split_k=0",
    "stream_k": "stream_k=true split_k=2",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_has_its_name(rule: str) -> None:
    verdict = legalize(WideConfig.parse(BROKEN[rule]), LAYER, SM90A)
    assert isinstance(verdict, Rejection) and verdict.rule == rule, verdict
    assert verdict.reason


def test_every_rule_is_broken() -> None:
    assert set(BROKEN) == set(KERNEL.knob_rules)


def test_too_many_slots_are_refused() -> None:
    verdict = legalize(WideConfig.parse("tile_mnk=128x256x128 num_dq_stage=8"), LAYER, SM90A)
    assert isinstance(verdict, Rejection) and verdict.rule == "smem_capacity"


def test_knobs_without_effect_take_one_value() -> None:
    problem = HalfGemmProblem.parse("4352,3840,3072,0")
    spelled = legal("tile_mnk=128x200x128 epi_tile_n=32 num_lora_stage=2", problem).config
    assert spelled == legal("tile_mnk=128x200x128", problem).config


def test_bytes_of_one_slot_by_hand() -> None:
    """128x200x128: 64 bytes a packed row of weights and two blocks of scales a k-tile, 128 bytes a row of 64 of xs."""
    each = {row.name: row.each for row in legal("tile_mnk=128x200x128").budget.smem.rows}
    assert each["dequantized"] == 200 * 128
    assert each["rows"] == 128 * 64
    assert each["row scales"] == 2 * 512
    assert each["LoRA rows"] == 128 * 128
    assert each["C"] == 8 * 32 * 16 * 2  # 32 rows of 16 columns of y for each of 8 warps
    assert not {"columns", "column scales", "LoRA columns", "wcscale", "bias"} & set(each)


@pytest.mark.parametrize("r", [0, 16, 128, 256])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_auto_always_fits(r: int, dtype: str) -> None:
    """Every tile of the search space, alone and with the others' warpgroups; what is left is less than a slot more."""
    space = SearchSpace.load("svdquant_gemm_16bit", SM90A).kernels["wide"]
    problem = HalfGemmProblem.parse(f"4352,3840,3072,{r}", dtype=dtype)
    tiles = [WideConfig.parse(f"tile_mnk={tile}").tile_mnk for tile in space.knobs["tile_mnk"].choices]
    seen = 0
    for tile in tiles:
        for groups in (1, 2):
            config = WideConfig(tile_mnk=tile, consumer_warpgroups=groups)
            verdict = legalize(config, problem, SM90A)
            if isinstance(verdict, Rejection):
                assert verdict.rule in {"accumulators", "tile_rows", "consumers"}, (tile, groups, verdict)
                continue
            seen += 1
            budget = verdict.budget
            packed = sum(row.each for row in budget.smem.rows if row.name in {"rows", "row scales"})
            left = budget.smem_limit - budget.smem_bytes
            assert 0 <= left < packed + 1024 or verdict.config.num_ab_stage == 16, (tile, groups)
    assert seen > len(tiles)


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("tile_mnk=128x200x128 use_pdl=true", "4352,3840,3072,128", "bf16"),
        ("tile_mnk=128x256x128 cluster_shape_mn=2x1", "4352,3840,3072,128", "fp16"),
        pytest.param("tile_mnk=128x208x128", "1024,3840,3072,0", "bf16", marks=pytest.mark.slow),
        pytest.param("tile_mnk=256x136x128 wgmma_k=32", "333,3232,520,16", "bf16", marks=pytest.mark.slow),
        ("tile_mnk=64x64x128 consumer_warpgroups=1 stream_k=true", "60,3840,3072,128", "bf16"),
    ],
)
def test_the_compiled_kernel_is_what_the_budget_says(text: str, shape: str, dtype: str) -> None:
    """Shared memory, grid, cluster and threads of the launch; sums and weights in registers; boxes of xs."""
    problem = HalfGemmProblem.parse(shape, dtype=dtype)
    resolved = legal(text, problem)
    config = resolved.config
    compiled = build(config, problem.problem_class, SM90A)
    pointers = {name: 1 << 20 | i << 40 for i, name in enumerate((*SIGNATURE.tensors(problem), "workspace"))}
    rows, columns, _ = config.tile_mnk
    cluster = config.cluster_shape_mn[0]
    (launch,) = capture(compiled, *SIGNATURE.values(problem, pointers, clusters=SMS // cluster))
    assert launch.smem_bytes == resolved.budget.smem_bytes <= resolved.budget.smem_limit
    assert launch.block == (128 * (1 + config.consumer_warpgroups), 1, 1)
    assert launch.cluster == (cluster, 1, 1)
    if not config.stream_k:
        tiles = -(-problem.n // (rows * cluster)) * -(-problem.m // columns)
        assert launch.grid == (cluster, 1, min(SMS // cluster, tiles))
    assert bool(launch.attributes.get("programmatic_stream_serialization")) == config.use_pdl
    (xs,) = [one for one in launch.tensor_maps.values() if one.address == pointers["xs"]]
    padded = -(-problem.k // 64) * 64
    assert (xs.dims, xs.strides, xs.swizzle_bytes) == ((padded, problem.m), (padded * 2,), 128)
    assert xs.box[0] == 64
    (used,) = read_resources(compiled.cubin_path).values()
    assert used.stack_bytes == used.spill_store_bytes == 0
    kind = {"bf16": "bf16", "fp16": "f16"}[dtype]
    assert re.search(rf"wgmma\.mma_async\.sync\.aligned\.m64n{columns}k16\.f32\.{kind}\.{kind}", compiled.ptx)
    assert sass_counts(compiled.cubin_path)["HGMMA"]


def test_workspace_by_hand() -> None:
    """No activations: counters of 128-row, 200-column tiles and fp32 sums of each part, or flags and sums of CTAs."""
    problem = HalfGemmProblem.parse("1000,672,1032,48")
    assert KERNEL.room(legal("tile_mnk=128x200x128", problem).config, problem).size == 0
    split = KERNEL.room(legal("tile_mnk=128x200x128 split_k=3", problem).config, problem)
    assert split.zeroed == 256  # 9 * 5 counters of 4 bytes
    assert split.size == 256 + 9 * 5 * 3 * 128 * 200 * 4
    stream = KERNEL.room(legal("tile_mnk=128x200x128 stream_k=true", problem).config, problem)
    assert stream.zeroed == 144 * 8 * 4
    assert stream.size == 144 * 8 * 4 + 144 * 128 * 200 * 4


def test_traffic_by_hand() -> None:
    """Two tiles of 128 rows and one of 200 columns: weights at 9/16 of a byte, xs and LoRA at two bytes."""
    problem = HalfGemmProblem.parse("200,640,256,16")
    config = legal("tile_mnk=128x200x128", problem).config
    assert fill_bytes(config, problem) == 2 * (128 * (640 * 9 / 16 + 16 * 2) + 200 * (640 + 16) * 2)


def test_weights_alone_are_read_before_the_kernel_before_has_ended() -> None:
    """By the warps' order in the text: xs and lora_act_in are loaded by the warp that waits, behind its wait."""
    ptx = ptx_of("tile_mnk=128x200x128 use_pdl=true")
    assert ptx.count("griddepcontrol.wait") == 1 and "griddepcontrol.launch_dependents" in ptx
    before, after = ptx.split("griddepcontrol.wait")
    assert "cp.async.bulk.tensor" in before and "cp.async.bulk.tensor" in after
    assert not re.search(r"st\.global", before)


@pytest.mark.parametrize("r", [0, 16, 128, 256])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_defaults_and_designs_are_legal(r: int, dtype: str) -> None:
    space = SearchSpace.load("svdquant_gemm_16bit", SM90A)
    for shape in (
        "1,32,8",
        "64,3840,3072",
        "65,96,136",
        "256,3840,3072",
        "257,32,8",
        "1024,3840,3072",
        "4352,15360,3840",
    ):
        problem = HalfGemmProblem.parse(f"{shape},{r}", dtype=dtype)
        assert isinstance(legalize(space.default(problem), problem, SM90A), Legal), problem
    for m in (128, 512, 1024, 4352):
        problem = HalfGemmProblem.parse(f"{m},3840,3072,{r}", dtype=dtype)
        found = [one.config for one in space.kernels["wide"].designs if one.holds(problem)]
        assert found
        for config in found:
            assert isinstance(legalize(config, problem, SM90A), Legal), (config, problem)


def test_there_is_no_space_for_another_architecture() -> None:
    with pytest.raises(
        InputError,
        match="svdquant_gemm_16bit has kernels for sm_90a, none for sm_100a",
    ):
        SearchSpace.load("svdquant_gemm_16bit", arch("sm_100a"))
