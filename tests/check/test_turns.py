"""Kernels that choose no exercise of their own are checked on a problem where every CTA goes round its rings.

Oracles: tiles dealt out one by one, steps of K counted by hand, and defects that only a second turn shows.
"""

from __future__ import annotations

import itertools
import re

import pytest

from kernel_space.build.build import build
from kernel_space.check.problem import exercises
from kernel_space.check.result import CheckStatus
from kernel_space.check.validate import check_candidate
from kernel_space.core.arch import Arch, arch
from kernel_space.core.config import KernelConfig
from kernel_space.core.problem import Problem
from kernel_space.core.registry import operator, parse_config
from kernel_space.core.rules import Legal, legalize

SM90A, SM100A = arch("sm_90a"), arch("sm_100a")
GEMMS = [
    ("svdquant_gemm", "kernel=sm90a_ring"),
    ("svdquant_gemm", "kernel=sm90a_ring split_k=2 register_operand=wgt tile_mnk=128x64x128"),
    ("svdquant_gemm", "kernel=sm90a_ring pingpong=true tile_mnk=64x128x128"),
    ("svdquant_gemm", "kernel=sm90a_expand"),
    ("svdquant_gemm", "kernel=sm90a_expand cluster_shape_mn=2x1 tile_mnk=128x128x128"),
    ("svdquant_gemm_16bit", "kernel=wide"),
]
# operator, architecture, config, shape, CTAs and warps that share K, slots, K elements of a step
RINGS = [
    (
        "svdquant_gemm",
        SM90A,
        "kernel=sm90a_small_m num_ab_stage=2 num_dq_stage=0",
        "24,512,144,64",
        8,
        2,
        128,
    ),
    ("svdquant_gemm_16bit", SM90A, "kernel=narrow num_ab_stage=3", "24,512,144,64", 4, 3, 128),
    ("nvfp4_quantize", SM90A, "kernel=lora_tma tile_m=64 num_stage=4", "4352,3840,64", 1, 4, 64),
    ("nvfp4_quantize", SM90A, "kernel=lora_tma tile_m=64 num_stage=4 split_k=3", "4352,3840,64", 3, 4, 64),
    ("nvfp4_quantize", SM100A, "kernel=lora_tcgen05 num_stage=3", "4352,3840,64", 1, 3, 64),
    ("nvfp4_quantize", SM100A, "kernel=lora_mma num_b_stage=2 warps_k=2 warps_m=2", "4352,3840,64", 2, 2, 64),
    ("smooth_lora_down", SM90A, "kernel=smooth_tma num_stage=4", "4352,3840,64", 1, 4, 64),
]


def resolved(name: str, where: object, text: str, shape: str) -> tuple[KernelConfig, Problem]:
    problem = operator(name).problem.parse(shape)
    legal = legalize(parse_config(name, where, text), problem, where)  # type: ignore[arg-type]  # an Arch
    assert isinstance(legal, Legal), legal
    return legal.config, problem


