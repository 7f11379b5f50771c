"""Stream-K of ``sm90a_expand``: how k-tiles are dealt out, parts through the workspace, rules, sizes."""

from __future__ import annotations

import functools
import re

import numpy as np
import pytest
import torch

from kernel_space.build.build import build
from kernel_space.build.dsl_compile import compile_for_capture
from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import SM90A
from kernel_space.launch.capture import capture
from kernel_space.machine.memory.global_memory import GlobalMemory
from kernel_space.machine.run.launch import add_tensor
from kernel_space.machine.run.run import SimResult, run_launch, run_ptx
from kernel_space.machine.values.faults import SimStatus
from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_expand.config import ExpandConfig
from kernel_space.operators.svdquant_gemm.sm90a_parts.config import STREAM_PARTS
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes, zeroed_bytes
from tests.compiled_cases import compile_and_capture
from tests.operators.svdquant_gemm import candidates
from tests.operators.svdquant_gemm.candidates import EXPAND, PROBLEM, rejected

STREAM = f"{EXPAND} stream_k=true"
MOST_ITEMS = 40


def legal(text: str, problem: GemmProblem) -> ExpandConfig:
    return candidates.legal(f"{STREAM} {text}", problem).config


# ------------------------------------------------------------------ who works on what


@functools.cache
def dealing_ptx(r: int) -> str:
    """PTX of a kernel that writes down what every role of the GEMM would work on."""
    cute = import_dsl("sm_90a")
    import cutlass

    from tests.kernels.deal import Deal

    problem = GemmProblem.parse(f"4352,3840,3072,{r}")
    pointer = cute.runtime.make_ptr(cutlass.Int32, 256, cute.AddressSpace.gmem, assumed_align=4)
    sizes = [cutlass.Int32(1)] * 3
    deal = Deal(legal("tile_mnk=128x256x128", problem), problem.problem_class, MOST_ITEMS)
    return compile_for_capture(deal, pointer, *sizes, arch="sm_90a").ptx


def dealt(r: int, clusters: int, tiles: tuple[int, int], k_tiles: int) -> list[tuple[int, np.ndarray]]:
    """(First helper, items ``[count, 5]``) of each cluster: tile m, tile n, split, first k-tile, k-tiles."""
    out = np.full((clusters, 2 + 5 * MOST_ITEMS), -1, dtype=np.int32)
    result = run_ptx(dealing_ptx(r), out, *tiles, k_tiles, grid=(1, 1, clusters), block=(32, 1, 1))
    assert result.ok, result
    return [(int(row[1]), row[2 : 2 + 5 * row[0]].reshape(-1, 5)) for row in out]


@pytest.mark.parametrize(
    ("clusters", "tiles", "k_tiles"),
    [
        (66, (15, 17), 120),  # 4352,15360,3840 in tiles of 256 x 256: 3.9 waves
        (132, (24, 17), 30),  # 4352,3840,3072 in tiles of 128 x 256: 3.1 waves
        (132, (24, 2), 30),  # fewer tiles than clusters
        (5, (3, 1), 7),
        (8, (1, 1), 3),  # more clusters than k-tiles
        (4, (2, 4), 9),  # whole waves: nothing is dealt out
        (7, (3, 5), 1),
    ],
)
@pytest.mark.parametrize("r", [0, 32, 128, 256])
def test_dealing(clusters: int, tiles: tuple[int, int], k_tiles: int, r: int) -> None:
    """Every k-tile once; shares equal but for LoRA and a unit; at most one part published, before any wait."""
    shares = dealt(r, clusters, tiles, k_tiles)
    owner = np.full((*tiles, k_tiles), -1)
    for cluster, (_, items) in enumerate(shares):
        for m, n, split, first, count in items:
            assert count > 0
            assert split == (first > 0)
            assert (owner[m, n, first : first + count] == -1).all()
            owner[m, n, first : first + count] = cluster
    assert (owner >= 0).all()

    lora = int(r / 128 + 0.5)
    work = [sum(count + (lora if first == 0 else 0) for *_, first, count in items) for _, items in shares]
    # A share that would begin or end within LoRA's units takes all of them, or none.
    assert max(work) - min(work) <= 1 + 2 * lora

    for cluster, (helper, items) in enumerate(shares):
        ends = [bool(first + count == k_tiles) for *_, first, count in items]
        assert all(ends[1:])  # only the first item may be published
        owned = [(m, n) for m, n, _, first, count in items if first > 0 and first + count == k_tiles]
        assert len(owned) <= 1
        for m, n in owned:
            assert owner[m, n].tolist() == sorted(owner[m, n])
            # Helpers are consecutive and of lower index, and this tile is the first that they visit.
            assert set(owner[m, n]) == set(range(helper, cluster + 1))
            for other in range(helper, cluster):
                assert tuple(shares[other][1][0][:2]) == (m, n)


