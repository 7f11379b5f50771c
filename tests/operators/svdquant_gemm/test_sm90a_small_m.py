"""The kernel ``sm90a_small_m``: executed in the machine against float64, rules, budget, launch."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

from kernel_space.build.build import refuse_serialized
from kernel_space.build.dsl_compile import Artifacts, compile_function
from kernel_space.build.dsl_env import import_dsl
from kernel_space.core.arch import SM90A
from kernel_space.core.rules import Legal
from kernel_space.launch.capture import CaptureRuntime, Launch
from kernel_space.launch.loading import load_bytes
from kernel_space.machine.run.launch import Exported
from kernel_space.machine.run.run import run_compiled
from kernel_space.operators.svdquant_gemm.operands import make_operands
from kernel_space.operators.svdquant_gemm.problem import GemmProblem
from kernel_space.operators.svdquant_gemm.sm90a_small_m.config import ROLE_REGISTERS, SmallMConfig
from kernel_space.operators.svdquant_gemm.workspace import workspace_bytes, zeroed_bytes
from tests.operators.svdquant_gemm import candidates
from tests.operators.svdquant_gemm.candidates import SMALL_M, rejected

PROBLEM = GemmProblem.parse("64,3840,3072,128")
FIRST_ADDRESS, ADDRESS_STEP, SM_COUNT = 0x7F00_0000_0000, 1 << 32, 132
SYNC, WGMMA = "mma.sync.aligned.m16n8k16", "wgmma.mma_async"


def whole(text: str) -> str:
    """Weights as rows unless ``text`` says otherwise."""
    operand = "" if "register_operand" in text else "register_operand=wgt"
    return f"{SMALL_M} {operand} {text}"


def legal(text: str, problem: GemmProblem = PROBLEM) -> Legal:
    return candidates.legal(whole(text), problem)


@functools.cache
def compiled(config: SmallMConfig, problem: GemmProblem) -> Artifacts:
    import_dsl("sm_90a")
    from kernel_space.operators.svdquant_gemm.sm90a_small_m import kernel

    function, arguments = kernel.host_function(config, problem.problem_class, SM90A)
    return compile_function(function, arguments, {}, arch="sm_90a", prefix="case")[1]


# ------------------------------------------------------------------ executed

COLUMNS = "register_operand=act consumer_warpgroups=1 use_pdl=true"

# Ragged in every size; parts of K that get nothing, R of half a unit, clusters off the powers of two, column tiles.
CASES = [
    ("tile_mnk=32x8x128 consumer_warpgroups=1", "1,544,264,0", "fp16", "fp16"),
    ("tile_mnk=32x8x128 num_ab_stage=3", "5,160,72,16", "bf16", "fp16"),
    ("tile_mnk=32x8x128 split_k=3 consumer_warpgroups=1", "3,32,8,16", "fp16", "fp16"),
    ("tile_mnk=64x16x128 num_dq_stage=2 consumer_warpgroups=1", "9,352,72,240", "fp16", "bf16"),
    (
        "tile_mnk=64x32x128 consumer_warpgroups=1 split_k=2 num_dq_stage=2 use_pdl=true",
        "41,672,72,112",
        "bf16",
        "bf16",
    ),
    ("tile_mnk=128x128x128 num_dq_stage=3", "130,416,136,16", "bf16", "fp16"),
    # Weights as columns.
    (f"{COLUMNS} tile_mnk=64x40x128 ctas_per_sm=2 split_k=2 num_dq_stage=3", "70,672,72,0", "fp16", "bf16"),
    # Of four parts of K three get nothing.
    (
        f"{COLUMNS} tile_mnk=64x104x128 num_dequant_warpgroups=2 split_k=4 ctas_per_sm=2",
        "5,96,40,16",
        "fp16",
        "fp16",
    ),
]
SLOW_CASES = [
    ("tile_mnk=64x16x128 split_k=3 num_ab_stage=2 use_pdl=true", "17,1120,136,48", "bf16", "bf16"),
    # Two wgmma for 104, slots of half a unit that two warpgroups fill in turn, more than one round.
    (
        f"{COLUMNS} tile_mnk=64x104x128 num_dequant_warpgroups=2 split_k=4 ctas_per_sm=2",
        "41,2592,120,48",
        "bf16",
        "bf16",
    ),
    # Whole units by one warpgroup in several pieces, by two in one; a tile that touches two blocks of scale factors.
    (f"{COLUMNS} tile_mnk=64x104x128 split_k=3", "9,160,216,16", "fp16", "fp16"),
    # Units enough for every ring to go round twice; the weight ring takes sums for 2 of 8 octets.
    (
        "tile_mnk=64x64x128 consumer_warpgroups=1 num_dq_stage=2 num_ab_stage=3 split_k=4",
        "20,3584,64,16",
        "bf16",
        "fp16",
    ),
    ("tile_mnk=128x16x128 num_dq_stage=2 split_k=3 ctas_per_sm=2", "30,1184,264,0", "fp16", "bf16"),
    (
        "register_operand=act tile_mnk=128x112x128 num_dequant_warpgroups=2",
        "100,928,232,112",
        "bf16",
        "fp16",
    ),
    ("tile_mnk=96x8x128 consumer_warpgroups=3 split_k=5 use_pdl=true", "9,1376,200,256", "bf16", "fp16"),
    ("tile_mnk=128x64x128 split_k=4 ctas_per_sm=2", "70,1184,392,112", "bf16", "bf16"),
    ("tile_mnk=192x32x128 consumer_warpgroups=3 split_k=8", "33,640,328,48", "fp16", "fp16"),
    ("tile_mnk=256x64x128 consumer_warpgroups=4 split_k=2 use_pdl=true", "64,320,264,80", "bf16", "fp16"),
    ("tile_mnk=32x64x128 num_dq_stage=0", "70,480,40,32", "fp16", "fp16"),
    ("tile_mnk=64x16x128 split_k=2", "9,352,72,512", "bf16", "bf16"),
    (f"{COLUMNS} tile_mnk=64x40x128 split_k=2", "41,352,72,272", "fp16", "fp16"),
    (f"{COLUMNS} tile_mnk=64x256x128 split_k=2", "64,1120,520,240", "fp16", "bf16"),
    (
        f"{COLUMNS} tile_mnk=64x120x128 num_dequant_warpgroups=2 ctas_per_sm=2 split_k=8",
        "33,2592,248,64",
        "bf16",
        "fp16",
    ),
]


@pytest.mark.parametrize(
    ("text", "shape", "lora_dtype", "out_dtype"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_CASES)],
)
@pytest.mark.parametrize("schedule", ["eager", pytest.param("random", marks=pytest.mark.slow)])
def test_executed(
    text: str, shape: str, lora_dtype: str, out_dtype: str, schedule: str, tmp_path: Path
) -> None:
    """Every element within the derived tolerance of float64, no races, nothing outside of the operands touched."""
    execute(text, GemmProblem.parse(shape, lora_dtype=lora_dtype, out_dtype=out_dtype), schedule, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "tile_mnk=64x16x128 consumer_warpgroups=1 num_ab_stage=3 num_dq_stage=4",
        f"{COLUMNS} tile_mnk=64x40x128 num_dequant_warpgroups=2 ctas_per_sm=2 num_ab_stage=3 num_dq_stage=5",
        pytest.param("tile_mnk=128x16x128 num_ab_stage=3 num_dq_stage=4", marks=pytest.mark.slow),
    ],
)
def test_loads_land_out_of_order(text: str, tmp_path: Path) -> None:
    """The youngest load first: act of later units is there before the consumers', whose slots they share."""
    execute(text, GemmProblem.parse("9,1120,72,16"), "slow_tma", tmp_path)


