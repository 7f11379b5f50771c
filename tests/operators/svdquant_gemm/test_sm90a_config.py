"""Configs of the sm_90a kernels: spelling, legality rule by rule, budgets by hand and against the compiled kernel."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kernel_space.build.build import CompileError, build
from kernel_space.build.dsl_compile import _ptxas_notes
from kernel_space.core.arch import SM90A
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernel_of, kernels_of
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.compiled_cases import compile_and_capture
from tests.operators.svdquant_gemm.candidates import EXPAND, PROBLEM, RING, SMALL_M, legal, parse, rejected

FEW_ROWS = GemmProblem.parse("64,3840,3072,128")
SMEM_LIMIT = 232448
SM_COUNT = 132


@pytest.mark.parametrize(
    "text",
    [
        RING,
        f"{RING} tile_mnk=256x104x128 num_ab_stage=3",
        f"{RING} register_operand=wgt split_k=5 use_pdl=true",
        f"{EXPAND} cluster_shape_mn=2x1 stream_k=true pingpong=true",
        f"{SMALL_M} tile_mnk=64x104x128 num_dequant_warpgroups=2 num_dq_stage=0",
    ],
)
def test_prints_as_it_parses(text: str) -> None:
    config = parse(text)
    assert parse(str(config)) == config
    assert set(text.split()) <= set(str(config).split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tile_mnk=256x128", "tile_mnk must be RxCxK such as 256x128x128, got '256x128'"),
        ("register_operand=b", "register_operand must be one of act, wgt, got 'b'"),
        ("use_pdl=1", "use_pdl must be true or false"),
        ("split_k=\u00b2", "split_k must be a whole number"),
        ("stages=3", "unknown knob 'stages'"),
        ("split_k=1 split_k=2", "knob 'split_k' is given twice"),
        ("split_k", "a config is written knob=value"),
        ("cluster_shape_mn=2x1", "unknown knob 'cluster_shape_mn'"),  # of sm90a_expand
    ],
)
def test_bad_spelling_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(f"{RING} {text}")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tile_mnk=256x128x128",
            "must begin with kernel=NAME, one of sm90a_ring, sm90a_expand, sm90a_small_m",
        ),
        ("kernel=sm90a split_k=2", "kernel must be one of sm90a_ring, sm90a_expand, sm90a_small_m"),
        ("kernel=sm100a", "kernel must be one of sm90a_ring, sm90a_expand, sm90a_small_m"),
        (f"{EXPAND} register_operand=wgt", "unknown knob 'register_operand'"),
        (f"{EXPAND} ctas_per_sm=2", "unknown knob 'ctas_per_sm'"),
        (f"{SMALL_M} raster_order=n", "unknown knob 'raster_order'"),
        (f"{SMALL_M} pingpong=true", "unknown knob 'pingpong'"),
        (f"{RING} stream_k=true", "unknown knob 'stream_k'"),
        (f"{RING} {EXPAND}", "these are knobs of kernel=sm90a_ring, got kernel=sm90a_expand"),
    ],
)
def test_a_kernel_has_its_own_knobs_alone(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert message in str(caught.value)


# Kernel -> rule -> a config that breaks it and none before it.
REJECTED = {
    RING: {
        "tile_rows": "tile_mnk=192x128x128",
        "tile_columns": "tile_mnk=256x100x128",
        "tile_k": "tile_mnk=256x128x64",
        "consumers": "tile_mnk=64x128x128",
        "pingpong": "pingpong=true split_k=2",
        "accumulators": "tile_mnk=256x152x128",
        "stages": "num_ab_stage=1",
        "epi_tile": "epi_tile_n=24",
        "dequant_groups": "num_dequant_warpgroups=3",
        "wgmma_k": "wgmma_k=64",
        "swizzle": "swizzle_size=3",
        "ctas_per_sm": "ctas_per_sm=3",
        "launch_registers": "tile_mnk=128x200x128",
        "split_k": "split_k=17",
        "activation": "tile_mnk=128x104x128",
        "smem_capacity": "num_ab_stage=9",
    },
    EXPAND: {
        "tile_rows": "tile_mnk=192x128x128",
        "tile_columns": "tile_mnk=256x100x128",
        "tile_k": "tile_mnk=256x128x64",
        "consumers": "tile_mnk=64x128x128",
        "pingpong": "pingpong=true stream_k=true",
        "accumulators": "tile_mnk=256x152x128",
        "cluster_shape": "cluster_shape_mn=3x1",
        "stages": "num_dq_stage=1",
        "epi_tile": "epi_tile_n=24",
        "wgmma_k": "wgmma_k=64",
        "swizzle": "swizzle_size=3",
        "split_k": "split_k=17",
        "stream_k": "stream_k=true split_k=2",
        "smem_capacity": "num_ab_stage=10",
    },
    SMALL_M: {
        "tile_rows": "tile_mnk=48x8x128",
        "tile_columns": "tile_mnk=64x24x128",
        "tile_k": "tile_mnk=32x8x64",
        "consumers": "consumer_warpgroups=5",
        "accumulators": "tile_mnk=32x64x128 num_dq_stage=0 consumer_warpgroups=4",
        "stages": "num_ab_stage=1",
        "ctas_per_sm": "ctas_per_sm=3",
        "split_k": "split_k=9",
        "activation": "tile_mnk=32x8x128",
        "smem_capacity": "register_operand=wgt tile_mnk=128x64x128 num_ab_stage=19",
    },
}


@pytest.mark.parametrize(
    ("kernel", "rule"), [(kernel, rule) for kernel in REJECTED for rule in REJECTED[kernel]]
)
def test_every_rule_rejects(kernel: str, rule: str) -> None:
    problem = FEW_ROWS if kernel == SMALL_M else PROBLEM
    if rule == "activation":
        problem = dataclasses.replace(problem, activation="swiglu")
    verdict = rejected(f"{kernel} {REJECTED[kernel][rule]}", problem)
    assert verdict.rule == rule
    assert any(character.isdigit() for character in verdict.reason)


def test_every_rule_is_tested() -> None:
    kernels = kernels_of(GemmProblem.operator, SM90A)
    assert {f"kernel={one.name}": one.rule_names for one in kernels} == {
        kernel: tuple(rules) for kernel, rules in REJECTED.items()
    }


@pytest.mark.parametrize("kernel", [RING, EXPAND])
def test_more_splits_than_k_tiles_are_refused(kernel: str) -> None:
    verdict = rejected(f"{kernel} split_k=3", GemmProblem.parse("16,256,3072,0"))
    assert str(verdict) == "split_k: every split needs a k-tile: K=256 has 2 of 128, got 3"


def test_one_wgmma_needs_registers_at_launch() -> None:
    """128 of 64 K registers for each of 512 threads: ptxas 13 compiles wgmma of 192 columns, not of 200 (C7602)."""
    problem = GemmProblem.parse("4352,3840,3072,0")
    assert legal(f"{RING} tile_mnk=128x192x128", problem).config.tile_mnk == (128, 192, 128)
    verdict = rejected(f"{RING} tile_mnk=128x200x128", problem)
    assert verdict.rule == "launch_registers"
    assert "start with 128 registers a thread, and ptxas wants 30 beside the 100" in verdict.reason


@pytest.mark.parametrize("kernel", [RING, EXPAND])
def test_without_lora_its_stages_are_no_knob(kernel: str) -> None:
    problem = GemmProblem.parse("4352,3840,3072,0")
    given, left = (legal(f"{kernel} num_lora_stage={count}", problem).config for count in ("2", "auto"))
    assert given == left and given.num_lora_stage == 0


def test_bytes_of_one_slot_by_hand() -> None:
    """256x128x128: 64 bytes a packed row, 4 scales a row and K block of 64, 128 bytes a dq row of 64."""
    each = {row.name: row.each for row in legal(RING).budget.smem.rows}
    assert (each["rows"], each["columns"]) == (256 * 64, 128 * 64)
    assert (each["row scales"], each["column scales"]) == (2 * 2 * 512, 2 * 512)
    assert each["dequantized"] == 128 * 128
    assert (each["LoRA rows"], each["LoRA columns"]) == (256 * 128, 128 * 128)
    assert each["C"] == 8 * 16 * 128 * 2  # 16 rows for each of 8 warps
    assert (each["wcscale"], each["bias"]) == (2 * 128 * 4, 2 * 128 * 4)  # a copy for each warpgroup


def test_tiles_off_the_block_grid_load_every_block_they_touch() -> None:
    """Tiles of 104 rows start at 0, 104, 208, ...: the second spans rows 104..207 of blocks 0 and 1."""
    each = {row.name: row.each for row in legal(f"{RING} tile_mnk=256x104x128").budget.smem.rows}
    assert each["column scales"] == 2 * 2 * 512
    each = {row.name: row.each for row in legal(f"{RING} tile_mnk=256x64x128").budget.smem.rows}
    assert each["column scales"] == 1 * 2 * 512


@pytest.mark.parametrize(
    ("text", "limit", "most"),
    [
        (RING, SMEM_LIMIT, 16),
        (f"{RING} tile_mnk=256x104x128", SMEM_LIMIT, 16),
        (f"{RING} tile_mnk=128x32x128 register_operand=wgt split_k=3", SMEM_LIMIT, 16),
        # Two CTAs share 228 KB of an SM, 1 KB of it reserved for each (CUDA programming guide, 9.0).
        (f"{RING} tile_mnk=128x16x128 register_operand=wgt ctas_per_sm=2", 228 * 1024 // 2 - 1024, 16),
        (EXPAND, SMEM_LIMIT, 16),
        (f"{EXPAND} tile_mnk=128x200x128 cluster_shape_mn=2x1", SMEM_LIMIT, 16),
        # Four blocks of the first kernel beside it, for each of which the system reserves 1 KB.
        (f"{EXPAND} tile_mnk=64x128x128 consumer_warpgroups=1", SMEM_LIMIT - 4 * 1024, 16),
        (f"{SMALL_M} tile_mnk=128x64x128 register_operand=wgt", SMEM_LIMIT, 8),
        (f"{SMALL_M} tile_mnk=32x16x128", SMEM_LIMIT, 4),
    ],
)
def test_solver_fills_the_limit(text: str, limit: int, most: int) -> None:
    """One more packed slot does not fit, or is more than it asks for."""
    problem_class = GemmProblem.class_of(r=128)
    kernel = kernel_of(parse(text), problem_class)
    config = kernel.solve_stages(parse(text), problem_class, SM90A)
    assert kernel.budget(config, problem_class, SM90A).smem_bytes <= limit
    more = config.replace(num_ab_stage=config.num_ab_stage + 1)
    assert config.num_ab_stage == most or kernel.budget(more, problem_class, SM90A).smem_bytes > limit


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("tile_mnk=256x128x128", "4352,3840,3072,128"),
        ("tile_mnk=256x104x128", "4352,3840,3072,48"),
        ("tile_mnk=128x16x128 register_operand=wgt split_k=5", "16,3840,3072,128"),
        ("tile_mnk=64x32x128 consumer_warpgroups=1 register_operand=wgt", "32,544,264,0"),
    ],
)
def test_compiled_kernel_asks_for_what_the_budget_says(text: str, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    resolved = legal(f"{RING} {text}", problem)
    artifacts, (launch,) = compile_and_capture(resolved.config, problem, SM90A, SM_COUNT)
    assert launch.smem_bytes == resolved.budget.smem_bytes
    assert launch.block[0] == 128 * (2 + resolved.config.consumer_warpgroups)
    rows, columns = (problem.n, problem.m) if resolved.config.swap_ab else (problem.m, problem.n)
    tiles = -(-rows // resolved.config.tile_mnk[0]) * -(-columns // resolved.config.tile_mnk[1])
    assert launch.grid == (1, 1, min(SM_COUNT, tiles * resolved.config.split_k))
    assert f"wgmma.mma_async.sync.aligned.m64n{resolved.config.tile_mnk[1]}k16.f32.f16.f16" in artifacts.ptx
    assert "ld.local" not in artifacts.ptx and "st.local" not in artifacts.ptx


SERIALIZED = f"{RING} tile_mnk=128x32x128 num_dequant_warpgroups=2 wgmma_k=32 ctas_per_sm=2"


def test_serialized_wgmma_is_a_compile_error(tmp_path: Path) -> None:
    """Two CTAs of five warpgroups leave 48 registers a thread, too few for wgmma in flight."""
    with pytest.raises(
        CompileError, match=r"^ptxas serializes wgmma \(C7512\): due to insufficient register resources$"
    ):
        build(legal(SERIALIZED).config, PROBLEM.problem_class, SM90A, cache_dir=tmp_path)


def test_log_of_ptxas_must_be_there(tmp_path: Path) -> None:
    log = tmp_path / "remarks.yaml"
    log.write_text(
        "  - Remark:      'ptxas output: ptxas info    : (C7519) warpgroup.arrive is injected in around line 9 by "
        "compiler to allow use of registers in GMMA in function ''kernel_0''\n"
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
        "non wgmma instructions defining accumulator registers in the function ''kernel_0''\n'\n"
    )
    assert _ptxas_notes(log) == (
        "C7519 warpgroup.arrive is injected in around line 9 by compiler to allow use of registers in GMMA",
        "C7510 Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
        "non wgmma instructions defining accumulator registers",
    )
    log.write_text("")
    with pytest.raises(AssertionError, match="no log of ptxas"):
        _ptxas_notes(log)
