"""Rules of the kernels: what is legal compiles without spills and fits, what is not says why; defaults and designs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernel_space.build.build import refuse_serialized
from kernel_space.build.resources import read_resources, sass_counts
from kernel_space.core.arch import arch
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.smooth_lora_down.problem import SmoothProblem
from kernel_space.operators.smooth_lora_down.smooth_mma.config import SmoothMmaConfig
from kernel_space.operators.smooth_lora_down.smooth_rows.config import SmoothRowsConfig
from kernel_space.operators.smooth_lora_down.smooth_rows.spec import KERNEL as ROWS
from kernel_space.operators.smooth_lora_down.smooth_tma.config import SmoothTmaConfig
from tests.operators.smooth_lora_down.runs import compiled
from tuner.space.space import SearchSpace

H200 = arch("sm_90a")
ALONE, WITH_LORA = SmoothProblem.parse("4352,3840,0"), SmoothProblem.parse("4352,3840,128")

BROKEN = {
    "threads_per_cta": (
        "threads_per_cta=96",
        "threads_per_cta must be one of 32, 64, 128, 256, 512, 1024, got 96",
    ),
    "threads_per_row": (
        "threads_per_row=2",
        "threads_per_row must be a power of two from 4 (64 columns, 16 a thread) to threads_per_cta 128, got 2",
    ),
    "threads_per_row ": ("threads_per_row=12", "threads_per_row must be a power of two from 4"),
    "threads_per_row  ": ("threads_per_row=256", "threads_per_row must be a power of two from 4"),
    "row_loads": ("row_loads=3", "row_loads must be one of 1, 2, 4, 8, got 3"),
    "rows": (
        "rows=24",
        "rows must be a multiple of threads_per_cta / threads_per_row * row_loads, at most 1024, got 24 and 128 / 16",
    ),
    "rows ": ("rows=0", "rows must be a multiple of"),
    "rows  ": ("rows=2048", "rows must be a multiple of"),
    "ctas_per_sm": ("ctas_per_sm=17", "ctas_per_sm must be from 1 to 16 with threads_per_cta=128, got 17"),
    "ctas_per_sm ": ("ctas_per_sm=0", "ctas_per_sm must be from 1 to 16"),
    "registers": (
        "ctas_per_sm=10",
        "a thread must have 58 registers (22 of loads, 16 of smooth, 20), 1280 threads an SM leave it 48; use fewer",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_has_a_name_and_a_reason(name: str) -> None:
    text, reason = BROKEN[name]
    verdict = legalize(SmoothRowsConfig.parse(text), ALONE, H200)
    assert isinstance(verdict, Rejection)
    assert verdict.rule == name.strip() and verdict.reason.startswith(reason)


def test_every_rule_of_rows_is_broken() -> None:
    assert {name.strip() for name in BROKEN} | {"tiles", "rank"} == set(ROWS.knob_rules)
    verdict = legalize(SmoothRowsConfig(), WITH_LORA, H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "rank"
    assert verdict.reason == "R must be 0, got 128; kernel=smooth_mma computes lora_act_in"
    narrow = SmoothRowsConfig.parse("rows=4 threads_per_cta=32 threads_per_row=16 row_loads=1")
    large = SmoothProblem.parse("2147483520,1056,0")
    verdict = legalize(narrow, large, H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "tiles"
    assert str(2147483520 // 4 * 5) in verdict.reason
    assert isinstance(legalize(narrow, SmoothProblem.parse("2147483520,768,0"), H200), Legal)


@pytest.mark.parametrize(
    ("config", "slots", "most"),
    # 16 KB a chunk of lora_down; 64 rows of x are 8 more, and 1 / smooth
    [(SmoothMmaConfig(), "num_b_stage", 4), (SmoothTmaConfig(), "num_stage", 8)],
)
def test_the_others_are_for_lora_down_and_have_the_rules_of_the_quantizer(
    config: SmoothMmaConfig | SmoothTmaConfig, slots: str, most: int
) -> None:
    verdict = legalize(config, ALONE, H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "rank"
    assert verdict.reason == "R must be above 0, got 0; kernel=smooth_rows smooths alone"
    own = kernel("smooth_lora_down", config.kernel)
    other = kernel("nvfp4_quantize", config.kernel.replace("smooth", "lora"))
    # There is no padding that a turn without a chunk would clear too early.
    assert [*own.knob_rules] == [name for name in other.knob_rules if name != "idle_turns"]
    verdict = legalize(config.replace(split_k=9), WITH_LORA, H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "split_k"
    verdict = legalize(config.replace(**{slots: 16}), WITH_LORA, H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "smem_capacity"
    verdict = legalize(config, WITH_LORA, H200)
    assert isinstance(verdict, Legal) and getattr(verdict.config, slots) == most


@pytest.mark.parametrize("shape", ["1,32", "64,3840", "65,96", "256,3840", "257,3840", "511,32", "512,3840"])
@pytest.mark.parametrize("r", [0, 16, 128, 144, 256, 272, 368, 512])
@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
def test_the_default_is_legal(shape: str, r: int, x_dtype: str) -> None:
    space = SearchSpace.load("smooth_lora_down", H200)
    for factor in (1, 5, 100):
        m, k = map(int, shape.split(","))
        problem = SmoothProblem(m=m * factor, k=k, r=r, x_dtype=x_dtype)
        config = space.default(problem)
        assert isinstance(legalize(config, problem, H200), Legal)
        wanted = "smooth_rows" if not r else "smooth_tma" if problem.m > 256 or r <= 128 else "smooth_mma"
        assert config.kernel == wanted


@pytest.mark.parametrize("shape", ["1,3840,128", "256,3840,64", "1024,3840,128", "4352,3840,128"])
def test_designs_are_legal(shape: str) -> None:
    space, problem = SearchSpace.load("smooth_lora_down", H200), SmoothProblem.parse(shape)
    found = [
        design.config for one in space.kernels.values() for design in one.designs if design.holds(problem)
    ]
    assert found and all(isinstance(legalize(config, problem, H200), Legal) for config in found)


def test_there_is_no_space_for_another_architecture() -> None:
    with pytest.raises(InputError, match="smooth_lora_down has kernels for sm_90a, none for sm_100a"):
        SearchSpace.load("smooth_lora_down", arch("sm_100a"))


@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("r", "text"),
    [
        (0, "kernel=smooth_rows"),
        (0, "kernel=smooth_rows row_loads=1 ctas_per_sm=10"),
        (0, "kernel=smooth_rows row_loads=2 ctas_per_sm=8"),
        (0, "kernel=smooth_rows row_loads=4 ctas_per_sm=6"),
        (0, "kernel=smooth_rows row_loads=8 ctas_per_sm=4 rows=64"),
        (128, "kernel=smooth_mma rows_per_warp=32 warps_m=4 split_k=7"),
        (128, "kernel=smooth_mma warps_m=4 ctas_per_sm=3"),
        (256, "kernel=smooth_mma warps_m=4 split_k=8"),
        (256, "kernel=smooth_mma warps_m=1 warps_k=4 split_k=8 ctas_per_sm=1"),
        (128, "kernel=smooth_tma tile_m=104 quant_warps=12 split_k=3"),
        (128, "kernel=smooth_tma tile_m=16 quant_warps=4 split_k=8 ctas_per_sm=2 use_pdl=true"),
        (128, "kernel=smooth_tma tile_m=64 split_k=8"),
        (192, "kernel=smooth_tma tile_m=48"),
        (256, "kernel=smooth_tma tile_m=32 quant_warps=8 split_k=8"),
        (256, "kernel=smooth_tma tile_m=40 quant_warps=12 split_k=2"),
    ],
)
def test_defaults_and_designs_keep_all_in_registers(x_dtype: str, r: int, text: str, tmp_path: Path) -> None:
    artifacts = compiled(text, r, x_dtype)
    refuse_serialized(artifacts)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(artifacts.cubin)
    (used,) = read_resources(path).values()
    # At the end a loading warp of 24 registers adds up as many sums as CTAs share rows: of eight it sets some aside.
    most = 24 if "smooth_tma" in text and "split_k=8" in text else 0
    assert used.stack_bytes == used.spill_store_bytes <= most


@pytest.mark.parametrize(("loads", "ctas"), [(1, 16), (2, 10), (4, 8), (8, 4)])
def test_without_smooth_more_fits_into_registers(loads: int, ctas: int, tmp_path: Path) -> None:
    text = f"kernel=smooth_rows rows=64 row_loads={loads} ctas_per_sm={ctas}"
    assert isinstance(legalize(SmoothRowsConfig.parse(text), ALONE, H200), Rejection) == (ctas > 4)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled(text, 0, "fp16", "none").cubin)
    (used,) = read_resources(path).values()
    assert used.spill_store_bytes == 0


def test_the_code_is_what_the_page_says(tmp_path: Path) -> None:
    """Of a row a lane: two stores of 16 bytes, eight conversions; a warp has two octets of rows of a chunk or one, each
    in code of its own. Of two sums two stores and conversions. Without smooth bytes are permuted alone. Two wgmma cover
    128 columns of lora_down, of each of 4 blocks of K.
    """
    text = "kernel=smooth_tma tile_m=104 quant_warps=12 split_k=3"
    ptx = compiled(text, 128, "bf16").ptx
    assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == 2 * 3
    assert len(re.findall(r"cvt\.rn\.bf16x2\.f32 %r", ptx)) == 8 * 3
    # A CTA of three owns 9 of 26 vectors, four sums each.
    assert len(re.findall(r"cvt\.rn\.bf16\.f32 [uv],", ptx)) == 9 * 4
    assert len(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n104k16\.f32\.bf16\.bf16", ptx)) == 8
    assert "e4m3" not in ptx and "mma.sync" not in ptx and "griddepcontrol" not in ptx
    moved = compiled(text, 128, "bf16", "none").ptx
    assert "cvt.rn.bf16x2.f32 %r" not in moved and "mul.rn.f32" not in moved
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled(text, 128, "bf16").cubin)
    assert sass_counts(path)["HGMMA"] == 8
    rows = compiled("kernel=smooth_rows rows=8 row_loads=1", 0).ptx
    assert ".shared" not in rows and rows.count("st.global.v4.b32") == 2