def execute(text: str, problem: GemmProblem, schedule: str, tmp_path: Path) -> None:
    from kernel_space.operators.svdquant_gemm.signature import SIGNATURE

    config = legal(text, problem).config
    artifacts = compiled(config, problem)
    object_path = tmp_path / "case.o"
    object_path.write_bytes(artifacts.object_code)
    operands = make_operands(problem, seed=3, source="scales")
    tensors = operands.tensors().values()
    result = run_compiled(
        Exported(artifacts.ptx, object_path, artifacts.prefix, SIGNATURE.abi),
        *tensors, 0, problem.m, problem.n, problem.k, SM_COUNT, schedule=schedule,
    )  # fmt: skip
    assert result.ok, str(result)
    check = operands.check(split_k=config.partial_sums)
    assert check.ok, str(check)


# ------------------------------------------------------------------ rules, budget, workspace


@pytest.mark.parametrize(
    ("text", "rule", "message"),
    [
        ("tile_mnk=48x8x128", "tile_rows", "a multiple of 32 up to 256 for mma.sync, got 48"),
        ("tile_mnk=96x64x128", "tile_rows", "a multiple of 64 up to 256 for wgmma, got 96"),
        ("tile_mnk=64x24x128", "tile_columns", "one of 8 16 32 64 for mma.sync, got 24"),
        ("tile_mnk=64x8x128 num_dq_stage=2", "tile_columns", "one of 16 32 64 128 for wgmma, got 8"),
        ("tile_mnk=64x64x64", "tile_k", "must be 128"),
        ("tile_mnk=96x16x128", "consumers", "a multiple of the 3 that share 96 rows, got 2"),
        ("tile_mnk=32x8x128 consumer_warpgroups=5", "consumers", "must be 1 to 4"),
        (
            "tile_mnk=64x64x128 consumer_warpgroups=2",
            "consumers",
            "must own 64 of 64 rows each with wgmma, got 2",
        ),
        (
            "tile_mnk=32x64x128 num_dq_stage=0 consumer_warpgroups=4",
            "accumulators",
            "128 registers can hold 16",
        ),
        ("tile_mnk=32x8x128 num_ab_stage=1", "stages", "num_ab_stage must be at least 2"),
        ("tile_mnk=128x64x128 num_dq_stage=1", "stages", "num_dq_stage must be 0"),
        ("tile_mnk=128x64x128 num_ab_stage=2", "stages", "num_ab_stage must be at least 3"),
        (
            "tile_mnk=256x64x128 consumer_warpgroups=4 ctas_per_sm=2",
            "accumulators",
            "42 registers can hold 0",
        ),
        ("tile_mnk=128x128x128 ctas_per_sm=2", "accumulators", "64 registers can hold 32"),
        ("tile_mnk=32x8x128 ctas_per_sm=4 consumer_warpgroups=1", "ctas_per_sm", "must be 1 or 2, got 4"),
        ("tile_mnk=32x8x128 split_k=9", "split_k", "between 1 and 8 CTAs of a cluster, got 9"),
        ("tile_mnk=128x64x128 num_ab_stage=19", "smem_capacity", "SMEM per CTA"),
        (
            f"{COLUMNS} tile_mnk=64x100x128",
            "tile_columns",
            "a multiple of 8 from 32 to 256 (N of wgmma), got 100",
        ),
        (f"{COLUMNS} tile_mnk=64x264x128", "tile_columns", "from 32 to 256 (N of wgmma), got 264"),
        (
            f"{COLUMNS} tile_mnk=64x128x128 num_dequant_warpgroups=2 ctas_per_sm=2",
            "accumulators",
            "120 registers can hold 60",
        ),
        (f"{COLUMNS} tile_mnk=64x64x128 num_dequant_warpgroups=3", "accumulators", "2-2-1; got 1-3-1"),
        (
            f"{COLUMNS} tile_mnk=64x64x128 ctas_per_sm=2 num_dq_stage=2",
            "stages",
            "must be 0 (mma.sync), 3 or more",
        ),
    ],
)
def test_refused(text: str, rule: str, message: str) -> None:
    verdict = rejected(whole(text), PROBLEM)
    assert (verdict.rule, message in verdict.reason) == (rule, True), verdict


