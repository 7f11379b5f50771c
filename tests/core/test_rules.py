"""Every rule rejects what it names and nothing else; oracle: the stated bounds, by hand."""

from __future__ import annotations

import pytest

from kernel_space.core.arch import SM100A, Arch
from kernel_space.core.registry import kernels_of
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm100a.config import KernelConfigSm100a

PROBLEM = GemmProblem(m=4352, k=3840, n=3072, r=128)

# (rule, config, shape, words the reason must contain: what must hold and what came)
REJECTED = [
    ("activation", "swap_ab=true", "4352,3840,3072,128 swiglu", ("different threads", "swap_ab=false")),
    ("mma_tiler_mn", "mma_tiler_mn=64x128", "4352,3840,3072,128", ("256x256", "64x128")),
    ("mma_tiler_k", "mma_tiler_k=64", "4352,3840,3072,128", ("128 256", "64")),
    ("cluster_shape", "cluster_shape_mn=8x1", "4352,3840,3072,128", ("1, 2 or 4", "8x1")),
    ("cluster_shape", "cluster_shape_mn=2x3", "4352,3840,3072,128", ("1, 2 or 4", "2x3")),
    ("cluster_of_pairs", "mma_tiler_mn=256x128 cluster_shape_mn=1x2", "4352,3840,3072,128", ("even", "2x2")),
    ("epi_tile", "epi_tile_n=48", "4352,3840,3072,128", ("16 32 64 128", "48")),
    ("epi_tile", "mma_tiler_mn=256x192 epi_tile_n=128", "4352,3840,3072,128", ("divide", "192", "128")),
    ("stages", "num_ab_stage=0", "4352,3840,3072,128", ("num_ab_stage", "at least 1", "0")),
    ("stages", "num_acc_stage=3", "4352,3840,3072,128", ("1 or 2", "3")),
    ("lora_stages", "num_lora_stage=0", "4352,3840,3072,128", ("num_lora_stage", "R > 0")),
    ("lora_slice", "lora_tile_k=32", "4352,3840,3072,128", ("64 or all", "32")),
    ("lora_ride", "lora_buffer=ab_stage mma_tiler_k=128", "4352,3840,3072,128", ("mma_tiler_k=256", "128")),
    ("lora_ride", "lora_buffer=ab_stage lora_tile_k=all", "4352,3840,3072,128", ("64", "dedicated")),
    ("swizzle", "swizzle_size=3", "4352,3840,3072,128", ("1 2 4 8", "3")),
    ("prefetch", "prefetch_dist=17", "4352,3840,3072,128", ("0 and 16", "17")),
    ("split_k", "split_k=3", "4352,3840,3072,128", ("1 2 4 8 16", "3")),
    ("split_k", "split_k=4", "4352,544,3072,128", ("K=544", "3 of 256", "split_k=4")),
    ("smem_capacity", "num_ab_stage=9", "4352,3840,3072,128", ("232448", "over by", "A 147456")),
]


def rule_names(arch: Arch) -> tuple[str, ...]:
    (kernel,) = kernels_of(GemmProblem.operator, arch)
    return kernel.rule_names


@pytest.mark.parametrize(("rule", "config", "shape", "words"), REJECTED)
def test_each_rule_names_itself_and_says_what_came(
    rule: str, config: str, shape: str, words: tuple[str, ...]
) -> None:
    shape, _, activation = shape.partition(" ")
    problem = GemmProblem.parse(shape, activation=activation or "none")
    verdict = legalize(KernelConfigSm100a.parse(config), problem, SM100A)
    assert isinstance(verdict, Rejection)
    assert verdict.rule == rule
    for word in words:
        assert word in verdict.reason


def test_every_rule_but_the_unreachable_one_has_a_rejected_example() -> None:
    # TMEM: the largest legal tile takes 512 columns exactly, so no choice of today's knobs exceeds it.
    assert {rule for rule, *_ in REJECTED} == set(rule_names(SM100A)) - {"tmem_capacity"}


def test_split_k_may_use_every_k_tile_but_no_more() -> None:
    config = KernelConfigSm100a.parse("split_k=4")
    assert isinstance(legalize(config, GemmProblem.parse("128,1024,3072,0"), SM100A), Legal)
    assert isinstance(legalize(config, GemmProblem.parse("128,768,3072,0"), SM100A), Rejection)
    assert isinstance(legalize(config, GemmProblem.parse("128,800,3072,0"), SM100A), Legal)  # ragged 4th tile


def test_two_spellings_of_one_kernel_are_one_config() -> None:
    no_lora = GemmProblem.parse("4352,3840,3072,0")
    spellings = ["", "lora_schedule=tail", "lora_buffer=ab_stage", "lora_tile_k=all num_lora_stage=3"]
    verdicts = [legalize(KernelConfigSm100a.parse(text), no_lora, SM100A) for text in spellings]
    assert len({str(verdict.config) for verdict in verdicts if isinstance(verdict, Legal)}) == 1
    rank_64 = GemmProblem.parse("4352,3840,3072,64")
    all_of_r = legalize(KernelConfigSm100a.parse("lora_tile_k=all"), rank_64, SM100A)
    slices = legalize(KernelConfigSm100a.parse("lora_tile_k=64"), rank_64, SM100A)
    assert isinstance(all_of_r, Legal) and isinstance(slices, Legal)
    assert all_of_r.config == slices.config


@pytest.mark.parametrize(
    "text", ["", "lora_buffer=ab_stage", "mma_tiler_mn=256x256", "swap_ab=true split_k=2"]
)
def test_a_resolved_config_resolves_to_itself(text: str) -> None:
    first = legalize(KernelConfigSm100a.parse(text), PROBLEM, SM100A)
    assert isinstance(first, Legal)
    again = legalize(KernelConfigSm100a.parse(str(first.config)), PROBLEM, SM100A)
    assert isinstance(again, Legal)
    assert again.config == first.config
    assert "auto" not in str(first.config)
