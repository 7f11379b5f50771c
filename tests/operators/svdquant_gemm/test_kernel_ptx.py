"""The PTX of each knob setting shows what the knob promises; oracle: the ISA's spelling and hand arithmetic."""

from __future__ import annotations

import functools
import re

import pytest

from kernel_space.core.arch import SM103A
from tests.compiled_cases import compile_and_capture, compile_case, resolved

SHAPE = "4352,3840,3072,128"
ONE_CTA = "mma_tiler_mn=128x128 cluster_shape_mn=1x1"


def ptx_of(text: str, shape: str = SHAPE) -> str:
    config, problem = resolved(text, shape)
    return compile_case(config, problem.problem_class).ptx


def count(pattern: str, ptx: str) -> int:
    return len(re.findall(pattern, ptx))


def barrier_inits(ptx: str) -> int:
    return count(r"mbarrier\.init\.shared\.b64", ptx)


@pytest.mark.parametrize(
    ("text", "cta_group"), [("mma_tiler_mn=256x128", 2), (ONE_CTA, 1), (ONE_CTA + " swap_ab=true", 1)]
)
def test_cta_group_of_every_tensor_instruction(text: str, cta_group: int) -> None:
    ptx = ptx_of(text)
    groups = re.findall(r"tcgen05\.(?:mma|cp|commit|alloc|dealloc)\S*cta_group::(\d)", ptx)
    assert groups and set(groups) == {str(cta_group)}


def test_nvfp4_and_lora_accumulate_at_the_same_tmem_address() -> None:
    ptx = ptx_of("")
    nvfp4 = re.findall(r"kind::mxf4nvf4\.block_scale\.block16\S* \[(%r\d+)\]", ptx)
    lora = re.findall(r"kind::f16\S* \[(%r\d+)\]", ptx)
    assert len(nvfp4) == 256 // 64  # K elements of a stage / K of one instruction
    assert len(lora) == 64 // 16
    assert set(nvfp4) == set(lora) and len(set(nvfp4)) == 1


def test_no_lora_instruction_without_lora() -> None:
    assert "kind::f16" not in ptx_of("", "4352,3840,3072,0")


@pytest.mark.parametrize(("mma_tiler_k", "instructions"), [(128, 2), (256, 4)])
def test_mma_tiler_k_sets_the_instructions_per_stage(mma_tiler_k: int, instructions: int) -> None:
    assert count("kind::mxf4nvf4", ptx_of(f"mma_tiler_k={mma_tiler_k}")) == instructions


@pytest.mark.parametrize(
    ("text", "barriers"),
    [
        # full + empty per slot of ab, lora and acc; one more for the dealloc hand-shake of a pair
        ("num_ab_stage=4 num_lora_stage=2 num_acc_stage=2", 2 * (4 + 2 + 2) + 1),
        ("num_ab_stage=3 num_lora_stage=1 num_acc_stage=1", 2 * (3 + 1 + 1) + 1),
        (ONE_CTA + " num_ab_stage=4 num_lora_stage=2 num_acc_stage=2", 2 * (4 + 2 + 2)),
        ("num_ab_stage=4 lora_buffer=ab_stage num_acc_stage=2", 2 * (4 + 2) + 1),
        # overlapped accumulators share a pair of barriers
        ("mma_tiler_mn=256x256 num_ab_stage=3 num_lora_stage=1 num_acc_stage=2", 2 * (3 + 1 + 1) + 1),
    ],
)
def test_number_of_mbarriers(text: str, barriers: int) -> None:
    assert barrier_inits(ptx_of(text)) == barriers


@pytest.mark.parametrize(
    ("text", "multicast", "alone"),
    [
        # loads of A, B, SFA, SFB, LoRA act, LoRA up: which have sharers
        (ONE_CTA, 0, 6),
        ("mma_tiler_mn=128x128 cluster_shape_mn=1x2", 3, 3),  # A, SFA, LoRA act
        ("mma_tiler_mn=128x128 cluster_shape_mn=2x1", 3, 3),  # B, SFB, LoRA up
        ("mma_tiler_mn=128x128 cluster_shape_mn=2x2", 6, 0),
        ("mma_tiler_mn=256x128 cluster_shape_mn=2x1", 1, 5),  # SFB: both CTAs of a pair need all of it
        ("mma_tiler_mn=256x128 cluster_shape_mn=2x2", 4, 2),  # A, SFA, LoRA act, SFB
        ("mma_tiler_mn=256x128 cluster_shape_mn=4x1", 3, 3),  # B, SFB, LoRA up
    ],
)
def test_every_operand_with_sharers_is_multicast(text: str, multicast: int, alone: int) -> None:
    loads = re.findall(r"cp\.async\.bulk\.tensor\.\dd\.shared::(?:cluster|cta)\.global\S*", ptx_of(text))
    assert sum("multicast::cluster" in load for load in loads) == multicast
    assert sum("multicast::cluster" not in load for load in loads) == alone


