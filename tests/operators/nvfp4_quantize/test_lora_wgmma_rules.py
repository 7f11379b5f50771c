"""Rules of ``lora_wgmma``: what is legal compiles and fits, what is not says why."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import pytest

from kernel_space.build.build import refuse_serialized
from kernel_space.build.resources import read_resources, sass_counts
from kernel_space.core.arch import arch
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.nvfp4_quantize.lora_wgmma.config import LoraWgmmaConfig
from kernel_space.operators.nvfp4_quantize.lora_wgmma.layouts import LoraWgmmaLayouts
from kernel_space.operators.nvfp4_quantize.lora_wgmma.spec import KERNEL
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from tests.operators.nvfp4_quantize.runs import compiled
from tuner.space.space import SearchSpace

PROBLEM = QuantizeProblem.parse("4352,3840,128")
H200 = arch("sm_90a")

BROKEN = {
    "groups_m": ("groups_m=5", "groups_m must be one of 1, 2, 3, 4, got 5"),
    "groups_k": ("groups_k=8", "groups_k must be one of 1, 2, 3, 4, got 8"),
    "groups": ("groups_m=4 groups_k=2", "groups_m * groups_k must be at most 4, got 4 * 2"),
    "split_k": ("split_k=9", "split_k must be from 1 to 8, a cluster, got 9"),
    "num_b_stage": ("num_b_stage=0", "num_b_stage must be auto or from 1 to 16, got 0"),
    "num_x_stage": ("num_x_stage=9", "num_x_stage must be from 1 to 8, got 9"),
    "ctas_per_sm": ("ctas_per_sm=9", "ctas_per_sm must be from 1 to 8 with 2 * 1 warpgroups, got 9"),
    "registers": (
        "groups_m=3 ctas_per_sm=2",
        "a thread must have 128 registers (64 of sums, 64), 768 threads an SM leave it 80; use fewer",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_has_a_name_and_a_reason(name: str) -> None:
    text, reason = BROKEN[name]
    verdict = legalize(LoraWgmmaConfig.parse(text), PROBLEM, H200)
    assert isinstance(verdict, Rejection)
    assert verdict.rule == name and verdict.reason.startswith(reason)


def test_every_rule_is_broken() -> None:
    assert set(BROKEN) | {"rank"} == set(KERNEL.knob_rules)
    verdict = legalize(LoraWgmmaConfig(), QuantizeProblem.parse("4352,3840,0"), H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "rank"


def test_slots_are_solved_within_the_share_of_an_sm() -> None:
    """By hand, R = 128: chunks of 16 KB; 32 KB of x a slot of four warpgroups; sums are received where both were."""
    for text, slots in (
        ("groups_m=4 split_k=7", 4),  # sums 168 KB: 4 * 16 + 2 * 32 and 40 behind them
        ("groups_m=1 groups_k=4 split_k=8", 2),  # 2 * 64 + 2 * 32 = 192 KB; 256 KB would be too many
        ("groups_m=1 split_k=7 ctas_per_sm=4", 2),  # 2 * 16 + 2 * 8 of 56 KB
    ):
        verdict = legalize(LoraWgmmaConfig.parse(text), PROBLEM, H200)
        assert isinstance(verdict, Legal) and verdict.config.num_b_stage == slots, text
        more = verdict.config.replace(num_b_stage=slots + 1)
        assert slots == 4 or isinstance(legalize(more, PROBLEM, H200), Rejection)
    large = QuantizeProblem.parse("4352,3840,256")
    verdict = legalize(LoraWgmmaConfig.parse("groups_m=2 split_k=7 num_b_stage=8"), large, H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "smem_capacity"


def test_regions_hold_what_is_put_there() -> None:
    """By hand: 256 rows of R = 128 in 7 CTAs: 16 pieces a warp, 3 a CTA's own, from 7 parties and 16 warps along M."""
    config = LoraWgmmaConfig.parse("groups_m=4 split_k=7 num_b_stage=3 num_x_stage=2")
    found = {one.name: one.bytes for one in LoraWgmmaLayouts(config, PROBLEM.problem_class).allocations()}
    rings = 3 * 16384 + 2 * 32768
    assert found == {
        "lora_down": 3 * 16384, "x": 2 * 32768, "sums beyond the rings": 3 * 7 * 16 * 512 - rings,
        "1 / smooth": 4 * 8 * 256, "full": 24, "empty": 24,
    }  # fmt: skip


@functools.cache
def cubin(text: str, x_dtype: str, r: int, folder: Path) -> Path:
    artifacts = compiled(f"kernel=lora_wgmma {text}", x_dtype, True, "sm_90a", r)
    refuse_serialized(artifacts)
    path = folder / "kernel.cubin"
    path.write_bytes(artifacts.cubin)
    return path


@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("r", "text"),
    [
        (128, "groups_m=4 split_k=7"),
        (128, "groups_m=1 groups_k=4 split_k=8"),
        (128, "groups_m=1 split_k=7 ctas_per_sm=4"),
        (192, "groups_m=3"),
        (256, "groups_m=2 split_k=4"),
        (256, "groups_m=1 groups_k=2 split_k=8"),
    ],
)
def test_defaults_and_designs_keep_sums_in_registers(x_dtype: str, r: int, text: str, tmp_path: Path) -> None:
    (used,) = read_resources(cubin(text, x_dtype, r, tmp_path)).values()
    assert used.stack_bytes == used.spill_store_bytes == 0


@pytest.mark.parametrize(
    "shape", ["512,32,16", "1024,3840,128", "2048,3840,256", "4352,12288,256", "4352,3840,144"]
)
def test_it_is_the_default_from_512_rows_on(shape: str) -> None:
    """And legal."""
    space = SearchSpace.load("nvfp4_quantize", H200)
    for x_dtype in ("fp16", "bf16"):
        problem = QuantizeProblem.parse(shape, x_dtype=x_dtype)
        config = space.default(problem)
        assert config.kernel == KERNEL.name and isinstance(legalize(config, problem, H200), Legal)
        assert space.default(dataclasses.replace(problem, m=511)).kernel == "lora_mma"


def test_the_code_is_what_the_page_says(tmp_path: Path) -> None:
    text = "groups_m=4 split_k=7"
    ptx = compiled(f"kernel=lora_wgmma {text}", "bf16", True, "sm_90a", 128).ptx
    assert len(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n128k16\.f32\.bf16\.bf16", ptx)) == 4
    assert "mma.sync" not in ptx and "ldmatrix" not in ptx and "griddepcontrol" not in ptx
    early = compiled(f"kernel=lora_wgmma {text} use_pdl=true", "bf16", True, "sm_90a", 128).ptx
    assert "griddepcontrol.wait" in early
    assert sass_counts(cubin(text, "bf16", 128, tmp_path))["HGMMA"] == 4
