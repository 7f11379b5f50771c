"""Ping-pong of ``sm90a_ring`` and ``sm90a_expand``: executed whole, turns, rules, spelling."""

from __future__ import annotations

import re

import pytest

from kernel_space.build.build import build
from kernel_space.build.resources import read_resources
from kernel_space.core.arch import SM90A
from kernel_space.machine.observe.trace import Observer
from kernel_space.machine.run.machine import Cta, Warp
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from tests.operators.svdquant_gemm.candidates import EXPAND, PROBLEM, RING, legal, parse, rejected
from tests.operators.svdquant_gemm.test_sm90a_expand import run_in_machine

SHALLOW = "num_ab_stage=2 num_dq_stage=3 num_lora_stage=1"
TURNS = r"bar\.(?:sync|arrive)\s+%r\d+, 256;"
TURN_BARRIERS = {3, 4}


class NamedBarriers(Observer):
    """Threads that have arrived at named barriers and wait for others when everything has ended."""

    def __init__(self) -> None:
        self.ctas: set[Cta] = set()

    def ran(self, warp: Warp, before: int) -> None:
        self.ctas.add(warp.cta)

    def left(self) -> set[tuple[int, int]]:
        """(number, threads) of every barrier that was used."""
        return {(each.number, each.arrived) for cta in self.ctas for each in cta.named.values()}


def machine(case: tuple[str, str, str, int, str], **options: object) -> None:
    text, shape, dtype, clusters, schedule = case
    problem = GemmProblem.parse(shape, lora_dtype=dtype, out_dtype=dtype)
    check = run_in_machine(f"{text} pingpong=true", problem, schedule=schedule, clusters=clusters, **options)
    assert check.ok, check


# Odd counts of k-tiles and slots, so that the slots passed over end within the ring and flip its phase or not.
ODD = (f"{EXPAND} tile_mnk=64x24x128 {SHALLOW}", "60,288,72,16", "fp16", 2, "random")  # 3 tiles on each CTA
EVEN = (
    f"{EXPAND} tile_mnk=64x24x128 cluster_shape_mn=2x1 wgmma_k=32 use_pdl=true num_dq_stage=3",
    "84,416,200,0",
    "bf16",
    2,  # clusters: 4 tiles each
    "slow_epilogue",
)
ONE_OR_TWO = (f"{RING} tile_mnk=64x128x128", "100,160,200,48", "fp16", 3, "random")
# Fewer columns than dequantizing threads: those of two warps have none, and may not write what another one writes.
FEW_COLUMNS = (f"{RING} tile_mnk=64x64x128 num_ab_stage=2", "60,160,72,16", "fp16", 1, "eager")
MORE_CASES = [
    (f"{RING} tile_mnk=64x64x128 num_dequant_warpgroups=2", "60,160,72,16", "fp16", 1, "eager"),
    (f"{RING} tile_mnk=64x136x128", "60,160,200,16", "fp16", 1, "random"),  # eight rows shared out by words
    (f"{RING} tile_mnk=64x184x128", "60,160,264,16", "bf16", 1, "random"),  # a second row for 56 threads
    (f"{EXPAND} tile_mnk=128x24x128 cluster_shape_mn=2x1 {SHALLOW}", "100,416,520,256", "bf16", 2, "random"),
    (f"{EXPAND} tile_mnk=64x40x128 epi_tile_n=16 raster_order=n", "130,672,200,48", "fp16", 3, "slow_tma"),
    (
        f"{RING} tile_mnk=64x128x128 register_operand=wgt wgmma_k=32 epi_tile_n=32 num_ab_stage=2",
        "150,288,264,16",
        "fp16",
        2,
        "slow_tma",
    ),
    (f"{RING} tile_mnk=128x128x128 num_dq_stage=3 swizzle_size=2", "300,416,264,0", "bf16", 2, "random"),
    (f"{RING} tile_mnk=64x128x128", "100,160,136,512", "bf16", 2, "random"),
    (f"{EXPAND} tile_mnk=64x24x128 {SHALLOW}", "60,288,72,272", "fp16", 2, "random"),
]


@pytest.mark.parametrize(
    "case",
    [
        ODD,
        EVEN,
        ONE_OR_TWO,
        FEW_COLUMNS,
        *(pytest.param(case, marks=pytest.mark.slow) for case in MORE_CASES),
    ],
)
def test_in_the_machine(case: tuple[str, str, str, int, str]) -> None:
    """Right on ragged shapes with races on; at the end no turn was passed that nobody took."""
    barriers = NamedBarriers()
    machine(case, observer=barriers)
    left = barriers.left()
    assert {number for number, _ in left} & TURN_BARRIERS
    assert not [number for number, threads in left if threads]


def test_without_turns_a_warpgroup_takes_a_slot_too_early() -> None:
    """Parity cannot tell the fill after next from the last one: the machine ends in a deadlock."""

    def without_turns(ptx: str) -> str:
        ptx, count = re.subn(TURNS, "", ptx)
        assert count in (0, 2)  # the expanding kernel is in the same text
        return ptx

    with pytest.raises(AssertionError, match="DEADLOCK"):
        machine(ODD, edit=without_turns)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"{RING} consumer_warpgroups=1", "consumer_warpgroups must be 2, got 1"),
        (f"{RING} split_k=2", "split_k=1 stream_k=false, got split_k=2 stream_k=false"),
        (f"{EXPAND} consumer_warpgroups=1", "consumer_warpgroups must be 2, got 1"),
        (f"{EXPAND} split_k=2", "split_k=1 stream_k=false, got split_k=2 stream_k=false"),
        (f"{EXPAND} stream_k=true", "got split_k=1 stream_k=true"),
    ],
)
def test_refused(text: str, message: str) -> None:
    verdict = rejected(f"{text} pingpong=true tile_mnk=64x128x128")
    assert (verdict.rule, message in verdict.reason) == ("pingpong", True), verdict


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (f"{RING} tile_mnk=64x128x128", "consumers"),
        (f"{RING} tile_mnk=256x128x128 pingpong=true", "accumulators"),
        (f"{EXPAND} tile_mnk=128x152x128 pingpong=true", "accumulators"),
    ],
)
def test_rows_of_a_tile_belong_to_one_warpgroup(text: str, rule: str) -> None:
    """64 rows are too few for two that share them, and two blocks of 64 rows beside one another take its registers."""
    assert rejected(text).rule == rule


def test_configs_of_before_are_cooperative() -> None:
    config = parse(f"{EXPAND} tile_mnk=128x200x128 consumer_warpgroups=2 cluster_shape_mn=2x1 use_pdl=true")
    assert (config.pingpong, config.epi_tile_n, config.staged_columns) == (False, 0, 32)
    config = parse(f"{RING} tile_mnk=128x192x128 consumer_warpgroups=2 num_c_stage=1 use_pdl=true")
    assert (config.pingpong, config.epi_tile_n, config.staged_columns) == (False, 0, 192)


@pytest.mark.parametrize("text", [f"{EXPAND} tile_mnk=64x256x128", f"{EXPAND} tile_mnk=128x128x128"])
def test_no_spills_with_128_accumulators(text: str) -> None:
    compiled = build(legal(f"{text} pingpong=true").config, PROBLEM.problem_class, SM90A)
    assert not any(each.spill_bytes for each in read_resources(compiled.cubin_path).values())
