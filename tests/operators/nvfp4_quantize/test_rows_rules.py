"""Rules of ``rows``: what is legal compiles and is right, what is not says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_space.build.resources import read_resources
from kernel_space.core.arch import arch
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from kernel_space.operators.nvfp4_quantize.rows.config import RowsConfig
from kernel_space.operators.nvfp4_quantize.rows.spec import KERNEL
from tests.operators.nvfp4_quantize.runs import ARCHS, compiled

PROBLEM = QuantizeProblem.parse("4352,3840,0")
H200 = arch("sm_90a")

BROKEN = {
    "tile": ("tile_mk=24x256", "M of tile_mk must be one of 1, 2, 4, 8, 16, 32, 64, 128, got 24x256"),
    "tile ": ("tile_mk=32x96", "K of tile_mk must be a multiple of 64, got 32x96"),
    "tile  ": ("tile_mk=32x0", "K of tile_mk must be a multiple of 64, got 32x0"),
    "vector_width": ("vector_width=4", "vector_width must be one of 8, 16, 32, got 4"),
    "threads_per_cta": (
        "threads_per_cta=96",
        "threads_per_cta must be one of 32, 64, 128, 256, 512, 1024, got 96",
    ),
    "threads_per_row": (
        "threads_per_row=2",
        "threads_per_row must be a power of two from 4 (64 columns of vector_width 16) to threads_per_cta 128, got 2",
    ),
    "threads_per_row ": ("threads_per_row=12", "threads_per_row must be a power of two from 4"),
    "row_loads": ("row_loads=3", "row_loads must be one of 1, 2, 4, 8, 16, got 3"),
    "rows_of_a_step": (
        "tile_mk=8x256",
        "threads_per_cta / threads_per_row * row_loads must divide M of tile_mk, got 128 / 16 * 2 = 16 and 8",
    ),
    "columns_of_a_pass": (
        "tile_mk=32x64",
        "threads_per_row * vector_width must divide K of tile_mk, got 16 * 16 = 256 and 64",
    ),
    "vectors_of_a_thread": (
        "tile_mk=32x4096",
        "the passes of a tile along K times row_loads must be at most 16, got 16 * 2; use a narrower tile_mk",
    ),
    "ctas_per_sm": ("ctas_per_sm=17", "ctas_per_sm must be from 1 to 16 with threads_per_cta=128, got 17"),
    "ctas_per_sm ": ("ctas_per_sm=0", "ctas_per_sm must be from 1 to 16"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_has_a_name_and_a_reason(name: str) -> None:
    text, reason = BROKEN[name]
    verdict = legalize(RowsConfig.parse(text), PROBLEM, H200)
    assert isinstance(verdict, Rejection)
    assert verdict.rule == name.strip() and verdict.reason.startswith(reason)


def test_every_rule_is_broken_above() -> None:
    assert {name.strip() for name in BROKEN} | {"tiles", "rank"} == set(KERNEL.knob_rules)


def test_a_rank_is_for_another_kernel() -> None:
    verdict = legalize(RowsConfig(), QuantizeProblem.parse("4352,3840,16"), H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "rank"
    assert verdict.reason == "R must be 0, got 16; kernel=lora_mma computes lora_act_in"


def test_more_tiles_than_a_grid_has() -> None:
    config = RowsConfig.parse("tile_mk=1x64 threads_per_row=4 threads_per_cta=32 row_loads=1").replace(
        threads_per_row=32, tile_mk=(1, 512)
    )
    large = QuantizeProblem.parse("2147483520,1056,0")
    verdict = legalize(config, large, H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "tiles"
    assert str(2147483520 * 3) in verdict.reason
    assert isinstance(legalize(config, QuantizeProblem.parse("2147483520,512,0"), H200), Legal)


@pytest.mark.parametrize("name", [*ARCHS, "sm_103a"])
def test_the_default_is_legal_and_takes_no_shared_memory(name: str) -> None:
    verdict = legalize(RowsConfig(), PROBLEM, arch(name))
    assert isinstance(verdict, Legal)
    assert verdict.budget.smem_bytes == 0 and verdict.budget.tables == ()
    assert verdict.config == RowsConfig()


KNOBS = {
    "tile_mk": "tile_mk=64x256",
    "threads_per_cta": "threads_per_cta=64",
    "threads_per_row": "threads_per_row=32 tile_mk=32x512",
    "vector_width": "vector_width=8",
    "row_loads": "row_loads=4",
    "ctas_per_sm": "ctas_per_sm=2",
    "persistent": "persistent=true",
    "use_pdl": "use_pdl=true",
}


def test_every_knob_is_below() -> None:
    assert tuple(KNOBS) == RowsConfig.knob_names()


@pytest.mark.parametrize("arch_name", ARCHS)
@pytest.mark.parametrize("knob", KNOBS)
def test_every_knob_changes_the_code(knob: str, arch_name: str) -> None:
    """ctas_per_sm as the directive that ptxas takes its registers from."""
    plain, other = (compiled(text, "fp16", True, arch_name).ptx for text in ("", KNOBS[knob]))
    assert plain != other
    if knob == "use_pdl":
        assert "griddepcontrol.wait" in other and "griddepcontrol.wait" not in plain
    if knob == "ctas_per_sm":
        assert ".minnctapersm 2" in other and ".minnctapersm 4" in plain


@pytest.mark.parametrize("arch_name", ARCHS)
@pytest.mark.parametrize("x_dtype", ["fp16", "fp32"])
def test_the_default_keeps_everything_in_registers(arch_name: str, x_dtype: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled("", x_dtype, True, arch_name).cubin)
    (used,) = read_resources(path).values()
    assert used.stack_bytes == used.spill_store_bytes == 0 and used.registers <= 128


@pytest.mark.parametrize("arch_name", ARCHS)
@pytest.mark.parametrize("x_dtype", ["fp16", "bf16", "fp32"])
@pytest.mark.parametrize("smooth", [True, False])
def test_every_class_compiles_with_wide_loads_and_stores(arch_name: str, x_dtype: str, smooth: bool) -> None:
    ptx = compiled("", x_dtype, smooth, arch_name).ptx
    assert "ld.global.v4.b32" in ptx and "st.global.v2.b32" in ptx
    assert ("div.rn.f32" in ptx) == smooth
    assert ("e2m1x2" in ptx) == (arch_name == "sm_100a"), "sm_90a has no such conversion"
    assert ".shared" not in ptx
