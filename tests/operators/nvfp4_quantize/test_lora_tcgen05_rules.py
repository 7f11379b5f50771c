"""Rules of ``lora_tcgen05``: what is legal compiles and fits, what is not says why."""

from __future__ import annotations

import re
import types
from pathlib import Path

import pytest

from kernel_space.build.build import refuse_serialized
from kernel_space.build.resources import read_resources
from kernel_space.core.arch import arch
from kernel_space.core.rules import Legal, Rejection, legalize
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.config import ROLE_REGISTERS, LoraTcgen05Config
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.layouts import LoraTcgen05Layouts
from kernel_space.operators.nvfp4_quantize.lora_tcgen05.spec import KERNEL
from kernel_space.operators.nvfp4_quantize.problem import QuantizeProblem
from tests.operators.nvfp4_quantize.runs import compiled

PROBLEM = QuantizeProblem.parse("4352,3840,128")
B200 = arch("sm_100a")
WHOLE = "tile_m=96 quant_warps=16 split_k=3"  # of the default rule for many rows

BROKEN = {
    "tile_m": ("tile_m=24", "tile_m must be a multiple of 16 up to 256 (N of tcgen05.mma), got 24"),
    "tile_m ": ("tile_m=272", "tile_m must be a multiple of 16 up to 256 (N of tcgen05.mma), got 272"),
    "quant_warps": ("quant_warps=6", "quant_warps must be one of 4, 8, 12, 16, got 6"),
    "split_k": ("split_k=9", "split_k must be from 1 to 8, a cluster, got 9"),
    "ctas_per_sm": (
        "quant_warps=12 ctas_per_sm=2",
        "registers suffice for one of these numbers of quant_warps, ctas_per_sm: 4-1, 8-1, 12-1, 16-1, 4-2, 8-2; got "
        "12-2",
    ),
    "num_stage": ("num_stage=1", "num_stage must be auto or from 2 to 16, got 1"),
    "num_stage ": ("num_stage=17", "num_stage must be auto or from 2 to 16, got 17"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_has_a_name_and_a_reason(name: str) -> None:
    text, reason = BROKEN[name]
    verdict = legalize(LoraTcgen05Config.parse(text), PROBLEM, B200)
    assert isinstance(verdict, Rejection)
    assert verdict.rule == name.strip() and verdict.reason.startswith(reason)


def test_every_rule_is_broken() -> None:
    assert {name.strip() for name in BROKEN} | {"rank", "tiles"} == set(KERNEL.knob_rules)
    verdict = legalize(LoraTcgen05Config(), QuantizeProblem.parse("4352,3840,0"), B200)
    assert isinstance(verdict, Rejection) and verdict.rule == "rank"
    # The most rows of a problem are still a CTA each: the rule is asked with one that cannot be.
    narrow = LoraTcgen05Config.parse("tile_m=16 split_k=8")
    assert isinstance(legalize(narrow, QuantizeProblem.parse("2147483520,32,128"), B200), Legal)
    reason = KERNEL.knob_rules["tiles"](narrow, types.SimpleNamespace(m=2**32))
    assert reason == f"M must have at most {2**31 - 1} CTAs, got {2**31} of 16 rows"


@pytest.mark.parametrize(("quant_warps", "ctas"), ROLE_REGISTERS)
def test_registers_of_roles_are_there(quant_warps: int, ctas: int) -> None:
    """``setmaxnreg`` moves registers within a CTA: what roles get is no more than what the launch gave to all (PTX ISA:
    multiples of 8 from 24 to 256; 64 K registers an SM).
    """
    config = LoraTcgen05Config(quant_warps=quant_warps, ctas_per_sm=ctas)
    loading, multiplying, quantizing = config.role_registers
    at_launch = 65536 // (config.threads * ctas) // 8 * 8
    assert all(24 <= count <= 256 and count % 8 == 0 for count in config.role_registers)
    assert 128 * (loading + multiplying) + 32 * quant_warps * quantizing <= config.threads * at_launch
    assert loading <= at_launch <= quantizing


def test_slots_are_solved_within_the_share_of_an_sm() -> None:
    """By hand, R = 128: a slot is 16 KB of lora_down, 128 bytes a row of x, 256 bytes of 1 / smooth, 16 of barriers;
    227 KB a CTA, of two 113 KB. Sums of a cluster, 128 fp32 a row, have a place of their own; 12 bytes more.
    """
    for text, slots in (
        (WHOLE, 6),  # 28.3 KB, and 48 KB of sums
        ("tile_m=16 quant_warps=4 split_k=8 ctas_per_sm=2", 5),  # 18.3 KB, and 8 KB
        ("tile_m=64", 8),  # 24.3 KB, no sums: 9 would fit, 8 are the most that are taken
    ):
        rows = int(re.match(r"tile_m=(\d+)", text)[1])  # type: ignore[index]  # it is there
        verdict = legalize(LoraTcgen05Config.parse(text), PROBLEM, B200)
        assert isinstance(verdict, Legal) and verdict.config.num_stage == slots, text
        each = 16384 + 128 * rows + 256 + 16
        sums = 128 * 4 * rows if "split_k" in text else 0
        share = (113 if "ctas_per_sm=2" in text else 227) * 1024
        assert min(8, (share - sums - 12) // each) == slots, "the hand's count"
    large = QuantizeProblem.parse("4352,3840,256")
    verdict = legalize(LoraTcgen05Config.parse("tile_m=96 split_k=3 num_stage=4"), large, B200)
    assert isinstance(verdict, Rejection) and verdict.rule == "smem_capacity"


def test_sums_fit_into_tensor_memory() -> None:
    """512 columns an SM (PTX ISA): R = 512 is four instructions of tile_m columns each, allocated in powers of two."""
    large = QuantizeProblem.parse("4352,3840,512")
    for text, columns in (("tile_m=48 num_stage=2", 256), ("tile_m=128 num_stage=2", 512)):
        verdict = legalize(LoraTcgen05Config.parse(text), large, B200)
        assert isinstance(verdict, Legal) and verdict.budget.tmem_columns_allocated == columns
        assert verdict.budget.tmem.total == columns
    verdict = legalize(LoraTcgen05Config.parse("tile_m=144 num_stage=2"), large, B200)
    assert isinstance(verdict, Rejection) and verdict.rule == "tmem_capacity"
    two = LoraTcgen05Config.parse("tile_m=80 num_stage=2 quant_warps=4 ctas_per_sm=2")
    verdict = legalize(two, QuantizeProblem.parse("4352,3840,128"), B200)
    assert isinstance(verdict, Legal) and verdict.budget.tmem_columns_used == 2 * 128


def test_regions_hold_what_is_put_there() -> None:
    """By hand: R = 48 is one instruction of 128 columns, so 16 KB a slot; of 144 rows each of 2 CTAs adds up 72."""
    config = LoraTcgen05Config.parse("tile_m=144 split_k=2 num_stage=2")
    lay = LoraTcgen05Layouts(config, QuantizeProblem.parse("1,32,48").problem_class)
    assert {one.name: one.bytes for one in lay.allocations()} == {
        "x": 2 * 144 * 128, "lora_down": 2 * 16384, "1 / smooth": 2 * 256, "full": 16, "empty": 16,
        "sums of the cluster": 2 * 72 * 48 * 4, "sums ready": 8, "TMEM pointer": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("r", "text"),
    [
        (128, WHOLE),
        pytest.param(256, "tile_m=64 quant_warps=16 split_k=2", marks=pytest.mark.slow),
        pytest.param(128, "tile_m=64 quant_warps=12 split_k=8", marks=pytest.mark.slow),
        pytest.param(64, "tile_m=64 quant_warps=8 split_k=4 ctas_per_sm=2", marks=pytest.mark.slow),
        pytest.param(128, "tile_m=160 quant_warps=8 split_k=2 num_stage=2", marks=pytest.mark.slow),
        pytest.param(48, "tile_m=256 quant_warps=16 split_k=8 num_stage=2", marks=pytest.mark.slow),
    ],
)
def test_nothing_is_spilled(r: int, text: str, tmp_path: Path) -> None:
    artifacts = compiled("kernel=lora_tcgen05 " + text, "bf16", True, "sm_100a", r)
    refuse_serialized(artifacts)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(artifacts.cubin)
    (used,) = read_resources(cubin).values()
    assert used.spill_bytes == 0 and used.stack_bytes == 0, used
