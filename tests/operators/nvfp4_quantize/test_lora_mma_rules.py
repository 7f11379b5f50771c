"""Rules of ``lora_mma``: what is legal compiles and fits, what is not says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_space.build.resources import read_resources
from kernel_space.core.arch import arch
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.nvfp4_quantize.lora_mma.config import LoraMmaConfig
from kernel_space.operators.nvfp4_quantize.lora_mma.layouts import LoraMmaLayouts
from kernel_space.operators.nvfp4_quantize.lora_mma.spec import KERNEL
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from tests.operators.nvfp4_quantize.runs import ARCHS, compiled, legal_config
from tuner.space.space import SearchSpace

PROBLEM = QuantizeProblem.parse("4352,3840,128")
H200 = arch("sm_90a")

BROKEN = {
    "rows_per_warp": ("rows_per_warp=8", "rows_per_warp must be one of 16, 32, got 8"),
    "warps_m": ("warps_m=3", "warps_m must be one of 1, 2, 4, 8, got 3"),
    "warps_k": ("warps_k=16", "warps_k must be one of 1, 2, 4, 8, got 16"),
    "warps": ("warps_m=8 warps_k=4", "warps_m * warps_k must be at most 16, got 8 * 4"),
    "split_k": ("split_k=9", "split_k must be from 1 to 8, a cluster, got 9"),
    "split_r": ("split_r=3", "split_r must be one of 1, 2, 4, 8, 16, got 3"),
    "split_r ": ("split_r=16", "split_r must leave columns for each CTA, got 16 parts of 16 at R=128"),
    "num_b_stage": ("num_b_stage=0", "num_b_stage must be auto or from 1 to 16, got 0"),
    "prefetch_dist": ("prefetch_dist=3", "prefetch_dist must be one of 0, 1, 2, 4, got 3"),
    "ctas_per_sm": ("ctas_per_sm=17", "ctas_per_sm must be from 1 to 16 with 4 * 1 warps, got 17"),
    "registers": (
        "rows_per_warp=32 ctas_per_sm=3",
        "a thread must have 224 registers (128 of sums, 32 of x, 64), 384 threads an SM leave it 168; use fewer",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_has_a_name_and_a_reason(name: str) -> None:
    text, reason = BROKEN[name]
    verdict = legalize(LoraMmaConfig.parse(text), PROBLEM, H200)
    assert isinstance(verdict, Rejection)
    assert verdict.rule == name.strip() and verdict.reason.startswith(reason)


def test_every_rule_is_broken() -> None:
    assert {name.strip() for name in BROKEN} | {"rank", "tiles"} == set(KERNEL.knob_rules)
    verdict = legalize(LoraMmaConfig(), QuantizeProblem.parse("4352,3840,0"), H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "rank"
    large = QuantizeProblem.parse("2147483520,32,128")
    verdict = legalize(LoraMmaConfig.parse("warps_m=1 split_k=8 split_r=8"), large, H200)
    assert (
        isinstance(verdict, Rejection) and verdict.rule == "tiles" and str(2**31 - 128) not in verdict.reason
    )
    assert str((2**31 - 128) // 16 * 64) in verdict.reason


def test_slots_are_solved_within_the_share_of_an_sm() -> None:
    """16 KB a chunk of R = 128: three slots for 4 warps along K. 32 KB a chunk of R = 256: none for 8."""
    for text, slots in (("", 4), ("warps_k=2 ctas_per_sm=1", 4), ("warps_m=2 warps_k=4 ctas_per_sm=1", 3)):
        verdict = legalize(LoraMmaConfig.parse(text), PROBLEM, H200)
        assert isinstance(verdict, Legal) and verdict.config.num_b_stage == slots, text
        more = verdict.config.replace(num_b_stage=slots + 1)
        assert slots == 4 or isinstance(legalize(more, PROBLEM, H200), Rejection)
    large = QuantizeProblem.parse("4352,3840,256")
    verdict = legalize(LoraMmaConfig.parse("warps_m=1 warps_k=8 ctas_per_sm=1"), large, H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "smem_capacity"


def test_regions_hold_what_is_put_there() -> None:
    """By hand: 128 rows of R = 128 in 7 CTAs: 32 pieces a warp, 5 a CTA's own, from 7 parties and 4 warps along M."""
    config = LoraMmaConfig.parse("rows_per_warp=32 warps_m=4 split_k=7 num_b_stage=3")
    found = {one.name: one.bytes for one in LoraMmaLayouts(config, PROBLEM.problem_class).allocations()}
    sums = 5 * 7 * 4 * 512
    assert found == {
        "lora_down": 3 * 16384, "sums beyond the ring": sums - 16384, "1 / smooth": 4 * 2 * 256, "full": 24,
        "empty": 24,
    }  # fmt: skip


@pytest.mark.parametrize("arch_name", ARCHS)
@pytest.mark.parametrize(
    "text", ["rows_per_warp=32 warps_m=4 split_k=7", "warps_m=4 ctas_per_sm=3", "warps_m=4 split_k=8"]
)
def test_defaults_and_designs_keep_sums_in_registers(arch_name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / "kernel.cubin"
    path.write_bytes(compiled(text, "fp16", True, arch_name, 128).cubin)
    (used,) = read_resources(path).values()
    assert used.stack_bytes == used.spill_store_bytes == 0


@pytest.mark.parametrize("arch_name", ARCHS)
def test_the_code_is_what_the_page_says(arch_name: str) -> None:
    ptx = compiled("rows_per_warp=32 warps_m=4 split_k=7", "bf16", True, arch_name, 128).ptx
    assert ptx.count("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") == 128
    assert "ldmatrix" not in ptx, "a lane reads what it multiplies, 16 bytes at a time"
    assert ("e2m1x2" in ptx) == (arch_name == "sm_100a"), "sm_90a has no such conversion"
    legal, _ = legal_config("use_pdl=true", "fp16", True, arch_name, 128)
    assert "griddepcontrol.wait" in compiled("use_pdl=true", "fp16", True, arch_name, 128).ptx
    assert "griddepcontrol" not in ptx and legal.config.launches_early


@pytest.mark.parametrize("name", ["sm_90a", "sm_100a", "sm_103a"])
@pytest.mark.parametrize("r", range(16, 513, 16))
def test_the_default_is_legal_at_every_rank(name: str, r: int) -> None:
    space = SearchSpace.load("nvfp4_quantize", arch(name))
    for m in (1, 256, 257, 512, 513, 2048, 2049, 100000):
        problem = QuantizeProblem.parse(f"{m},3840,{r}")
        verdict = legalize(space.default(problem), problem, arch(name))
        assert isinstance(verdict, Legal), verdict