# ------------------------------------------------------------------ executed


class Call:
    """Operands, a poisoned workspace and an output of NaN; ``launch`` runs both kernels on the machine."""

    def __init__(self, text: str, problem: GemmProblem, clusters: int) -> None:
        self.config, self.problem, self.clusters = legal(text, problem), problem, clusters
        self.operands = make_operands(problem, seed=3, source="scales")
        self.tensors = self.operands.tensors()
        self.workspace = torch.full((workspace_bytes(self.config, problem) + 256,), 0x7F, dtype=torch.uint8)
        base = -(-self.workspace.data_ptr() // 256) * 256
        first = base - self.workspace.data_ptr()
        self.flags = self.workspace[first : first + zeroed_bytes(self.config, problem)]
        self.flags.zero_()
        self.compiled = build(self.config, problem.problem_class, SM90A)
        pointers = [tensor.data_ptr() for tensor in self.tensors.values()]
        sizes = (problem.m, problem.n, problem.k)
        self.launches = capture(self.compiled, *pointers, base, *sizes, clusters, 0)

    def launch(self, schedule: str, ptx: str | None = None) -> SimResult:
        self.tensors["y"].fill_(torch.nan)
        memory = GlobalMemory()
        for name, tensor in (*self.tensors.items(), ("workspace", self.workspace)):
            add_tensor(memory, tensor, name)
        for launch in self.launches:
            result = run_launch(launch, ptx or self.compiled.ptx, memory, sms=16, schedule=schedule, seed=1)
            if not result.ok:
                break
        return result

    def right(self) -> bool:
        return self.operands.check(split_k=self.config.partial_sums).ok


SHALLOW = "num_ab_stage=2 num_dq_stage=2 num_lora_stage=1"
CASES = [
    # 6 k-tiles for 2 tiles on 5 clusters: inner parts, owners with two helpers, PDL
    ("tile_mnk=64x40x128 consumer_warpgroups=1 use_pdl=true", "45,672,72,0", "bf16", 5, "random"),
]
MORE_CASES = [
    # clusters of two, 4 of 6 tiles dealt out in a grid of 3
    (f"tile_mnk=128x16x128 cluster_shape_mn=2x1 {SHALLOW}", "40,288,520,16", "fp16", 3, "eager"),
    ("tile_mnk=128x24x128 cluster_shape_mn=2x1 wgmma_k=32", "150,672,264,48", "fp16", 4, "slow_epilogue"),
    ("tile_mnk=64x24x128 consumer_warpgroups=1 raster_order=n", "100,416,200,256", "bf16", 3, "random"),
    ("tile_mnk=256x16x128 num_dq_stage=3 swizzle_size=2", "133,672,776,128", "bf16", 5, "random"),
    ("tile_mnk=64x40x128 consumer_warpgroups=1", "45,416,72,512", "bf16", 3, "random"),
]


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "clusters", "schedule"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)],
)
def test_in_the_machine(text: str, shape: str, dtype: str, clusters: int, schedule: str) -> None:
    """Right on ragged shapes with races on; a second launch, on flags the first one left, gives the same bits."""
    call = Call(text, GemmProblem.parse(shape, lora_dtype=dtype, out_dtype=dtype), clusters)
    result = call.launch(schedule)
    assert result.ok, result
    assert call.right()
    first = call.tensors["y"].clone()
    assert not call.flags.any()
    result = call.launch("eager")
    assert result.ok, result
    assert torch.equal(call.tensors["y"], first)
    assert not call.flags.any()


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"st\.release\.gpu", "st.relaxed.gpu"),
        (r"ld\.acquire\.gpu", "ld.relaxed.gpu"),
    ],
)
def test_races_without_the_order_of_flags(pattern: str, replacement: str) -> None:
    """A flag that releases or acquires nothing: the machine sees sums read that nothing orders behind their write."""
    text, shape, dtype, clusters, _ = CASES[0]
    call = Call(text, GemmProblem.parse(shape, lora_dtype=dtype, out_dtype=dtype), clusters)
    ptx, count = re.subn(pattern, replacement, call.compiled.ptx)
    assert count
    result = call.launch("eager", ptx)
    assert result.status is SimStatus.RACE
    assert "workspace" in str(result)