@pytest.mark.parametrize(
    ("text", "shape", "columns"),
    [
        ("num_acc_stage=2", SHAPE, 512),
        ("num_acc_stage=1", SHAPE, 256),
        (ONE_CTA.replace("128x128", "128x64") + " num_acc_stage=1", SHAPE, 128),
    ],
)
def test_allocated_tmem_columns(text: str, shape: str, columns: int) -> None:
    ptx = ptx_of(text, shape)
    allocated = re.findall(r"mov\.b32\s+%r\d+, (\d+);\s+tcgen05\.alloc", ptx)
    freed = re.findall(r"mov\.b32\s+%r\d+, (\d+);\s+tcgen05\.dealloc", ptx)
    assert allocated == freed == [str(columns)]


def test_prefetch_loads_into_l2() -> None:
    prefetches = functools.partial(count, r"cp\.async\.bulk\.prefetch\.tensor")
    plain, with_lora = "4352,3840,3072,0", "4352,3840,3072,128"
    assert prefetches(ptx_of("prefetch_dist=0", with_lora)) == 0
    assert prefetches(ptx_of("prefetch_dist=4", plain)) == 2 * 4  # A, B, SFA, SFB: prime and roll
    assert prefetches(ptx_of("prefetch_dist=4", with_lora)) == 2 * 4 + 2  # both LoRA operands, slice by slice


def test_pdl_waits_and_signals() -> None:
    with_pdl, without = ptx_of("use_pdl=true"), ptx_of("use_pdl=false")
    for instruction in ("griddepcontrol.wait", "griddepcontrol.launch_dependents"):
        assert instruction in with_pdl
        assert instruction not in without
    config, problem = resolved("use_pdl=true", SHAPE)
    _, launches = compile_and_capture(config, problem)
    assert launches[0].attributes["programmatic_stream_serialization"] == 1


def test_split_k_counts_arrivals_and_only_then() -> None:
    assert count(r"atom\S*\.add", ptx_of("split_k=1")) == 0
    assert count(r"atom\.global\.acq_rel\.add\.u32", ptx_of("split_k=4")) == 1


def test_epilogue_tile_sets_the_tmem_load() -> None:
    for epi_tile_n in (16, 32, 64):
        assert count(rf"tcgen05\.ld\S*32x32b\.x{epi_tile_n}\.", ptx_of(f"epi_tile_n={epi_tile_n}")) == 1


def test_epilogue_scales_and_adds_in_one_fp32_operation() -> None:
    ptx = ptx_of("epi_tile_n=32")
    assert count(r"fma\.rn\.f32x2", ptx) == 32 // 2
    assert count(r"cvt\.rn\.f16x2\.f32", ptx) == 32 // 2


def test_k_loop_is_a_run_time_loop() -> None:
    """The object is compiled once per class, so PTX cannot grow with K: both problems give the very same text."""
    config, short = resolved("num_ab_stage=3", "4352,512,3072,128")
    same_config, long = resolved("num_ab_stage=3", "4352,15360,3072,128")
    assert config == same_config
    short_ptx, short_launch = compile_and_capture(config, short)
    long_ptx, long_launch = compile_and_capture(config, long)
    assert short_ptx.ptx == long_ptx.ptx
    # K does reach the kernel: the size of the K dimension in A's descriptor.
    extents = [min(launch[0].tensor_maps) for launch in (short_launch, long_launch)]
    dims = [
        launch[0].tensor_maps[key].dims
        for launch, key in zip((short_launch, long_launch), extents, strict=True)
    ]
    assert [dim[0] for dim in dims] == [512, 15360]


def test_also_compiles_for_sm_103a() -> None:
    config, problem = resolved("", SHAPE, SM103A)
    artifacts = compile_case(config, problem.problem_class, SM103A)
    assert ".target sm_103a" in artifacts.ptx
    assert artifacts.cubin in artifacts.object_code
