"""The kernel ``sm90a_expand``: its first kernel executed, rules, budget, workspace, both launches."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from kernel_space.build.build import build
from kernel_space.build.dsl_compile import compile_for_capture
from kernel_space.build.dsl_env import import_dsl
from kernel_space.build.resources import read_resources
from kernel_space.core.arch import SM90A
from kernel_space.core.rules import Legal
from kernel_space.launch.capture import capture
from kernel_space.machine.memory.global_memory import GlobalMemory
from kernel_space.machine.observe.trace import Observer
from kernel_space.machine.run.launch import add_tensor
from kernel_space.machine.run.run import run_launch, run_ptx
from kernel_space.operators.svdquant_gemm.operands import Operands, make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.reference import OutputCheck
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes, zeroed_bytes
from tests.compiled_cases import ADDRESS_STEP, FIRST_ADDRESS, compile_and_capture
from tests.numerics.nvfp4_oracle import e2m1_value, e4m3_value
from tests.operators.svdquant_gemm import candidates
from tests.operators.svdquant_gemm.candidates import EXPAND, PROBLEM, RING, rejected

SM_COUNT = 132
POISON = 0x7E7E


def legal(text: str, problem: GemmProblem = PROBLEM) -> Legal:
    return candidates.legal(f"{EXPAND} {text}", problem)


# ------------------------------------------------------------------ the expanding kernel


@functools.cache
def expanding_ptx(use_pdl: bool, columns: int) -> str:
    """PTX of the first kernel alone."""
    cute = import_dsl("sm_90a")
    import cuda.bindings.driver as cuda
    import cutlass

    from kernel_space.operators.svdquant_gemm.sm90a_expand.kernel import ExpandedGemmSm90a

    config = legal(f"tile_mnk=128x{columns}x128 use_pdl={str(use_pdl).lower()}").config
    kernel = ExpandedGemmSm90a(config, PROBLEM.problem_class)

    def pointer(dtype: type) -> object:
        return cute.runtime.make_ptr(dtype, 256, cute.AddressSpace.gmem, assumed_align=16)

    compiled = compile_for_capture(
        kernel.launch_expand,
        pointer(cutlass.Float4E2M1FN),
        pointer(cutlass.Float8E4M3FN),
        pointer(cutlass.Float16),
        cutlass.Int32(256),
        cutlass.Int32(256),
        cuda.CUstream(0),
        arch="sm_90a",
    )
    return compiled.ptx


def expanded_by_definition(codes: np.ndarray, scales: np.ndarray, k: int) -> np.ndarray:
    """``[rows, K']``: what wgmma number b of a k-tile multiplies at its K index j is element 32c + 8(b div 2) + b mod 2
    + 2h + 4e of the k-tile, with j = 8h + 2c + e: lane c of a quad holds columns 2c, 2c + 1 of both halves h of a
    16-element row of wgmma's register operand (PTX ISA, wgmma m64nNk16), and owns elements 32c..32c+31 of the weights.
    """
    rows = codes.shape[0]
    padded = -(-k // 128) * 128
    values = np.zeros((rows, padded))
    table = np.array([float(e2m1_value(code)) for code in range(16)])
    scale = np.array([float(e4m3_value(byte)) if byte & 0x7F != 0x7F else np.nan for byte in range(256)])
    values[:, :k] = table[codes] * np.repeat(scale[scales], 16, axis=1)
    element = np.empty(128, dtype=int)
    for position in range(128):
        b, j = divmod(position, 16)
        h, c, e = j // 8, j % 8 // 2, j % 2
        element[position] = 32 * c + 8 * (b // 2) + b % 2 + 2 * h + 4 * e
    return values.reshape(rows, -1, 128)[:, :, element].reshape(rows, padded) * 2.0**-7


def blocked(scales: np.ndarray) -> np.ndarray:
    """Byte (m % 32) * 16 + (m % 128) // 32 * 4 + g % 4 of block (m // 128) * ceil(K/64) + g // 4 (docs/operator.md)."""
    rows, groups = scales.shape
    blocks = -(-groups // 4)
    out = np.zeros(-(-rows // 128) * blocks * 512, dtype=np.uint8)
    for m in range(rows):
        for g in range(groups):
            inside = m % 32 * 16 + m % 128 // 32 * 4 + g % 4
            out[(m // 128 * blocks + g // 4) * 512 + inside] = scales[m, g]
    return out


@pytest.mark.parametrize(("m", "k"), [(8, 256), (13, 160), (133, 96), (1, 672), (9, 4128)])
@pytest.mark.parametrize(("use_pdl", "columns", "rows_per_thread"), [(False, 136, 8), (True, 128, 2)])
def test_expanding_kernel_writes_what_wgmma_multiplies(
    m: int, k: int, use_pdl: bool, columns: int, rows_per_thread: int
) -> None:
    """Every code meets random scales; rows and K ragged; nothing is written outside ``[M, K']``."""
    random = np.random.default_rng(m * k)
    codes = random.integers(0, 16, (m, k))
    scales = random.integers(0, 0x7F, (m, k // 16)).astype(np.uint8)
    packed = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    padded = -(-k // 128) * 128
    expanded = np.full(m * padded + 64, POISON, dtype=np.uint16)
    result = run_ptx(
        expanding_ptx(use_pdl, columns),
        packed,
        blocked(scales),
        expanded,
        m,
        k,
        grid=(-(-padded // 8 // 256) * -(-m // rows_per_thread), 1, 1),
        block=(256, 1, 1),
    )
    assert result.ok, result
    got = expanded[: m * padded].view(np.float16).reshape(m, padded).astype(np.float64)
    np.testing.assert_array_equal(got, expanded_by_definition(codes, scales, k))
    assert (expanded[m * padded :] == POISON).all()


# ------------------------------------------------------------------ both kernels


def run_in_machine(text: str, problem: GemmProblem, **options: Any) -> OutputCheck:
    """All launches of one call on the machine against float64; ``y`` starts as NaN, the workspace is poisoned."""
    operands = make_operands(problem, seed=3, source="scales")
    execute_in_machine(text, operands, **options)
    return operands.check()


def execute_in_machine(
    text: str,
    operands: Operands,
    *,
    schedule: str = "eager",
    check_races: bool = True,
    clusters: int = 2,
    edit: Callable[[str], str] = str,
    observer: Observer | None = None,
) -> None:
    """Fill ``operands.y``. ``edit`` breaks the PTX first."""
    problem = operands.problem
    config = candidates.legal(text, problem).config
    tensors = operands.tensors()
    tensors["y"].fill_(torch.nan)
    workspace = torch.full((workspace_bytes(config, problem) + 256,), 0x7F, dtype=torch.uint8)
    base = -(-workspace.data_ptr() // 256) * 256
    workspace[: base - workspace.data_ptr() + zeroed_bytes(config, problem)] = 0
    compiled = build(config, problem.problem_class, SM90A)
    pointers = [tensor.data_ptr() for tensor in tensors.values()]
    memory = GlobalMemory()
    for name, tensor in (*tensors.items(), ("workspace", workspace)):
        add_tensor(memory, tensor, name)
    for launch in capture(compiled, *pointers, base, problem.m, problem.n, problem.k, clusters, 0):
        result = run_launch(
            launch,
            edit(compiled.ptx),
            memory,
            sms=4,
            schedule=schedule,
            seed=1,
            check_races=check_races,
            observer=observer,
        )
        assert result.ok, f"{launch.kernel_name}: {result}"


CASES = [
    ("tile_mnk=128x24x128 cluster_shape_mn=2x1", "50,160,264,16", "fp16", "random"),
    ("tile_mnk=64x40x128 consumer_warpgroups=1 split_k=2 use_pdl=true", "45,416,72,0", "bf16", "slow_tma"),
    ("tile_mnk=128x32x128 consumer_warpgroups=1 use_pdl=true", "45,416,200,48", "fp16", "random"),
]
SHALLOW = "num_ab_stage=2 num_dq_stage=2 num_lora_stage=1"
CLUSTER = "cluster_shape_mn=2x1"
MORE_CASES = [
    (f"tile_mnk=256x16x128 wgmma_k=32 {SHALLOW}", "40,288,520,128", "bf16", "random"),
    (f"tile_mnk=128x72x128 {CLUSTER} split_k=3 raster_order=n", "150,480,520,256", "fp16", "slow_tma"),
    (
        f"tile_mnk=128x40x128 {CLUSTER} num_dq_stage=3 swizzle_size=2",
        "133,672,1032,48",
        "fp16",
        "slow_epilogue",
    ),
]


@pytest.mark.parametrize(
    ("text", "shape", "dtype", "schedule"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE_CASES)],
)
def test_both_kernels_in_the_machine(text: str, shape: str, dtype: str, schedule: str) -> None:
    """Ragged M, N and K, tiles that start inside a block of scales, clusters, splits; races on."""
    problem = GemmProblem.parse(shape, lora_dtype=dtype, out_dtype=dtype)
    check = run_in_machine(f"{EXPAND} {text}", problem, schedule=schedule)
    assert check.ok, check


@pytest.mark.slow
def test_two_slices_of_rank_16_without_expansion() -> None:
    """The second slice is zeros: it once was the first again, here and with ``sm90a_expand`` (found on an H200).

    Races off: threads beyond the last row of the column operand write what another thread writes.
    """
    check = run_in_machine(
        f"{RING} tile_mnk=64x16x128 consumer_warpgroups=1",
        GemmProblem.parse("20,96,24,16"),
        check_races=False,
    )
    assert check.ok, check


# ------------------------------------------------------------------ rules, budget, workspace


@pytest.mark.parametrize(
    ("text", "rule", "message"),
    [
        ("cluster_shape_mn=1x2", "cluster_shape", "must be one of 1x1 2x1, got 1x2"),
        ("cluster_shape_mn=4x1", "cluster_shape", "must be one of 1x1 2x1, got 4x1"),
        ("tile_mnk=256x152x128", "accumulators", "152"),
        ("num_dq_stage=1", "stages", "num_dq_stage must be at least 2 or auto, got 1"),
        ("num_lora_stage=0", "stages", "num_lora_stage must be at least 1 or auto, got 0"),
    ],
)
def test_refused(text: str, rule: str, message: str) -> None:
    verdict = rejected(f"{EXPAND} {text}")
    assert (verdict.rule, message in verdict.reason) == (rule, True), verdict


def test_knobs_without_effect_take_one_value() -> None:
    problem = GemmProblem.parse("4352,3840,3072,0")
    spelled = legal("tile_mnk=128x200x128 epi_tile_n=32 num_lora_stage=2", problem).config
    assert spelled == legal("tile_mnk=128x200x128", problem).config


def test_bytes_of_one_slot_by_hand() -> None:
    """128x200x128: 64 bytes a packed row of weights, 128 bytes an expanded row of 64, no packed activations."""
    each = {row.name: row.each for row in legal("tile_mnk=128x200x128").budget.smem.rows}
    assert each["dequantized"] == 200 * 128
    assert each["rows"] == 128 * 64
    assert each["row scales"] == 2 * 512
    assert each["LoRA rows"] == 128 * 128
    assert each["C"] == 8 * 32 * 16 * 2  # 32 rows of 16 columns of y for each of 8 warps
    assert not {"columns", "column scales", "LoRA columns", "wcscale", "bias"} & set(each)


def test_workspace_by_hand() -> None:
    """fp16 activations with K rounded up to 128; split-K counters and partial sums come before them."""
    problem = GemmProblem.parse("1000,672,1032,48")
    whole = legal("tile_mnk=128x200x128 cluster_shape_mn=2x1", problem).config
    assert workspace_bytes(whole, problem) == 1000 * 768 * 2
    assert zeroed_bytes(whole, problem) == 0
    split = whole.replace(split_k=3)
    tiles = (
        5 * 2 * 5
    )  # clusters of 256 rows cover 1032 rows of weights, tiles of 200 columns 1000 rows of act
    partials = tiles * 3 * 128 * 200 * 4
    assert zeroed_bytes(split, problem) == 256
    assert workspace_bytes(split, problem) == 256 + partials + 1000 * 768 * 2


# ------------------------------------------------------------------ compiled


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("tile_mnk=128x200x128 cluster_shape_mn=2x1", "4352,3840,3072,128"),
        ("tile_mnk=256x136x128 wgmma_k=32 use_pdl=true", "333,3232,520,16"),
        ("tile_mnk=64x64x128 consumer_warpgroups=1 split_k=3 cluster_shape_mn=2x1", "100,672,1032,0"),
        pytest.param(
            "tile_mnk=64x200x128 pingpong=true cluster_shape_mn=2x1 epi_tile_n=64",
            "4352,3840,3072,128",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_two_launches(text: str, shape: str) -> None:
    """Grids, cluster, PDL, shared memory as the budget says, and the descriptor of the expanded activations."""
    problem = GemmProblem.parse(shape)
    resolved = legal(text, problem)
    config = resolved.config
    artifacts, (first, second) = compile_and_capture(config, problem, SM90A, SM_COUNT)
    padded = -(-problem.k // 128) * 128
    pdl = "programmatic_stream_serialization"
    rows, columns, _ = config.tile_mnk

    rows_per_thread = 2 if columns <= 128 else 8
    assert first.grid == (-(-padded // 8 // 256) * -(-problem.m // rows_per_thread), 1, 1)
    assert first.block == (256, 1, 1)
    assert bool(first.attributes.get(pdl)) == config.use_pdl
    assert not first.tensor_maps

    assert second.attributes[pdl] == 1
    assert second.smem_bytes == resolved.budget.smem_bytes
    assert second.block[0] == 128 * (1 + config.consumer_warpgroups)
    cluster = config.cluster_shape_mn[0]
    assert second.cluster == (cluster, 1, 1)
    tiles = -(-problem.n // (rows * cluster)) * -(-problem.m // columns)
    assert second.grid == (cluster, 1, min(SM_COUNT // cluster, tiles * config.split_k))

    workspace = FIRST_ADDRESS + ADDRESS_STEP * 9
    start = workspace + workspace_bytes(config, problem) - problem.m * padded * 2
    (expanded,) = [tensor for tensor in second.tensor_maps.values() if tensor.address == start]
    assert (expanded.dims, expanded.box) == ((padded, problem.m), (64, columns))
    assert (expanded.strides, expanded.swizzle_bytes) == ((padded * 2,), 128)
    multicasts = len(re.findall(r"\.multicast::cluster", artifacts.ptx))
    assert multicasts == (0 if cluster == 1 else 2 if problem.r else 1)
    assert "ld.local" not in artifacts.ptx and "st.local" not in artifacts.ptx


SHARED = "tile_mnk=64x128x128 consumer_warpgroups=1 use_pdl=true"


@pytest.mark.parametrize(
    "text",
    [
        SHARED,
        pytest.param(f"{SHARED} stream_k=true", marks=pytest.mark.slow),
        pytest.param("tile_mnk=128x64x128 consumer_warpgroups=1", marks=pytest.mark.slow),
    ],
)
def test_expanding_blocks_fit_beside_the_gemm(text: str) -> None:
    """What one SM has (CUDA programming guide, 9.0): 64 K registers, which a warp takes in units of 256; 2048 threads;
    228 KB of shared memory, of which every block takes 1 KB more than it asks for. One CTA and four blocks.
    """
    problem = GemmProblem.parse("256,3840,3072,128")
    config = legal(text, problem).config
    compiled = build(config, problem.problem_class, SM90A)
    used = {name: each.registers for name, each in read_resources(compiled.cubin_path).items()}
    (expanding,) = [count for name, count in used.items() if "expand_kernel" in name]
    (multiplying,) = [count for name, count in used.items() if "gemm_kernel" in name]
    _, (first, second) = compile_and_capture(config, problem, SM90A, SM_COUNT)
    launches = ((1, second, multiplying), (4, first, expanding))
    registers = sum(
        times * launch.block[0] // 32 * -(-32 * each // 256) * 256 for times, launch, each in launches
    )
    assert registers <= 65536
    assert sum(times * launch.block[0] for times, launch, _ in launches) <= 2048
    assert sum(times * (launch.smem_bytes + 1024) for times, launch, _ in launches) <= 228 * 1024
    _, loading, consuming = config.expand_registers
    assert 128 * (loading + consuming) <= 256 * multiplying


def test_tiles_that_share_an_sm() -> None:
    """Not two warpgroups, nor more accumulators than ptxas compiles with 128 registers a thread; then all is theirs."""
    assert legal("tile_mnk=64x128x128 consumer_warpgroups=1").config.shares_sm_with_expansion
    for text in ("tile_mnk=64x136x128 consumer_warpgroups=1", "tile_mnk=128x128x128"):
        config = legal(f"{text} num_ab_stage=2").config
        assert not config.shares_sm_with_expansion
        assert config.expand_registers == (1, 24, 240)


@pytest.mark.parametrize(
    ("text", "slots"),
    [
        ("tile_mnk=64x128x128 consumer_warpgroups=1", 10),
        ("tile_mnk=128x128x128", 8),
        ("tile_mnk=128x136x128", 6),
    ],
)
def test_slots_of_expanded_activations(text: str, slots: int) -> None:
    assert legal(text).config.num_dq_stage == slots


@pytest.mark.parametrize(
    ("text", "lora", "act"),
    [
        (SHARED, True, True),
        (SHARED.replace("true", "false"), False, False),
        ("tile_mnk=128x136x128 use_pdl=true", True, False),
    ],
)
def test_sources_are_asked_for_before_the_wait(text: str, lora: bool, act: bool) -> None:
    """LoRA's act slices, and for few columns act, into the L2 only: what the kernel before writes is there."""
    problem = GemmProblem.parse("256,3840,3072,128")
    ptx = build(legal(text, problem).config, problem.problem_class, SM90A).ptx
    for mnemonic, wanted in ((r"cp\.async\.bulk\.prefetch\.tensor", lora), (r"prefetch\.global\.L2 ", act)):
        assert bool(re.search(mnemonic, ptx)) == wanted
        for body in re.split(r"\.entry ", ptx)[1:]:
            places = [found.start() for found in re.finditer(mnemonic, body)]
            assert not places or max(places) < body.index("griddepcontrol.wait")


def test_class_without_lora_has_no_lora_ring() -> None:
    problem = GemmProblem.parse("4352,3840,3072,0")
    names = [row.name for row in legal("tile_mnk=128x200x128", problem).budget.smem.rows]
    assert not [name for name in names if "lora" in name.lower()]