# ------------------------------------------------------------------ rules, sizes


@pytest.mark.parametrize("split_k", [2, 16])
def test_refused_with_split_k(split_k: int) -> None:
    verdict = rejected(f"{STREAM} split_k={split_k}")
    assert verdict.rule == "stream_k"
    assert f"needs split_k=1, got split_k={split_k}" in verdict.reason


def test_workspace_by_hand() -> None:
    """144 CTAs of 8 warps with a flag each, 144 tiles of fp32 sums, then the activations; whatever the problem."""
    config = legal("tile_mnk=128x256x128 cluster_shape_mn=2x1", PROBLEM)
    assert zeroed_bytes(config, PROBLEM) == 144 * 8 * 4 == 18 * 256
    assert workspace_bytes(config, PROBLEM) == 4608 + 144 * 128 * 256 * 4 + 4352 * 3840 * 2
    one = legal("tile_mnk=64x40x128 consumer_warpgroups=1", PROBLEM)
    assert zeroed_bytes(one, PROBLEM) == 2304
    assert config.partial_sums == 2 * STREAM_PARTS + 1


@pytest.mark.parametrize(
    ("text", "shape", "grid"),
    [
        ("tile_mnk=128x256x128 cluster_shape_mn=2x1", "4352,15360,3840,128", (2, 1, 66)),
        ("tile_mnk=128x128x128 use_pdl=true", "256,3840,3072,128", (1, 1, 132)),
        (
            "tile_mnk=64x64x128 consumer_warpgroups=1",
            "60,3840,72,0",
            (1, 1, 2 * 8),
        ),  # eight parts of two tiles
    ],
)
def test_launch(text: str, shape: str, grid: tuple[int, int, int]) -> None:
    """One CTA on every SM, whatever the tiles, unless parts would be small; no spills.

    One lane sets a flag: a shuffle of all lanes behind its branch hung on the card, and not in the machine.
    """
    problem = GemmProblem.parse(shape)
    artifacts, (_, gemm) = compile_and_capture(legal(text, problem), problem, SM90A, 132)
    assert gemm.grid == grid
    assert "ld.local" not in artifacts.ptx and "st.local" not in artifacts.ptx
    of_one_lane = [before.rpartition("bra")[2] for before in re.split(r"st\.release", artifacts.ptx)[:-1]]
    assert of_one_lane
    assert not [text for text in of_one_lane if "shfl.sync" in text]


def test_grid_never_exceeds_the_flags() -> None:
    """On a chip of more SMs than the workspace has flags for."""
    problem = GemmProblem.parse("4352,3840,3072,128")
    config = legal("tile_mnk=128x256x128 cluster_shape_mn=2x1", problem)
    _, (_, gemm) = compile_and_capture(config, problem, SM90A, 160)
    assert gemm.grid == (2, 1, 72)
