"""sm_90a configs: spelling, legality rule by rule, budgets by hand and against the compiled kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_space.build.build import CompileError, build
from kernel_space.build.dsl_compile import _ptxas_notes
from kernel_space.core.arch import SM90A, Arch
from kernel_space.core.errors import InputError
from kernel_space.core.registry import kernels_of
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a.budget import budget, solve_stages
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import KernelConfigSm90a
from tests.compiled_cases import compile_and_capture

PROBLEM = GemmProblem.parse("4352,3840,3072,128")
SMEM_LIMIT = 232448
SM_COUNT = 132


def rule_names(arch: Arch) -> tuple[str, ...]:
    (kernel,) = kernels_of(GemmProblem.operator, arch)
    return kernel.rule_names


def legal(text: str, problem: GemmProblem = PROBLEM) -> Legal:
    verdict = legalize(KernelConfigSm90a.parse(text), problem, SM90A)
    assert isinstance(verdict, Legal), verdict
    return verdict


@pytest.mark.parametrize(
    "text", ["", "tile_mnk=256x104x128 num_ab_stage=3", "register_operand=wgt split_k=5 use_pdl=true"]
)
def test_prints_as_it_parses(text: str) -> None:
    config = KernelConfigSm90a.parse(text)
    assert KernelConfigSm90a.parse(str(config)) == config
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
    ],
)
def test_bad_spelling_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        KernelConfigSm90a.parse(text)
    assert message in str(caught.value)


REJECTED = {
    "mainloop": "mainloop=expand",
    "tile_rows": "tile_mnk=192x128x128",
    "tile_columns": "tile_mnk=256x100x128",
    "tile_k": "tile_mnk=256x128x64",
    "consumers": "tile_mnk=64x128x128",
    "pingpong": "pingpong=true split_k=2",
    "accumulators": "tile_mnk=256x152x128",
    "cluster_shape": "cluster_shape_mn=3x1",
    "stages": "num_ab_stage=1",
    "epi_tile": "epi_tile_n=24",
    "dequant_groups": "num_dequant_warpgroups=3",
    "wgmma_k": "wgmma_k=64",
    "swizzle": "swizzle_size=3",
    "ctas_per_sm": "ctas_per_sm=3",
    "launch_registers": "tile_mnk=128x200x128",
    "split_k": "split_k=17",
    "stream_k": "stream_k=true split_k=2",
    "smem_capacity": "num_ab_stage=9",
}


@pytest.mark.parametrize("rule", REJECTED)
def test_every_rule_rejects(rule: str) -> None:
    verdict = legalize(KernelConfigSm90a.parse(REJECTED[rule]), PROBLEM, SM90A)
    assert isinstance(verdict, Rejection)
    assert verdict.rule == rule
    assert any(character.isdigit() for character in verdict.reason)


def test_every_rule_is_tested() -> None:
    assert set(rule_names(SM90A)) == set(REJECTED)


def test_more_splits_than_k_tiles_are_refused() -> None:
    verdict = legalize(KernelConfigSm90a.parse("split_k=3"), GemmProblem.parse("16,256,3072,0"), SM90A)
    assert str(verdict) == "split_k: every split needs a k-tile: K=256 has 2 of 128, got 3"


def test_one_wgmma_needs_registers_at_launch() -> None:
    """128 of 64 K registers for each of 512 threads: ptxas 13 compiles wgmma of 192 columns, not of 200 (C7602)."""
    problem = GemmProblem.parse("4352,3840,3072,0")
    assert isinstance(legalize(KernelConfigSm90a.parse("tile_mnk=128x192x128"), problem, SM90A), Legal)
    verdict = legalize(KernelConfigSm90a.parse("tile_mnk=128x200x128"), problem, SM90A)
    assert isinstance(verdict, Rejection) and verdict.rule == "launch_registers"
    assert "start with 128 registers a thread, and ptxas wants 30 beside the 100" in verdict.reason


def test_without_lora_its_stages_are_no_knob() -> None:
    problem = GemmProblem.parse("4352,3840,3072,0")
    assert legal("num_lora_stage=2", problem).config == legal("num_lora_stage=auto", problem).config


def test_bytes_of_one_slot_by_hand() -> None:
    """256x128x128: 64 bytes a packed row, 4 scales a row and K block of 64, 128 bytes a dq row of 64."""
    each = {row.name: row.each for row in legal("").budget.smem.rows}
    assert (each["rows"], each["columns"]) == (256 * 64, 128 * 64)
    assert (each["row scales"], each["column scales"]) == (2 * 2 * 512, 2 * 512)
    assert each["dequantized"] == 128 * 128
    assert (each["LoRA rows"], each["LoRA columns"]) == (256 * 128, 128 * 128)
    assert each["C"] == 8 * 16 * 128 * 2  # 16 rows for each of 8 warps
    assert (each["wcscale"], each["bias"]) == (2 * 128 * 4, 2 * 128 * 4)  # a copy for each warpgroup


def test_tiles_off_the_block_grid_load_every_block_they_touch() -> None:
    """Tiles of 104 rows start at 0, 104, 208, ...: the second spans rows 104..207 of blocks 0 and 1."""
    each = {row.name: row.each for row in legal("tile_mnk=256x104x128").budget.smem.rows}
    assert each["column scales"] == 2 * 2 * 512
    each = {row.name: row.each for row in legal("tile_mnk=256x64x128").budget.smem.rows}
    assert each["column scales"] == 1 * 2 * 512


@pytest.mark.parametrize(
    "text", ["", "tile_mnk=256x104x128", "tile_mnk=128x32x128 register_operand=wgt split_k=3"]
)
def test_solver_fills_the_limit(text: str) -> None:
    """One more slot of any ring left to the solver does not fit, or is more than it asks for."""
    problem_class = GemmProblem.class_of(r=128)
    config = solve_stages(KernelConfigSm90a.parse(text), problem_class, SM90A)
    assert budget(config, problem_class, SM90A).smem_bytes <= SMEM_LIMIT
    more = config.replace(num_ab_stage=int(config.num_ab_stage) + 1)
    assert config.num_ab_stage == 16 or budget(more, problem_class, SM90A).smem_bytes > SMEM_LIMIT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("", "4352,3840,3072,128"),
        ("tile_mnk=256x104x128", "4352,3840,3072,48"),
        ("tile_mnk=128x16x128 register_operand=wgt split_k=5", "16,3840,3072,128"),
        ("tile_mnk=64x32x128 consumer_warpgroups=1 register_operand=wgt", "32,544,264,0"),
    ],
)
def test_compiled_kernel_asks_for_what_the_budget_says(text: str, shape: str) -> None:
    problem = GemmProblem.parse(shape)
    resolved = legal(text, problem)
    artifacts, (launch,) = compile_and_capture(resolved.config, problem, SM90A, SM_COUNT)
    assert launch.smem_bytes == resolved.budget.smem_bytes
    assert launch.block[0] == 128 * (2 + resolved.config.consumer_warpgroups)
    rows, columns = (problem.n, problem.m) if resolved.config.swap_ab else (problem.m, problem.n)
    tiles = -(-rows // resolved.config.tile_mnk[0]) * -(-columns // resolved.config.tile_mnk[1])
    assert launch.grid == (1, 1, min(SM_COUNT, tiles * resolved.config.split_k))
    assert f"wgmma.mma_async.sync.aligned.m64n{resolved.config.tile_mnk[1]}k16.f32.f16.f16" in artifacts.ptx
    assert "ld.local" not in artifacts.ptx and "st.local" not in artifacts.ptx


def test_knobs_are_explained_where_they_are_defined() -> None:
    for name in KernelConfigSm90a.knob_names():
        assert f"``{name}``" in (KernelConfigSm90a.__doc__ or ""), name


SERIALIZED = "tile_mnk=128x32x128 num_dequant_warpgroups=2 wgmma_k=32 ctas_per_sm=2"


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