def test_few_rows_of_act_only() -> None:
    problem = GemmProblem.parse("65,3840,3072,128")
    verdict = rejected(whole("tile_mnk=32x8x128"), problem)
    assert verdict.rule == "tile_columns" and "M must be at most 64, got 65" in verdict.reason


def test_knobs_of_the_column_operand_take_one_value_where_act_is_it() -> None:
    spelled = "tile_mnk=32x8x128 register_operand=act num_dequant_warpgroups=2"
    assert legal(spelled).config == legal("tile_mnk=32x8x128").config
    assert legal("tile_mnk=32x8x128").config.swap_ab
    swapped = legal("tile_mnk=128x64x128 num_dequant_warpgroups=2").config
    assert swapped == legal("tile_mnk=128x64x128").config
    assert legal(f"{COLUMNS} tile_mnk=64x104x128 num_dequant_warpgroups=2").config.num_dequant_warpgroups == 2


def test_rows_of_act_bound_m_where_weights_are_columns() -> None:
    problem = GemmProblem.parse("513,3840,3072,128")
    verdict = rejected(f"{SMALL_M} {COLUMNS} tile_mnk=64x104x128", problem)
    assert verdict.rule == "tile_columns"
    assert "64 rows of act: M must be at most 512, got 513" in verdict.reason