@pytest.mark.parametrize("shape", ["4352,3840,3072,128", "136,512,144,32"])
@pytest.mark.parametrize(("name", "text"), GEMMS)
def test_every_cta_of_a_persistent_grid_takes_an_odd_number_of_turns(
    name: str, text: str, shape: str
) -> None:
    config, problem = resolved(name, SM90A, text, shape)
    small, sms = exercises(config, problem, SM90A)[0]
    assert small.problem_class == problem.problem_class
    rows, columns, block_k = config.cta_tile_mnk  # type: ignore[attr-defined]  # of any GEMM
    cluster_m, cluster_n = config.cluster_shape_mn  # type: ignore[attr-defined]
    m, n = (small.n, small.m) if config.swap_ab else (small.m, small.n)  # type: ignore[attr-defined]
    tiles = list(itertools.product(range(0, m, rows * cluster_m), range(0, n, columns * cluster_n),
                                   range(config.split_k)))  # type: ignore[attr-defined]  # fmt: skip
    places = sms * config.ctas_per_sm // config.cluster_size
    dealt = [tiles[first::places] for first in range(places)]
    assert min(len(one) for one in dealt) >= 3
    assert any(len(one) % 2 for one in dealt)
    steps = -(-small.k // block_k) // config.split_k  # type: ignore[attr-defined]
    stages = int(config.num_ab_stage)  # type: ignore[attr-defined]
    assert (
        min(len(one) for one in dealt) * steps >= 2 * stages + 1
    )  # filled, again, and once more in the first parity
    assert stages == 1 or steps % stages


@pytest.mark.parametrize(("name", "where", "text", "shape", "shared", "slots", "step"), RINGS)
def test_rings_along_k_wrap_in_both_parities(
    name: str, where: object, text: str, shape: str, shared: int, slots: int, step: int
) -> None:
    config, problem = resolved(name, where, text, shape)
    small, _ = exercises(config, problem, where)[0]  # type: ignore[arg-type]
    each = -(-small.k // step) / shared
    assert each >= 2 * slots + 1
    assert small.k % step


@pytest.mark.parametrize("case", [ring for ring in RINGS if ring[0].startswith("svdquant_gemm")])
def test_a_tile_along_k_lacks_one_row_of_x_only(case: tuple[str, Arch, str, str, int, int, int]) -> None:
    """Tiles of 32 rows of weights and 8 of x: each of four copies that refill a slot brings rows that count."""
    name, where, text, shape, *_ = case
    config, problem = resolved(name, where, text, shape)
    small, _ = exercises(config, problem, where)[0]
    assert (small.n, small.m) == (32, 7)  # type: ignore[attr-defined]


def without_wait(ptx: str, number: int) -> str:
    """The text in which one wait on an mbarrier is over at once."""
    found = list(re.finditer(r"mbarrier\.try_wait\.parity\S* P1, [^;]*;", ptx))[number]
    return f"{ptx[: found.start()]}setp.eq.u32 P1, 0, 0;{ptx[found.end() :]}"


@pytest.mark.parametrize(
    ("name", "where", "text", "shape"),
    [
        ("nvfp4_quantize", SM90A, "kernel=lora_tma tile_m=32 quant_warps=4", "133,288,32"),
        ("smooth_lora_down", SM90A, "kernel=smooth_tma tile_m=32 quant_warps=4", "133,288,32"),
    ],
)
def test_a_slot_that_is_filled_again_too_early_is_found(
    name: str, where: object, text: str, shape: str
) -> None:
    """The first wait in the text is the loading warp's for a free slot. At K = 288 no slot was ever filled twice."""
    config, problem = resolved(name, where, text, shape)
    compiled = build(config, problem.problem_class, where)  # type: ignore[arg-type]
    found = check_candidate(
        compiled, config, problem, ptx=without_wait(compiled.ptx, 0), schedules=("eager",)
    )
    assert found.status in (CheckStatus.RACE, CheckStatus.PROTOCOL_ERROR, CheckStatus.DEADLOCK), found


@pytest.mark.slow
def test_a_refill_without_its_last_rows_is_found() -> None:
    """The last of four copies of x that the main loop issues: rows 6 and 7. Behind it come one of LoRA and the ten of a
    loop over LoRA.
    """
    config, problem = resolved("svdquant_gemm_16bit", SM90A, "kernel=narrow num_ab_stage=2", "24,512,144,64")
    compiled = build(config, problem.problem_class, SM90A)
    copies = list(re.finditer(r"cp\.async\.cg\.shared\.global\S* [^;]*;", compiled.ptx))
    ptx = compiled.ptx[: copies[-12].start()] + compiled.ptx[copies[-12].end() :]
    found = check_candidate(compiled, config, problem, ptx=ptx, schedules=("eager",))
    assert not found.ok


@pytest.mark.slow
def test_a_ring_that_begins_anew_with_every_tile_is_found() -> None:
    config, problem = resolved("svdquant_gemm", SM90A, "kernel=sm90a_ring", "136,512,144,64")
    compiled = build(config, problem.problem_class, SM90A)
    begins = re.search(r"mov\.b32 \t(%r\d+), 0;\n\$L__BB0_12:", compiled.ptx)
    slot = re.search(r"\$L__BB0_12:[^%]*shl\.b32 \t%r\d+, (%r\d+), 3;", compiled.ptx)
    assert begins and slot
    ptx = compiled.ptx[: begins.start()] + f"mov.b32 {slot[1]}, 0;\n\t" + compiled.ptx[begins.start() :]
    found = check_candidate(compiled, config, problem, ptx=ptx, schedules=("eager",))
    assert not found.ok
