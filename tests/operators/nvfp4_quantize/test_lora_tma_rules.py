"""Rules of ``lora_tma``: what is legal compiles and fits, what is not says why."""

from __future__ import annotations

import dataclasses
import re
import types
from pathlib import Path

import pytest

from kernel_space.build.build import refuse_serialized
from kernel_space.build.resources import read_resources, sass_counts
from kernel_space.core.arch import arch
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.nvfp4_quantize.lora_tma.config import ROLE_REGISTERS, LoraTmaConfig
from kernel_space.operators.nvfp4_quantize.lora_tma.layouts import LoraTmaLayouts
from kernel_space.operators.nvfp4_quantize.lora_tma.spec import KERNEL
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from tests.operators.nvfp4_quantize.runs import compiled
from tuner.space.space import SearchSpace

PROBLEM = QuantizeProblem.parse("4352,3840,128")
H200 = arch("sm_90a")
WHOLE = "tile_m=104 quant_warps=12 split_k=3"  # one turn

BROKEN = {
    "tile_m": ("tile_m=20", "tile_m must be a multiple of 8 up to 256 (N of wgmma), got 20"),
    "tile_m ": ("tile_m=264", "tile_m must be a multiple of 8 up to 256 (N of wgmma), got 264"),
    "tile_m  ": ("tile_m=0", "tile_m must be a multiple of 8 up to 256"),
    "quant_warps": ("quant_warps=6", "quant_warps must be one of 4, 8, 12, 16, got 6"),
    "split_k": ("split_k=9", "split_k must be from 1 to 8, a cluster, got 9"),
    "ctas_per_sm": (
        "quant_warps=12 ctas_per_sm=2",
        "registers suffice for one of these numbers of quant_warps, ctas_per_sm: 4-1, 8-1, 12-1, 16-1, 4-2, 8-2; got "
        "12-2",
    ),
    "turns": ("turns=3", "turns must divide quant_warps=8, got 3"),
    "turns ": ("turns=4 num_stage=6", "turns must divide num_stage=6, got 4"),
    "turns  ": ("turns=0", "turns must divide quant_warps=8, got 0"),
    "idle_turns": (
        "turns=8 split_k=8 use_pdl=true",
        "with use_pdl each turn needs a chunk of 64 along K in every CTA: K=3840 over split_k=8 has 7, got turns=8",
    ),
    "prefetch_dist": ("prefetch_dist=65", "prefetch_dist must be from 0 to 64 chunks, got 65"),
    "num_stage": ("num_stage=1", "num_stage must be auto or from 2 to 16, got 1"),
    "num_stage ": ("num_stage=17", "num_stage must be auto or from 2 to 16, got 17"),
    "registers": (
        "tile_m=176",
        "a multiplying thread can hold 168 sums and 98 of one wgmma, tile_m=176 needs 176 and 88 at R=128; use",
    ),
    "registers ": (
        "tile_m=104 ctas_per_sm=2",
        "a multiplying thread can hold 64 sums and 34 of one wgmma, tile_m=104 needs 104 and 52 at R=128; use",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_has_a_name_and_a_reason(name: str) -> None:
    text, reason = BROKEN[name]
    verdict = legalize(LoraTmaConfig.parse(text), PROBLEM, H200)
    assert isinstance(verdict, Rejection)
    assert verdict.rule == name.strip() and verdict.reason.startswith(reason)


def test_every_rule_is_broken() -> None:
    assert {name.strip() for name in BROKEN} | {"rank", "tiles"} == set(KERNEL.knob_rules)
    verdict = legalize(LoraTmaConfig(), QuantizeProblem.parse("4352,3840,0"), H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "rank"
    # The most rows of a problem are still a CTA each: the rule is asked with one that cannot be.
    narrow, large = LoraTmaConfig.parse("tile_m=8 split_k=8"), QuantizeProblem.parse("2147483520,32,128")
    assert isinstance(legalize(narrow, large, H200), Legal)
    reason = KERNEL.knob_rules["tiles"](narrow, types.SimpleNamespace(m=2**31))
    assert reason == f"M must have at most {2**31 - 1} CTAs, got {2**31} of 8 rows"


@pytest.mark.parametrize(("quant_warps", "ctas"), ROLE_REGISTERS)
def test_registers_of_roles_are_there(quant_warps: int, ctas: int) -> None:
    """``setmaxnreg`` moves registers within a CTA: what roles get is no more than what the launch gave to all (PTX ISA:
    multiples of 8 from 24 to 256; 64 K registers an SM).
    """
    config = LoraTmaConfig(quant_warps=quant_warps, ctas_per_sm=ctas)
    loading, multiplying, quantizing = config.role_registers
    at_launch = 65536 // (config.threads * ctas) // 8 * 8
    assert all(24 <= count <= 256 and count % 8 == 0 for count in config.role_registers)
    assert 128 * (loading + multiplying) + 32 * quant_warps * quantizing <= config.threads * at_launch
    assert loading <= at_launch <= multiplying, "loading warps only give, multiplying warps only take"


def test_slots_are_solved_within_the_share_of_an_sm() -> None:
    """By hand, R = 128: a slot is 16 KB of lora_down, 128 bytes a row of x, 256 bytes of 1 / smooth, 16 of barriers;
    227 KB a CTA, of two 113 KB. A CTA adds up its share of the tile's rows, 512 bytes each from every other one.
    """
    for text, turns, sums, slots in (
        (WHOLE, 1, 2 * 36 * 512, 6),  # 29.3 KB; 26 vectors of four rows, 9 of them at most a CTA's own
        (
            "tile_m=16 quant_warps=4 split_k=8 ctas_per_sm=2",
            1,
            7 * 4 * 512,
            5,
        ),  # 18.3 KB; 4 vectors of eight CTAs
        ("tile_m=64 split_k=8", 1, 7 * 8 * 512, 8),  # 24.3 KB
        ("tile_m=8 quant_warps=8 turns=8", 8, 0, 8),  # 17.3 KB: 13 would fit, 8 are the most that are taken
        ("tile_m=72 quant_warps=12 turns=3 split_k=2", 3, 36 * 512, 6),  # 25.3 KB: 8 fit, in threes
    ):
        rows = int(re.match(r"tile_m=(\d+)", text)[1])  # type: ignore[index]  # it is there
        verdict = legalize(LoraTmaConfig.parse(text), PROBLEM, H200)
        assert isinstance(verdict, Legal) and verdict.config.num_stage == slots, text
        each = 16384 + 128 * rows + 256 + 16
        share = (113 if "ctas_per_sm=2" in text else 227) * 1024
        barriers = 32 if sums else 0
        assert min(8, (share - sums - barriers) // each) // turns * turns == slots, "the hand's count"
    large = QuantizeProblem.parse("4352,3840,256")
    verdict = legalize(LoraTmaConfig.parse("tile_m=64 split_k=7 num_stage=8"), large, H200)
    assert isinstance(verdict, Rejection) and verdict.rule == "smem_capacity"


def test_regions_hold_what_is_put_there() -> None:
    """By hand: R = 48 is one wgmma of 64 columns, so 8 KB a slot. Of its 17 vectors, of 8 rows by 64 columns of fp32, a
    CTA of three owns 6 at most, which two send.
    """
    found = {
        one.name: one.bytes
        for one in LoraTmaLayouts(
            LoraTmaConfig.parse("tile_m=136 split_k=3 num_stage=2"),
            QuantizeProblem.parse("1,32,48").problem_class,
        ).allocations()
    }
    assert found == {
        "x": 2 * 136 * 128, "lora_down": 2 * 8192, "1 / smooth": 2 * 256, "full": 16, "empty": 16,
        "sums of the cluster": 2 * 6 * 8 * 64 * 4, "sums full": 32,
    }  # fmt: skip
    plain = QuantizeProblem.parse("1,32,16", smooth="none").problem_class
    names = [
        one.name for one in LoraTmaLayouts(LoraTmaConfig.parse("tile_m=64 num_stage=2"), plain).allocations()
    ]
    assert names == ["x", "lora_down", "full", "empty"], "nobody sends sums"


@pytest.mark.parametrize("x_dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("r", "text"),
    [
        (128, WHOLE),
        (128, "tile_m=112 quant_warps=12 split_k=3 use_pdl=true"),
        (128, "tile_m=72 quant_warps=12 turns=3 split_k=2 use_pdl=true"),
        (128, "tile_m=48 quant_warps=12 turns=6 split_k=5 prefetch_dist=8 use_pdl=true"),
        (128, "tile_m=16 quant_warps=8 turns=4 split_k=8 use_pdl=true"),
        (128, "tile_m=48 quant_warps=8 split_k=2 ctas_per_sm=2 use_pdl=true"),
        (128, "tile_m=16 quant_warps=4 split_k=8 ctas_per_sm=2 use_pdl=true"),
        (256, "tile_m=32 split_k=1"),
        (256, "tile_m=64 split_k=8"),
    ],
)
def test_defaults_and_designs_keep_sums_in_registers(x_dtype: str, r: int, text: str, tmp_path: Path) -> None:
    used = read_resources(cubin(text, x_dtype, r, tmp_path))
    assert all(one.stack_bytes == one.spill_store_bytes == 0 for one in used.values())


def cubin(text: str, x_dtype: str, r: int, folder: Path) -> Path:
    artifacts = compiled(f"kernel=lora_tma {text}", x_dtype, True, "sm_90a", r)
    refuse_serialized(artifacts)
    path = folder / "kernel.cubin"
    path.write_bytes(artifacts.cubin)
    return path


@pytest.mark.parametrize(
    "shape", ["512,32,16", "1024,3840,128", "2048,3840,256", "4352,12288,256", "4352,3840,144"]
)
def test_it_is_the_default_above_256_rows(shape: str) -> None:
    """And legal."""
    space = SearchSpace.load("nvfp4_quantize", H200)
    for x_dtype in ("fp16", "bf16"):
        problem = QuantizeProblem.parse(shape, x_dtype=x_dtype)
        for m in (257, problem.m):
            one = dataclasses.replace(problem, m=m)
            config = space.default(one)
            assert config.kernel == KERNEL.name and isinstance(legalize(config, one, H200), Legal)
        few = space.default(dataclasses.replace(problem, m=256)).kernel
        assert few == ("lora_mma" if problem.r > 128 else KERNEL.name)


@pytest.mark.parametrize(
    "shape", ["1,3840,128", "256,3840,256", "1024,3840,128", "2048,3840,64", "4352,3840,128"]
)
def test_designs_are_legal(shape: str) -> None:
    space, problem = SearchSpace.load("nvfp4_quantize", H200), QuantizeProblem.parse(shape)
    found = [one.config for one in space.kernels[KERNEL.name].designs if one.holds(problem)]
    assert found and all(isinstance(legalize(config, problem, H200), Legal) for config in found)


def test_the_code_is_what_the_page_says(tmp_path: Path) -> None:
    """Two wgmma cover R = 128, of each of the 4 blocks of 16 in a chunk; x comes by TMA, lora_down by bulk copies."""
    ptx = compiled(f"kernel=lora_tma {WHOLE}", "bf16", True, "sm_90a", 128).ptx
    assert len(re.findall(r"wgmma\.mma_async\.sync\.aligned\.m64n104k16\.f32\.bf16\.bf16", ptx)) == 8
    assert "mma.sync" not in ptx and "ldmatrix" not in ptx and "griddepcontrol" not in ptx
    assert "cp.async.bulk.tensor.2d" in ptx and "cp.async.bulk.shared::cluster.global" in ptx
    early = compiled(f"kernel=lora_tma {WHOLE} use_pdl=true", "bf16", True, "sm_90a", 128).ptx
    before, after, _ = early.split("griddepcontrol.wait")
    assert "cp.async.bulk.tensor.2d" not in before, "x may be the kernel's before"
    assert "cp.async.bulk.tensor.2d" in after and "griddepcontrol.launch_dependents" in after
    assert sass_counts(cubin(WHOLE, "bf16", 128, tmp_path))["HGMMA"] == 8