def test_auto_takes_wgmma_from_32_columns_on() -> None:
    slots = [legal(f"tile_mnk=128x{columns}x128").config.num_dq_stage for columns in (8, 16, 32, 64)]
    assert slots == [0, 0, 3, 3]
    # 113 KB beside another CTA: five halves of 13 KB and three packed slots of 13.5 KB.
    halves = legal(f"{COLUMNS} tile_mnk=64x104x128 num_dequant_warpgroups=2 split_k=4 ctas_per_sm=2").config
    assert (halves.num_dq_stage, halves.num_ab_stage) == (5, 3)


@pytest.mark.parametrize(("groups", "dequant_groups", "ctas"), ROLE_REGISTERS)
def test_roles_share_the_registers_of_the_launch(groups: int, dequant_groups: int, ctas: int) -> None:
    """65536 registers of an SM, in eights per thread; ``setmaxnreg.dec`` must not grow, ``.inc`` must not shrink."""
    warpgroups = 1 + dequant_groups + groups
    at_launch = 65536 // (ctas * 128 * warpgroups) // 8 * 8
    loads, dequant, consumers = ROLE_REGISTERS[groups, dequant_groups, ctas]
    assert loads + dequant_groups * dequant + groups * consumers <= warpgroups * at_launch
    assert 24 <= loads <= at_launch and dequant <= at_launch <= consumers <= 256
    assert loads % 8 == dequant % 8 == consumers % 8 == 0


def test_bytes_of_one_slot_by_hand() -> None:
    """mma.sync, 8 warps: 4 pieces of weights, one of scales, one of act, 128 bytes of its scales."""
    each = {row.name: row.each for row in legal("tile_mnk=32x8x128").budget.smem.rows}
    assert each == {"operands": 8 * (4 * 512 + 512 + 512 + 128), "wcscale": 32 * 4, "bias": 32 * 4}


def test_bytes_of_wgmma_by_hand() -> None:
    """128 and 64 rows of 64 bytes, whole blocks of scale factors for two K blocks, two halves of 64 fp16 for wgmma."""
    each = {row.name: row.each for row in legal("tile_mnk=128x64x128 split_k=4").budget.smem.rows}
    assert (each["rows"], each["columns"]) == (128 * 64, 64 * 64)
    assert each["row scales"] == each["column scales"] == 2 * 512
    assert each["dequantized"] == 64 * 128 * 2
    assert each["rows_full"] == each["dq_empty"] == each["rings_free"] == 8
    assert "sums beyond the weights" not in each


def test_bytes_of_weights_as_columns_by_hand() -> None:
    """64 rows of act and 104 of weights, which touch two blocks; a slot holds half a unit beside another CTA, else one.

    3 other CTAs send up to 4 of 13 octets: 8 columns x 64 rows in fp32; the least ring has 3 slots of 104 x 64 bytes.
    """
    text = f"{COLUMNS} tile_mnk=64x104x128 num_dequant_warpgroups=2 split_k=4"
    each = {row.name: row.each for row in legal(f"{text} ctas_per_sm=2").budget.smem.rows}
    assert (each["rows"], each["columns"]) == (64 * 64, 104 * 64)
    assert (each["row scales"], each["column scales"]) == (2 * 512, 2 * 2 * 512)
    assert each["dequantized"] == 104 * 64 * 2
    assert each["sums beyond the weights"] == 3 * 4 * 8 * 64 * 4 - 3 * 104 * 64
    assert {row.name: row.each for row in legal(text).budget.smem.rows}["dequantized"] == 104 * 128 * 2


def test_what_the_least_weight_ring_cannot_hold_of_the_sums_follows_it() -> None:
    """7 other CTAs send one octet of 8 act rows x 256 weight rows in fp32 each; a slot holds 256 rows of 64 bytes."""
    rows = legal("tile_mnk=256x64x128 consumer_warpgroups=4 split_k=8").budget.smem.rows
    each = {row.name: row.each for row in rows}
    assert each["sums beyond the weights"] == 7 * 8 * 256 * 4 - 3 * 256 * 64
    names = [row.name for row in rows]
    assert names.index("sums beyond the weights") == names.index("rows") + 1


def test_needs_no_workspace_and_sums_every_part_of_k() -> None:
    config = legal("tile_mnk=64x16x128 split_k=3").config
    assert workspace_bytes(config, PROBLEM) == zeroed_bytes(config, PROBLEM) == 0
    assert config.partial_sums == 3 * 4  # 8 warps, 2 of them share rows
    assert legal("tile_mnk=128x64x128 split_k=2").config.partial_sums == 2


# ------------------------------------------------------------------ compiled


def captured(config: SmallMConfig, problem: GemmProblem) -> Launch:
    from kernel_space.operators.svdquant_gemm.signature import SIGNATURE

    artifacts = compiled(config, problem)
    runtime = CaptureRuntime(artifacts.ptx)
    with load_bytes(artifacts.object_code, artifacts.prefix, runtime, arguments=SIGNATURE.abi) as loaded:
        addresses = [FIRST_ADDRESS + ADDRESS_STEP * index for index in range(len(SIGNATURE.pointers))]
        loaded.call(*addresses, problem.m, problem.n, problem.k, SM_COUNT, 0)
    (launch,) = runtime.launches
    return launch


@pytest.mark.parametrize(
    ("text", "shape", "instruction", "grid"),
    [
        ("tile_mnk=32x8x128 use_pdl=true", "1,3840,3072,128", SYNC, (96, 1, 1)),
        (
            "tile_mnk=32x16x128 split_k=2 consumer_warpgroups=1 ctas_per_sm=2",
            "16,3840,3000,128",
            SYNC,
            (192, 1, 1),
        ),
        ("tile_mnk=64x64x128 consumer_warpgroups=1 split_k=2", "64,3840,3072,128", WGMMA, (96, 1, 1)),
        ("tile_mnk=128x64x128 split_k=4 ctas_per_sm=2 use_pdl=true", "70,3840,3072,0", WGMMA, (96, 2, 1)),
        (
            f"{COLUMNS} tile_mnk=64x104x128 num_dequant_warpgroups=2 split_k=4 ctas_per_sm=2",
            "70,3840,3072,128",
            WGMMA,
            (120, 2, 1),
        ),
        (
            "register_operand=act tile_mnk=128x104x128 num_dequant_warpgroups=2 split_k=4",
            "128,3840,3072,128",
            WGMMA,
            (120, 1, 1),
        ),
    ],
)
def test_launch(text: str, shape: str, instruction: str, grid: tuple[int, int, int]) -> None:
    """One launch of the size that rows and splits say, shared memory as the budget says, no spills; TMA with wgmma."""
    problem = GemmProblem.parse(shape)
    resolved = legal(text, problem)
    config = resolved.config
    artifacts, launch = compiled(config, problem), captured(config, problem)
    refuse_serialized(artifacts)
    assert (launch.grid, launch.cluster) == (grid, (config.split_k, 1, 1))
    uses_wgmma = instruction == WGMMA
    others = (1 + config.num_dequant_warpgroups) * uses_wgmma
    assert launch.block == (128 * (config.consumer_warpgroups + others), 1, 1)
    assert launch.smem_bytes == resolved.budget.smem_bytes
    assert bool(launch.attributes.get("programmatic_stream_serialization")) == config.use_pdl
    operands = 2 * (2 + (problem.r > 0))  # codes, scale factors and LoRA, of weights and of act
    assert len(launch.tensor_maps) == uses_wgmma * operands
    assert [name for name in (SYNC, WGMMA) if name in artifacts.ptx] == [instruction]
    assert "ld.local" not in artifacts.ptx and "st.local" not in artifacts.ptx


def test_weights_alone_are_read_before_the_previous_kernel_ends() -> None:
    """Up to ``griddepcontrol.wait`` no pointer of act, ascales, lora_act_in or y is dereferenced."""
    problem = GemmProblem.parse("1,3840,3072,128")
    text = compiled(legal("tile_mnk=32x8x128 use_pdl=true", problem).config, problem).ptx
    before, _, after = text.partition("griddepcontrol.wait")
    assert before.count("cp.async.cg.shared.global") == 4 + 1 + 1  # weights, their scales, wcscale and bias
    assert (
        "cp.async.ca" not in before and after.count("cp.async.ca") >= 1
    )  # 4-byte copies are those of ascales
    assert "griddepcontrol.launch_dependents" in after


def test_act_is_loaded_by_wgmma_warps_after_the_previous_kernel_ended() -> None:
    """Of the six TMA loads weights, their scale factors and lora_up come before ``griddepcontrol.wait``, once each."""
    text = compiled(legal("tile_mnk=128x64x128 split_k=4 ctas_per_sm=2 use_pdl=true").config, PROBLEM).ptx
    before, _, after = text.partition("griddepcontrol.wait")
    loaded = [
        re.search(r"\[%rd\d+, ", line) for line in before.splitlines() if "cp.async.bulk.tensor" in line
    ]
    assert len(loaded) == 3 and all(loaded)
    assert after.count("cp.async.bulk.tensor") >= 6  # act, and the refills of both rings
    prefetches = [part.count("cp.async.bulk.prefetch.tensor") for part in (before, after)]
    assert prefetches == [3, 0]  # L2 may have act early: it is read later
    assert "ld.global" not in before and "st.global" not in before


@pytest.mark.parametrize(("more", "columns"), [("ctas_per_sm=2", {40, 64}), ("", {104})])
def test_columns_of_a_wgmma_fit_the_registers_of_the_launch(more: str, columns: set[int]) -> None:
    """Four warpgroups: 64 registers of two CTAs hold the sums of 64 columns (and 30 more), 128 of one those of 104."""
    text = f"{COLUMNS} tile_mnk=64x104x128 num_dequant_warpgroups=2 split_k=4 {more}"
    found = re.findall(
        rf"{re.escape(WGMMA)}\.sync\.aligned\.m64n(\d+)k16", compiled(legal(text).config, PROBLEM).ptx
    )
    assert {int(n) for n in found} == columns
